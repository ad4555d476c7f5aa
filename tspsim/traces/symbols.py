"""Names of kernels as compilers and profilers write them, made readable.

AMD's code objects end symbols with ``.kd``; names that a profiler cannot demangle stay as the Itanium C++ ABI writes
them (``_ZN5aiter24add_rmsnorm_quant_kernelI…``); Nsight writes ``<unnamed>`` for a namespace without a name.
"""

from __future__ import annotations

import re

from ..base.memo import remembered

#: Ends that a code object adds to a kernel's name.
_ENDS = re.compile(r"(\s*\[clone [^\]]*\]|\.kd)+$")
#: Parts of a mangled name: literals, builtin types, substitutions and parameters have digits that are no lengths.
_PARTS = re.compile(r"L\w?n?\d+E|DF\d+\w_?|DB\d+_|S[0-9A-Z]*_|T\d*_|(?P<length>\d+)|.", re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")
#: Borders of words in CamelCase.
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@remembered(65_536)
def readable(kernel: str) -> str:
    """A kernel's name without what a code object adds to it, and demangled as far as its identifiers go.

    >>> readable("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi32EEEvPT0_.kd")
    'aiter::add_rmsnorm_quant_kernel'
    >>> readable("_fwd_kernel.kd"), readable("void f<1>(int) [clone .kd]")
    ('_fwd_kernel', 'void f<1>(int)')
    """
    name = _ENDS.sub("", kernel).replace("<unnamed>", "(anonymous namespace)")
    if not name.startswith("_Z"):
        return name
    identifiers, place = [], 2
    while match := _PARTS.match(name, place):
        place = match.end()
        # A length has at most four digits; what follows one that is none would not be a name.
        if match["length"] and len(match["length"]) < 5:
            identifier = name[place : place + int(match["length"])]
            if len(identifier) == int(match["length"]) and _IDENTIFIER.match(identifier):
                identifiers.append(identifier)
                place += len(identifier)
    return "::".join(identifiers) or name


def in_snake_case(name: str) -> str:
    """A name whose words in CamelCase stand apart.

    >>> in_snake_case("fusedQKNormRopeKernel")
    'fused_qk_norm_rope_kernel'
    """
    return _CAMEL.sub("_", name).lower()


@remembered(65_536)
def own_name(name: str) -> str:
    """A readable name without its type, namespaces, template arguments and parameters.

    >>> own_name("void turbomind::attention::reduce<turbomind::Half<(int)4>, true>(float*, int)")
    'reduce'
    >>> own_name("(anonymous namespace)::route_small"), own_name("_fwd_kernel")
    ('route_small', '_fwd_kernel')
    """
    depth, kept = 0, []
    for character in name.replace("(anonymous namespace)", ""):
        if character == "<":
            depth += 1
        elif character == ">" and depth:
            depth -= 1
        elif character == "(" and not depth:
            break
        elif not depth:
            kept.append(character)
    words = "".join(kept).split("::")[-1].split()
    return words[-1] if words else name
