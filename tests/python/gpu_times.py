# SPDX-License-Identifier: Apache-2.0
"""How long calls of `deep_ep` take on GPUs: parts of gpu_torch.py, whose lines begin with "    host, "."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, Callable

Ranks = Any  # of torch.distributed

PROFILES = 3  # of each number, whose median is told, each with so many calls
PROFILED_CALLS = 10
TIMED_CALLS = 25
HELD_CALLS = 30


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


# ---- the host --------------------------------------------------------------------------------------------------------


def beside(name: str, folder: str) -> list[str]:
    """Where a file of that folder is: beside this one when both were packed, else in the tree."""
    here = os.path.dirname(os.path.abspath(__file__))
    return [os.path.join(here, name), os.path.join(here, "..", name), os.path.join(here, "..", "..", folder, name)]


def tell_held(calls: dict[str, Callable[[], Any]], x: Any, of: str, rank: int) -> None:
    """How long calls hold the host, in microseconds: the median of 30, nobody waited for meanwhile but by the calls,
    whose tensors lie where x does. All ranks make them; rank 0 tells."""
    import torch

    for name, call in calls.items():
        times = []
        for _ in range(HELD_CALLS):
            if x.is_cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        if rank == 0:
            print(f"    host, {of}{name}: {1e6 * median(times):.1f} us", flush=True)


def host_time(group: Ranks) -> None:
    """How long calls of `Buffer` hold the host."""
    import torch
    from deep_ep_ranks import BATCH
    from deep_ep_reference import here

    import deep_ep

    buffer = deep_ep.Buffer(group)
    size = buffer.group_size
    x = here(torch.randn((BATCH, 2048)).bfloat16())
    idx = here(torch.arange(BATCH * 2).view(BATCH, 2) % (size * 2))
    weights = here(torch.rand((BATCH, 2)))
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, size * 2)
    rows, _, _, _, handle, _ = buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, idx, weights)
    packed, _, ll_handle, _, _ = buffer.low_latency_dispatch(x, idx, BATCH, size * 2, use_fp8=False)
    calls: dict[str, Callable[[], Any]] = {
        "layout": lambda: buffer.get_dispatch_layout(idx, size * 2),
        "dispatch": lambda: buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, idx, weights),
        "dispatch, handle": lambda: buffer.dispatch(x, handle=handle),
        "combine": lambda: buffer.combine(rows, handle),
        "combine, async": lambda: buffer.combine(rows, handle, async_finish=True),
        "low-latency dispatch": lambda: buffer.low_latency_dispatch(x, idx, BATCH, size * 2, use_fp8=False),
        "low-latency combine": lambda: buffer.low_latency_combine(packed, idx, weights, ll_handle),
    }
    tell_held(calls, x, "", buffer.rank)


def overhead(group: Ranks) -> None:
    """The cost of calls beside the library, on rank 0 alone: a table by bench/python/deep_ep_overhead.py."""
    _overhead(group, "5")


def overhead_profile(group: Ranks) -> None:
    """Likewise: where that goes."""
    _overhead(group, "--profile", "2")


def overhead_steps(group: Ranks) -> None:
    """Likewise: the steps of each call, the library's among them."""
    _overhead(group, "--steps", "30")


def _overhead(group: Ranks, *arguments: str) -> None:
    import torch
    import torch.distributed as dist
    from deep_ep_reference import place

    if dist.get_rank(group) == 0:
        program = next(path for path in beside("deep_ep_overhead.py", "bench/python") if os.path.exists(path))
        command = [sys.executable, program, "--device", torch.device(place["device"]).type, *arguments]
        said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
        for line in said.splitlines():
            print(f"    host, {line}", flush=True)
    dist.barrier(group)


# ---- the device ------------------------------------------------------------------------------------------------------


def device_time(group: Ranks) -> None:
    """The time of low-latency calls on the device, in microseconds, with rows of 7168 and 8 of 256 experts. It is given
    for their kernels, as PyTorch's profiler finds them by name, and for whole calls, by events around them."""
    import torch
    from deep_ep_reference import here

    import deep_ep

    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    most, hidden, topk = 128, 7168, 8
    experts = 256 // buffer.group_size * buffer.group_size
    random = torch.Generator().manual_seed(29 + buffer.rank)
    for tokens in (1, most):
        x = here(torch.randn((tokens, hidden), generator=random).bfloat16())
        idx = here(torch.rand((tokens, experts), generator=random).topk(topk, dim=1).indices)
        weights = here(torch.rand((tokens, topk), generator=random))

        def send(fp8: bool) -> Any:
            return buffer.low_latency_dispatch(x, idx, most, experts, use_fp8=fp8)

        def add(sent: Any) -> Any:
            return buffer.low_latency_combine(sent[0], idx, weights, sent[2])

        sent = send(False)
        add(sent), send(True)  # kernels are there
        of_dispatch, of_combine = _kernels_us(lambda: add(send(False)), ("dispatch", "combine"))
        (of_fp8,) = _kernels_us(lambda: send(True), ("dispatch",))
        calls: dict[str, tuple[float, Callable[[], Any]]] = {
            "dispatch, BF16": (of_dispatch, lambda: send(False)),
            "dispatch, FP8": (of_fp8, lambda: send(True)),
            "combine": (of_combine, lambda: add(sent)),
        }
        for name, (of_kernel, call) in calls.items():
            in_all = _call_us(call)
            if buffer.rank == 0:
                told = f"{of_kernel:.1f} us, in all {in_all:.1f} us"
                print(f"    host, device, low-latency {name}, T {tokens}: {told}", flush=True)


def _kernels_us(step: Callable[[], Any], names: tuple[str, ...]) -> list[float]:
    """The times of kernels with these names, by a profiler. All ranks meet before each step, so that none waits long
    for another one."""
    from deep_ep.utils import testing

    runs = [testing.bench_kineto(step, names, PROFILED_CALLS, barrier_comm_profiling=True) for _ in range(PROFILES)]
    found = dict(zip(names, zip(*runs)))
    for name, seconds in found.items():
        assert testing._NO_KERNEL_S not in seconds, f"the profiler has found no kernel with {name} in its name"
    return [1e6 * median(list(seconds)) for seconds in found.values()]


def _call_us(call: Callable[[], Any]) -> float:
    """By events on the current stream, each pair around one call, after a meeting of all ranks."""
    import torch

    from deep_ep.utils import testing

    event: Any = torch.cuda.Event
    pairs = [[event(enable_timing=True) for _ in range(2)] for _ in range(TIMED_CALLS)]
    for begin, end in pairs:
        testing._meet()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return median([1e3 * begin.elapsed_time(end) for begin, end in pairs])


PARTS = (host_time, overhead, overhead_profile, overhead_steps, device_time)
