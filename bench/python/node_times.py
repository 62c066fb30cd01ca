#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times of calls of normal mode through deep_ep between ranks that are nodes of their own.

Each rank is a process, and `EXPAR_TRANSPORTS=fabric` makes it a node. A call is timed from a meeting of all ranks to
the end of the stream's work on rank 0. The results are checked in the first round. Ranks that share a GPU need CUDA's
multi-process service (`nvidia-cuda-mps-control -d`). Without it their kernels take turns, and the times are those of
the turns.

usage: EXPAR_TRANSPORTS=fabric PYTHONPATH=python bench/python/node_times.py [--device cuda] [--ranks N]
       [--tokens T,T] [--rounds R]
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

HIDDEN, TOPK, EXPERTS, WARM = 7168, 8, 64, 3


def timed(on_gpu: bool, call: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the milliseconds of the call, and its results."""
    if on_gpu:
        torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    results = call()
    if on_gpu:
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin), results


def check(x: torch.Tensor, first: torch.Tensor, again: torch.Tensor, sums: torch.Tensor, ranks: torch.Tensor) -> None:
    assert torch.equal(first, again), "a dispatch with the handle brought other rows"
    expected = x.float() * ranks.sum(1, keepdim=True)
    assert torch.allclose(sums.float(), expected, rtol=2e-2, atol=2e-2), "wrong sums"


def measure(buffer: Any, x: torch.Tensor, topk_idx: torch.Tensor, rounds: int) -> dict[str, list[float]]:
    on_gpu = x.is_cuda
    weights = torch.ones(topk_idx.shape, device=x.device)
    per_rank, per_node, per_expert, ranks, _ = buffer.get_dispatch_layout(topk_idx, EXPERTS)
    times: dict[str, list[float]] = {"dispatch": [], "dispatch with the handle": [], "combine": []}

    def fresh() -> Any:
        return buffer.dispatch(
            x,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=ranks,
            num_tokens_per_expert=per_expert,
            topk_idx=topk_idx,
            topk_weights=weights,
        )

    for number in range(WARM + rounds):
        first_ms, (first, _, _, _, handle, _) = timed(on_gpu, fresh)
        again_ms, (again, *_) = timed(on_gpu, lambda: buffer.dispatch(x, handle=handle))
        back_ms, (sums, *_) = timed(on_gpu, lambda: buffer.combine(again, handle))
        if number == 0:
            check(x, first, again, sums, ranks)
        if number >= WARM:
            for kept, taken in zip(times.values(), (first_ms, again_ms, back_ms)):
                kept.append(taken)
    return times


def rank_main(rank: int, port: int, wishes: argparse.Namespace) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=wishes.ranks)
    import deep_ep

    device = torch.device("cpu")
    if wishes.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    buffer = deep_ep.Buffer(dist.group.WORLD, int(2e9), 0)
    random = torch.Generator().manual_seed(rank)
    for tokens in wishes.tokens:
        x = torch.randn(tokens, HIDDEN, generator=random).to(torch.bfloat16).to(device)
        topk_idx = torch.randn(tokens, EXPERTS, generator=random).topk(TOPK, dim=-1).indices.to(device)
        for name, all_ms in measure(buffer, x, topk_idx, wishes.rounds).items():
            if rank == 0:
                median, least = statistics.median(all_ms), min(all_ms)
                print(f"{name:<26} T {tokens:<6} median {median:8.2f} ms   least {least:8.2f} ms", flush=True)
    dist.barrier()


def count(text: str) -> int:
    """Returns the number that an option gives."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}': expected a whole number of 1 or more")
    return int(text)


def counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description="Times of dispatch and combine between ranks that are nodes.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=count, default=2)
    parser.add_argument("--tokens", type=counts, default=[256, 4096])
    parser.add_argument("--rounds", type=count, default=15)
    wishes = parser.parse_args()
    if os.environ.get("EXPAR_TRANSPORTS") != "fabric":
        raise SystemExit("node_times.py: EXPAR_TRANSPORTS is not fabric, so ranks would be one node")
    if EXPERTS % wishes.ranks:
        parser.error(f"argument --ranks: {wishes.ranks}: expected a divisor of the {EXPERTS} experts")
    if wishes.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("node_times.py: --device cuda: PyTorch sees no GPU")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(rank_main, args=(port, wishes), nprocs=wishes.ranks)


if __name__ == "__main__":
    main()
