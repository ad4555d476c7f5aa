"""``tspsim bound``: physical ceilings."""

from __future__ import annotations

import click

from ..answer.refusals import nothing_fits, placed
from ..base.errors import InputError
from .completion import scenarios
from .grammar import json_option, set_option
from .outputs import Outputs, files_of, json_text, print_rich


@click.command()
@click.argument("scenario", shell_complete=scenarios)
@click.option("--claim", metavar="RATE", help='A rate to judge, such as "173e6 tokens/s" or "26 Mtokens/s".')
@set_option
@json_option
def bound(scenario: str, claim: str | None, overrides: tuple[str, ...], json_file: str | None) -> None:
    """Physical ceilings of SCENARIO: says when a claim is impossible, and why."""
    from ..base.units import parse
    from ..scenario import load

    claimed = None
    if claim is not None:
        try:
            claimed = parse(claim, "tokens/s", positive=True)
        except InputError as error:
            raise error.at(key="--claim") from None
    question = load(scenario, overrides)
    outputs = Outputs(inputs=files_of(question), json=json_file)
    from ..answer.kinds import bounds
    from ..report.ceilings import ceilings

    with placed(question):
        answer = bounds(question)
    outputs.write(
        {"json": lambda: json_text(answer.to_json(claimed))}, show=lambda: print_rich(*ceilings(answer, claimed))
    )
    if not answer.fitting:
        raise nothing_fits([(plan.name, plan.memory) for plan in answer.plans])
