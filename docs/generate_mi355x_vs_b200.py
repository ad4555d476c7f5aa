"""Write the numbers and tables of mi355x-vs-b200.md: one node against one, for three models.

    python docs/generate_mi355x_vs_b200.py [--table] [--only SCENARIO]

Writes ``mi355x-vs-b200.json``, and the tables of the page between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``;
``--table`` writes only these, ``--only`` simulates one scenario anew. A quarter of an hour of one core.
``tests/house/test_mi355x_vs_b200.py`` holds the tables against the numbers, and some numbers against the package.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pages

import tspsim
from tspsim.errors import InputError
from tspsim.question import look_up
from tspsim.report.serving.adapter import view_of
from tspsim.result import Result
from tspsim.scenario import Scenario
from tspsim.serving.answer import deployment_of
from tspsim.serving.points import point
from tspsim.studies.purchase import decide
from tspsim.studies.purchase.offers import expand

DOCS = Path(__file__).parent
NUMBERS, PAGE = DOCS / "mi355x-vs-b200.json", DOCS / "mi355x-vs-b200.md"
MODELS = {
    "Kimi K2.6": "kimi-k2.6-mi355x-vs-b200",
    "GLM-5.1": "glm-5.1-mi355x-vs-b200",
    "DeepSeek-V3.2": "deepseek-v3.2-mi355x-vs-b200",
}
OFFERS = ("MI355X", "B200")
#: Of prices, what ranks.
BASIS = "neocloud"
#: Of the shipped curves these are simulated; the fewest and the most.
CLIENTS = (1, 4, 16, 64, 256)
ONE, MOST = CLIENTS[0], CLIENTS[-1]
#: Clients who keep long conversations.
KEEPERS = (64, 128, 160)
FOLDED = re.compile(r"^```yaml\n(name: kimi-residency\n.*?)^```$", re.DOTALL | re.MULTILINE)

Row = dict[str, Any]


# --- numbers ------------------------------------------------------------------------------------------------


def points(model: str, offer: str, result: Result) -> list[Row]:
    """Every plan at every load."""
    rows = []
    for served in view_of(result).served:
        for run in served.runs:
            row: Row = {"model": model, "offer": offer, "plan": served.plan.name, "clients": int(run.load)}
            for key in ("ttft_s", "tpot_s"):
                row[key] = [run.mean(key), *run.ranges.get(key, (run.mean(key),) * 2)]
            rate = run.rate("output_tokens_per_s")
            row["output_tokens_per_s"] = [rate, *run.ranges.get("output_tokens_per_s", (rate, rate))]
            row |= {"ttft_p99_s": run.mean("ttft_s", "p99"), "usd": run.metrics["usd_per_million_output_tokens"][BASIS]}
            row |= {key: run.metrics["kv"][key] for key in ("capacity_tokens", "peak_share")}
            rows.append(row)
    return rows


def steps(model: str, offer: str, result: Result) -> list[Row]:
    """Where typical steps of every plan spend their time."""
    return [
        {"model": model, "offer": offer, "plan": served.plan.name, "step": share.label, "parts_s": dict(share.parts)}
        for served in view_of(result).served
        for share in served.shares
    ]


def verdicts(model: str, questions: Sequence[Scenario], results: Sequence[Result]) -> list[Row]:
    """Tokens a dollar at the most clients, and how sure that is."""
    decision = decide(questions, results, curves=False)
    winner = decision.winner.name if decision.winner else ""
    return [
        {
            "model": model, "winner": winner, "against": each.b, "ratio": [each.ratio, each.low, each.high],
            "probability": each.probability, "price": each.break_even_price_ratio,
            "doubts": [[swing.factor, swing.at_low, swing.at_high] for swing in each.tornado[:3]],
        }
        for each in decision.verdicts
    ]  # fmt: skip


def simulated(model: str) -> dict[str, list[Row]]:
    """All rows of a model."""
    questions = expand(tspsim.load(MODELS[model], [f"traffic.arrivals.concurrency={list(CLIENTS)}"]))
    results = [tspsim.simulate(question) for question in questions]
    found: dict[str, list[Row]] = {"points": [], "steps": [], "verdicts": verdicts(model, questions, results)}
    for offer, result in zip(OFFERS, results, strict=True):
        found["points"] += points(model, offer, result)
        found["steps"] += steps(model, offer, result)
    return found


def kept(clients: int) -> list[Row]:
    """Clients with long conversations on each node: one conversation each."""
    import yaml

    (text,) = FOLDED.findall(PAGE.read_text(encoding="utf-8"))
    turns = int(yaml.safe_load(text)["traffic"]["prefix"]["turns"])
    asked = tspsim.load(
        yaml.safe_load(text), [f"traffic.arrivals.concurrency={clients}", f"traffic.requests={clients * turns}"]
    )
    rows = []
    for offer, question in zip(OFFERS, expand(asked), strict=True):
        looked_up = look_up(question)
        assert question.traffic is not None
        run = point(deployment_of(looked_up, looked_up.plans[0]), question.traffic, ranges=False).run
        found, waits = run.metrics, run.waits
        last = waits.ttft_s[waits.prompt_tokens >= 0.9 * waits.prompt_tokens.max()]
        rows.append(
            {
                "offer": offer, "clients": clients, "capacity_tokens": found["kv"]["capacity_tokens"],
                "hit_share": found["prefix_hit_share"], "ttft_s": found["ttft_s"]["mean"],
                "ttft_p50_s": found["ttft_s"]["p50"], "last_turns_ttft_s": float(last.mean()),
                "tpot_s": found["tpot_s"]["mean"],
            }
        )  # fmt: skip
    return rows


# --- tables -------------------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; the first column is one of words."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seconds(value: float) -> str:
    """Three digits, in milliseconds below one second."""
    value, unit = (1e3 * value, "ms") if value < 1.0 else (value, "s")
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def ends(values: Sequence[float], told: Callable[[float], str]) -> str:
    """A value with its range."""
    return f"{told(values[0])} ({told(values[1])} – {told(values[2])})"


class Numbers:
    """What was simulated."""

    def __init__(self, data: Mapping[str, list[Row]]) -> None:
        self.data = data

    def point(self, model: str, offer: str, plan: str, clients: int) -> Row:
        """One of them."""
        where = {"model": model, "offer": offer, "plan": plan, "clients": clients}
        (found,) = [row for row in self.data["points"] if where.items() <= row.items()]
        return found

    def plans(self, model: str) -> list[str]:
        return list(dict.fromkeys(row["plan"] for row in self.data["points"] if row["model"] == model))

    # --- the tables -------------------------------------------------------------------------------------

    def one(self) -> str:
        """One client."""
        rows = []
        for model in MODELS:
            for plan in self.plans(model):
                both = [self.point(model, offer, plan, ONE) for offer in OFFERS]
                users = [[1.0 / each["tpot_s"][place] for place in (0, 2, 1)] for each in both]
                cells = [ends(each["ttft_s"], seconds) for each in both]
                cells += [ends(each, lambda value: f"{value:.0f}") for each in users]
                rows.append([f"{model}, {plan}", *cells, f"{users[0][0] / users[1][0]:.2f}"])
        header = ["one client", "TTFT, MI355X", "B200", "tokens/s per user, MI355X", "B200", "ratio"]
        return table(header, rows)

    def most(self) -> str:
        """Most clients."""
        rows = []
        for model in MODELS:
            for plan in self.plans(model):
                a, b = (self.point(model, offer, plan, MOST) for offer in OFFERS)
                rates = [ends(each["output_tokens_per_s"], lambda value: f"{value:,.0f}") for each in (a, b)]
                usd = [f"{each['usd']:.2f}" for each in (a, b)]
                ratio = a["output_tokens_per_s"][0] / b["output_tokens_per_s"][0]
                rows.append([f"{model}, {plan}", *rates, f"{ratio:.2f}", *usd, f"{b['usd'] / a['usd']:.2f}"])
        header = [f"{MOST} clients", "output tokens/s, MI355X", "B200", "ratio", "$/M, MI355X", "B200", "ratio"]
        return table(header, rows)

    def curves(self) -> str:
        """Ratios of rates over clients."""
        rows = []
        for model in MODELS:
            for plan in self.plans(model):
                cells = []
                for clients in CLIENTS:
                    a, b = (self.point(model, offer, plan, clients)["output_tokens_per_s"][0] for offer in OFFERS)
                    cells.append(f"{a / b:.2f}")
                rows.append([f"{model}, {plan}", *cells])
        return table(["MI355X over B200, output tokens/s, by clients", *map(str, CLIENTS)], rows)

    def parts(self) -> str:
        """Milliseconds of decode steps, of plans that draft nothing."""
        rows = []
        for row in self.data["steps"]:
            if row["plan"] != self.plans(row["model"])[0] or not row["step"].startswith("decodes"):
                continue
            parts = dict(row["parts_s"])
            waits = sum(parts.pop(name, 0.0) for name in ("host", "idle"))
            kernels = [parts.pop(name, 0.0) for name in ("experts", "products", "attention", "other kernels")]
            cells = [sum(row["parts_s"].values()), *kernels, sum(parts.values()), waits]
            rows.append([f"{row['model']}, {row['offer']}: {row['step']}", *(f"{1e3 * each:.2f}" for each in cells)])
        header = ["ms of a step", "all", "experts", "other products", "attention", "other kernels", "collectives"]
        return table([*header, "host and waiting"], rows)

    def sure(self) -> str:
        """Verdicts, and what moves them."""
        rows = []
        for row in self.data["verdicts"]:
            doubts = "; ".join(f"{name} {min(a, b):.2f} – {max(a, b):.2f}" for name, a, b in row["doubts"])
            ratio = ends(row["ratio"], lambda value: f"{value:.2f}")
            cells = [row["winner"], ratio, f"{100 * row['probability']:.1f} %", f"{row['price']:.2f}", doubts]
            rows.append([row["model"], *cells])
        header = ["model", "most tokens a dollar", "ratio (nine times of ten)", "probability"]
        return table([*header, "turns when its GPU hour costs … times the other's", "what each doubt alone does"], rows)

    def residency(self) -> str:
        """Long conversations."""
        rows = []
        for row in self.data["residency"]:
            cells = [f"{row['capacity_tokens'] / 2**18:.0f}", f"{100 * row['hit_share']:.0f} %"]
            cells += [seconds(row[key]) for key in ("ttft_p50_s", "ttft_s", "last_turns_ttft_s", "tpot_s")]
            rows.append([f"{row['clients']} clients, {row['offer']}", *cells])
        header = ["", "sessions of 256Ki that fit", "of prompts found in the cache", "TTFT, median", "mean"]
        return table([*header, "mean of the longest tenth", "TPOT"], rows)


TABLES: dict[str, Callable[[Numbers], str]] = {
    "one": Numbers.one,
    "most": Numbers.most,
    "curves": Numbers.curves,
    "parts": Numbers.parts,
    "sure": Numbers.sure,
    "residency": Numbers.residency,
}


def numbers() -> Numbers:
    """Those of the file."""
    return Numbers(json.loads(NUMBERS.read_text(encoding="utf-8")))


def rounded(value: Any) -> Any:
    """Floats to six digits, so that the file is read by people."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def simulate(only: str | None) -> None:
    """Write the file: all of it, or the rows of one scenario anew."""
    data: dict[str, list[Row]] = {"points": [], "steps": [], "verdicts": [], "residency": []}
    if only is not None and NUMBERS.exists():
        data = json.loads(NUMBERS.read_text(encoding="utf-8"))
    for model, name in MODELS.items():
        if only in (None, name):
            for key, rows in simulated(model).items():
                data[key] = sorted(
                    [row for row in data[key] if row["model"] != model] + rows,
                    key=lambda row: list(MODELS).index(row["model"]),
                )
    if only in (None, "kimi-residency"):
        data["residency"] = [row for clients in KEEPERS for row in kept(clients)]
    lines = {key: ",\n".join(f"  {json.dumps(rounded(row), ensure_ascii=False)}" for row in data[key]) for key in data}
    text = ",\n".join(f'"{key}": [\n{rows}\n]' for key, rows in lines.items())
    NUMBERS.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


