"""A file's section derives from the frozen dataclass that the package reads: no field is declared in both."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields
from typing import Any

import pytest
from pydantic import ValidationError

from tspsim.base.strict import Strict, as_stated
from tspsim.hardware.announced import AnnouncedDevice
from tspsim.hardware.specification import DeviceSpec
from tspsim.model import Architecture
from tspsim.model.attention.sections import KimiDeltaSection, LatentSection
from tspsim.model.parts import Experts, LatentAttention, LinearAttention, StatedFacts
from tspsim.model.spec import ModelSpec, MoeSpec
from tspsim.network.announced import AnnouncedLink, AnnouncedNode, LentNode
from tspsim.network.specs import LinkSpec, NodeSpec
from tspsim.parallel import Adapters, ExpertRouting, Optimizer, Plan
from tspsim.parallel.recomputed import Partly
from tspsim.parallel.search_keys import ORDER, search_keys
from tspsim.parallel.switches import OpenSwitches, PartlyRecomputed, Switches
from tspsim.scenario.plan import PlanSpec
from tspsim.scenario.workload import AdaptersSpec, ExpertRoutingSpec, OptimizerSpec, StreamsSpec
from tspsim.steps import Streams

PAIRS: tuple[tuple[type[Strict], type], ...] = (
    (PlanSpec, Switches),
    (OptimizerSpec, Optimizer),
    (ExpertRoutingSpec, ExpertRouting),
    (AdaptersSpec, Adapters),
    (StreamsSpec, Streams),
    (PartlyRecomputed, Partly),
    (ModelSpec, StatedFacts),
    (MoeSpec, Experts),
    (LatentSection, LatentAttention),
    (KimiDeltaSection, LinearAttention),
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


def test_what_is_resolved_has_the_same_fields() -> None:
    assert issubclass(Plan, Switches) and issubclass(Plan, OpenSwitches) and issubclass(Architecture, StatedFacts)
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


def test_a_section_stays_a_section() -> None:
    """It is compared, hashed, printed, written and refused as one, and its facts as a dataclass."""
    stated: dict[str, Any] = {"load": "zipf", "skew": 0.5}
    section, other = (ExpertRoutingSpec.model_validate(stated) for _ in range(2))
    assert section == other and hash(section) == hash(other) and section != ExpertRoutingSpec()
    assert section.model_dump(exclude_unset=True) == stated and repr(section).startswith("ExpertRoutingSpec(load=")
    assert pickle.loads(pickle.dumps(section)) == section == copy.deepcopy(section)
    assert as_stated(section, ExpertRouting) == ExpertRouting("zipf", skew=0.5) != section
    with pytest.raises(ValidationError):
        section.skew = 0.7  # type: ignore[misc]
    with pytest.raises(ValidationError):
        ExpertRoutingSpec.model_validate({**stated, "skw": 1.0})


def test_every_key_of_the_order_is_declared() -> None:
    assert set(ORDER) <= search_keys().keys()
