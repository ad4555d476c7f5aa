"""Sequences of unequal length."""

from __future__ import annotations

from .entry import KI, Entry, Keys

UNEVEN: Keys = {"model": "llama-3.1-8b", "pass": "forward", "sequence": 8 * KI, "global_batch": 64,
                "lengths": {"kind": "lognormal", "median": 1024, "sigma": 1.0, "floor": 64}}  # fmt: skip
LONG_TAIL: Keys = {"model": "llama-3.1-8b", "pass": "training", "sequence": 128 * KI, "global_batch": 256,
                   "lengths": {"kind": "lognormal", "median": 1024, "sigma": 2.0, "floor": 128}}  # fmt: skip

ENTRIES = (
    Entry(
        "Dynamic CP", "Llama-3.1-8B training, 256 sequences of up to 128Ki, half below 1Ki, 2 nodes",
        {"sp": "auto", "rank_tokens": 8 * KI, "zero": 1},
        {"SP16 round a ring": {"sp": 16, "exchange": "ring", "rank_tokens": 8 * KI, "zero": 1},
         "SP16, gather": {"sp": 16, "rank_tokens": 8 * KI, "zero": 1},
         "SP16, Ulysses": {"sp": 16, "exchange": "ulysses", "rank_tokens": 8 * KI, "zero": 1}},
        LONG_TAIL,
        "3.9 to 7.9× (ByteScale, up to 2Mi tokens, over CP of 64 to 256)",
        "short sequences exchange nothing; the published rival cuts 4Ki tokens into 64 shards",
        "a long tail of lengths", nodes=2, fabric="rails-400g",
    ),
    Entry(
        "ByteScale's offload", "the batch of Dynamic CP, 16Ki a GPU, half of the layers of sequences from 16Ki on away",
        {"sp": "auto", "rank_tokens": 16 * KI, "zero": 1, "recomputation": "none", "offload_layers": 16,
         "offload_from": 16 * KI},
        {"SP16 round a ring": {"sp": 16, "exchange": "ring", "rank_tokens": 8 * KI, "zero": 1},
         "Dynamic CP, 8Ki": {"sp": "auto", "rank_tokens": 8 * KI, "zero": 1},
         "Dynamic CP, 16Ki": {"sp": "auto", "rank_tokens": 16 * KI, "zero": 1},
         "Dynamic CP, 8Ki, 16 layers in full": {"sp": "auto", "rank_tokens": 8 * KI, "zero": 1,
                                                "recomputation": {"what": "full", "layers": 16}}},
        LONG_TAIL,
        "2.01 of 3.89× (ByteScale's ablation: 1.59 without, 3.69 with balance as well)",
        "nothing is made again; copies hide behind the square of a length",
        "long sequences, and memory for what stays", nodes=2, fabric="rails-400g",
    ),
    Entry(
        "Padding removed (EnergonAI)", "Llama-3.1-8B forward, 64 sequences around 1Ki, up to 8Ki",
        {"rank_tokens": 8 * KI},
        {"padded": {"rank_tokens": 8 * KI, "padded": True},
         "packed, as every framework does today": {"rank_tokens": 8 * KI}}, UNEVEN,
        "−37 % latency (TP) over FasterTransformer, all of EnergonAI",
        "products take B·max over Σ; nothing at equal lengths; any packed batch has it",
        "lengths that differ within a batch",
    ),
)  # fmt: skip
