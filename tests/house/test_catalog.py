"""Finding and reading catalog files: search order, and the dialect of YAML that they are read with."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.texts import texts
from hypothesis import example, given
from hypothesis import strategies as st

from tspsim.answer.schema import KINDS, main, schema
from tspsim.base import catalog, dialect
from tspsim.base.errors import InputError, UnknownNameError


def _entry(root: Path, name: str, text: str = "{}") -> Path:
    path = root / "workloads" / "models" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_search_order_is_environment_then_current_folder_then_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, first, second = (tmp_path / name for name in ("here", "first", "second"))
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("TSPSIM_CATALOG", raising=False)
    # In an empty folder only the shipped catalog is left: the installed one, or the checkout's.
    package = Path(catalog.__file__).resolve().parents[1]
    shipped = catalog.locate("models", "tsp-8b").resolve()
    assert shipped.is_relative_to(package) or shipped.is_relative_to(package.parent / "workloads")
    own = _entry(here, "tsp-8b")
    assert catalog.locate("models", "tsp-8b").resolve() == own
    late, early = _entry(second, "tsp-8b"), _entry(first, "tsp-8b")
    monkeypatch.setenv("TSPSIM_CATALOG", os.pathsep.join(map(str, (first, second))))
    assert catalog.locate("models", "tsp-8b") == early
    early.unlink()
    assert catalog.locate("models", "tsp-8b") == late


def test_names_are_the_union_of_all_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _entry(tmp_path, "my-model")
    _entry(tmp_path, "tsp-8b")
    monkeypatch.setenv("TSPSIM_CATALOG", str(tmp_path))
    names = catalog.names("models")
    assert {"my-model", "llama-3.1-8b"} <= set(names)
    assert names == sorted(set(names))


def test_a_path_is_tried_from_here_and_beside_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    beside = tmp_path / "sub"
    beside.mkdir()
    (beside / "m.yaml").write_text("{}")
    assert catalog.locate("models", "m.yaml", beside=beside) == beside / "m.yaml"
    (tmp_path / "m.yaml").write_text("{}")
    assert catalog.locate("models", "m.yaml", beside=beside) == Path("m.yaml")


@pytest.mark.parametrize("name", ["no/such.yaml", "a\0b.yaml", "x" * 5000 + ".yaml"])
def test_a_missing_path_is_one_short_line(name: str) -> None:
    with pytest.raises(InputError, match="no such file") as error:
        catalog.locate("models", name)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("name", ["", "tsp-8", "a\0b", "x" * 5000])
def test_a_missing_name_is_one_short_line(name: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown model") as error:
        catalog.locate("models", name)
    assert len(str(error.value)) < 400


def _read(tmp_path: Path, text: str | bytes) -> dict[str, Any]:
    path = tmp_path / "f.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return dialect.read_yaml(path)


def test_numbers_are_what_a_person_calls_numbers(tmp_path: Path) -> None:
    text = "a: 1e6\nb: 010\nc: 2026-08-21\nd: 1:30\ne: 12_000\nf: 0x10\ng: no\nh: ~\ni: -1.5\nj: "
    text += "99999999999999999999\n"
    assert _read(tmp_path, text) == {
        "a": 1e6,
        "b": "010",
        "c": "2026-08-21",
        "d": "1:30",
        "e": 12000,
        "f": "0x10",
        "g": False,
        "h": None,
        "i": -1.5,
        "j": "99999999999999999999",
    }


def test_aliases_and_merge_keys_work(tmp_path: Path) -> None:
    data = _read(tmp_path, "base: &b {x: 1, y: 2}\nown: {<<: *b, y: 3}\n")
    assert data["own"] == {"x": 1, "y": 3}


def test_json_with_tabs_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n\t"layers": 2\n}')
    assert dialect.read_yaml(path) == {"layers": 2}


_BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(60))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: !!python/object/apply:os.system [ls]", "tag 'tag:yaml.org,2002:python/object/apply:os.system'"),
        ("a: !!binary aGk=", "is not allowed (line 1); write plain values"),
        (_BOMB, "stands for more than 50000 values"),
        ("a: &a [*a]", "alias '*a' contains itself"),
        ("a: " + "[" * 100, "is nested deeper than 64 levels"),
        ("a: 1\na: 2", "key 'a' stands twice in one mapping (line 2)"),
        ("no: 1", "YAML reads key 'no' as false (line 1); quote it"),
        ("? [1]\n: 2", "a list cannot be a key"),
        ("a: [1, 2", "is not valid YAML"),
        ("a: b: c", "mapping values are not allowed in this context (line 1, column 5)"),
        ("a: *b", "found undefined alias (line 1, column 4)"),
        ("--- {}\n--- {}", "is not valid YAML"),
        ("", "is empty, but a mapping of keys to values is needed"),
        ("[1, 2]", "holds a list, but a mapping"),
        ("just text", "holds 'just text', but a mapping"),
        (b"\xff\xfe\x00\x01", "is not UTF-8 text"),
        (b"a: \x00", "is not valid YAML"),
        (b"# " + b"x" * 2**20, "is larger than 1 MiB"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else None,
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    started = time.perf_counter()
    with pytest.raises(InputError) as error:
        _read(tmp_path, text)
    assert str(error.value).startswith(str(tmp_path / "f.yaml"))
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert time.perf_counter() - started < 5


def test_every_reader_gets_a_mapping_of_their_own_and_what_the_file_says_now(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: [1]\n")
    first = dialect.read_yaml(path)
    first["a"].append(2)
    assert dialect.read_yaml(path) == {"a": [1]}
    before = path.stat()
    path.write_text("a: [3]\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as long and as old as it was
    assert dialect.read_yaml(path) == {"a": [3]}


def test_aliases_in_merged_keys_do_not_get_around_the_limit_of_nesting(tmp_path: Path) -> None:
    """What a merge overrides is nowhere in the result; an alias to it still is, with all that it holds."""
    deep, shut = "[" * 55, "]" * 55
    hidden = [f"a{i}: {{<<: {{p: &a{i} {deep}{f'*a{i - 1}' if i else ''}{shut}}}, p: 0}}" for i in range(30)]
    with pytest.raises(InputError, match="is nested deeper than 64 levels through its aliases"):
        _read(tmp_path, "\n".join([*hidden, "all: *a29\n"]))


def test_what_is_not_a_readable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        dialect.read_yaml(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        dialect.read_yaml(tmp_path / "absent.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(InputError, match="is not a regular file"):
        dialect.read_yaml(tmp_path / "pipe.yaml")
    path = tmp_path / "secret.yaml"
    path.write_text("{}")
    path.chmod(0)
    if os.geteuid() == 0:
        pytest.skip("root reads files whatever their mode")
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        dialect.read_yaml(path)


def test_half_a_surrogate_pair_in_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text('{"name": "\\ud800"}')
    with pytest.raises(InputError, match="is not valid JSON"):
        dialect.read_yaml(path)


@given(texts() | st.text(alphabet="{}[]:,&*!-?<>|'\"# \nab1."))
@example("\ud800")
@example("%YAML 9.9\n---\n")
def test_any_text_is_a_value_or_an_input_error(text: str) -> None:
    try:
        dialect.parse_yaml(text)
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_for_editors_is_up_to_date(kind: str) -> None:
    committed = Path(__file__).parents[2] / "docs" / "schema" / f"{kind}.json"
    fresh = json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"
    assert committed.read_text() == fresh, "run: python -m tspsim.answer.schema docs/schema"


def test_the_schema_of_a_scenario_says_what_a_plan_may_hold() -> None:
    plan = schema("scenario")["$defs"]["PlanSpec"]
    assert plan["additionalProperties"] is False
    assert plan["properties"]["exchange"]["enum"] == ["all_gather", "ring", "token_ring", "ulysses"]
    workload = schema("scenario")["$defs"]["Workload"]
    assert workload["required"] == ["model"] and "pass" in workload["properties"]  # left out with traffic
    with pytest.raises(UnknownNameError, match="did you mean 'scenario'"):
        schema("scenarios")


def test_schemas_are_written_or_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "new")]) == 0
    assert sorted(path.stem for path in (tmp_path / "new").iterdir()) == sorted(KINDS)
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
