"""What node counts cost that a fabric does not divide: ``python benchmarks/scale.py [--sequences N] [COUNT...]``.

Llama-3.1-70B is trained on H100 nodes with tp 4, a ring of sp 2 and pp 8, replicas before stages (Megatron's order), so
that pipeline and gradients cross the spines. Every count is run between two that the fabric divides, in this process;
the ratio of the processor's seconds to those of its slower neighbour is the figure to look at.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import tspsim

#: A replica has eight nodes; 64, 128, 256, 512 and 1,024 nodes are what the fabric divides.
EVEN = (64, 128, 256, 512, 1024)
COUNTS = (72, 104, 136, 200, 320, 392, 640, 776, 904, 1000)


def processor_s(nodes: int, sequences: int) -> float:
    """Processor time of one simulation."""
    plan: dict[str, Any] = {"name": "TP4-SP2-PP8", "tp": 4, "sp": 2, "pp": 8, "exchange": "ring"}
    plan["placement"] = {"node": ["tp", "sp"], "rails": ["dp", "pp"]}
    workload = {"model": "llama-3.1-70b", "pass": "training", "sequence": "8Ki", "sequences_per_replica": sequences}
    cluster = {"device": "h100", "nodes": nodes, "fabric": "rails-400g"}
    begin_s = time.process_time()
    tspsim.simulate(tspsim.load({"name": "scale", "cluster": cluster, "workload": workload, "plans": [plan]}))
    return time.process_time() - begin_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", nargs="*", type=int, metavar="COUNT", help="nodes, in eights")
    parser.add_argument("--sequences", type=int, default=16, help="of a replica")
    asked = parser.parse_args()
    processor_s(8, 1)  # what is imported once is not measured here
    even: dict[int, float] = {}
    print(f"{'nodes':>6} {'processor s':>12} {'of its slower neighbour':>24}")
    for nodes in asked.counts or COUNTS:
        around = [max([n for n in EVEN if n <= nodes] or EVEN[:1]), min([n for n in EVEN if n >= nodes] or EVEN[-1:])]
        for neighbour in around:
            if neighbour not in even:
                even[neighbour] = processor_s(neighbour, asked.sequences)
        spent_s = processor_s(nodes, asked.sequences)
        print(f"{nodes:6} {spent_s:12.1f} {spent_s / max(even[n] for n in around):24.2f}", flush=True)
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
