"""The studio's question: text that follows a form, links, commands, numbers that slide; its form from the schema."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from helpers.keys import walked
from helpers.texts import texts
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.api import load_text, schema
from tspsim.base.dialect import parse_yaml
from tspsim.cli.templates import text_of
from tspsim.studio import kept, link, numbers, values
from tspsim.studio.fields import Form

FIRST = text_of("first")
SORTS = ("scenario", "fleet")


@pytest.fixture(scope="module")
def form() -> Form:
    return Form(schema("scenario"))


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "stays"),
    [
        ("workload/sequence", "64Ki", 15),
        ("workload/batch", 4, 16),
        ("plans/1/sp", 4, 15),
        ("plans/3", {"name": "X", "tp": 8}, 16),
        ("plans/0", values.GONE, 15),
        ("prices/gpu_hour", "2 USD/h", 16),
        ("cluster/nodes", values.GONE, 15),
    ],
)
def test_an_edit_changes_its_own_line_and_keeps_every_comment(path: str, value: Any, stays: int) -> None:
    edited = values.edited(FIRST, values.parts(path), value)
    before, after = FIRST.splitlines(), edited.splitlines()
    assert sum(line in after for line in before) >= len(before) - 1
    assert parse_yaml(edited) == values.put(parse_yaml(FIRST), values.parts(path), value)


NAMES = st.sampled_from(["a", "b", "name", "0x", "yes", "x.y", "a/b"])
SCALARS = st.one_of(
    st.integers(-9, 9), st.booleans(), st.sampled_from(["32Ki", "1e3", "yes", "#", "a: b", "400 Gb/s", ""])
)
TREES = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(NAMES, each, max_size=3), max_leaves=8
)


@settings(max_examples=60)
@given(st.dictionaries(NAMES, TREES, min_size=1, max_size=3), st.booleans(), NAMES, SCALARS | st.just(values.GONE))
def test_an_edited_text_says_what_was_meant(data: dict[str, Any], flow: bool, key: str, value: Any) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow, sort_keys=False)
    try:
        if parse_yaml(text) != data:
            return  # written by another dialect of YAML
    except tspsim.errors.InputError:
        return
    first = next(iter(data))
    for of in ([key], [first, key] if isinstance(data[first], dict) else [key]):
        assert parse_yaml(values.edited(text, of, value)) == values.put(data, of, value)


def test_the_line_of_what_is_wrong_is_found() -> None:
    place = values.place_of(FIRST, "plans.TP4-SP2.exchange")
    assert place is not None and FIRST.splitlines()[place[0] - 1].lstrip().startswith("- {name: TP4-SP2")
    assert place[1] == ["plans", "1", "exchange"]
    assert values.line_in("is not valid YAML: x (line 7, column 3)") == 7
    assert values.place_of("a: [", "a") is None


@given(texts(200), texts(20), texts(20))
def test_a_link_holds_the_question(text: str, file: str, at: str) -> None:
    if not text.isprintable() or not file.strip() or file != file.strip():
        return
    state = link.State(text, file, at)
    assert link.read(link.fragment(state)) == state


def test_what_is_no_link_opens_nothing() -> None:
    bomb = link.fragment(link.State("x" * 900_000)) + "A" * 40
    assert [link.read(each) for each in ("", "#", "#q=%%%", "#q=AAAA", None)] == [None] * 5
    assert link.read(bomb) is None or len(link.read(bomb).text) <= 2**20  # type: ignore[union-attr]
    assert link.fragment(link.State("".join(map(chr, range(33, 40_000))))) == ""


def test_a_question_as_a_line_of_the_command_asks_the_same() -> None:
    base = parse_yaml(FIRST)
    now = values.put(values.put(base, ["workload", "sequence"], "64Ki"), ["plans", "1", "exchange"], "ulysses")
    told = kept.overrides(base, now)
    assert told == ["workload.sequence=64Ki", "plans.TP4-SP2.exchange=ulysses"]
    again = tspsim.load(base, told)
    assert again.to_dict() == tspsim.load(now).to_dict()
    assert kept.line("first.yaml", base, now).startswith("tspsim run first.yaml --set workload.sequence=64Ki")
    assert kept.overrides(now, values.put(now, ["workload", "sequence"], values.GONE)) is None


def test_text_is_checked_as_the_command_checks_a_file() -> None:
    with pytest.raises(tspsim.errors.InputError, match=r"mine.yaml: workload.pass: 'forwards' is not allowed"):
        load_text(FIRST.replace("pass: forward", "pass: forwards"), "mine.yaml")
    with pytest.raises(tspsim.errors.InputError, match="larger than 1 MiB"):
        load_text("#" * (2**20 + 1), "mine.yaml")
    assert load_text(FIRST, "first.yaml").to_dict() == tspsim.load(parse_yaml(FIRST)).to_dict()


def test_numbers_that_may_slide_are_those_of_the_question(form: Form) -> None:
    found = numbers.sliding(form, parse_yaml(FIRST + "\nproject: {tokens: 1T}\n"))
    stated = {title for title, each in found.items() if each.now}
    assert {"workload.sequence", "cluster.nodes", "plans.TP8.tp", "project.tokens"} <= stated and "name" not in found
    assert {"prices.gpu_hour", "cluster.nic_bandwidth", "project.failures.node_mtbf"} <= set(found) - stated
    assert found["workload.sequence"].points() == numbers.points("32Ki")
    for each in found.values():
        assert each.now in each.points() and len(each.points()) > 1
    mtbf = found["project.failures.node_mtbf"]
    assert mtbf.shown("") == "263.943 days (default)" and mtbf.points().index("") == 4
    assert mtbf.over("30 days, 90 days") == ["", "30 days", "90 days"]
    served = {"arrivals": {"kind": "poisson", "rate": "4 requests/s"}}
    rate = numbers.sliding(form, {"traffic": served})["traffic.arrivals.rate"]
    assert rate.points() == [f"{n} requests/s" for n in (1, 2, 3, 4, 6, 8, 16, 32)]


# --- the form ---------------------------------------------------------------------------------------------------------


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("sort", SORTS)
def test_every_key_of_the_schema_is_reached(sort: str) -> None:
    """The walk is the schema's own; nothing is listed here."""
    whole = schema(sort)
    form, missing, silent, seen = Form(whole), [], [], 0
    for path, name, data in walked(whole):
        seen += 1
        level = form.level(data, values.path(path))
        field = next((each for each in level.fields if each.key == name), None)
        if level.path != values.path(path) or field is None:
            missing.append((path, name))
        elif not field.doc:
            silent.append((path, name))
    assert seen > 500 and not missing, missing[:20]
    assert not silent, silent[:20]