#: A tuned engine as a stack of what is stated of it, each step with those before it: stack and types of weights.
STACKED: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    ("MI355X, vLLM", "mi355x", "vllm", {}),
    ("its host and kernels (ATOM)", "mi355x", "atom", {}),
    ("and weights in four bits", "mi355x", "atom", {"weights": "mxfp4"}),
    ("B200, vLLM", "b200", "vllm", {}),
)
CONTEXTS = (1024, 16 * 1024, 127 * 1024)


def token_ms(model: str, device: str, stack: str, types: Mapping[str, str], context: int) -> float | None:
    """Milliseconds of a decoding step of one client, TP8; None where it does not fit or has no such kernels."""
    workload = tspsim.load(MODELS[model]).to_dict()["workload"]
    stated = dict(workload["precision"])
    asked = {
        "model": workload["model"], "pass": "decode", "batch": 1, "context": context, "stack": stack,
        "precision": stated | types,
    }  # fmt: skip
    question = {
        "name": "three", "cluster": {"device": device, "nodes": 1}, "workload": asked,
        "plans": [{"name": "P", "tp": 8}],
    }  # fmt: skip
    try:
        (plan,) = tspsim.simulate(question).plans
    except InputError:
        return None
    return plan.step_time_s * 1e3 if plan.ran else None


def three() -> str:
    """The open baseline, the tuned engine step by step, and the rival: one client, by context."""
    head = ["one client, ms a token", *(title for title, *_ in STACKED), "B200 over the baseline", "over the tuned"]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for model in MODELS:
        for context in CONTEXTS:
            every = [token_ms(model, *step, context) for _, *step in STACKED]
            cells = [f"{each:.1f}" if each else "–" for each in every]
            rival, tuned = every[-1], min((each for each in every[1:-1] if each), default=None)
            gains = [f"{one / rival:.2f}" if one and rival else "–" for one in (every[0], tuned)]
            lines.append(f"| {model}, {context // 1024}Ki | {' | '.join([*cells, *gains])} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate and rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only write the tables, from the file")
    parser.add_argument("--only", choices=[*MODELS.values(), "kimi-residency"], help="simulate one scenario anew")
    stated = parser.parse_args()
    if not stated.table:
        simulate(stated.only)
    found = numbers()
    pages.rewrite(PAGE, {name: build(found) for name, build in TABLES.items()} | {"three": three()})


if __name__ == "__main__":
    main()
