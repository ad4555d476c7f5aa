"""Commands of ``tspsim plan --emit`` held against the engines' own parsers, whose packages need no GPU for it.

    pip download --no-deps --only-binary :all: vllm sglang -d FOLDER
    pip install pydantic msgspec regex psutil cloudpickle cachetools requests pybase64
    python benchmarks/engine_parsers.py FOLDER/vllm-*.whl FOLDER/sglang-*.whl

Draws plans and options, prints their launches, and gives every command to the parser of the wheel's own package, with
what it imports beside these stood in for. Prints what a parser refuses, and how many it took; exits with 1 if it
refused any.
"""

from __future__ import annotations

import abc
import contextlib
import importlib.abc
import importlib.machinery
import json
import logging
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SEED, COUNT = 3, 45
#: Modules that say by their absence which machine this is not, and one that needs a GPU to be imported.
ABSENT = {"torch_npu", "torch_musa", "torch_mlu", "torch_xla", "habana_frameworks", "ray"}
EMPTY = ("vllm.env_override", "vllm.v1.executor")
ENGINES = {"vllm": r"vllm serve", "sglang": r"python -m sglang\.launch_server"}


class Anything(abc.ABCMeta):
    """The class of what stands in for a name: it has every name, takes every call and is no number but zero."""

    def __getattr__(cls, name: str) -> Any:
        if name == "__class_validators__":
            return []
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __setitem__(cls, _: Any, value: Any) -> None:
        pass

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __int__(cls) -> int:
        return 0

    def __lt__(cls, _: Any) -> bool:
        return False

    __index__ = __int__
    __gt__ = __le__ = __ge__ = __lt__
    __or__ = __ror__ = __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __getitem__


class Base(metaclass=Anything):
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()

    def __call__(self, *args: Any, **named: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not named else Base()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Base()

    def __getitem__(self, _: Any) -> Any:
        return Base()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False


def stand_in(name: str) -> Any:
    return Anything(name, (Base,), {"__module__": "stand_in"})


class Module(types.ModuleType):
    __version__ = "2.9.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("npu", "xpu", "musa", "mlu", "hpu"):
            raise AttributeError(name)
        found: Any = stand_in(name)
        if name == "infer_schema":
            found = lambda *_, **__: "()->()"  # noqa: E731
        elif name in ("is_available", "is_initialized"):
            found = lambda *_, **__: False  # noqa: E731
        elif name == "device_count":
            found = lambda *_, **__: 8  # noqa: E731
        setattr(self, name, found)
        return found


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last of all: finds whatever nobody has."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        known = top in sys.modules and not isinstance(sys.modules[top], Module)
        if known or top in ABSENT or top in ENGINES or top in sys.stdlib_module_names:
            return None
        return self.spec(name)

    def spec(self, name: str) -> importlib.machinery.ModuleSpec:
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Module:
        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def parser_of(engine: str) -> Any:
    """The package's own, all of whose options are registered."""
    finder = Finder()
    sys.meta_path.append(finder)
    for name in EMPTY:
        sys.modules[name] = module = Module(name)
        module.__path__, module.__spec__ = [], finder.spec(name)
    if engine == "vllm":
        import vllm.platforms
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        vllm.platforms.current_platform.device_type = "cpu"
        return AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False))
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    return parser


def refused(engine: str, lines: list[list[str]]) -> Iterator[str]:
    """What the parser says to commands that it does not take."""
    parser = parser_of(engine)
    for words in lines:
        try:
            _, rest = parser.parse_known_args(words)
            problem = f"unknown: {rest}" if rest else ""
        except SystemExit:
            problem = "refused"
        except Exception as error:  # argparse's own and the types' of options
            problem = str(error)
        if problem:
            yield f"{problem}: {shlex.join(words)}"


def commands(engine: str) -> list[list[str]]:
    """Of random plans with random options: the words behind the command and its model."""
    sys.path.insert(0, str(ROOT))
    from tests.studies.test_launch_words import DISPATCHES, DRAFTS, MINE, OPTIONS, text
    from tspsim.base.errors import InputError

    draw, found = random.Random(SEED), []
    for _ in range(COUNT):
        plan: dict[str, Any] = dict(draw.choice([{"tp": 8}, {"tp": 4, "pp": 2}, {"tp": 4, "ep": 4}, MINE, MINE]))
        plan["engine"] = {name: value for name, value in OPTIONS[engine].items() if draw.random() < 0.3}
        if "dp" in plan:
            plan["expert_dispatch"] = draw.choice([each.name for each in DISPATCHES.values() if each.launched])
            plan |= {"expert_balance": {"policy": "eplb"}} if draw.random() < 0.3 else {}
        if draw.random() < 0.4:
            draft = draw.choice([name for name in DRAFTS.names() if name != "model"])
            plan["speculation"] = {"tokens": 2, "positions": [0.5, 0.5], "draft": draft}
        device, cache = draw.choice(["h200", "b200", "mi355x"]), draw.choice(["fp8", "bf16"])
        with contextlib.suppress(InputError):
            printed = text(plan, engine, device=device, precision={"kv": cache})
            for command in re.findall(rf"^{ENGINES[engine]}(?:.*\\\n)*.*", printed, re.MULTILINE):
                words = [word for word in shlex.split(command.replace("\\\n", " ")) if word != "$@"]
                found.append(["--model", *words[2:]] if engine == "vllm" else words[3:])
    return found


def main(wheels: list[Path]) -> int:
    failed = 0
    for wheel in wheels:
        engine = wheel.name.partition("-")[0]
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
            lines = commands(engine)
            (Path(folder) / "lines.json").write_text(json.dumps(lines), encoding="utf-8")
            asked = [sys.executable, __file__, "--parse", engine, folder]
            environment = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": folder}
            ran = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            sys.exit(ran.stderr)
        problems = [line for line in ran.stdout.splitlines() if line.startswith("- ")]
        print(*problems, f"{wheel.name}: {len(lines)} commands, {len(problems)} refused", sep="\n")
        failed += len(problems)
    return int(failed > 0)


if __name__ == "__main__":
    if sys.argv[1] == "--parse":
        logging.disable(logging.CRITICAL)
        asked = json.loads((Path(sys.argv[3]) / "lines.json").read_text(encoding="utf-8"))
        for problem in refused(sys.argv[2], asked):
            print("-", problem)
    else:
        sys.exit(main([Path(each) for each in sys.argv[1:]]))
