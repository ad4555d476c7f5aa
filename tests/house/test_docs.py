"""The documentation is true: links resolve, commands and code run, tables say what the package says now."""

from __future__ import annotations

import doctest
import re
import tomllib
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType

import pytest
from helpers import documents
from helpers.draws import in_turn

import tspsim
from tspsim import cli
from tspsim.base.dialect import parse_yaml
from tspsim.base.explain import section_keys
from tspsim.model import load_model
from tspsim.network import load_cluster
from tspsim.parallel import Optimizer
from tspsim.scenario import ClusterInline, PlanSpec, Prices, RankPlacement, Scenario, Workload
from tspsim.step.result import PlanResult

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "reports" / "README.md", *DOCS.glob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?")

#: Pages whose scenarios or examples take a second and more together: a third of them in each run.
LONG_PAGES = ("docs/planner.md", "docs/first-hour.md", "docs/sweeps.md")
LONG_SCENARIOS = ("docs/fleet.md", "docs/queues.md", "docs/mi355x-vs-b200.md")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def some_in_turn(long: tuple[str, ...]) -> list[object]:
    """All pages, every other one in a run; of those that take long one."""
    return [
        *in_turn(page for page in PAGES if name_of(page) not in long),
        *in_turn((ROOT / name for name in long), len(long)),
    ]


def code(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCED.findall(page.read_text(encoding="utf-8")) if kind == language]


