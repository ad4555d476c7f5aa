"""MLPerf Inference: LoadGen's scenarios of language models.

Server and Interactive send a Poisson process and bound the 99th percentiles of TTFT and TPOT. Offline sends all samples
at the start, in one query, without bounds. Everything counts. Runs last ten minutes at least (LoadGen's
``min_duration``). Offline, LoadGen derives the number of samples from the rate that a submitter expects (1.1 · 600 s ·
rate), and never sends fewer than ``min_query_count``; this protocol sends that number. Bounds and counts by model are
data: workloads/traffic/mlperf.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base import catalog, dialect
from ...base.memo import remembered
from ...base.units import parse
from ..arrivals import Arrivals
from ..arrivals.at_once import AtOnce
from ..arrivals.poisson import Poisson
from ..traces import FOLDER
from .base import USUAL_REQUESTS, Protocol

#: LoadGen's least duration of a run.
LEAST_S = 600.0
#: Fewest samples of Offline's query, where the data set is large enough.
LEAST_SAMPLES = 24_576


class Server(Protocol):
    """Poisson arrivals under bounds at the 99th percentile."""

    name = "mlperf_server"
    share = 0.99
    apart = True
    metric = "p99"

    def refuses(self, arrivals: Arrivals) -> str | None:
        if not isinstance(arrivals, Poisson):
            return f"{self.name} sends a Poisson process; use arrivals: {{kind: poisson, rate: …}}"
        return None

    def requests(self, arrivals: Arrivals, model: str | None = None) -> int:
        rate = arrivals.mean_rate
        return USUAL_REQUESTS if rate is None else max(USUAL_REQUESTS, round(rate * LEAST_S))

    def ignores_eos(self) -> bool:
        return False

    def bounds(self, model: str) -> Mapping[str, float]:
        bounds = stated().get("bounds", {}).get(self.name.removeprefix("mlperf_"), {}).get(model, {})
        return {name: parse(value, "s", positive=True) for name, value in bounds.items()}

    def in_words(self) -> str:
        return "as MLPerf's LoadGen counts: a Poisson process for ten minutes at least, bounds at the 99th percentile"


class Interactive(Server):
    """Server with tighter bounds."""

    name = "mlperf_interactive"


class Offline(Protocol):
    """All samples at the start; only tokens/s counts."""

    name = "mlperf_offline"

    def refuses(self, arrivals: Arrivals) -> str | None:
        if not isinstance(arrivals, AtOnce):
            return "mlperf_offline has all samples at the start; use arrivals: {kind: at_once}"
        return None

    def ignores_eos(self) -> bool:
        return False

    def requests(self, arrivals: Arrivals, model: str | None = None) -> int:
        return int(stated().get("samples", {}).get(model, LEAST_SAMPLES))

    def in_words(self) -> str:
        return (
            "as MLPerf's LoadGen counts offline: all samples at the start, no bound on times; where they take less "
            "than ten minutes it would send more"
        )


@remembered(1)
def stated() -> Mapping[str, Any]:
    """``bounds`` (scenario → model → ``ttft`` and ``tpot``) and ``samples`` by model, as in the file."""
    for root in catalog.roots():
        path = root / FOLDER / "mlperf.yaml"
        if path.is_file():
            data: dict[str, Any] = dialect.read_yaml(path)
            return data
    return {}


for _protocol in (Server, Interactive, Offline):
    Protocol.registry.register(_protocol)
