"""Documents packed into a sequence: one as long as the sequence changes nothing, shorter ones never cost more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import tspsim
from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.model import Architecture, load_model
from tspsim.model.spec import describe
from tspsim.step.result import PlanResult

SEQUENCE = 16384  # longer than every window and chunk of the catalog
SCHEMES: list[dict[str, Any]] = [
    {"tp": 8},
    {"sp": 8, "overlap_by": "heads"},
    {"sp": 8, "overlap_by": "blocks"},
    {"sp": 8, "exchange": "ulysses"},
    {"tsp": 8, "tsp_schedule": "published"},
    {"tsp": 8, "tsp_schedule": "published", "partition": "contiguous"},
    {"tsp": 8, "overlap_by": "blocks", "head_groups": 1, "mlp_pieces": 1, "weight_transport": "ring"},
]


def attentions() -> dict[tuple[Any, ...], Architecture]:
    """Of every attention that a model of the catalog trains with, the first model with it, its repeating layers."""
    found: dict[tuple[Any, ...], Architecture] = {}
    for name in sorted(catalog.names("models")):
        model = load_model(name)
        if not model.attention_kind.full_sequences:
            continue
        layers = model.repeating_layers(2)
        attention = tuple(sorted({(block.attention, block.window, block.chunk) for block in layers.blocks}))
        found.setdefault(attention, layers)
    return found


def stepped(folder: Path, model: Architecture, plan: dict[str, Any], document: int | None, pass_: str) -> PlanResult:
    path = folder / f"{model.name}.yaml"
    if not path.exists():
        path.write_text(yaml.safe_dump(describe(model)), encoding="utf-8")
    work = {"model": str(path), "pass": pass_, "sequence": SEQUENCE, "document": document}
    scenario = {
        "name": "t", "cluster": "hgx-h200-8", "workload": {key: value for key, value in work.items() if value},
        "plans": [{"name": "P", "overlap": True, "recomputation": "none", **plan}],
    }  # fmt: skip
    if pass_ == "forward":
        del scenario["plans"][0]["recomputation"]
    return tspsim.simulate(scenario).plans[0]


def holds(folder: Path, schemes: list[dict[str, Any]], documents: tuple[int, ...]) -> None:
    """Over every attention of the catalog that passes whole sequences; of the step and of the FLOPs that MFU counts."""
    kinds = attentions()
    assert len(kinds) >= 4 and any(window for key in kinds for _, window, _ in key)
    for model in kinds.values():
        for number, plan in enumerate(schemes):
            pass_ = ("training", "forward")[number % 2]
            try:
                whole = stepped(folder, model, plan, None, pass_)
            except InputError:
                continue  # heads that do not divide
            assert stepped(folder, model, plan, SEQUENCE, pass_).step_time_s == whole.step_time_s
            last = whole
            for document in documents:
                packed = stepped(folder, model, plan, document, pass_)
                assert packed.step_time_s <= last.step_time_s * (1 + 1e-9), (model.name, plan, document)
                flops = [each.mfu * each.step_time_s for each in (packed, last)]
                assert flops[0] <= flops[1] * (1 + 1e-9)
                last = packed


def test_documents_cost_no_more_the_shorter_they_are(tmp_path: Path) -> None:
    holds(tmp_path, SCHEMES[:2], (512,))


@pytest.mark.slow
def test_they_do_so_with_every_scheme(tmp_path: Path) -> None:
    holds(tmp_path, SCHEMES, (8192, 2048, 512, 64))
