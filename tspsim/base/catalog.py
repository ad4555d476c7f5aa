"""Find, read and validate the YAML that describes devices, nodes, fabrics, transports, clusters, models and scenarios.

A catalog entry is a file ``NAME.yaml`` in its kind's folder. Folders are searched in this order, so that a
user's own entry wins over a shipped one of the same name:

1. every folder in the environment variable ``TSPSIM_CATALOG`` (separated as ``PATH`` is),
2. the current folder,
3. what ships with the package.

Files come from strangers. They are read with a small dialect of YAML: no tags, no repeated keys, bounded
size, depth and alias expansion; dates stay text, and a number is what a person would call a number. An error
is one line (:class:`~tspsim.errors.InputError`): file, key path, value, what is allowed.
"""

from __future__ import annotations

import os
import pickle
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from .errors import InputError, UnknownNameError, describe, did_you_mean, printable, shorten
from .memo import MOST, BoundedCache, remembered
from .registry import changes

if TYPE_CHECKING:
    import pandas
    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")
Kind = Literal["devices", "nodes", "fabrics", "transports", "clusters", "models", "stacks", "failures", "scenarios"]

#: Where the entries of a kind lie, below each folder that is searched.
FOLDERS: dict[str, str] = {
    "devices": "topologies/devices",
    "nodes": "topologies/nodes",
    "fabrics": "topologies/fabrics",
    "transports": "topologies/transports",
    "clusters": "topologies/clusters",
    "models": "workloads/models",
    "stacks": "workloads/stacks",
    "failures": "topologies/failures",
    "scenarios": "scenarios",
}

#: Keys that only one kind of entry has. A file is of the first kind whose keys it has all.
_TELLING: tuple[tuple[tuple[str, ...], Kind], ...] = (
    (("workload",), "scenarios"),
    (("jobs",), "scenarios"),
    (("components",), "failures"),
    (("hbm_bandwidth",), "devices"),
    (("peak",), "devices"),
    (("intra",), "nodes"),
    (("nic", "switch"), "fabrics"),
    (("collectives", "name"), "transports"),
    (("architectures",), "models"),
    (("hidden_size", "num_hidden_layers"), "models"),
    (("hidden", "layers"), "models"),
    (("device", "nodes"), "clusters"),
    (("plans",), "scenarios"),
)

#: Parsed files in the cache: more than the catalog has.
KEPT_FILES = 512
LARGEST_FILE_BYTES = 2**20
DEEPEST_NESTING = 64
MOST_VALUES = 50_000
TOO_LARGE = "is larger than 1 MiB, the most a description may have"
TOO_DEEP = f"is nested deeper than {DEEPEST_NESTING} levels through its aliases"
_PATH_SUFFIXES = (".yaml", ".yml", ".json")


