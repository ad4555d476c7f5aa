"""A file's section is the frozen dataclass that the package reads, or derives from it: no field is declared in both."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields
from typing import get_type_hints

import pytest
from pydantic import TypeAdapter, ValidationError

from tspsim.base.errors import InputError
from tspsim.base.strict import FileKey, Strict, keys_that_state
from tspsim.hardware.announced import AnnouncedDevice
from tspsim.hardware.specification import DeviceSpec
from tspsim.model import Architecture
from tspsim.model.attention.sections import CompressedSection, KimiDeltaSection, LatentSection
from tspsim.model.parts import CompressedAttention, Experts, LatentAttention, LinearAttention, StatedFacts
from tspsim.model.spec import ModelSpec, MoeSpec
from tspsim.network.announced import AnnouncedLink, AnnouncedNode, LentNode
from tspsim.network.specs import LinkSpec, NodeSpec
from tspsim.parallel import Adapters, ExpertRouting, Optimizer, Plan
from tspsim.parallel.engine_memory import EngineLimits, MemoryRule, Pages, StateRule
from tspsim.parallel.engine_spec import EngineSpec
from tspsim.parallel.recomputed import PartialRecompute
from tspsim.parallel.search_keys import ORDER, search_keys
from tspsim.parallel.serving_engine import Graphs, Scheduler, Selection, ServingEngine
from tspsim.parallel.stack import Stack
from tspsim.parallel.stack_spec import StackSpec, VersionSpec
from tspsim.parallel.switches import OpenSwitches, PartlyRecomputed, Switches
from tspsim.parallel.work import StatedWork, Work
from tspsim.scenario import Workload, load
from tspsim.scenario.plan import PlanSpec
from tspsim.steps import Streams

PAIRS: tuple[tuple[type[Strict], type], ...] = (
    (PlanSpec, Switches),
    (Workload, StatedWork),
    (PartlyRecomputed, PartialRecompute),
    (ModelSpec, StatedFacts),
    (MoeSpec, Experts),
    (LatentSection, LatentAttention),
    (KimiDeltaSection, LinearAttention),
    (CompressedSection, CompressedAttention),
)
#: Fields that a file may leave out and the package may not.
LEFT_OUT = {"name", "q_rank"}


@pytest.mark.parametrize(("section", "facts"), PAIRS, ids=lambda cls: cls.__name__)
def test_a_section_declares_no_field_of_its_facts_again(section: type[Strict], facts: type) -> None:
    names = {field.name for field in fields(facts)}
    sections = [cls for cls in section.__mro__ if issubclass(cls, Strict)]
    again = {name for cls in sections for name in vars(cls).get("__annotations__", {}) if name in names}
    assert issubclass(section, facts) and again <= LEFT_OUT
    assert names <= section.model_fields.keys()


#: Sections whose keys are derived from the fields of a frozen dataclass, and that dataclass; keys declared by hand.
DERIVED: tuple[tuple[type[Strict], type, set[str]], ...] = (
    (EngineSpec, ServingEngine, set()),
    (StackSpec, Stack, {"name", "description", "vendors", "steps", "engine", "versions"}),
)


@pytest.mark.parametrize(("section", "facts", "further"), DERIVED, ids=lambda of: getattr(of, "__name__", ""))
def test_keys_of_stated_facts_are_derived_from_fields(section: type[Strict], facts: type, further: set[str]) -> None:
    """A field is a key as soon as it is marked; the section declares none of them itself."""
    derived = keys_that_state(facts)
    assert section.model_fields.keys() == derived.keys() | further
    assert set(vars(section).get("__annotations__", {})) == further
    marked = {name for name, hint in get_type_hints(facts, include_extras=True).items() if _is_marked(hint)}
    assert len(marked) == len(derived) and {field.name for field in fields(facts)} - marked <= {"name", "engine"}


def test_a_version_declares_no_key_of_its_own() -> None:
    keys = VersionSpec.model_fields.keys() - EngineSpec.model_fields.keys()
    assert keys and keys < keys_that_state(Stack).keys()
    assert not vars(VersionSpec).get("__annotations__")
    assert all(VersionSpec.model_fields[key].annotation == StackSpec.model_fields[key].annotation for key in keys)


def _is_marked(hint: object) -> bool:
    return any(isinstance(part, FileKey) for part in getattr(hint, "__metadata__", ()))


def test_what_is_resolved_has_the_same_fields() -> None:
    assert issubclass(Plan, Switches) and issubclass(Plan, OpenSwitches) and issubclass(Architecture, StatedFacts)
    assert issubclass(Work, StatedWork) and not {field.name for field in fields(StatedWork)} & vars(Work).keys()
    again = {field.name for base in (Switches, OpenSwitches) for field in fields(base)} & Plan.__annotations__.keys()
    assert again == {"recomputation"}, "a file may also say it of some layers"


@pytest.mark.parametrize(
    ("announced", "spec", "further", "again"),
    [
        (AnnouncedDevice, DeviceSpec, set(), set()),
        (AnnouncedNode, NodeSpec, {"library", "without"}, {"like"}),
        (LentNode, NodeSpec, {"library", "without"}, {"like"}),
        (AnnouncedLink, LinkSpec, set(), set()),
    ],
    ids=lambda of: getattr(of, "__name__", ""),
)
def test_what_is_announced_has_keys_of_its_specification_alone(
    announced: type[Strict], spec: type[Strict], further: set[str], again: set[str]
) -> None:
    assert announced.model_fields.keys() - further <= spec.model_fields.keys()
    assert set(vars(announced).get("__annotations__", {})) == again, "like is optional in a specification alone"
    for name, field in announced.model_fields.items():
        if field.is_required() and name not in ("announced", "like", "link"):
            assert field.annotation == spec.model_fields[name].annotation


#: Frozen dataclasses that files state and that the package reads.
READ = (
    *(Optimizer, ExpertRouting, Adapters, Streams),
    *(Graphs, MemoryRule, Scheduler, Selection, EngineLimits, Pages, StateRule),
)


@pytest.mark.parametrize("noun", READ, ids=lambda cls: cls.__name__)
def test_what_files_state_is_what_the_package_reads(noun: type) -> None:
    """A key that none of its fields is, is refused; and no section derives from it."""
    with pytest.raises(ValidationError, match="Unexpected keyword argument"):
        TypeAdapter(noun).validate_python({"no_such_key": 1})
    assert not noun.__subclasses__()


def test_a_noun_that_is_read_is_one_that_is_made() -> None:
    read = TypeAdapter(ExpertRouting)
    routing = read.validate_python({"load": "zipf", "skew": 0.5})
    assert routing == ExpertRouting("zipf", skew=0.5) and hash(routing) == hash(ExpertRouting("zipf", skew=0.5))
    assert pickle.loads(pickle.dumps(routing)) == routing == copy.deepcopy(routing)
    assert read.validate_python(read.dump_python(routing)) == routing
    for make in (lambda: read.validate_python({"load": "hot"}), lambda: ExpertRouting("hot")):
        with pytest.raises(ValueError, match="needs hot_experts and hot_share"):
            make()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "adapters",
            {"rank": 8, "target": ["qkv"]},
            r"workload\.adapters\.target: unknown key \(did you mean 'targets'",
        ),
        ("adapters", {"rank": 8, "targets": ["qkv", "qkv"]}, r"workload\.adapters\.targets: 'qkv' is named twice"),
        ("routing", {"load": "zipff"}, r"workload\.routing\.load: 'zipff' is not allowed.*did you mean 'zipf'"),
        ("routing", {"load": "hot"}, r"workload\.routing: load: hot needs hot_experts"),
        ("optimizer", {"weights": 2, "gradients": 2}, r"workload\.optimizer\.state: is required"),
        ("optimizer", 5, r"workload\.optimizer: '5' is not a mapping"),
    ],
)
def test_messages_about_a_noun_name_its_place_and_the_nearest_key(key: str, value: object, message: str) -> None:
    workload = {"model": "llama-3.1-8b", "pass": "training", "sequence": "1Ki", key: value}
    stated = {"name": "it", "cluster": "mi300x-8", "workload": workload, "plans": [{"name": "TP8", "tp": 8}]}
    with pytest.raises(InputError, match=message):
        load(stated)


def test_keys_of_a_dataclass_stand_where_the_section_puts_them() -> None:
    """Files that are written out, and answers, have a workload's keys in this order."""
    workload = Workload.model_validate({"model": "llama-3.1-8b", "pass": "training", "sequence": "1Ki"})
    keys = list(workload.model_dump())
    assert keys == list(Workload.model_fields) and keys[:2] == ["model", "pass_"]
    for key, behind in Workload.KEYS_BEHIND.items():
        at = keys.index(key) + 1
        assert tuple(keys[at : at + len(behind)]) == behind
    assert keys[-3:] == ["causal", "routing", "multi_token"]


def test_every_key_of_the_order_is_declared() -> None:
    assert set(ORDER) <= search_keys().keys()
