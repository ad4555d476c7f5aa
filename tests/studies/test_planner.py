"""The planner: bounds never exceed the simulator, the best is the best, and every answer holds the batch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InfeasibleError, InputError
from tspsim.cli import main
from tspsim.hardware import Costs
from tspsim.parallel import Job, peak_memory, scheme_of
from tspsim.parallel.recomputed import KEPT
from tspsim.report.plan import yaml_of
from tspsim.scenario import PlanSpec as PlanKeys
from tspsim.step.paths import tasks as longest
from tspsim.step.paths.lower_bound import LowerBound
from tspsim.step.paths.walk import Layers, TimedInstruction, TimedTask, walk
from tspsim.step.question import Question, look_up
from tspsim.step.result import PlanResult
from tspsim.step.simulation import run_plan
from tspsim.studies.executors import Here, Processes
from tspsim.studies.front import front_of
from tspsim.studies.planner import Planner, load_planned, read_budget, read_map
from tspsim.studies.planner.branch import Search
from tspsim.studies.planner.candidate import Candidate, name_of, plan_keys
from tspsim.studies.planner.clock import Deadline
from tspsim.studies.planner.limits import leanest, limits
from tspsim.studies.planner.map_search import search_map
from tspsim.studies.planner.scheme_map import Cell, Side
from tspsim.studies.planner.space import Space
from tspsim.studies.planner.why import parts_s

MODEL = """
name: small
layers: 8
hidden: 2048
attention: {heads: 16, kv_heads: 8, head_dim: 128}
mlp: {width: 8192, gated: true}
embedding: {vocab: 32000, tied: false}
source: made up for a test
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "small.yaml"
    path.write_text(MODEL)
    return str(path)


def scenario(model: str, **changes: Any) -> dict[str, Any]:
    device, nodes = changes.pop("device", "mi300x"), changes.pop("nodes", 2)
    part = {key: changes.pop(key) for key in ("gpus_per_node",) if key in changes}
    return {
        "name": "small",
        "cluster": {"device": device, "nodes": nodes, "fabric": "rails-400g", **part},
        "workload": {"model": model, "pass": "training", "sequence": "8Ki", "sequences_per_replica": 1, **changes},
        "plans": [{"name": "FSDP", "zero": 3}, {"name": "TP8", "tp": 8}],
    }


def question_of(source: dict[str, Any]) -> Question:
    return look_up(tspsim.load(source))


def bounds_of(question: Question) -> LowerBound:
    device = question.device
    peak = max(device.peak_flops_per_s.values())
    return LowerBound(question.cluster, Costs(device), peak, device.compute_slowdown)


def simulated(question: Question, candidate: Candidate) -> PlanResult:
    asked = replace(question, work=candidate.job.work, plans=(candidate.plan,))
    return run_plan(asked, candidate.plan)


def search_of(question: Question, batch: int, asked: list[str] | None = None) -> Search:
    def simulate(candidates: Sequence[Candidate]) -> list[PlanResult | None]:
        if asked is not None:
            asked.extend(candidate.name for candidate in candidates)
        return [simulated(question, candidate) for candidate in candidates]

    space = Space(question.model, question.work, question.cluster, batch)
    return Search(space, bounds_of(question), question.device.visible_memory_bytes, simulate)


def plans_of(space: Space, admit: Callable[[Job], bool] = lambda job: True) -> Iterator[Candidate]:
    """Every plan of a space, of the spreads and families that are admitted."""
    spreads = filter(admit, space.spreads())
    for family in (family for spread in spreads for family in space.families_of(spread) if admit(family)):
        for staged in space.within_stage(family):
            for layout in space.layouts(staged):
                yield from space.plans(layout)


# --- the walk ---------------------------------------------------------------------------------------------------

seconds = st.floats(0.0, 3.0).map(lambda value: round(value, 3))