def roots() -> list[Path]:
    """The folders that are searched, first wins."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "_catalog"
    own = [Path(part) for part in os.environ.get("TSPSIM_CATALOG", "").split(os.pathsep) if part]
    return [*own, Path(), shipped if shipped.is_dir() else package.parent]


def names(kind: Kind) -> list[str]:
    """Names of all entries of ``kind``, sorted."""
    stems = {path.stem for root in roots() for path in (root / FOLDERS[kind]).glob("*.yaml")}
    return sorted(stems)


def table(kind: Kind | None = None) -> pandas.DataFrame:
    """The catalog as a table, as ``tspsim catalog list`` prints it; ``tspsim.catalog()`` is the same.

    Parameters
    ----------
    kind
        One of :data:`FOLDERS`; None: all.

    Raises
    ------
    UnknownNameError
        No such kind.

    >>> import tspsim
    >>> tspsim.catalog("devices").loc["h100", "kind"]
    'devices'
    """
    import pandas

    if kind is not None and kind not in FOLDERS:
        raise UnknownNameError("kind of entry", kind, FOLDERS)
    kinds = [cast("Kind", name) for name in FOLDERS] if kind is None else [kind]
    entries = [(kind, name) for kind in kinds for name in names(kind)]
    rows = [{"kind": kind, "description": describe_entry(kind, name), "file": str(locate(kind, name))}
            for kind, name in entries]  # fmt: skip
    return pandas.DataFrame(rows, index=pandas.Index([name for _, name in entries], name="name"))


def describe_entry(kind: Kind, name: str) -> str:
    """An entry in a line; one that cannot be read says why instead of hiding the others."""
    try:
        data = read_yaml(locate(kind, name))
    except InputError as error:
        return f"cannot be read: {shorten(error.message, 100)}"
    return printable(shorten(data.get("description") or data.get("source") or "", 160))


def locate(kind: Kind, name_or_path: str | Path, *, beside: Path | None = None) -> Path:
    """The file of a catalog entry, or the file that a path names.

    Parameters
    ----------
    kind
        Which catalog to search.
    name_or_path
        A catalog name, or a path: text with a separator or ending in .yaml, .yml or .json.
    beside
        A second folder relative paths are tried from: the one of the file that mentions them.

    Raises
    ------
    UnknownNameError
        No entry has this name; the message offers the nearest.
    InputError
        The path does not exist.
    """
    text = str(name_or_path)
    if is_path(text):
        candidates = [Path(text), *([beside / text] if beside else [])]
        file = next((path for path in candidates if _exists(path)), None)
        if file is None:
            remedy = _nearest_file(Path(text), kind) or "; give a path that exists or a catalog name"
            raise InputError(f"no such file{remedy}", file=shorten(text))
        return file
    for root in roots():
        path = root / FOLDERS[kind] / f"{text}.yaml"
        if _exists(path):
            return path
    raise UnknownNameError(kind.removesuffix("s"), text, [*names(kind), *_files_here(Path(), kind)])


def locate_file(path: str, *, beside: Path | None = None) -> Path:
    """A file that is no entry, such as a GraphML file: from here, from the folder of the file that names it, or from a
    folder of the catalog.

    Raises
    ------
    InputError
        There is no such file.
    """
    folders = [Path(), *([beside] if beside else []), *roots()]
    file = next((folder / path for folder in folders if _exists(folder / path)), None)
    if file is None:
        raise InputError("no such file; give a path that exists", file=shorten(path, 200))
    return file


def _nearest_file(path: Path, kind: Kind) -> str:
    """`` (did you mean …?)``: a file in the same folder, or a catalog entry; empty when no name is near."""
    beside = [str(path.parent / name) for name in _files_here(path.parent)]
    near = did_you_mean(path, beside, limit=0) if beside else ""
    if not near.startswith(" (did"):
        near = did_you_mean(path.stem, names(kind), limit=0)
    return near if near.startswith(" (did") else ""


def _files_here(folder: Path, kind: Kind | None = None) -> list[str]:
    """Names of the YAML and JSON files in a folder, those of one kind alone; none where it cannot be read."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in _PATH_SUFFIXES)
    except (OSError, ValueError):
        return []
    return [path.name for path in paths if kind is None or _may_be(path, kind)]


def _may_be(path: Path, kind: Kind) -> bool:
    """Whether a file may describe an entry of this kind: its kind fits, or cannot be told."""
    try:
        return kind_of(path, read_yaml(path)) in (kind, None)
    except InputError:
        return False


#: Between an entry and one of its versions.
VERSION = "@"


def is_path(text: str) -> bool:
    """Whether ``text`` means a file rather than a catalog name."""
    return "/" in text or os.sep in text or text.endswith(_PATH_SUFFIXES)


def versioned(name: str) -> tuple[str, str]:
    """``NAME`` and ``VERSION`` of ``NAME@VERSION``; of a file, or without one, the version is empty.

    >>> versioned("vllm@0.19"), versioned("mine@home.yaml")
    (('vllm', '0.19'), ('mine@home.yaml', ''))
    """
    base, _, version = (name, "", "") if is_path(name) else name.partition(VERSION)
    return base, version


def kind_of(path: Path, data: Mapping[str, Any]) -> Kind | None:
    """What an entry describes: by the folder it lies in, else by its keys; None where neither says."""
    folder = path.resolve().parent
    for kind, place in FOLDERS.items():
        if folder.parts[-len(Path(place).parts) :] == Path(place).parts:
            return cast("Kind", kind)
    return next((kind for keys, kind in _TELLING if all(key in data for key in keys)), None)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long or with a null byte names nothing
        return False


def is_file(text: str) -> bool:
    """Whether a text is the name of a file that is there."""
    try:
        return bool(text) and Path(text).is_file()
    except (OSError, ValueError):
        return False


def load(kind: Kind, name_or_path: str | Path, type_: type[Model]) -> Model:
    """Locate, read and validate one entry; raises :class:`~tspsim.errors.InputError` with the place."""
    entry: Model = _read_as(locate(kind, name_or_path), type_, type_)
    return entry