def test_what_may_be_chosen_is_what_the_checker_takes(form: Form) -> None:
    fields = {each.path: each for each in form.level(parse_yaml(FIRST), "workload").fields}
    assert "training" in fields["workload/pass"].choices and fields["workload/model"].catalogs == ("models",)
    assert fields["workload/sequence"].default == "1" and fields["workload/sequence"].number
    assert fields["workload/causal"].choices == ("true", "false") and fields["workload/causal"].default == "true"
    kinds = dict(form.level(parse_yaml(FIRST), "traffic/arrivals").kinds)
    assert kinds["closed"] == {"kind": "closed"}


def test_every_figure_of_a_fleet_says_why() -> None:
    pytest.importorskip("dash", reason="dash is not installed (extra 'studio')")
    from tspsim.studio.answers import fleet_figures, fleet_why

    job = {"class": "train", "state": "done", "gpus": 16, "gpu_hours": 48.0, "ettr": 0.9, "restarts": 0}
    jobs = [{**job, "name": f"job {hours}", "wait_s": 3600.0 * hours, "restarts": hours // 4} for hours in range(5)]
    waits = {"mean_wait_s": 7200.0, "p50_wait_s": 7200.0, "p95_wait_s": 13680.0}
    kind = {"class": "train", "jobs": 5, "done": 5, "gpu_hours": 240.0, "restarts": 1, **waits}
    lost = {"empty": 10.0, "redone": 0.5, "queue": 0.0}
    document = {"fleet": {"jobs": jobs, "classes": [kind], "lost_gpu_hours": lost}, "provenance": []}
    (lost_hours,) = fleet_why.of_whole(document)
    assert "empty 10.0, redone 0.500" in lost_hours and "queue" not in lost_hours
    told = {figure.key: fleet_why.of_class(document, "train", figure.key) for figure in fleet_figures.of_class(kind)}
    assert all(told.values())
    (waited,), (restarted,) = told["p95_wait_s"], told["restarts"]
    assert "job 4 4.00 h; job 3 3.00 h; job 2 2.00 h" in waited
    assert "job 4 1" in restarted and "90.0 %" in restarted


def test_a_number_s_example_is_said_where_it_is_not_the_default(form: Form) -> None:
    pytest.importorskip("dash", reason="dash is not installed (extra 'studio')")
    from tspsim.studio.formed import level

    def text(path: str) -> str:
        shown = form.level(parse_yaml(FIRST), path)
        return str(
            [part.to_plotly_json() for part in level(shown, {}, lambda below: form.level(parse_yaml(FIRST), below))]
        )

    assert "Default: 1. Such as 128Ki." in text("workload")
    assert "Default: 1." in text("plans/0") and "Default: 1. Such as 1." not in text("plans/0")
