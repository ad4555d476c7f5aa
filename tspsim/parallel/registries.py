"""Where schemes, context methods and transports of weights register themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..base.registry import Registry

if TYPE_CHECKING:
    from .context.method import ContextMethod
    from .decode.exchange import DecodeExchange
    from .decode.index_exchange import IndexExchange
    from .folded_form import DecodeForm
    from .scheme import Scheme
    from .transport import Transport


class _Schemes(Registry["Scheme"]):
    """Schemes, each with axes of its own."""

    def register(self, thing: Scheme) -> Scheme:
        axes = getattr(thing, "axes", ())
        for other in self._objects.values():
            shared = sorted({*axes} & {*other.axes})
            if shared and other.name != thing.name:
                raise ValueError(f"axis '{shared[0]}' of scheme '{thing.name}' is one of scheme '{other.name}' already")
        return super().register(thing)


SCHEMES: Registry[Scheme] = _Schemes("scheme", "tspsim.schemes")
CONTEXT_METHODS: Registry[ContextMethod] = Registry("exchange", "tspsim.context_methods")
DECODE_EXCHANGES: Registry[DecodeExchange] = Registry("decode exchange", "tspsim.decode_exchanges")
INDEX_EXCHANGES: Registry[IndexExchange] = Registry("index exchange", "tspsim.index_exchanges")
DECODE_FORMS: Registry[DecodeForm] = Registry("decode form", "tspsim.decode_forms")
WEIGHT_TRANSPORTS: Registry[Transport] = Registry("weight transport", "tspsim.weight_transports")


def mesh_axes() -> tuple[str, ...]:
    """Mesh axes, from the one whose ranks talk most to the one whose ranks talk least: those of all schemes, stages and
    replicas. The default placement puts them on the graph in this order, the first along the node."""
    return *scheme_axes(), "pp", "dp"


def scheme_axes() -> tuple[str, ...]:
    """Those that schemes spread a replica over."""
    return tuple(dict.fromkeys(axis for scheme in SCHEMES.values() for axis in scheme.axes))


def scheme_name(degrees: Mapping[str, int]) -> str:
    """The scheme that degrees ask for: the one whose own axes have several ranks, or the usual one."""
    usual, *others = sorted(SCHEMES.values(), key=lambda scheme: not scheme.usual)
    return next((scheme.name for scheme in others if any(degrees.get(axis, 1) > 1 for axis in scheme.axes)), usual.name)