def load_announced(
    kind: Kind, name: str | Path, type_: type[Model], stated: type[BaseModel], lender: Callable[[Any], str]
) -> Model:
    """A file of hardware, measured or announced. One with ``announced: true`` states less; the rest comes from a
    measured one (``stated.completed``), named by ``lender``.

    Raises
    ------
    InputError
        The file is wrong, or the one it borrows from is announced itself.
    """
    path, what = locate(kind, name), kind.removesuffix("s")
    entry: Any = _read_as(path, type_, stated)
    if isinstance(entry, type_):
        return entry
    file, measured = str(path), lender(entry)
    if measured == entry.name:
        raise InputError(f"an announced {what} cannot be like itself; name a measured one", file=file, key="like")
    try:
        like: Any = load_announced(kind, measured, type_, stated, lender)
    except InputError as error:
        raise error.at(file=file, key="like") from None
    if like.announced:
        raise InputError(f"'{measured}' is announced itself; name a measured {what}", file=file, key="like")
    completed: Model = _completed.of_parts(
        (entry, like), file, lambda: validate(entry.completed(like), type_, file=file)
    )
    return completed


#: Announced hardware, completed with what it borrows.
_completed = BoundedCache(MOST, changes)


def _read_as(path: Path, type_: type[BaseModel], announced: type[BaseModel]) -> Any:
    """A file as ``type_``, or as ``announced`` where it says ``announced: true``. All readers of the same text share
    one object, which nobody can change."""
    return _known(_read_text(path, shorten(path, 200)), path, type_, announced)


@remembered(KEPT_FILES)
def _known(text: str, path: Path, type_: type[BaseModel], announced: type[BaseModel]) -> Any:
    """Cached by the text, as :func:`_pickled_yaml`; a file that is wrong is read again."""
    data = _mapping(text, path)
    return validate(data, announced if data.get("announced") is True else type_, file=str(path))


def validate(data: object, type_: type[Model], *, file: str | None = None) -> Model:
    """``data`` as ``type_``, or one :class:`~tspsim.errors.InputError` line: where, and what is allowed."""
    from pydantic import ValidationError

    from .explain import explain

    try:
        return type_.model_validate(data)
    except ValidationError as error:
        raise explain(error, data, type_, file=file) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML (or JSON) file.

    Raises
    ------
    InputError
        The file cannot be read, is too large, is not YAML of the dialect above, or is not a mapping.
    """
    return _mapping(_read_text(path, shorten(path, 200)), path)


def mapping_of(text: str, path: Path) -> dict[str, Any]:
    """The mapping in a text that would stand at ``path``; raises as :func:`read_yaml`. It is not cached: a text that
    is being written differs with every key stroke."""
    file = shorten(path, 200)
    if len(text.encode("utf-8", "replace")) > LARGEST_FILE_BYTES:
        raise InputError(TOO_LARGE, file=file)
    try:
        data = _parse_json(text, file) if path.suffix == ".json" else parse_yaml(text, file=file)
    except RecursionError:
        raise InputError(TOO_DEEP, file=file) from None
    return _as_mapping(data, file)


def stated(path: Path, key: str) -> Any:
    """The value of one key of a file, without validation; None where the file lacks it. Raises as
    :func:`read_yaml`."""
    return _stated(_read_text(path, shorten(path, 200)), path, key)


@remembered(KEPT_FILES)
def _stated(text: str, path: Path, key: str) -> Any:
    return _mapping(text, path).get(key)


def _mapping(text: str, path: Path) -> dict[str, Any]:
    """The mapping in a file's text, a copy of its own for each caller."""
    file = shorten(path, 200)
    return _as_mapping(
        _parse_json(text, file) if path.suffix == ".json" else pickle.loads(_pickled_yaml(text, file)), file
    )


