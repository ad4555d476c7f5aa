"""Every option of an engine that the documents name is one that a scenario may state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tspsim.base.errors import InputError
from tspsim.parallel import load_stack
from tspsim.scenario import load
from tspsim.serving.answer import deployment_of
from tspsim.serving.deployment import POLICY
from tspsim.step.question import look_up

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
OPTION = re.compile(r"`(\w+)`(?: \(([^()]*)\))?(?:, |$)")
#: ``engine: {…}`` of a YAML in the text, with what stands in braces inside it.
INLINE = re.compile(r"\bengine: (\{(?:[^{}]|\{[^{}]*\})*\})")
#: Of options that are none until somebody states them.
OWN = {"max_running_requests": 8, "attention_backend": "flashinfer"}


def documented() -> dict[str, dict[str, Any]]:
    """Scheduler → option → the default that docs/serving.md prints."""
    text = (DOCS / "serving.md").read_text(encoding="utf-8")
    table = text.split("<!-- begin schedulers -->")[1].split("<!-- end schedulers -->")[0]
    found = {}
    for name, cell in ROW.findall(table):
        options = OPTION.findall(cell)
        assert ", ".join(f"`{option}`{f' ({value})' if value else ''}" for option, value in options) == cell
        found[name] = {option: yaml.safe_load(value) if value else OWN[option] for option, value in options}
    return found


pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")
DOCUMENTED = documented() if DOCS.is_dir() else {}


def engine_of(options: dict[str, Any], stack: str = "vllm") -> Any:
    asked = {
        "name": "options",
        "cluster": {"device": "h100"},
        "workload": {"model": "llama-3.1-8b", "stack": stack, "engine": options},
        "traffic": {"arrivals": {"kind": "closed", "concurrency": 2}, "prompt": 64, "output": 4},
        "plans": [{"name": "TP1", "tp": 1}],
    }
    question = look_up(load(asked))
    return deployment_of(question, question.plans[0]).engine


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_documented_option_is_accepted_with_its_documented_default(name: str) -> None:
    options = DOCUMENTED[name]
    stated = engine_of({POLICY: name, **options}).options
    assert set(type(stated).model_fields) == set(options)
    assert {option: value for option, value in stated.model_dump().items() if value != options[option]} == {}


def test_every_engine_section_in_the_documents_is_accepted() -> None:
    pages = [*DOCS.glob("*.md"), DOCS.parent / "README.md"]
    sections = {section for page in pages for section in INLINE.findall(page.read_text(encoding="utf-8"))}
    assert len(sections) >= 3
    for section in sections:
        options = yaml.safe_load(section)
        own = options.keys() - {POLICY, load_stack("vllm").stack().engine.scheduler.share}  # docs/scenarios.md has it
        names = [name for name, known in DOCUMENTED.items() if own <= known.keys()]
        assert names, section
        engine_of({POLICY: names[0], **options})


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ({"attention_dp_config": {"enable_balanc": True}}, "attention_dp_config.enable_balanc", "enable_balance"),
        ({"attention_dp_config": {"timeout_iters": -1}}, "attention_dp_config.timeout_iters", "at least 0"),
        ({"attention_dp_config": {"enable_balance": [1]}}, "attention_dp_config", "a list is no option of an engine"),
        ({"attention_dp_config": 3}, "attention_dp_config", "is not a mapping"),
        ({"max_num_tokens": [1, 2]}, "max_num_tokens", "a list is no option of an engine"),
        ({"max_num_tokens": {"a": 1}}, "max_num_tokens", "is not a whole number"),
        ({"max_num_token": 1}, "max_num_token", "max_num_tokens"),
    ],
)
def test_wrong_options_are_refused_where_they_stand(options: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        engine_of(options, "trtllm")
    assert str(caught.value).startswith(f"workload.engine.{key}:")
