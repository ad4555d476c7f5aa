"""Write the numbers and tables of mi355x-vs-b200.md: one node against one, for three models.

    python docs/generate_mi355x_vs_b200.py [--table] [--only SCENARIO]

Writes ``mi355x-vs-b200.json``, and the tables of the page between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``;
``--table`` writes only these, ``--only`` simulates one scenario anew, or the three columns. Five minutes of one core.
``tests/house/test_mi355x_vs_b200.py`` holds the tables against the numbers, and some numbers against the package.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pages

import tspsim
from tspsim.base.errors import InputError
from tspsim.report.serving.adapter import view_of
from tspsim.scenario import Scenario
from tspsim.serving.answer import deployment_of
from tspsim.serving.points import point
from tspsim.step.question import look_up
from tspsim.step.result import Result
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

    def cell(self, model: str, column: str, context: int) -> list[float]:
        """Milliseconds a token of a column, by clients; 0: they do not fit."""
        where = {"model": model, "column": column, "context": context}
        (found,) = [row for row in self.data["grid"] if where.items() <= row.items()]
        return [each or 0.0 for each in found["ms"]]

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
    if only in (None, "three"):
        data |= {"grid": grid(), "worth": worth()}
    if only in (None, "kimi-residency"):
        data["residency"] = [row for clients in KEEPERS for row in kept(clients)]
    lines = {key: ",\n".join(f"  {json.dumps(rounded(row), ensure_ascii=False)}" for row in data[key]) for key in data}
    text = ",\n".join(f'"{key}": [\n{rows}\n]' for key, rows in lines.items())
    NUMBERS.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


# --- three columns ------------------------------------------------------------------------------------------

#: What a tuned engine may have over the open baseline: a name, what switches it, and that as keys of the question.
#: ``stack`` is a catalog's, ``engine`` what is changed in its file, ``drafts`` of the model's own kind.
Switch = Mapping[str, Any]
BASELINE: Switch = {"stack": "vllm"}
IMPROVEMENTS: dict[str, tuple[str, Switch, Switch]] = {
    "graphs (both columns have them)": ("no `engine.graphs` in the stack", BASELINE, {"engine": {"graphs": None}}),
    "kernels and host of ATOM": ("`stack: atom`", {"stack": "atom"}, BASELINE),
    "overlap: the host beside the device, whole": (
        "`engine.hidden: 1` in the stack", {"engine": {"hidden": {"value": 1.0, "source": "assumed"}}}, BASELINE,
    ),
    "quantisation: caches in eight bits (both columns)": ("`precision: {kv: bf16}`", BASELINE, {"kv": "bf16"}),
    "quantisation: weights in four bits": ("`precision: {weights: mxfp4}`", {"weights": "mxfp4"}, BASELINE),
    "drafts, three": ("`speculation: {tokens: 3}`", {"drafts": 3}, BASELINE),
}  # fmt: skip
TUNED: Switch = {"stack": "atom", "weights": "mxfp4"} | IMPROVEMENTS["overlap: the host beside the device, whole"][1]
DRAFTED: Switch = {"drafts": 3}
COLUMNS: dict[str, tuple[str, Switch]] = {
    "MI355X, open": ("mi355x", BASELINE),
    "MI355X, tuned": ("mi355x", TUNED),
    "B200": ("b200", BASELINE),
    "MI355X, open, drafts": ("mi355x", BASELINE | DRAFTED),
    "MI355X, tuned, drafts": ("mi355x", TUNED | DRAFTED),
    "B200, drafts": ("b200", BASELINE | DRAFTED),
}
CONTEXTS = (1024, 16 * 1024, 64 * 1024, 127 * 1024)
#: Of what improvements are worth: sequences that decode, and their context.
WORTH = ((ONE, 16 * 1024), (64, 16 * 1024), (ONE, 127 * 1024))


def stack_of(switch: Switch, folder: Path) -> str:
    """A stack of the catalog, or one with parts of its engine changed (None: without), written beside."""
    name = switch.get("stack", "vllm")
    changes = switch.get("engine")
    if not changes:
        return str(name)
    import yaml

    stated = yaml.safe_load((DOCS.parent / f"workloads/stacks/{name}.yaml").read_text(encoding="utf-8"))
    engine = {**stated["engine"], **changes}
    stated = {key: value for key, value in stated.items() if key != "versions"}
    stated |= {"name": "changed", "engine": {key: value for key, value in engine.items() if value is not None}}
    path = folder / f"{name}-{'-'.join(changes)}.yaml"
    path.write_text(yaml.safe_dump(stated), encoding="utf-8")
    return str(path)


def token_ms(model: str, device: str, switch: Switch, context: int, clients: int) -> float | None:
    """Milliseconds a token of sequences that decode, TP8; None where they do not fit."""
    scenario = tspsim.load(MODELS[model]).to_dict()
    workload = scenario["workload"]
    precision = dict(workload["precision"]) | {key: switch[key] for key in ("weights", "kv") if key in switch}
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "model": workload["model"], "pass": "decode", "batch": clients, "context": context,
            "stack": stack_of(switch, Path(folder)), "precision": precision,
        }  # fmt: skip
        if "drafts" in switch:
            (drafted,) = (plan["speculation"] for plan in scenario["plans"] if plan.get("speculation"))
            asked |= {"pass": "verify", "speculation": drafted | {"tokens": switch["drafts"]}}
        question = {
            "name": "three", "cluster": {"device": device, "nodes": 1}, "workload": asked,
            "plans": [{"name": "P", "tp": 8}],
        }  # fmt: skip
        try:
            (plan,) = tspsim.simulate(question).plans
        except InputError:
            return None
    return plan.inference["time_per_output_token_s"] * 1e3 if plan.ran else None


def grid() -> list[Row]:
    """Every column at every context and number of clients."""
    return [
        {
            "model": model, "column": column, "context": context,
            "ms": [token_ms(model, device, switch, context, clients) for clients in CLIENTS],
        }
        for model in MODELS
        for context in CONTEXTS
        for column, (device, switch) in COLUMNS.items()
    ]  # fmt: skip


def worth() -> list[Row]:
    """How many times faster each improvement makes the open baseline, alone, and all of them together."""
    pairs = {name: (having, without) for name, (_, having, without) in IMPROVEMENTS.items()}
    pairs |= {"the tuned column": (TUNED, BASELINE), "the same, with drafts": (TUNED | DRAFTED, BASELINE)}
    rows = []
    for name, (having, without) in pairs.items():
        gains = []
        for model in MODELS:
            for clients, context in WORTH:
                fast, slow = (token_ms(model, "mi355x", each, context, clients) for each in (having, without))
                gains.append(slow / fast if fast and slow else None)
        rows.append({"improvement": name, "gains": gains})
    return rows


def ratio(found: Numbers, model: str, column: str, context: int, rival: str = "B200") -> float:
    """Of one client's milliseconds a token: above 1 the rival is ahead."""
    return found.cell(model, column, context)[0] / found.cell(model, rival, context)[0]


