"""The requests of a service: send times, lengths, shared prefixes, and how a benchmark counts them.

Each kind registers itself (:mod:`tspsim.base.registry`): a class whose fields are its options, with its check and its
sentence. :func:`draw` draws columns of requests from them. This room knows no engine and no clock.
"""

from __future__ import annotations

from . import arrivals, lengths, prefixes, protocols
from .arrivals import ARRIVALS, Arrivals
from .draw import DrawnRequests, draw, sizes
from .kind import Kind, OneKind
from .lengths import LENGTHS, Lengths
from .prefixes import PREFIXES, Needs, Prefixes, Shared
from .protocols import PROTOCOLS, Protocol
from .traces import TRACE_FORMS, RequestTrace, TraceForm, locate_trace, read_trace

__all__ = [
    "ARRIVALS",
    "LENGTHS",
    "PREFIXES",
    "PROTOCOLS",
    "TRACE_FORMS",
    "Arrivals",
    "DrawnRequests",
    "Kind",
    "Lengths",
    "Needs",
    "OneKind",
    "Prefixes",
    "Protocol",
    "RequestTrace",
    "Shared",
    "TraceForm",
    "arrivals",
    "draw",
    "lengths",
    "locate_trace",
    "prefixes",
    "protocols",
    "read_trace",
    "sizes",
]
