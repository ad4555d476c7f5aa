"""One of every kind that the documents call open, from outside: registered here, each is run from a scenario by its
name; and what is no such thing is told in one line."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from helpers import documents, further_newcomers, newcomers, serving_newcomers
from helpers.engine import model_file, moe

import tspsim
from tspsim.answer import schema
from tspsim.base import catalog, dialect, registry
from tspsim.base.errors import InputError, TspsimError
from tspsim.base.registry import Registry
from tspsim.cli import main
from tspsim.model import load_model
from tspsim.model.spec import ModelSpec, describe
from tspsim.network import build_cluster
from tspsim.parallel import CONTEXT_METHODS, SCHEMES
from tspsim.parallel.balance import BALANCES, Balanced, ExpertBalance
from tspsim.parallel.pipeline import ORDERS, PipelineOrder
from tspsim.report.sections.section import PageSection
from tspsim.report.serving import page
from tspsim.report.serving.view import ServingView
from tspsim.serving.routers import ROUTERS
from tspsim.step.bound import bounds
from tspsim.studies import contract
from tspsim.traffic import ARRIVALS, LENGTHS, Arrivals, Lengths


def registries() -> dict[str, Registry[Any]]:
    """All of the package, by their groups."""
    names = [each.name for each in pkgutil.walk_packages(tspsim.__path__, "tspsim.")]
    # The studio needs packages of its own extra, and registers nothing.
    names = [name for name in names if not name.endswith("__main__") and not name.startswith("tspsim.studio")]
    modules = [importlib.import_module(name) for name in names]
    found = [each for module in modules for each in vars(module).values() if isinstance(each, Registry)]
    return {each.group: each for each in found}


@pytest.fixture(scope="module", autouse=True)
def strangers() -> Iterator[dict[str, Registry[Any]]]:
    """Register them, as a package's entry points would."""
    known = registries()
    added = [(known[group], thing) for group, things in further_newcomers.BROUGHT.items() for thing in things]
    for each, thing in added:
        each.register(thing)
    yield known
    for each, thing in added:
        each.remove(thing.name)


def test_there_is_one_of_every_kind_that_is_open(strangers: dict[str, Registry[Any]]) -> None:
    elsewhere = {"tspsim.schemes", "tspsim.context_methods", *serving_newcomers.ENTRY_POINTS}
    assert {*strangers} == {*further_newcomers.BROUGHT, *elsewhere}
    assert all(each.of is not None for each in strangers.values())
    assert contract.registries() == strangers, "check-plugin knows all of them"


def test_the_documents_name_every_group_of_entry_points(strangers: dict[str, Registry[Any]]) -> None:
    text = (documents.DOCS / "architecture.md").read_text(encoding="utf-8")
    assert [group for group in (*strangers, "tspsim.pricers") if group not in text] == []