def three(found: Numbers) -> str:
    """The columns side by side, by clients."""
    rows = []
    for model in MODELS:
        for context in CONTEXTS:
            for titles in (list(COLUMNS)[:3], list(COLUMNS)[3:]):
                columns = [found.cell(model, title, context) for title in titles]
                cells = [" · ".join(f"{each:.1f}" if each else "–" for each in at) for at in zip(*columns, strict=True)]
                rows.append([f"{model}, {context // 1024}Ki{', drafts' if 'drafts' in titles[0] else ''}", *cells])
    return table(["ms a token: open · tuned · B200, by clients", *map(str, CLIENTS)], rows)


def improvements(found: Numbers) -> str:
    """What each is worth."""
    switches = {name: switch for name, (switch, *_) in IMPROVEMENTS.items()}
    rows = [
        [
            row["improvement"], switches.get(row["improvement"], ""),
            *(f"{gain:.2f}" if gain else "–" for gain in row["gains"]),
        ]
        for row in found.data["worth"]
    ]  # fmt: skip
    head = [f"{model}, {clients} × {context // 1024}Ki" for model in MODELS for clients, context in WORTH]
    return table(["times as fast, alone", "switch", *head], rows)


def claims(found: Numbers) -> str:
    """The article's words against the columns, verdicts computed. A tie is within 2 %."""
    tie, ends_ = 1.02, (CONTEXTS[0], CONTEXTS[-1])
    ours = list(COLUMNS)[:2]
    ahead = {
        model: [ratio(found, model, column, context) for column in ours for context in CONTEXTS] for model in MODELS
    }
    nearer = {model: [ratio(found, model, "MI355X, tuned", context) for context in ends_] for model in MODELS}
    spreads = {}
    for model in MODELS:
        at = [[found.cell(model, column, context)[0] for column in list(COLUMNS)[:3]] for context in CONTEXTS]
        spreads[model] = max(max(each) / min(each) for each in at)
    narrowest = min(spreads, key=lambda model: spreads[model])

    def verdict(holds: Sequence[bool]) -> str:
        return "**follows**" if all(holds) else "**in part**" if any(holds) else "**does not follow**"

    def listed(told: Mapping[str, str]) -> str:
        return "; ".join(f"{model} {value}" for model, value in told.items())

    rows = [
        [
            "with one client B200 is ahead of both",
            verdict([min(each) > tie for each in ahead.values()]),
            "B200 is so many times as fast: "
            + listed({model: f"{min(each):.2f} to {max(each):.2f}" for model, each in ahead.items()}),
        ],
        [
            "the tuned engine comes nearer as contexts grow",
            verdict([short > tie * long for short, long in nearer.values()]),
            f"B200 over tuned at {ends_[0] // 1024}Ki and {ends_[1] // 1024}Ki: "
            + listed({model: f"{short:.2f} → {long:.2f}" for model, (short, long) in nearer.items()}),
        ],
        [
            "DeepSeek's spread is narrower",
            verdict([narrowest == "DeepSeek-V3.2"]),
            "slowest over fastest of three, at most: "
            + listed({model: f"{each:.2f}" for model, each in spreads.items()}),
        ],
        [
            "by how much any of it", "**cannot be said**",
            "its batching limits, attention backends, drafts' acceptance and what its engine does are not known here",
        ],
    ]  # fmt: skip
    head = ["the article", "here", "figures"]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * 3, *rows))


TABLES |= {"three": three, "improvements": improvements, "claims": claims}


def main() -> None:
    """Simulate and rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only write the tables, from the file")
    parser.add_argument(
        "--only", choices=[*MODELS.values(), "kimi-residency", "three"], help="simulate one scenario anew"
    )
    stated = parser.parse_args()
    if not stated.table:
        simulate(stated.only)
    found = numbers()
    pages.rewrite(PAGE, {name: build(found) for name, build in TABLES.items()})


if __name__ == "__main__":
    main()
