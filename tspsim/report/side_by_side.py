"""Results of several scenarios, or of the offers of one, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.display import Pictured, Progress, html_table
from ..base.memo import once
from ..base.units import compact, duration, gib
from ..scenario import Scenario
from ..step.result import SCHEMA_VERSION, PlanResult, Result, waits_of
from ..studies.purchase import Decision, decide
from ..studies.searched import Searched

if TYPE_CHECKING:
    import pandas

    from .differences import Difference


@dataclass(frozen=True, repr=False)
class Comparison(Pictured):
    """Results side by side; a notebook shows them as a table."""

    #: The scenarios as they were given; one with offers became several ``questions``.
    scenarios: tuple[Scenario, ...]
    questions: tuple[Scenario, ...]
    #: A result a question, in their order.
    results: tuple[Result, ...]
    progress: Progress | None = field(default=None, compare=False)
    #: The search for each question's best plan, where the question asks for one; in their order.
    searched: tuple[Searched | None, ...] = ()
    jobs: int | None = field(default=None, compare=False)

    @property
    def plans(self) -> tuple[PlanResult, ...]:
        """Every plan of every result."""
        return tuple(plan for result in self.results for plan in result.plans)

    @property
    def best(self) -> PlanResult | None:
        """The plan with most tokens/s of all; None where no plan ran."""
        return max((plan for plan in self.plans if plan.ran), key=lambda plan: plan.tokens_per_s, default=None)

    @property
    def purchase(self) -> bool:
        """Whether offers were compared."""
        return any(question.offers for question in self.scenarios)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Differences of the questions besides their hardware; where there are some, ratios of rates mislead."""
        from .differences import differences

        return differences(self.results)

    @once
    def decision(self) -> Decision | None:
        """The purchase decision, computed when first wanted; None where nothing is offered."""
        if not self.purchase:
            return None
        return self._decided(curves=True)

    @once
    def verdict(self) -> Decision | None:
        """The decision without its curves, which are simulated; None where nothing is offered."""
        if not self.purchase or "decision" in vars(self):
            return self.decision
        return self._decided(curves=False)

    def _decided(self, curves: bool) -> Decision:
        searched, jobs = self.searched, self.jobs
        return decide(
            self.questions,
            self.results,
            curves=curves,
            needs=True,
            searched=searched,
            jobs=jobs,
            progress=self.progress,
        )

    @property
    def names(self) -> str:
        """A sentence on the name parts of searched plans; empty where no plan was searched."""
        from ..step.question import look_up
        from .plan_names import in_words

        named = []
        for question, search in zip(self.questions, self.searched, strict=False):
            if search is not None and search.plan:
                named += [plan for plan in look_up(question).plans if plan.name == search.plan]
        return in_words(named)

    @property
    def opening(self) -> str:
        """The sentence before all numbers: how far searched plans may be off."""
        every = zip(self.questions, self.searched, strict=False)
        return " ".join(
            filter(None, (search.opening(question.name) for question, search in every if search is not None))
        )

    def __repr__(self) -> str:
        lines = [f"<Comparison of {len(self.results)}", *([f"  {self.opening}"] if self.opening else [])]
        for result in self.results:
            best = result.best
            line = f"{best.name}: {best.in_a_line()}" if best else "no plan fits or can run"
            lines.append(f"  {result.scenario['name']}  {line}")
        return "\n".join([*lines, *(f"  {sentence}" for sentence in self._differing())]) + ">"

    def _differing(self) -> list[str]:
        """A sentence where other things than hardware differ."""
        from .differences import in_words

        return [in_words(self.differences)] if self.differences else []

    def _repr_html_(self) -> str:
        """Every plan of every scenario, for notebooks."""
        first = next((plan.tokens_per_s for plan in self.plans if plan.ran), 0.0)
        served = any(plan.serving for plan in self.plans)
        times = ["first token", "a token every"] if served else ["step"]
        columns = ["scenario", "GPUs", "plan", "tokens/s", "against the first", *times, "memory per GPU"]
        rows = []
        for result in self.results:
            machine = f"{result.cluster['gpus']:,} × {result.cluster['device']['name']}"
            for plan in result.plans:
                rates = ["refused", "", *([""] * len(times))]
                if plan.ran:
                    took = waits_of(plan) if served else [duration(plan.step_time_s)]
                    rates = [compact(plan.tokens_per_s), f"{plan.tokens_per_s / first:.2f}×", *took]
                name = str(result.scenario["name"])
                rows.append([name, machine, plan.name, *rates, gib(plan.memory.peak_bytes)])
        title = f"Side by side. {self.opening}" if self.opening else "Side by side"
        return html_table(title, columns, rows, self._differing())

    def to_frame(self) -> pandas.DataFrame:
        """One row a plan: scenario, GPUs, device, then the columns of :meth:`tspsim.step.result.Result.to_frame`."""
        import pandas

        frames = []
        for result in self.results:
            frame = result.to_frame().reset_index()
            frame.insert(0, "device", result.cluster["device"]["name"])
            frame.insert(0, "gpus", result.cluster["gpus"])
            frame.insert(0, "scenario", result.scenario["name"])
            frames.append(frame)
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()

    def to_json(self) -> dict[str, Any]:
        """The results and, for a purchase, its decision, as plain data."""
        document: dict[str, Any] = {"schema": SCHEMA_VERSION, "results": [result.to_json() for result in self.results]}
        if self.differences:
            document["differs"] = [difference.to_json() for difference in self.differences]
        if self.decision is not None:
            document["purchase"] = self.decision.to_json()
        return document

    def to_csv(self) -> str:
        """The table as CSV with full digits."""
        from . import comparison

        return comparison.csv(self.results)

    def to_pdf(self, path: str | Path) -> Path:
        """Print the decision memo, one sheet, to ``path`` by a browser of this machine; returns where it is.

        Raises
        ------
        InputError
            There is no browser, or the file cannot be written.
        """
        from .memo import purchase, results, sheet
        from .printing import write_pdf

        words = self._named()
        decision = self.verdict
        memo = purchase.memo_of(decision, self.results, **words) if decision else results.memo_of(self.results, **words)
        write_pdf(sheet.sheet(memo), Path(path))
        return Path(path)

    def _named(self) -> dict[str, str]:
        """Title and description of a question that is one scenario."""
        one = self.scenarios[0] if len(self.scenarios) == 1 else None
        names = " · ".join(scenario.name for scenario in self.scenarios[:4])
        return {"title": one.name if one else names, "description": one.description if one else ""}

    def plot(self) -> Any:
        """The best plan of every scenario as a bar, with the range its rate should lie in."""
        from .notebook import bars, bars_of

        best = [(str(result.scenario["name"]), result.best) for result in self.results]
        rows = bars_of((f"{name}: {plan.name}", plan) for name, plan in best if plan is not None)
        return bars(rows, "tokens/s", "side by side")

    def to_html(self, path: str | Path) -> Path:
        """Write the page to ``path`` (a purchase's pages of single offers beside it); returns where it is.

        Raises
        ------
        InputError
            The file cannot be written.
        """
        from . import comparison_page

        one = self.scenarios[0] if len(self.scenarios) == 1 else None
        words = {"title": one.name, "description": one.description} if one else {}
        comparison_page.write_comparison(
            self.results, Path(path), self.decision, reports=self.decision is not None, names=self.names, **words
        )
        return Path(path)