def _as_mapping(data: Any, file: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        what = "is empty" if data is None else f"holds {describe(data)}"
        raise InputError(f"{what}, but a mapping of keys to values is needed", file=file)
    return data


@remembered(KEPT_FILES)
def _pickled_yaml(text: str, file: str) -> bytes:
    """A text's value, pickled: each reader unpacks a copy of its own, in a hundredth of the parser's time.

    The key is the text and not the file's time, so that a file that changes is read anew. Errors are not cached.
    """
    try:
        return pickle.dumps(parse_yaml(text, file=file), pickle.HIGHEST_PROTOCOL)
    except RecursionError:  # aliases of aliases, each nested no deeper than allowed
        raise InputError(TOO_DEEP, file=file) from None


def _read_text(path: Path, file: str) -> str:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError("is a folder; name a YAML file", file=file)
        if not stat.S_ISREG(mode):  # reading a pipe or a device might never end
            raise InputError("is not a regular file", file=file)
        with path.open("rb") as stream:
            raw = stream.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file", file=file) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=file) from None
    if len(raw) > LARGEST_FILE_BYTES:
        raise InputError(TOO_LARGE, file=file)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", file=file) from None


def _parse_json(text: str, file: str) -> Any:
    """JSON is YAML but for tabs, long numbers and half of a surrogate pair."""
    import json

    try:
        data = json.loads(text)
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid JSON: {shorten(error, 160)}", file=file) from None
    return data


def parse_yaml(text: str, *, file: str | None = None) -> Any:
    """Any value written in the YAML dialect above (``--set`` values are read with it too)."""
    import yaml

    loader = _loader()
    try:
        _check_events(yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise InputError(f"is not valid YAML: {shorten(problem, 160)}{where}", file=file) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise InputError(f"is not valid YAML: {shorten(error, 160)}", file=file) from None
    except InputError as error:
        raise error.at(file=file) from None


def _check_events(events: Iterator[Any]) -> None:
    """Refuse tags, deep nesting and alias bombs before anything is built.

    One pass over the parser's events: ``open_`` holds the number of values so far in every collection that is
    still open, and an alias adds the number of values its anchor stood for.
    """
    import yaml

    open_: list[tuple[str | None, int]] = []
    anchored: dict[str, int] = {}
    total = 0

    def close(anchor: str | None, values: int) -> None:
        nonlocal total
        if anchor:
            anchored[anchor] = values
        if open_:
            outer, so_far = open_[-1]
            open_[-1] = (outer, so_far + values)
            total = max(total, so_far + values)

    for event in events:
        line = event.start_mark.line + 1
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise InputError(f"tag '{shorten(tag)}' is not allowed (line {line}); write plain values")
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, 1))
            if len(open_) > DEEPEST_NESTING:
                raise InputError(f"is nested deeper than {DEEPEST_NESTING} levels (line {line})")
        elif isinstance(event, yaml.CollectionEndEvent):
            close(*open_.pop())
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in anchored:
                close(None, anchored[event.anchor])
            elif any(anchor == event.anchor for anchor, _ in open_):
                raise InputError(f"alias '*{shorten(event.anchor)}' contains itself (line {line})")
        elif isinstance(event, yaml.ScalarEvent):
            close(event.anchor, 1)
        if total > MOST_VALUES:
            raise InputError(f"stands for more than {MOST_VALUES} values (line {line}); use fewer aliases")


@remembered(1)
def _loader() -> type[Any]:
    """A safe YAML loader with a person's idea of numbers, and without repeated keys.

    YAML 1.1 reads ``1e6`` as text, ``010`` as eight, ``1:30`` as ninety and ``2026-08-21`` as a date; here
    they are a number and three texts. ``yes``, ``no``, ``on`` and ``off`` stay booleans, as in YAML 1.1.
    """
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """The dialect described at the top of this module."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[object] = set()
            for key_node, _ in node.value:
                if key_node.tag == "tag:yaml.org,2002:merge":
                    continue
                line = key_node.start_mark.line + 1
                key = self.construct_object(key_node, deep=True)
                if isinstance(key, bool):
                    word = key_node.value
                    raise InputError(f"YAML reads key '{word}' as {describe(key)} (line {line}); quote it")
                if not isinstance(key, str | int | float):
                    raise InputError(f"{describe(key)} cannot be a key (line {line}); use text")
                if key in seen:
                    raise InputError(f"key '{shorten(key)}' stands twice in one mapping (line {line})")
                seen.add(key)
            return cast("dict[Any, Any]", super().construct_mapping(node, deep=True))

    booleans = ("yes", "no", "true", "false", "on", "off")
    integer = r"[-+]?(?:0|[1-9][0-9_]{0,17})"
    digits, exponent = "[0-9]{1,30}", "[eE][-+]?[0-9]{1,2}"
    kinds = (
        ("null", r"~|null|Null|NULL|", "~nN\0"),
        ("bool", "|".join(f"{word}|{word.capitalize()}|{word.upper()}" for word in booleans), "yYnNtTfFoO"),
        ("int", integer, "-+0123456789"),
        ("float", rf"[-+]?{digits}(?:\.(?:{digits})?(?:{exponent})?|{exponent})", "-+0123456789"),
        ("merge", "<<", "<"),
    )
    Loader.yaml_implicit_resolvers = {}
    for kind, pattern, first in kinds:
        characters = ["" if character == "\0" else character for character in first]
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern})\Z"), characters)
    return Loader


class _Called(ModuleType):
    """This module as a function: ``tspsim.catalog()`` lists the catalog."""

    def __call__(self, kind: Kind | None = None) -> pandas.DataFrame:
        return table(kind)


sys.modules[__name__].__class__ = _Called