@st.composite
def layers(draw: st.DrawFn) -> tuple[TimedInstruction, ...]:
    """A layer with kernels and two streams of transfers that wait for each other, also across turns."""
    length = draw(st.integers(2, 7))
    steps = []
    for index in range(length):
        stream = draw(st.sampled_from(["compute", "compute", "weights", "sums"]))
        waits = draw(st.lists(st.integers(index - 2 * length, index - 1), max_size=2)) if index else []
        steps.append(TimedInstruction(stream, draw(seconds), tuple(waits), stream == "compute"))
    return tuple(steps)


@given(layer=layers(), times=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_skipping_turns_of_a_layer_changes_no_end(layer: tuple[TimedInstruction, ...], times: int) -> None:
    unrolled = [
        step._replace(after=tuple(turn * len(layer) + i for i in step.after if turn * len(layer) + i >= 0))
        for turn in range(times)
        for step in layer
    ]
    skipping, whole = walk(TimedTask((Layers(layer, times),))), walk(TimedTask(tuple(unrolled)))
    assert skipping.end_s == pytest.approx(whole.end_s, rel=1e-9)
    assert skipping.compute_s == pytest.approx(whole.compute_s, rel=1e-9, abs=1e-12)
    # A stream that nobody waits for may be taken to be earlier than it is, never later.
    assert skipping.last_s <= whole.last_s * (1 + 1e-9)
    assert skipping.gaps_s <= whole.gaps_s + 1e-9


def test_a_transfer_that_waits_for_the_kernel_before_is_a_gap_that_nothing_hides() -> None:
    task = TimedTask(
        (
            TimedInstruction("compute", 1.0, (), True),
            TimedInstruction("sums", 0.25, (0,), False),
            TimedInstruction("weights", 9.0, (), False),
            TimedInstruction("compute", 1.0, (1,), True),
        )
    )
    assert walk(task).gaps_s == 0.25
    assert walk(task).end_s == 2.25


# --- the bounds -------------------------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.in_turn(5, group="searches")
def test_no_bound_exceeds_the_simulated_step(data: st.DataObject, model: str) -> None:
    device = data.draw(st.sampled_from(["mi300x", "mi355x", "h100"]))
    length = data.draw(st.sampled_from(["2Ki", "16Ki"]))
    kind = data.draw(st.sampled_from(["training", "training", "forward"]))
    question = question_of(scenario(model, device=device, sequence=length, **{"pass": kind}))
    space = Space(question.model, question.work, question.cluster, data.draw(st.sampled_from([16, 32])))

    def one_of(values: Iterable[Any]) -> Any:
        found = list(values)
        assume(found)  # a spread may have no family that its batch divides over
        return data.draw(st.sampled_from(found))

    family = one_of(space.families_of(one_of(space.spreads())))
    staged = one_of(space.within_stage(family))
    layout = one_of(space.layouts(staged))
    plan = one_of(space.plans(layout))
    bound = bounds_of(question)
    pipeline = [(layout.plan.vpp, layout.plan.order)]
    every = space.divisions(layout)
    own = [each for each in every if each[:2] == (plan.plan.zero, plan.plan.shard_group)]
    found = {
        "floor": bound.floor_s(family, pipeline),
        "compute": bound.compute_s(family, pipeline),
        "compute without what is made again": bound.compute_s(family.with_recomputation(KEPT), pipeline),
        "schedule": bound.schedule_s(staged.job, pipeline),
        "even": bound.even_s(staged.job, staged.mesh),
        "rough": bound.rough_s(layout.job, layout.mesh),
        "outline": bound.outline_s(layout.job, layout.mesh),
        "step": bound.step_s(plan.job, plan.mesh),
        "even of all divisions": bound.even_s(staged.job, staged.mesh, space.divisions(staged)),
        "rough of all divisions": bound.rough_s(layout.job, layout.mesh, every),
        "outline of all divisions": bound.outline_s(layout.job, layout.mesh, every),
        "rough of its own": bound.rough_s(layout.job, layout.mesh, own),
        "outline of its own": bound.outline_s(layout.job, layout.mesh, own),
        "what is made again": bound.partly_s(plan.job, plan.mesh, own),
    }
    assert found["outline"] <= found["outline of all divisions"] <= found["outline of its own"]
    result = simulated(question, plan)
    if result.ran:
        assert {name: value for name, value in found.items() if value > result.step_time_s} == {}


@pytest.mark.parametrize("stages", [1, 2])
def test_all_ways_to_divide_state_have_one_bound_near_the_best_of_their_steps(model: str, stages: int) -> None:
    """Before the program of any of them is written; of an interleaved pipeline with its bubble."""
    question = question_of(scenario(model, device="b200", sequence="4Ki"))
    space = Space(question.model, question.work, question.cluster, 32)
    bound = bounds_of(question)
    family = next(
        each
        for each in space.families()
        if each.plan.dp * each.plan.pp == 16 and each.plan.pp == stages and each.micro_batches == 2 * stages
    )
    layouts = space.layouts(next(iter(space.within_stage(family))))
    layout = next(each for each in layouts if (each.plan.vpp > 1) == (stages > 1))
    alone_s = bound.outline_s(layout.job, layout.mesh)
    together_s = bound.outline_s(layout.job, layout.mesh, space.divisions(layout))
    step_s = min(simulated(question, plan).step_time_s for plan in space.plans(layout) if plan.plan.zero in (1, 2))
    assert 0.9 * step_s < together_s <= step_s
    assert together_s > alone_s * (1.01 if stages == 1 else 1.0 - 1e-12)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("degrees", "kind"), [((2, 2, 2), "forward"), ((8, 1, 1), "training")])