def test_every_change_that_the_documents_count_is_made_by_a_test_that_is_there() -> None:
    text = (documents.DOCS / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", text)
    assert len(named) == 6
    missing = [name for path, name in named if f"def {name}(" not in (documents.DOCS.parent / path).read_text("utf-8")]
    assert missing == []


def asked(workload: dict[str, Any], *plans: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    return {
        "name": "new",
        "cluster": {"device": "h100", "nodes": 1, **cluster},
        "workload": workload,
        "plans": [{"name": f"P{index}", **plan} for index, plan in enumerate(plans)],
    }


def answers(question: dict[str, Any]) -> list[Any]:
    """Of plans that ran, none above its bound."""
    scenario = tspsim.load(question)
    plans = tspsim.simulate(scenario).plans
    for plan, bound in zip(plans, bounds(scenario).plans, strict=True):
        assert plan.ran and plan.tokens_per_s <= bound.tokens_per_s * (1 + 1e-9), plan.name
    return list(plans)


def test_plans_of_a_forward_name_them(tmp_path: Path) -> None:
    model = model_file(tmp_path, moe(1024, layers=4, count=16, topk=4, width=512))
    routing = {"load": "measured", "shares": [8.0, *[1.0] * 15]}
    plans = [
        {"tsp": 8, "weight_transport": "relay"},
        {"tp": 8, "residual": "mute"},
        {"ep": 8, "expert_dispatch": "flood"},
        {"ep": 8, "expert_balance": {"policy": "nearer", "strength": 0.25}},
        {"ep": 8, "expert_overlap": "veil"},
    ]
    found = answers(asked({"model": model, "pass": "rehearsal", "sequence": "4Ki", "routing": routing}, *plans))
    assert any("by relay" in note for note in found[0].notes) and "another model" in found[1].notes
    assert found[2].settings["expert_dispatch"] == "flood" and found[3].memory.parts["moved_experts"] > 0


def test_plans_of_a_training_step_name_them(tmp_path: Path) -> None:
    model = model_file(tmp_path, moe(1024, layers=4, count=16, topk=4, width=512))
    plans = [
        {"pp": 4, "schedule": "gpipe", "recomputation": {"what": "full", "method": "tail", "layers": 1}},
        {"tp": 8, "activation_store": "half"},
        {"tp": 8, "checkpoint": "lazy"},
        {"dp": 16, "routing": "striped"},
    ]
    work = {"model": model, "pass": "training", "sequence": "1Ki", "global_batch": 16}
    stated = {"interleaving": "zipped", "column_inputs": "carried", "mixed_precision": "loose", "eager": "scripts"}
    stated |= {"tensor_scales": "guessed"}
    stack = {"name": "zips", **{key: {"value": name, "source": "this test"} for key, name in stated.items()}}
    (tmp_path / "zips.yaml").write_text(yaml.safe_dump(stack))
    turns = [{"ep": 16, "expert_overlap": "micro_batches"}]
    zipped = {**work, "global_batch": 32, "stack": str(tmp_path / "zips.yaml")}
    assert answers(asked(zipped, *turns, nodes=2, fabric="fat-tree-400g"))[0].ran
    found = answers(asked(work, *plans, nodes=2, fabric="fat-tree-400g"))
    assert [plan.settings["schedule"] for plan in found[:2]] == ["gpipe", "1f1b"]
    lengths = {"kind": "uniform", "of": "4Ki", "from": 0.2}
    unequal = {**work, "sequence": "4Ki", "lengths": lengths}
    assert answers(asked(unequal, {"tp": 2, "deal": "root"}))[0].settings["deal"] == "root"


def test_a_feature_is_asked_where_a_plan_states_its_key() -> None:
    """What it checks, notes and keeps is there with the key; without it nobody meets its code."""
    work = {"model": "llama-3.1-8b", "pass": "decode", "batch": 8, "context": "1Ki"}
    further_newcomers.ASKED_ABOUT.clear()
    (plain,) = answers(asked(work, {"tp": 8}))
    assert further_newcomers.ASKED_ABOUT == [] and "notebooks" not in plain.memory.parts
    (noting,) = answers(asked(work, {"tp": 8, "notebooks": 2}))
    assert noting.memory.parts["notebooks"] == 1e6 and "2 ranks take notes" in noting.notes
    assert noting.settings["notebooks"] == 2 and noting.step_time_s == plain.step_time_s
    with pytest.raises(InputError, match="notebooks: 9 are more than the ranks of tp"):
        tspsim.simulate(asked(work, {"tp": 8, "notebooks": 9}))


def test_steps_of_an_engine_name_them(tmp_path: Path) -> None:
    model = tmp_path / "smoothed.yaml"
    model.write_text(
        "{name: smoothed, layers: 4, hidden: 1024, mlp: {width: 4096, gated: true}, source: made up, "
        "attention: {kind: smoothed, heads: 16, kv_heads: 8, head_dim: 64}, embedding: {vocab: 32000, tied: false}}"
    )
    work = {"model": str(model), "batch": 8, "context": "4Ki"}
    bush = {"tsp": 8, "decode_form": "bush", "decode_exchange": "shout"}
    tree, other, plain = answers(asked({**work, "pass": "decode"}, {"tsp": 8}, bush, {"tp": 8}))
    assert other.step_time_s == pytest.approx(tree.step_time_s) and other.settings["decode_form"] == "bush"
    rows = tspsim.simulate(asked({**work, "pass": "decode"}, {"tp": 8})).timeline("P0")
    assert rows["shape"].str.contains("8 tokens").any() and plain.ran


def smoothed(folder: Path, attention: str) -> Path:
    """A model file whose section attention says something besides its heads."""
    path = folder / "model.yaml"
    path.write_text(
        "{name: smoothed, layers: 4, hidden: 1024, mlp: {width: 4096, gated: true}, source: made up, attention: "
        f"{{kind: smoothed, heads: 16, kv_heads: 8, head_dim: 64{attention}}}, embedding: {{vocab: 32000}}}}"
    )
    return path


def test_a_kind_of_attention_has_a_fact_of_its_own(tmp_path: Path) -> None:
    """It comes from the model's file to the kind's operators, back into a description, and tells models apart."""
    usual, more = (load_model(smoothed(tmp_path, said)) for said in ("", ", state_bytes: 1e6"))
    assert usual != more and ModelSpec.model_validate(describe(more)).architecture() == more
    work = {"pass": "decode", "batch": 8, "context": "4Ki"}
    times = []
    for said in ("", ", state_bytes: 1e6"):
        question = asked({**work, "model": str(smoothed(tmp_path, said))}, {"tp": 8})
        times.append(answers(question)[0].step_time_s)
    # 2 x 8 tokens x 10^6 bytes in each of four layers, at less than the 3.35 TB/s of the data sheet
    assert times[1] - times[0] > 4 * 2 * 8 * (1e6 - 4096.0) / 3.35e12
    with pytest.raises(InputError, match=r"attention.*state_byte"):
        load_model(smoothed(tmp_path, ", state_byte: 3"))


@pytest.fixture
def five_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An H100 that multiplies five bits twice as fast as eight, in the node of the one there is."""
    folder = tmp_path / "topologies" / "devices"
    folder.mkdir(parents=True)
    stated = dialect.read_yaml(catalog.locate("devices", "h100"))
    stated["name"], stated["node"] = "h100-five", {"like": "hgx-h100-8"}
    stated["peak"]["fp5"] = {"value": "4000 TFLOP/s", "source": "made up"}
    (folder / "h100-five.yaml").write_text(yaml.safe_dump(stated))
    monkeypatch.setenv("TSPSIM_CATALOG", str(tmp_path))
    return "h100-five"


def test_a_type_of_numbers_is_weights_operands_caches_and_wires(tmp_path: Path, five_bits: str) -> None:
    serving = {"model": "llama-3.1-8b", "pass": "decode", "batch": 64, "context": "8Ki"}
    narrow = {**serving, "precision": {"weights": "fp5", "kv": "fp5"}}
    plain, eight, five = (
        answers(asked(work, {"tp": 8}, device=five_bits))[0]
        for work in (serving, {**serving, "precision": {"weights": "fp8", "kv": "fp8"}}, narrow)
    )
    parts = plain.memory.parts, five.memory.parts
    assert parts[1]["kv_cache"] / parts[0]["kv_cache"] == pytest.approx(0.65625 / 2.0)
    assert five.step_time_s < eight.step_time_s < plain.step_time_s
    training = {"model": "tsp-8b", "pass": "training", "sequence": "4Ki", "global_batch": 8}
    slow, fast = (
        answers(asked({**training, "precision": each}, {"tp": 8}, device=five_bits))[0] for each in ("fp8", "fp5")
    )
    assert fast.step_time_s < slow.step_time_s
    shards = [{"dp": 8, "zero": 3, "weight_wire": wire} for wire in ("int8", "fp5")]
    steps = tspsim.simulate(asked({**training, "sequence": "1Ki"}, *shards, device=five_bits))
    tables = [steps.timeline(name) for name in ("P0", "P1")]
    gathered = [rows[rows["name"] == "gather layer weights"]["bytes"].sum() for rows in tables]
    assert gathered[1] / gathered[0] == pytest.approx(0.625)
    with pytest.raises(InputError, match=r"workload.precision.kv: .*'fp5'.*"):
        tspsim.load(asked({**serving, "precision": {"kv": "fp55"}}, {"tp": 8}))
    assert "'fp5'" in str(schema.schema("scenario")) and "'fp5'" in str(schema.schema("model"))


def test_a_node_takes_its_device_as_an_argument(five_bits: str) -> None:
    """A GPU in the node of another: same links; not in one of another vendor, whose links are none of its own."""
    work = {"model": "tsp-8b", "pass": "forward", "sequence": "8Ki"}
    own = build_cluster(node="hgx-h100-8")
    for device in ("h200", five_bits):
        lent = build_cluster(device, node="hgx-h100-8")
        assert lent.node.device == device and lent.node.link == own.node.link
        assert lent.node.like == own.node.name and lent.node.announced
        assert answers(asked(work, {"tp": 8}, device=device, node="hgx-h100-8"))[0].ran
    with pytest.raises(
        InputError, match="'mi300x-8' has mi300x GPUs, not h100, which is of another vendor; a GPU of amd"
    ):
        build_cluster("h100", node="mi300x-8")


def test_a_chapter_of_a_serving_page_is_a_function_and_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(view: ServingView) -> dict[str, Any]:
        return {"figures": {}, "plans": len(view.served)}

    own = PageSection("mine", "What I count", counted, "<p>{{ plans }} plan that serves</p>", short="Mine")
    monkeypatch.setattr(page, "CHAPTERS", (*page.CHAPTERS, own))
    traffic = {"arrivals": {"kind": "poisson", "rate": 9}, "prompt": 100, "output": 4, "requests": 5}
    serves = asked({"model": "llama-3.1-8b", "stack": "vllm"}, {"tp": 8}) | {"traffic": traffic}
    text = page.render(tspsim.simulate(serves), plotly_js="plotly.js")
    assert "What I count" in text and "1 plan that serves" in text


def test_a_drafter_may_have_several_layers(tmp_path: Path) -> None:
    """Each drafted token goes through all of them; their weights and caches are in memory."""
    work = {"model": "llama-3.1-8b", "pass": "verify", "batch": 8, "context": "4Ki"}
    one, two = (
        answers(asked({**work, "speculation": {"draft": draft, "tokens": 2}}, {"tp": 8}))[0]
        for draft in ("eagle", "oracle")
    )
    assert two.step_time_s > one.step_time_s
    assert two.memory.parts["weights"] > one.memory.parts["weights"]
    assert two.memory.parts["kv_cache"] / one.memory.parts["kv_cache"] == pytest.approx(34 / 33, rel=0.01)


@pytest.fixture
def chained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSPSIM_CATALOG", str(tmp_path))
    node, fabric = ("nodes", "torus-4x4", "intra: {torus: [4, 4]}"), ("fabrics", "fat-tree-400g", "kind: fat_tree")
    for folder, name, old in (node, fabric):
        text = catalog.locate(folder, name).read_text(encoding="utf-8")
        (tmp_path / "topologies" / folder).mkdir(parents=True)
        for own, stated in (("chained", "chain"), ("misspelt", "chian")):
            new = text.replace(f"name: {name}", f"name: {own}").replace(old, f"{old.partition(':')[0]}: {stated}")
            (tmp_path / "topologies" / folder / f"{own}.yaml").write_text(new, encoding="utf-8")


@pytest.mark.usefixtures("chained")
def test_a_topology_is_a_node_or_a_fabric_by_its_name_alone() -> None:
    node = build_cluster(node="chained")
    assert len(node.route(0, 15)) == 15
    links = build_cluster("h100", 3, "chained").links.ids
    assert ("node0/router", "node1/router") in links and ("node0/router", "node2/router") not in links
    for asks, key in (({"node": "misspelt"}, "intra"), ({"device": "h100", "nodes": 2, "fabric": "misspelt"}, "kind")):
        with pytest.raises(InputError, match=rf"{key}: unknown topology 'chian' \(did you mean 'chain'\?\)"):
            build_cluster(**asks)
    for kind, key in (("node", "intra"), ("fabric", "kind")):
        text = str(schema.schema(kind))
        assert "'chain'" in text and "every GPU to the next" in text, key


# --- what is no such thing -----------------------------------------------------------------------------------------


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> Registry[Any]:
    """A registry of routers whose package is a module in memory."""
    module = ModuleType("brings")
    module.named = SimpleNamespace(name="named")  # type: ignore[attr-defined]
    module.whole = ROUTERS.get("round_robin")  # type: ignore[attr-defined]
    module.sort = type(module.whole)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "brings", module)
    return Registry("router", "tspsim.routers", ROUTERS.of)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("nowhere:thing", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("brings:absent", "cannot be loaded: AttributeError"),
        ("brings:named", "is refused: what is registered as router has no summary, open"),
        ("brings:sort", "is refused: what is registered as router is a class where an object of it is wanted"),
        ("brings:whole", "is refused: router 'round_robin' is registered twice"),
    ],
)
def test_an_entry_point_of_no_use_is_one_line_that_says_whose_it_is(
    brought: Registry[Any], value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought.register(SimpleNamespace(name="round_robin", summary="", open=None))
    monkeypatch.setattr(registry, "installed", lambda group: (EntryPoint("mine", value, group),))
    for _ in range(2):  # and it does not go on without it when it is asked again
        with pytest.raises(InputError) as error:
            brought.names()
        assert str(error.value).startswith(f"an installed package: tspsim.routers: {value} {says}")
        assert str(error.value).endswith("repair or uninstall the package") and "\n" not in str(error.value)


def test_a_scheme_s_axes_and_a_method_s_options_are_no_keys_of_every_plan() -> None:
    whole = newcomers.WHOLE
    with pytest.raises(ValueError, match="scheme 'whole': 'zero' is a key of every plan"):
        whole.__class__(**{**vars(whole), "axes": ("zero",), "token_axis": "zero"})
    with pytest.raises(ValueError, match="token_axis 'wp'"):
        whole.__class__(**{**vars(whole), "axes": ("other",)})
    with pytest.raises(ValueError, match="axis 'tp' of scheme 'mine' is one of scheme 'tensor' already"):
        SCHEMES.register(whole.__class__(**{**vars(whole), "name": "mine", "axes": ("tp",), "token_axis": "tp"}))
    announce, parts = newcomers.ANNOUNCE, newcomers.ANNOUNCE.options[0]
    taken = parts.__class__("schedule", int, 1)
    with pytest.raises(ValueError, match="exchange 'announce': 'schedule' is a key of every plan"):
        announce.__class__(**{**vars(announce), "options": (taken,)})
    with pytest.raises(TypeError, match="registered as scheme is no Scheme but a ContextMethod"):
        SCHEMES.register(announce)  # type: ignore[arg-type]


class Backwards(Arrivals):
    """The last comes first."""

    name = "backwards"

    def times(self, random: np.random.Generator, count: int) -> Any:
        return np.arange(count)[::-1]

    def in_words(self) -> str:
        return "backwards"


class Halves(Lengths):
    """Half a token."""

    name = "halves"

    def draw(self, random: np.random.Generator, count: int, column: str) -> Any:
        return np.full(count, 0.5)

    def in_words(self) -> str:
        return "half a token"


@pytest.mark.parametrize(
    ("where", "thing", "keys", "says"),
    [
        (BALANCES, ExpertBalance("loses", lambda visits: Balanced((0.1,) * visits.ranks)), {}, "loses work: of 8"),
        (BALANCES, ExpertBalance("loses", lambda visits: Balanced((8.0,))), {}, "a load of each of 8 ranks"),
        (BALANCES, ExpertBalance("loses", lambda visits: [1.0] * visits.ranks), {}, "has to give a Balanced"),  # type: ignore[arg-type,return-value]
        (ORDERS, PipelineOrder("loses", lambda *_: []), {}, "gives stage 0 of 4 0 tasks, not each of the 32"),
        (ARRIVALS, Backwards, {"arrivals": {"kind": "backwards"}}, "has to give 5 times, ascending from 0"),
        (LENGTHS, Halves, {"prompt": {"kind": "halves"}}, "has to give 5 whole numbers from 1 on"),
    ],
)
def test_what_would_pass_for_an_answer_is_refused(
    tmp_path: Path, where: Registry[Any], thing: Any, keys: dict[str, Any], says: str
) -> None:
    model = model_file(tmp_path, moe(1024, layers=4, count=16, topk=4, width=512))
    if keys:
        serves = asked({"model": "llama-3.1-8b", "stack": "vllm"}, {"tp": 8})
        traffic = {"arrivals": {"kind": "poisson", "rate": 9}, "prompt": 100, "output": 4, "requests": 5}
        question = serves | {"traffic": traffic | keys}
    elif where is ORDERS:
        work = {"model": model, "pass": "training", "sequence": "1Ki", "sequences_per_replica": 16}
        question = asked(work, {"pp": 4, "tp": 2, "schedule": "loses"})
    else:
        work = {"model": model, "pass": "forward", "sequence": "1Ki"}
        question = asked(work, {"ep": 8, "expert_balance": "loses"})
    where.register(thing)
    try:
        with pytest.raises(TspsimError, match=says):
            tspsim.simulate(question)
    finally:
        where.remove(thing.name)


def test_a_bug_of_a_package_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "brings.py").write_text("def check(job):\n    return 1 // 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_brought", [EntryPoint("broken", "brings:check", "tspsim.context_methods")])
    check = importlib.import_module("brings").check
    method = CONTEXT_METHODS.register(newcomers.ANNOUNCE.__class__(**{**vars(newcomers.ANNOUNCE), "check": check}))
    try:
        question = tmp_path / "new.yaml"
        question.write_text(
            "{name: new, cluster: mi300x-8, workload: {model: tsp-8b, pass: forward, sequence: 8Ki}, "
            "plans: [{name: P, sp: 8, exchange: announce}]}"
        )
        assert main(["run", str(question), "--json", "-"]) == 1
    finally:
        CONTEXT_METHODS.remove(method.name)
    told = capsys.readouterr().err
    assert told.startswith("tspsim: bug in an installed package, brings line 2: ZeroDivisionError")
    assert told.count("\n") == 1


def test_a_reader_and_a_rule_of_ones_own_read_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cards = tmp_path / "cards"
    cards.write_text("# punched\nweave_wide 30\nampere_gemm 10\nanother 2\n")
    assert main(["trace", "read", str(cards)]) == 0
    said = capsys.readouterr().out
    assert "format: punched" in said and "gemm" in said and "40.0 us" in said
    assert "names of kernels with 4.8% of the kernel time" in said


def test_a_log_of_somebody_else_s_form_is_told_by_its_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("diary 10 8 60\ndiary 20 4 30\n", encoding="utf-8")
    jobs = [{"name": "log", "file": str(tmp_path / "log")}]
    machine = {"device": "h100", "nodes": 2, "fabric": "rails-400g"}
    found = tspsim.simulate({"name": "new", "cluster": machine, "jobs": jobs}).to_json()["fleet"]
    assert [(job["start_s"], job["end_s"], job["gpus"]) for job in found["jobs"]] == [(0.0, 60.0, 8), (10.0, 40.0, 4)]


def test_replicas_follow_a_rule_of_somebody_else() -> None:
    traffic = {"arrivals": {"kind": "poisson", "rate": 4}, "prompt": 200, "output": 5, "requests": 20}
    job = {
        "name": "chat", "workload": {"model": "llama-3.1-8b", "stack": "vllm"}, "traffic": traffic, "plan": {"tp": 2},
        "gpus": 2, "hours": "2 h", "replicas": {"max": 8, "autoscaler": {"kind": "timid"}, "start": "0 s"},
    }  # fmt: skip
    machine = {"device": "h100", "nodes": 1}
    (found,) = tspsim.simulate({"name": "new", "cluster": machine, "jobs": [job]}).to_json()["fleet"]["services"]
    assert found["mean_replicas"] == found["most_replicas"] == 3


def test_a_fleet_is_run_by_a_scheduler_a_placement_and_durations_of_somebody_else() -> None:
    jobs = {"name": "job", "nodes": 2, "arrivals": {"kind": "at_once"}, "count": 3, "hours": {"kind": "ordered"}}
    machine = {"device": "h100", "nodes": 3, "fabric": "rails-400g"}
    found = tspsim.simulate(
        {"name": "new", "cluster": machine, "jobs": [jobs], "scheduler": "shortest_first", "placement": "from_the_end"}
    ).to_json()["fleet"]
    assert [job["start_s"] for job in found["jobs"]] == [0.0, 3600.0, 3 * 3600.0]
    for group, name in (("job_schedulers", "shortest_first"), ("placements", "from_the_end"), ("durations", "ordered")):
        checked = contract.check(f"{group}/{name}")
        assert checked.held > 4 and checked.broken == ()