def anchors_of(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them, and those left behind for sections that moved."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    moved = re.findall(r'<a id="([\w-]+)"></a>', text)
    return {*moved, *(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_resolves(page: Path) -> None:
    for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor in anchors_of(file), f"{name_of(page)} links to {target}"


def test_every_page_can_be_reached_from_the_index() -> None:
    linked = {target.partition("#")[0] for target in LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))}
    assert {page.name for page in DOCS.glob("*.md")} - linked == {"index.md"}


def test_the_rooms_of_the_architecture_are_those_of_the_contract() -> None:
    """Every module or room of the import contract in the table, each on a floor not below one that it may import."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    layers = next(each["layers"] for each in tools["importlinter"]["contracts"] if each["id"] == "floors")
    table = re.findall(r"^\| (\d) \| (.+?) \|", (DOCS / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE)
    floors = {name.strip("`/"): int(floor) for floor, names in table for name in names.split(", ")}
    allowed = [[name.strip() for name in re.split("[:|]", layer)] for layer in layers]
    assert sorted(floors) == sorted(name for layer in allowed for name in layer)
    heights = [[floors[name] for name in layer] for layer in allowed]
    assert all(min(above) >= max(below) for above, below in pairwise(heights))


def test_the_two_commands_of_the_readme_are_exact() -> None:
    commands = [line for text in code(ROOT / "README.md", "shell") for line in text.splitlines()]
    assert commands[0] == "pip install . && tspsim run tsp-vs-tpsp-1024-mi300x"
    assert commands[1] == "pip install '.[test]' && pytest"


def test_the_readme_s_first_scenario_runs_in_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = code(ROOT / "README.md", "yaml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.yaml").write_text(text, encoding="utf-8")
    commands = [line.split() for shell in code(ROOT / "README.md", "shell") for line in shell.splitlines()]
    mine = [words[1:] for words in commands if words[:3] == ["tspsim", "run", "first.yaml"]]
    assert len(mine) == 2
    for arguments in mine:
        assert cli.main(arguments) == 0, capsys.readouterr().err
        assert (tmp_path / "reports" / "first.html").is_file()


@pytest.mark.parametrize("page", some_in_turn(LONG_SCENARIOS), ids=name_of)
def test_scenarios_and_entries_in_the_text_are_valid(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in code(page, "yaml"):
        entry = parse_yaml(text)
        if entry.get("plans") == "best":
            assert tspsim.load(entry).offers  # searched for by the page's own test
            continue
        if "jobs" in entry:
            for job in entry["jobs"]:
                if "traffic" in job:
                    job["traffic"]["requests"] = 16
            assert all(job["state"] == "done" for job in tspsim.simulate(entry).to_json()["fleet"]["jobs"])
            continue
        if "plans" in entry:
            if "traffic" in entry:  # that it runs; what all requests at every load take, its own test says
                arrivals = entry["traffic"]["arrivals"]
                arrivals |= {key: loads[:1] for key, loads in arrivals.items() if isinstance(loads, list)}
                entry["traffic"]["requests"] = 16
            assert all(plan.ran for plan in tspsim.simulate(entry).plans)
            continue
        file = tmp_path / f"{entry['name']}.yaml"
        file.write_text(text, encoding="utf-8")
        if "layers" in entry:
            assert load_model(str(file)).parameters > 0
        else:
            assert load_cluster(str(file)).gpus == 8 * entry["nodes"]


@pytest.mark.parametrize("page", some_in_turn(LONG_PAGES), ids=name_of)
def test_python_in_the_text_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples, scripts = [], []
    for text in code(page, "python"):
        (examples if text.startswith(">>>") else scripts).append(text)
    for script in scripts:
        exec(compile(script, name_of(page), "exec"), {})
    test = doctest.DocTestParser().get_doctest("\n".join(examples), {}, name_of(page), str(page), 0)
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
    assert result.failed == 0


@pytest.mark.parametrize("section", [Scenario, ClusterInline, Workload, Optimizer, PlanSpec, RankPlacement, Prices])
def test_every_key_of_a_scenario_is_described(section: type) -> None:
    text = (DOCS / "scenarios.md").read_text(encoding="utf-8")
    for key in section_keys(section):
        assert re.search(rf"[`.{{ ]{key}[`:}}.]", text), f"{section.__name__}.{key}"


# --- tables -------------------------------------------------------------------------------------------------


def generator() -> ModuleType:
    return documents.script("generate")


GENERATE = generator()


def close(committed: str, now: str, is_percent: bool) -> bool:
    """Within 1 %, or one unit of the last digit that is printed; shares within a hundredth."""
    old, new = (float(text.replace(",", "").replace("−", "-")) for text in (committed, now))
    digit = 10.0 ** -len(committed.partition(".")[2])
    return abs(new - old) <= max(0.01 * abs(old), digit, 1.0 if is_percent else 0.0) * (1 + 1e-9)


def differences(committed: str, now: str) -> list[str]:
    """Lines of two tables that differ by more than rounding and 1 %."""
    old, new = committed.splitlines(), now.splitlines()
    if len(old) != len(new):
        return [f"{len(old)} lines stand there, {len(new)} are right"]
    wrong = []
    for before, after in zip(old, new, strict=True):
        numbers, right = list(NUMBER.finditer(before)), list(NUMBER.finditer(after))
        same = NUMBER.sub("#", before) == NUMBER.sub("#", after) and all(
            close(a[0], b[0], before[a.end() :].startswith(" %")) for a, b in zip(numbers, right, strict=True)
        )
        if not same:
            wrong.append(f"stands: {before}\nis:     {after}")
    return wrong


#: Pages whose tables take more than ten seconds: only with -m slow.
LONG = {"published-tsp.md"}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page in LONG else page for page in GENERATE.TABLES],
)
def test_committed_tables_say_what_the_package_says_now(page: str) -> None:
    """All tables of a page in one process: they share simulations."""
    wrong = []
    for name, table in GENERATE.TABLES[page].items():
        found = GENERATE.pages.block(name).findall((DOCS / page).read_text(encoding="utf-8"))
        assert len(found) == 1, name
        wrong += [f"{name}: {line}" for line in differences(found[0].rstrip("\n"), table())]
    assert not wrong, "run python docs/generate.py\n" + "\n".join(wrong)


def test_tables_are_compared_by_their_numbers() -> None:
    assert not differences("| TSP8 | 8.12 M | −7.4 % |", "| TSP8 | 8.19 M | −6.6 % |")
    assert differences("| TSP8 | 8.12 M | −7.4 % |", "| TSP8 | 8.32 M | −7.4 % |")
    assert differences("| TSP8 | 8.12 M |", "| TP8 | 8.12 M |")
    assert differences("| TSP8 | 8.12 M |", "| TSP8 | 8.12 M |\n| TP8 | 1 |")
    assert differences("| 5.0 % |", "| −5.0 % |")


# --- what the prose says ------------------------------------------------------------------------------------


def plan(model: str, pass_: str, **settings: object) -> tuple[PlanResult, dict[str, float]]:
    """A plan on eight GPUs, and elements a rank receives a layer by part of the layer, forward and backward."""
    question = {
        "name": "volumes",
        "cluster": "mi300x-8",
        "workload": {"model": model, "pass": pass_, "sequence": "16Ki"},
        "plans": [{"name": "p", **settings}],
    }
    result = tspsim.simulate(question)
    frame = result.timeline("p")
    sizes = {cls.representative: cls.size for cls in result.plans[0].classes}
    rows = frame[(frame.layer == 1) & ~frame.stream.isin(["compute", "gradients"])]
    weighted = rows.bytes * rows["rank"].map(sizes) / (sum(sizes.values()) * 2.0)
    return result.plans[0], weighted.groupby(rows.part).sum().to_dict()


SHAPES = {"tsp-8b": (4096, 4096, 1, 16384), "llama-3.1-8b": (4096, 4096, 4, 14336)}
EXCHANGES = ("all_gather", "ring", "ulysses")
TOKENS = 16384
#: How a folded plan cuts its layers, which changes no volume; left open, it is searched for.
CUT = {"head_groups": 8, "mlp_pieces": 1, "overlap_by": "heads"}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize(
    ("tensor", "sequence", "exchange"),
    [
        (8, 1, "all_gather"),
        *product((4,), (2,), EXCHANGES),
        *product((2,), (4,), EXCHANGES),
        *product((1,), (8,), EXCHANGES),
    ],
)
def test_volumes_of_tensor_and_sequence_parallelism(model: str, tensor: int, sequence: int, exchange: str) -> None:
    h, a, g, _ = SHAPES[model]
    _, moved = plan(model, "forward", tp=tensor, sp=sequence, exchange=exchange)
    reduced = 2 * (tensor - 1) / tensor * TOKENS * h / sequence
    away = (sequence - 1) / sequence
    exchanged = 2 * TOKENS * a / (g * tensor) * away
    if exchange == "ulysses":
        exchanged = (2 + 2 / g) * TOKENS * a / (sequence * tensor) * away
    assert moved.get("attention", 0.0) == pytest.approx(reduced + exchanged, rel=1e-12)
    assert moved.get("mlp", 0.0) == pytest.approx(reduced, rel=1e-12)


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("regions", [False, True])
def test_sequence_regions_move_the_same_bytes(model: str, regions: bool) -> None:
    h = SHAPES[model][0]
    _, moved = plan(model, "forward", tp=8, sequence_regions=regions)
    assert moved["attention"] == moved["mlp"] == 2 * 7 / 8 * TOKENS * h


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("model", "overlap"), [("tsp-8b", False), ("llama-3.1-8b", True)])
def test_training_volumes_of_tsp(model: str, overlap: bool) -> None:
    h, a, g, f = SHAPES[model]
    weights, context, mlp, away = (2 + 2 / g) * h * a, 2 * TOKENS * a / g, 3 * h * f, 7 / 8
    settings = {"tsp": 8, "overlap": overlap, "recomputation": "full"}
    # As published the weights travel again, and their gradients D hops; what stays is not brought again, and gathered
    # pieces' gradients are reduced to their owners.
    for schedule, backward in (
        ({"tsp_schedule": "published"}, mlp * away + mlp),
        ({**CUT, "weight_transport": "multi_ring"}, mlp),
        ({**CUT, "weight_transport": "gather"}, mlp * away),
    ):
        _, moved = plan(model, "training", **settings, **schedule)
        assert moved["attention"] == moved["attention again"] == (weights + context) * away
        assert moved["mlp"] == moved["mlp again"] == mlp * away
        assert moved["attention backward"] == (weights + context) * away
        assert moved["mlp backward"] == backward


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("schedule", "home"),
    [
        ({"tsp_schedule": "published"}, 1.0),
        ({**CUT, "weight_transport": "multi_ring"}, 1.0),
        ({**CUT, "weight_transport": "gather"}, 7 / 8),
    ],
    ids=["published", "multi_ring", "gather"],
)
def test_without_recomputation_no_transport_keeps_the_mlp_s_weights(schedule: dict[str, object], home: float) -> None:
    h, _, _, f = SHAPES["llama-3.1-8b"]
    _, moved = plan("llama-3.1-8b", "training", tsp=8, recomputation="none", **schedule)
    assert moved["mlp backward"] == 3 * h * f * (7 / 8 + home)


def test_without_recomputation_tsp_s_attention_broadcasts_and_gathers_again_in_the_backward() -> None:
    h, a, g, _ = SHAPES["tsp-8b"]
    weights, context, away = (2 + 2 / g) * h * a, 2 * TOKENS * a / g, 7 / 8
    _, moved = plan("tsp-8b", "training", tsp=8, overlap=False, recomputation="none")
    assert set(moved) == {"attention", "mlp", "attention backward", "mlp backward"}
    assert moved["attention backward"] == 2 * (weights + context) * away


def test_training_volumes_of_tp() -> None:
    h = SHAPES["tsp-8b"][0]
    one = 2 * 7 / 8 * TOKENS * h
    for recomputation, reductions in (("none", 4), ("full", 6)):
        _, moved = plan("tsp-8b", "training", tp=8, recomputation=recomputation)
        assert sum(moved.values()) == reductions * one


def test_the_report_s_picture_is_small() -> None:
    assert (DOCS / "images" / "report.png").stat().st_size < 400_000
