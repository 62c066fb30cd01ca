#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much longer a kernel runs that has waited for a late rank, than it would without having waited.

The last rank comes to each call after a delay. The other ranks' kernels wait for it on their GPUs, and end soon after
its kernel has written its last word. PyTorch's profiler gives the begin and the end of the kernels of all ranks on one
clock of the host. A row shows, over repeated calls, how long the waiting kernels ran. It also shows by how much the
last of them ended after the late rank's kernel: the median and the most. Compare rows with each other: a long wait
should cost no more than a short one. The profiler's clocks of two GPUs agree within some microseconds.

usage: PYTHONPATH=python bench/python/long_waits.py [--ranks N] [--repeat R]
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from typing import Any, Callable

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

HIDDEN, TOPK, EXPERTS, TOKENS = 7168, 8, 256, 128
DELAYS_US = (0, 100, 1000, 10_000, 1_000_000)
Call = Callable[[], Any]


def rest(microseconds: int) -> None:
    """Pauses the host. Short pauses poll the clock, since the system rounds them up."""
    end = time.perf_counter() + microseconds / 1e6
    if microseconds > 5000:
        time.sleep((microseconds - 2000) / 1e6)
    while time.perf_counter() < end:
        pass


def kernels(profiler: Any, word: str) -> list[tuple[int, int]]:
    """Returns begins and ends, in nanoseconds of the host's clock, of kernels whose names contain the word."""
    found = []
    for event in profiler.profiler.kineto_results.events():
        if word in event.name() and event.device_type().name == "CUDA":
            found.append((event.start_ns(), event.start_ns() + event.duration_ns()))
    return sorted(found)


def measure(rank: int, size: int, word: str, call: Call, delay_us: int, repeat: int) -> list[tuple[int, int]]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeat):
            torch.cuda.synchronize()
            dist.barrier()
            if rank == size - 1:
                rest(delay_us)
            call()
        torch.cuda.synchronize()
    return kernels(profiler, word)[-repeat:]


def report(name: str, delay_us: int, found: list[list[tuple[int, int]]]) -> None:
    late = found[-1]
    waited, after = [], []
    for number, (_, late_end) in enumerate(late):
        others = [each[number] for each in found[:-1]]
        waited.append(max(end - begin for begin, end in others) / 1e3)
        after.append(max(end - late_end for _, end in others) / 1e3)
    print(
        f"{name:28s} {delay_us:9d} {statistics.median(waited):14.1f} {statistics.median(after):10.1f} {max(after):10.1f}",
        flush=True,
    )


def calls(group: Any, size: int) -> tuple[list[Any], list[tuple[str, str, Call]]]:
    """Returns the buffers, and for each call its name, a word of its kernel's name, and the call."""
    import deep_ep

    device = torch.device("cuda", torch.cuda.current_device())
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16, device=device)
    topk_idx = torch.rand(TOKENS, EXPERTS, device=device).topk(TOPK, 1)[1].to(deep_ep.topk_idx_t)
    weights = torch.rand(TOKENS, TOPK, device=device)
    normal = deep_ep.Buffer(group, int(1e9), 0, explicitly_destroy=True)
    per_rank, _, per_expert, in_rank, _ = normal.get_dispatch_layout(topk_idx, EXPERTS)
    rows, _, _, _, handle, _ = normal.dispatch(
        x,
        num_tokens_per_rank=per_rank,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=topk_idx,
        topk_weights=weights,
    )
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN, size, EXPERTS)
    low = deep_ep.Buffer(group, 0, hint, low_latency_mode=True, num_qps_per_rank=EXPERTS // size, explicitly_destroy=True)
    received, _, sent, _, _ = low.low_latency_dispatch(x, topk_idx, TOKENS, EXPERTS, use_fp8=False)
    return [normal, low], [
        ("dispatch with a handle", "dispatch_impl", lambda: normal.dispatch(x, handle=handle)),
        ("combine", "combine_impl", lambda: normal.combine(rows, handle)),
        (
            "low-latency dispatch",
            "dispatch_impl",
            lambda: low.low_latency_dispatch(x, topk_idx, TOKENS, EXPERTS, use_fp8=False),
        ),
        ("low-latency combine", "combine_impl", lambda: low.low_latency_combine(received, topk_idx, weights, sent)),
    ]


def rank_main(rank: int, size: int, port: int, repeat: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("gloo", rank=rank, world_size=size)
    group = dist.new_group(list(range(size)))
    if rank == 0:
        print(f"{'call':28s} {'late us':>9s} {'waited us':>14s} {'after us':>10s} {'most us':>10s}")
    buffers, rows = calls(group, size)
    for name, word, call in rows:
        for _ in range(5):
            call()
        for delay_us in DELAYS_US:
            few = max(2, repeat // 10) if delay_us >= 1_000_000 else repeat
            found: list[Any] = [None] * size
            dist.all_gather_object(found, measure(rank, size, word, call, delay_us, few))
            if rank == 0:
                report(name, delay_us, found)
    for buffer in buffers:
        buffer.destroy()
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, default=0, help="as many as there are GPUs, if not given")
    parser.add_argument("--repeat", type=int, default=30, help="calls of each row (fewer where a rank is 1 s late)")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error(f"--repeat {options.repeat}: a number of 1 or more is expected")
    if options.ranks < 0 or options.ranks == 1:
        parser.error(f"--ranks {options.ranks}: 2 or more is expected, since one rank waits for nobody")
    if not torch.cuda.is_available():
        raise SystemExit("long_waits.py: no GPU is there; kernels wait on GPUs")
    size = options.ranks or torch.cuda.device_count()
    if size < 2:
        raise SystemExit(f"long_waits.py: --ranks is {size}; expected 2 or more, since one rank waits for nobody")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(rank_main, args=(size, port, options.repeat), nprocs=size)


if __name__ == "__main__":
    main()
