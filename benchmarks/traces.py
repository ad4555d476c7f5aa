"""What reading and laying traces cost: ``python benchmarks/traces.py [--megabytes N] [--json FILE]``.

A made-up profile of decoding steps is written as PyTorch's profiler writes it (five host events a kernel, most of them
Python frames), read in a process of its own (processor time and peak memory), and one of its steps is laid over the
simulated one.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCENARIO = {
    "name": "bench",
    "cluster": {"device": "mi300x", "nodes": 1},
    "workload": {"model": "qwen3-8b", "pass": "decode", "stack": "sglang", "batch": 32, "context": 1024},
    "plans": [{"name": "TP1", "tp": 1}],
}


def written(path: Path, megabytes: int) -> None:
    """Steps of one simulated rank until the file is large enough."""
    import tspsim
    from tspsim.step.question import look_up
    from tspsim.traces.simulated import Simulated

    names = {
        "gemm": "Cijk_{}",
        "attention": "flash_fwd_{}",
        "norm": "rms_norm_kernel_{}",
        "rope": "rotary_embedding_kernel",
    }
    names |= {
        "activation": "act_and_mul",
        "cache": "reshape_and_cache",
        "embedding": "embedding",
        "sample": "ArgMaxOps",
    }
    question = look_up(tspsim.load(SCENARIO))
    operations = Simulated(question, question.plans[0]).lane(0).operations
    kernels = [(names[each.kind].format(len(each.name)), each.start_s * 1e6, each.seconds * 1e6) for each in operations]
    device = {"id": 0, "name": "AMD Instinct MI300X", "numSms": 304, "totalGlobalMem": 206141652992}
    head = {
        "schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "deviceProperties": [device],
    }  # fmt: skip
    with path.open("w") as file:
        file.write(
            json.dumps(head)[:-1] + ', "traceEvents": [\n{"ph": "M", "name": "process_name", "pid": 1, "args": {}}'
        )
        clock, number = 1e6, 0
        while file.tell() < megabytes << 20:
            for name, start, length in kernels:
                number += 1
                at = clock + start
                for frame in range(5):
                    file.write(
                        f',\n{{"ph": "X", "cat": "python_function", "name": "model.py({frame}): forward", "pid": 1, '
                        f'"tid": 1, "ts": {at:.3f}, "dur": 9.0, "args": {{"Python id": {number}, "Ev Idx": {number}}}}}'
                    )
                file.write(
                    f',\n{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 3, "ts": {at:.3f}, '
                    f'"dur": {length:.3f}, "args": {{"device": 0, "stream": 3, "correlation": {number}}}}}'
                )
            clock += kernels[-1][1] + kernels[-1][2] + 200.0
        file.write('\n], "traceName": "bench"}')


def reading(path: Path) -> dict[str, float]:
    """Processor seconds and MiB of a process that reads the file."""
    from tspsim import traces

    start = time.process_time()
    found = traces.read([path])
    taken = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"read_s": taken, "peak_mib": peak, "kernels": len(found), "megabytes": path.stat().st_size / 2**20}


def laying(path: Path) -> dict[str, float]:
    """Processor seconds to lay one step over the simulated one."""
    import tspsim
    from tspsim import traces
    from tspsim.step.question import look_up
    from tspsim.traces.alignment import matched
    from tspsim.traces.lay import lay

    found, question = traces.read([path]), look_up(tspsim.load(SCENARIO))
    start = time.process_time()
    laid = lay(found, question, step=1)
    whole = time.process_time() - start
    start = time.process_time()
    matched(laid.lane.operations, laid.trace)
    aligned = time.process_time() - start
    return {"lay_s": whole, "align_s": aligned, "matched": laid.matched_share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=35)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.read is not None:
        print(json.dumps(reading(asked.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        written(path, asked.megabytes)
        said = subprocess.run(
            [sys.executable, __file__, "--read", str(path)], check=True, capture_output=True, text=True
        )
        answer = {**json.loads(said.stdout), **laying(path)}
    text = json.dumps(answer, indent=1)
    print(text)
    if asked.json is not None:
        asked.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
