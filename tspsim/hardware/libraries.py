"""Names of kernel libraries: an engine's by their first word, and which fits of a device are a library's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .specification import KernelFit

#: Engines by the first word of their libraries' names: one is asked for by that word alone. ATOM runs AITER's kernels.
ENGINES: dict[str, str] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
    "tensorrt-llm": "trtllm",
    "aiter": "aiter",
    "atom": "aiter",
}


def of_library(fits: Sequence[KernelFit], name: str | None) -> list[KernelFit]:
    """The fits of a library by its name in full; else the newest of the engine that the name's first word is.

    Of an engine's kernels those whose names have the further words; where none has, all: another kernel of the engine
    is nearer to one that was not measured than another engine's is. One that was measured untuned is
    asked for by its name alone.
    """
    if name is None:
        return []
    exact = [fit for fit in fits if fit.library == name]
    engine = _engine(name)
    if exact or engine is None:
        return exact
    own = [fit for fit in fits if _engine(fit.library) == engine and fit.untuned is None]
    own = [fit for fit in own if is_of(fit, name)] or own
    newest = max((version_of(fit.library) for fit in own), default=())
    return [fit for fit in own if version_of(fit.library) == newest]


def is_of(fit: KernelFit, name: str) -> bool:
    """Whether a library is the one of that name, or its engine's with the further words in its own."""
    if fit.library == name:
        return True
    engine = _engine(name)
    words = name.lower().split()[1:]
    return engine is not None and engine == _engine(fit.library) and all(word in fit.library.lower() for word in words)


def maker_of(library: str) -> str:
    """Whose a library is, by the letters that it begins with: an engine as stacks name it, else these.

    >>> maker_of("TensorRT-LLM 1.2"), maker_of("aiter_asm(ref)"), maker_of("hipBLASLt")
    ('trtllm', 'aiter', 'hipblaslt')
    """
    word = re.split(r"[^a-z-]", library.lower(), maxsplit=1)[0]
    return ENGINES.get(word, word)


def _engine(library: str) -> str | None:
    """The engine that a library is of, by its whole first word; None of what is no engine's, or a reference's."""
    return ENGINES.get(library.split(" ", 1)[0].lower())


def version_of(library: str) -> tuple[int, ...]:
    """Of an engine, as the second word of a library has it; nothing where it is no version."""
    words = library.split(" ", 2)
    return tuple(map(int, re.findall(r"\d+", words[1]))) if len(words) > 1 and words[1][0].isdigit() else ()