def test_bounds_hold_where_stages_wait_for_nothing_and_where_regions_divide_norms(
    model: str, degrees: tuple[int, int, int], kind: str
) -> None:
    question = question_of(scenario(model, sequence="2Ki", **{"pass": kind}))
    space = Space(question.model, question.work, question.cluster, 32)
    bound, tried = bounds_of(question), 0

    def alike(job: Job) -> bool:
        return tuple(map(job.plan.degree, ("tp", "sp", "pp"))) == degrees and job.sequences == 1

    for family in (family for spread in filter(alike, space.spreads()) for family in space.families_of(spread)):
        for staged in space.within_stage(family):
            plan = next(iter(space.plans(next(iter(space.layouts(staged))))))
            result = simulated(question, plan)
            if result.ran:
                tried += 1
                found = bound.floor_s(family), bound.compute_s(family), bound.step_s(plan.job, plan.mesh)
                assert max(found) <= result.step_time_s, staged.job.plan
        if tried > 3:
            break
    assert tried > 2


@pytest.mark.parametrize("stack", [pytest.param("ideal", marks=pytest.mark.slow), "megatron-core"])
@pytest.mark.in_turn(5, group="searches")
def test_bounds_hold_for_experts_and_for_a_stack_whose_host_takes_time(stack: str) -> None:
    names = tspsim.catalog.names("models")
    mixture = next((name for name in names if "30b-a3b" in name or "mixtral" in name), None)
    if mixture is None or stack not in ("ideal", *tspsim.catalog.names("stacks")):
        pytest.skip("no such model or stack in the catalog")
    source = scenario(mixture, device="h200", sequence="4Ki", stack=stack)
    question = question_of({**source, "plans": [{"name": "any"}]})
    space = Space(question.model, question.work, question.cluster, 16)
    bound = bounds_of(question)
    spreads = [job for job in space.spreads() if job.plan.degree("ep") > 1 and job.sequences == 1]
    tried = 0
    for number, spread in enumerate(spreads[:: max(1, len(spreads) // 4)]):
        families = [each for each in space.families_of(spread) if each.plan.recomputation == "full"]
        if not families:
            continue
        family = families[number % len(families)]
        *_, plan = space.plans(next(space.layouts(next(space.within_stage(family)))))
        result = simulated(question, plan)
        if result.ran:
            tried += 1
            assert bound.step_s(plan.job, plan.mesh) <= result.step_time_s
            assert bound.floor_s(family) <= result.step_time_s
    assert tried


# --- the space --------------------------------------------------------------------------------------------------


@pytest.mark.in_turn(5, group="searches")
def test_every_plan_of_a_space_is_legal_holds_the_batch_and_can_be_written_down(model: str) -> None:
    question = question_of(scenario(model))
    space = Space(question.model, question.work, question.cluster, 16)
    plans = list(plans_of(space))
    assert len({plan.name for plan in plans}) == len(plans) > 500
    for candidate in plans[:: len(plans) // 16]:
        plan = candidate.plan
        assert candidate.job.work.sequences * plan.dp == 16
        assert sorted(candidate.mesh.ranks.reshape(-1).tolist()) == list(range(16))
        keys = PlanKeys.model_validate(plan_keys(plan))
        source = scenario(model, sequences_per_replica=candidate.job.work.sequences)
        asked = tspsim.load({**source, "plans": [keys.model_dump(exclude_unset=True)]})
        assert replace(look_up(asked).plans[0], algorithms={}) == replace(plan, chosen=())


def test_a_dense_model_has_no_expert_groups_and_a_name_tells_plans_apart(model: str) -> None:
    question = question_of(scenario(model))
    space = Space(question.model, question.work, question.cluster, 16)
    assert {job.plan.degree("ep") for job in space.families()} == {1}
    first = next(plans_of(space))
    assert name_of(first.plan) == first.name


# --- the search -------------------------------------------------------------------------------------------------


@pytest.mark.in_turn(5, group="searches")
def test_the_best_are_those_of_trying_everything(model: str) -> None:
    question = question_of(scenario(model, sequence="4Ki", nodes=1))

    def admit(job: Any) -> bool:
        few = job.plan.recomputation == "none" and job.plan.pp <= 2 and job.plan.tsp == 1
        return bool(few and job.plan.sp == 1 and job.sequences == 1)

    asked: list[str] = []
    search = search_of(question, 8, asked)
    best = search.best(3, admit=admit)
    every = [
        (simulated(question, plan).step_time_s, plan.name)
        for plan in plans_of(search.space, admit)
        if plan.plan.zero != 2
    ]
    # Where two plans take the same time either may be named.
    assert [found.step_s for found in best.plans] == [step_s for step_s, _ in sorted(every)[:3]]
    assert best.complete
    assert best.next_bound_s >= best.plans[-1].step_s
    assert len(asked) < len(every) / 2


def test_what_one_question_simulated_the_next_one_knows(model: str) -> None:
    question = question_of(scenario(model))
    asked: list[str] = []
    search = search_of(question, 16, asked)
    first = search.best(2)
    before = len(asked)
    assert search.best(2).plans == first.plans
    assert len(asked) == before
    free = 0.8 * search.capacity_bytes
    roomy = search.best(1, free_bytes=free)
    assert roomy.plans[0].headroom_bytes >= free
    assert roomy.plans[0].step_s >= first.plans[0].step_s


@pytest.mark.in_turn(5, group="searches")
def test_an_answer_does_not_depend_on_the_number_of_processes(model: str) -> None:
    documents, source = [], scenario(model, nodes=1, gpus_per_node=4, sequence="4Ki")
    source["plans"] = [{"name": "TP4", "tp": 4}]
    for jobs in (1, 2):
        planned = Planner(tspsim.load(source), top=2, jobs=jobs).run()
        documents.append(json.dumps(planned.to_json()))
    assert documents[0] == documents[1]


def test_an_interrupted_search_gives_the_best_so_far(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(tspsim.load(scenario(model)), top=50, jobs=1)
    from tspsim.studies.planner.workers import Simulators

    ask, rounds = Simulators.ask, []

    def interrupted(self: Simulators, scenarios: Any, **how: Any) -> list[PlanResult | None]:
        rounds.append(1)
        if len(rounds) == 3:
            raise KeyboardInterrupt
        return ask(self, scenarios, **how)

    monkeypatch.setattr(Simulators, "ask", interrupted)
    planned = planner.run()
    assert planned.interrupted
    assert not planned.complete
    assert planned.best[0].step_s == min(found.step_s for found in planned.best)
    assert planned.gap >= 0.0


def test_what_was_simulated_before_ctrl_c_is_not_lost(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second plan is under way when Ctrl-C comes."""
    asked: list[str] = []

    def interrupted(questions: Any, executor: Any, ask: Any) -> Any:
        for question in questions:
            asked.append(question.question.plans[0].name)
            if len(asked) == 2:
                raise KeyboardInterrupt
            yield ask([question])

    monkeypatch.setattr("tspsim.studies.planner.workers.answers", interrupted)
    planned = Planner(tspsim.load(scenario(model)), jobs=1).run()
    assert planned.interrupted
    assert [found.candidate.name for found in planned.best] == asked[:1]
    asked[:] = ["one before"]
    with pytest.raises(KeyboardInterrupt):  # nothing was simulated
        Planner(tspsim.load(scenario(model)), jobs=1).run()


def test_time_that_runs_out_leaves_a_bound_on_what_was_not_simulated(model: str) -> None:
    question = question_of(scenario(model))
    search = search_of(question, 16)
    found = search.best(3, most_rounds=1)
    assert found.plans
    better = search.best(3).plans[0].step_s
    assert better >= min(found.next_bound_s, found.plans[0].step_s)


def test_the_parts_of_a_step_add_up(model: str) -> None:
    question = question_of(scenario(model))
    space = Space(question.model, question.work, question.cluster, 16)
    plan = next(p for p in plans_of(space) if p.plan.tp == 2 and p.plan.pp == 2 and p.plan.recomputation == "full")
    result = simulated(question, plan)
    parts = parts_s(result)
    assert sum(parts.values()) == pytest.approx(result.step_time_s, rel=1e-6)
    assert parts["recomputation"] > 0.0
    assert parts["exposed on tp"] > 0.0


# --- front and limits -------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=30))
def test_nothing_beats_the_front_and_the_front_beats_the_rest(points: list[tuple[int, int, int]]) -> None:
    def beats(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return one != other and all(a >= b for a, b in zip(one, other, strict=True))

    front = front_of(points, lambda point: point)
    assert not any(beats(one, other) for one in points for other in front)
    assert all(point in front or any(beats(other, point) for other in front) for point in points)


def test_limits_are_where_the_next_step_no_longer_fits(model: str) -> None:
    question = question_of(scenario(model))
    space = Space(question.model, question.work, question.cluster, 16)
    room = 40e9
    found = limits(space, room, lambda nodes: question_of(scenario(model, nodes=nodes)).cluster)
    assert found.longest_sequence is not None
    assert found.largest_batch is not None
    assert found.fewest_nodes is not None
    length, lean = found.longest_sequence
    assert lean.bytes <= room
    longer = leanest(replace(space, work=replace(space.work, sequence=length + 8192)), room)
    assert longer is None or longer.bytes > room
    sequences, widest = found.largest_batch
    assert sequences == widest.job.plan.dp * widest.job.sequences
    more = replace(
        widest.job,
        plan=replace(widest.job.plan, micro_batch=widest.job.sequences + 1),
        work=replace(widest.job.work, sequences=widest.job.sequences + 1),
    )
    assert sum(peak_memory(more, scheme_of(more.plan).residency).values()) > room
    assert found.fewest_nodes[0] == 1


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, model: str) -> Path:
    path = tmp_path / "question.yaml"
    path.write_text(json.dumps(scenario(model, gpus_per_node=4, sequence="4Ki")))
    return path


def test_the_command_writes_table_json_and_an_offline_page(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, numbers = file.parent / "page.html", file.parent / "numbers.json"
    arguments = ["plan", str(file), "--top", "2", "--jobs", "1", "--budget", "none"]
    arguments += ["--map", "sequences=4Ki,nodes=1", "--html", str(page), "--json", str(numbers)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "Why the best wins" in printed
    assert "times the runner-up's, nine times of ten" in printed
    assert printed.startswith("Plans for ")
    assert "FSDP (stated)" in printed
    found = json.loads(numbers.read_text())
    plan = found["plan"]
    assert plan["batch_sequences"] == 8
    rates = [entry["tokens_per_s"] for entry in plan["best"]]
    assert rates == sorted(rates, reverse=True)
    stated = [entry["tokens_per_s"] for entry in plan["stated"] if "tokens_per_s" in entry]
    assert len(stated) == 2
    assert max(stated) <= rates[0]
    assert plan["search"]["complete"]
    assert plan["search"]["gap"] == 0.0
    assert len(plan["map"]) == 1
    assert all(entry["sequences_per_replica"] * entry["degrees"]["dp"] == 8 for entry in plan["best"])
    text = page.read_text()
    assert text.count("<script>") >= 2
    assert 'src="http' not in text
    assert "Where TSP wins" in text


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        (["--objective", "speed"], 2, "unknown objective 'speed'"),
        (["--map", "nodes=1"], 2, "--map nodes=1: is not of the form"),
        (["--map", "sequences=4Ki,nodes=many"], 2, "is no count"),
        (["--budget", "soon"], 2, "--budget"),
        (["--top", "0"], 2, "--top"),
        (["--set", "workload.model=llama-3.1-405b", "--set", "cluster.nodes=1"], 3, "more than its"),
        (["--json", "/nowhere/plan.json"], 2, "cannot write"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], extra: list[str], code: int, words: str
) -> None:
    before = sorted(file.parent.iterdir())
    assert main(["plan", str(file), "--jobs", "1", *extra]) == code
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
    assert sorted(file.parent.iterdir()) == before


def test_a_scenario_may_have_no_plans_of_its_own(model: str) -> None:
    source = scenario(model)
    del source["plans"]
    found, stated = load_planned(source)
    assert not stated
    assert Planner(found, stated=stated, jobs=1).answer.batch == 16
    with pytest.raises(InfeasibleError, match="no plan fits"):
        Planner(load_planned({**source, "cluster": "mi300x-8"}, ["workload.model=llama-3.1-405b"])[0], jobs=1).run()


def test_budgets_and_maps_are_read() -> None:
    assert read_budget("90 s") == 90.0
    assert read_budget("none") is None
    assert read_map("nodes=8,1,sequences=8Ki..32Ki*2").sequences == (8192, 16384, 32768)
    for wrong in ("", "sequences=", "nodes=1,sequences=1.5", "sequences=8,sequences=9,nodes=1"):
        with pytest.raises(InputError):
            read_map(wrong)
    assert not math.isinf(read_budget("1 s") or math.inf)


def test_a_map_does_not_call_unfinished_what_does_not_fit() -> None:
    """A point whose time ran out knows no ratio; a finished one says what fits."""
    folded, other = Side("TSP8", 2.0, 1.9), Side("TP8", 1.0, 1.0)
    assert Cell(8192, 8, 4, folded, None, sure=False).ratio is None
    assert Cell(8192, 8, 4, None, None, sure=False).ratio is None
    assert Cell(8192, 8, 4, folded, None, sure=True).ratio == float("inf")
    assert Cell(8192, 8, 4, None, other, sure=True).ratio == 0.0
    assert Cell(8192, 8, 4, folded, other, sure=False).ratio == 0.5


def test_a_verdict_is_proven_where_nothing_left_can_turn_it() -> None:
    wins, loses = Side("TSP8", 1.0, 0.9), Side("TSP8", 2.0, 1.9)
    assert Cell(8192, 8, 4, wins, Side("TP8", 1.5, 1.4), sure=True).proven
    assert not Cell(8192, 8, 4, wins, Side("TP8", 1.5, 0.9), sure=True).proven
    assert Cell(8192, 8, 4, loses, Side("TP8", 1.5, 0.9), sure=True).proven
    assert not Cell(8192, 8, 4, loses, Side("TP8", 1.95, 1.9), sure=True).proven
    assert Cell(8192, 8, 4, wins, None, sure=True).proven
    assert not Cell(8192, 8, 4, wins, None, sure=False).proven


@pytest.mark.slow
def test_a_map_is_the_same_for_any_number_of_processes_and_no_side_is_better_than_it_says(model: str) -> None:
    few = scenario(model, gpus_per_node=2)
    few["plans"] = [{"name": "any"}]
    asked, points = tspsim.load(few), read_map("sequences=16Ki,nodes=1,2")
    tokens = 4 * 8192
    here = list(search_map(asked, points, tokens, Here()))
    executor = Processes(2)
    try:
        assert list(search_map(asked, points, tokens, executor)) == here
    finally:
        executor.close(now=True)
    assert [(each.sequence, each.nodes, each.batch) for each in here] == [(16384, 2, 2), (16384, 1, 2)]
    few["cluster"]["nodes"], few["workload"]["sequence"] = 1, "16Ki"
    search = search_of(question_of(few), 2)
    for folded, side in ((True, here[-1].folded), (False, here[-1].other)):
        best = search.best(1, admit=lambda job, folded=folded: (job.plan.tsp > 1) == folded).plans[0]  # type: ignore[misc]
        assert side is not None
        assert side.least_s <= best.step_s <= side.step_s
        assert side.step_s <= 1.02 * best.step_s or (folded and here[-1].other.step_s <= side.least_s)


def test_a_map_whose_time_is_over_says_so(model: str) -> None:
    (cell,) = search_map(tspsim.load(scenario(model)), read_map("sequences=4Ki,nodes=1"), 65536, Here(), Deadline(-1.0))
    assert not cell.sure
    assert cell.ratio is None


def test_micro_batches_left_out_of_the_longest_path_change_nothing(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a step of equal micro-batches every one takes what the slowest stage does for it."""
    question = question_of(scenario(model, nodes=1))
    space = Space(question.model, question.work, question.cluster, 512)
    bound = bounds_of(question)
    chosen = [job for job in space.families() if job.micro_batches > 60 and job.plan.recomputation == "full"]
    tried = 0
    for family in chosen[:: len(chosen) // 10]:
        for layout in space.layouts(next(space.within_stage(family))):
            short_s = bound.step_s(layout.job, layout.mesh)
            with monkeypatch.context() as patched:
                patched.setattr(longest, "ROUNDS", 10**6)
                whole_s = bound.step_s(layout.job, layout.mesh)
            assert whole_s * (1 - 1e-3) <= short_s <= whole_s * (1 + 1e-12)
            tried += layout.plan.pp > 1
    assert tried > 4


def test_a_stated_global_batch_is_that_of_every_plan(model: str) -> None:
    source = scenario(model, nodes=1, gpus_per_node=4, global_batch=6)
    del source["workload"]["sequences_per_replica"]
    source["plans"] = [{"name": "TP2", "tp": 2}, {"name": "FSDP", "zero": 3}]
    planned = Planner(tspsim.load(source), top=1, jobs=1, budget_s=1.0).only_best()
    assert planned.batch == 6
    best = planned.best[0].candidate
    assert best.job.work.sequences * best.plan.dp == 6
    fits, refused = planned.stated  # four replicas do not divide 6 sequences
    assert fits.result is not None
    assert fits.result.tokens_per_step == 6 * 8192
    assert "do not divide" in refused.error
    again = tspsim.load({**source, **yaml.safe_load(yaml_of(planned))})
    assert tspsim.simulate(again).plans[0].step_time_s == planned.best[0].step_s
