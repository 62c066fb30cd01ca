# SPDX-License-Identifier: Apache-2.0
"""Measures dispatch and combine from Python, on the CPU, and verifies every result.

    expar run -n 4 -- python3 bench.py --tokens 256 --hidden 2048 --topk 4 --dtype float16

GB/s are those of the rows that rank 0 receives. A copy of these rows by NumPy is shown beside them. `expar bench
dispatch combine` measures the library alone, and much more.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Callable

try:
    import numpy
    import expar
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times of dispatch and combine from Python.")
    parser.add_argument("--tokens", type=int, default=256, help="of each rank (256)")
    parser.add_argument("--hidden", type=int, default=2048, help="elements of a token (2048)")
    parser.add_argument("--topk", type=int, default=4, help="experts of a token (4)")
    parser.add_argument("--experts", type=int, default=4, help="of each rank (4)")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16")
    parser.add_argument("--iters", type=int, default=30, help="calls that are timed (30)")
    parser.add_argument("--warmup", type=int, default=5, help="calls before those (5)")
    return parser.parse_args()


def median_us(group: expar.Group, options: argparse.Namespace, call: Callable[[], Any]) -> float:
    """Returns the time of the slowest rank in each iteration, since all wait for it."""
    times = []
    for i in range(options.warmup + options.iters):
        group.barrier()
        start_ns = time.perf_counter_ns()
        call()
        if i >= options.warmup:
            times.append(time.perf_counter_ns() - start_ns)
    slowest = numpy.max([numpy.frombuffer(part, "int64") for part in group.allgather(numpy.array(times, "int64").tobytes())], 0)
    return float(numpy.median(slowest)) / 1000


def main() -> None:
    options = arguments()
    with expar.Group.from_env() as group, expar.Buffer(group) as buffer:
        num_experts = options.experts * group.size
        if options.topk > num_experts:
            sys.exit(f"bench: --topk is {options.topk}: expected at most the {num_experts} experts")
        random = numpy.random.default_rng(group.rank)
        x = random.integers(-8, 9, (options.tokens, options.hidden)).astype(options.dtype)
        topk_idx = random.random((options.tokens, num_experts)).argsort(1)[:, : options.topk].astype("int64")

        rows = buffer.dispatch(x, topk_idx, num_experts=num_experts)
        handle, received = rows.handle, rows.x.numpy()
        assert handle is not None
        y = buffer.combine(rows.x, handle).y.numpy()
        ranks_of_token = buffer.layout(topk_idx, num_experts).token_in_rank.sum(1)
        if not (y == x * ranks_of_token[:, None].astype(options.dtype)).all():
            sys.exit(f"rank {group.rank}: WRONG sums")

        copy = numpy.empty_like(received)
        figures = [
            ("dispatch", median_us(group, options, lambda: buffer.dispatch(x, topk_idx, num_experts=num_experts))),
            ("dispatch with a handle", median_us(group, options, lambda: buffer.dispatch(x, handle=handle))),
            ("combine", median_us(group, options, lambda: buffer.combine(received, handle))),
            ("copy of the rows", median_us(group, options, lambda: numpy.copyto(copy, received))),
        ]
        if group.rank == 0:
            print(f"{group.size} ranks, {options.tokens} tokens of {options.hidden} {options.dtype}, top-{options.topk}")
            for name, time_us in figures:
                print(f"  {name:<24}{time_us:10.1f} us{received.nbytes / time_us / 1000:10.2f} GB/s")


if __name__ == "__main__":
    main()
