"""nanotron's sweep: which pipeline a run had, where the table's own rows tell it.

The sweep measured one step a run, the third (``NANOTRON_BENCHMARK``, trainer.py), in weeks in which its pipeline was
repaired: before, a rank slept 0.1 s between looks whether a message's metadata had arrived (a development version of
pipeline_parallel/p2p.py), and lost a second a micro-batch. ``after_pp_fix`` says which runs came after. Some of these
contradict another run of the same plan, by the second that all runs of before lose; they had the old pipeline too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

#: Columns that two runs share whose micro-batches may differ, and nothing else.
TWINS = ("hidden_size", "num_layers", "seq_len", "nodes", "dp", "tp", "pp")
#: A run contradicts a twin if it took so many times as long as the twin's time allows.
CONTRADICTS = 1.5
#: Column that the repair adds: the version of the software that ran.
VERSION = "version"
MENDED, POLLING, UNMENDED = "", "polling", "unmended"
NOTE = "runs labelled as after the pipeline's repair that a run of the same plan contradicts: asked as before it"
_NUMBERS = (*TWINS, "mbs", "gbs", "batch_accum", "tokens_per_s_per_gpu")


def turns_s(table: pd.DataFrame) -> pd.Series[float]:
    """Seconds of one of the ``batch_accum + pp - 1`` turns of a run's step."""
    ranks = table["dp"] * table["tp"] * table["pp"]
    seconds = table["gbs"] * table["seq_len"] / (table["tokens_per_s_per_gpu"] * ranks)
    return seconds / (table["batch_accum"] + table["pp"] - 1)


def contradicted(table: pd.DataFrame) -> pd.Series[bool]:
    """Runs that took longer than a twin allows, whatever is simulated.

    A step is ``batch_accum + pp - 1`` turns of a micro-batch and what comes once. A turn of a sequences takes no longer
    than one of b > a, nor than a/b turns of b < a; what comes once is shared by fewer turns, but by no factor more.
    """
    import pandas as pd

    turns = turns_s(table)
    strays = pd.Series(False, index=table.index)
    for _, twins in table.groupby(list(TWINS)):
        turn, sequences = turns[twins.index].to_numpy(), twins["mbs"].to_numpy()
        most = turn[None, :] * np.maximum(1.0, sequences[:, None] / sequences[None, :])
        strays[twins.index] = (turn[:, None] > CONTRADICTS * most).any(axis=1)
    return strays


def after_repair(table: pd.DataFrame) -> pd.Series[bool]:
    """Rows with the label of a run after the repair."""
    return table["after_pp_fix"].astype(str) != "False"


def versions(table: pd.DataFrame) -> pd.Series[str]:
    """Which software each run had: by its label, and by its twins."""
    import pandas as pd

    if any(name not in table for name in (*_NUMBERS, "after_pp_fix")):
        return pd.Series(MENDED, index=table.index)
    frame = table.assign(**{name: pd.to_numeric(table[name], errors="coerce") for name in _NUMBERS})
    later, pipeline = after_repair(table), frame["pp"] > 1
    labelled = frame[later & pipeline & frame[list(_NUMBERS)].notna().all(axis=1)]
    strays = contradicted(labelled[labelled["tokens_per_s_per_gpu"] > 0.0])
    old = pipeline & ~later | pipeline.index.isin(strays.index[strays])
    return pd.Series(np.where(old, POLLING, np.where(later, MENDED, UNMENDED)), index=table.index, dtype=object)


def mend(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows with the software that ran, and how many labels are put right."""
    version = versions(table)
    relabelled = int((after_repair(table) & (version == POLLING)).sum()) if "after_pp_fix" in table else 0
    added: dict[str, Any] = {VERSION: version}
    return table.assign(**added), {NOTE: relabelled}
