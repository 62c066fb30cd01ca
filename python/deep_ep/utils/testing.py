# SPDX-License-Identifier: Apache-2.0
"""How long calls and kernels take. Where there is no GPU, there are no kernels, and calls are timed by the clock."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import time
from typing import Any, Callable, Iterable, Iterator, NamedTuple

import torch
import torch.distributed as dist

# Of kernels that are not there: tests divide by it.
_NO_KERNEL_S = 1e-6
_FLUSH_BYTES = 256 << 20  # more than a GPU's L2
_REST_CYCLES = 2_000_000  # of a GPU: about a millisecond, longer than hosts that profile take for a call


def bench(
    fn: Callable[[], Any],
    num_warmups: int = 50,
    num_tests: int = 50,
    post_fn: Callable[[], Any] | None = None,
    flush_l2: bool = True,
) -> tuple[float, float, float]:
    """Mean, least and most seconds of fn(); post_fn() comes behind each, and is not counted."""
    for _ in range(num_warmups):
        fn()
    times = _times_of_gpu if torch.cuda.is_available() else _times_of_cpu
    found = times(fn, num_tests, post_fn, flush_l2)
    return sum(found) / len(found), min(found), max(found)


def _times_of_cpu(
    fn: Callable[[], Any], num_tests: int, post_fn: Callable[[], Any] | None, flush_l2: bool
) -> list[float]:
    found = []
    for _ in range(num_tests):
        begin = time.perf_counter()
        fn()
        found.append(time.perf_counter() - begin)
        if post_fn is not None:
            post_fn()
    return found


def _times_of_gpu(
    fn: Callable[[], Any], num_tests: int, post_fn: Callable[[], Any] | None, flush_l2: bool
) -> list[float]:
    make: Any = torch.cuda.Event
    events = [[make(enable_timing=True) for _ in range(2)] for _ in range(num_tests)]
    torch.cuda.synchronize()
    for begin, end in events:
        _flush(flush_l2)
        begin.record()
        fn()
        end.record()
        if post_fn is not None:
            post_fn()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in events]


def _flush(flush_l2: bool) -> None:
    if flush_l2 and torch.cuda.is_available():
        torch.empty(_FLUSH_BYTES // 4, dtype=torch.int32, device="cuda").zero_()


def _meet() -> None:
    """All ranks of the default group, if there is one: by NCCL their streams do, behind a rest in which hosts come to
    what follows, so that kernels behind it begin together; else hosts."""
    if not dist.is_initialized():
        return
    if torch.cuda.is_available() and dist.get_backend() == "nccl":
        sleep: Any = torch.cuda._sleep
        sleep(_REST_CYCLES)
        dist.all_reduce(torch.ones(1, dtype=torch.float32, device="cuda"))
    else:
        dist.barrier()


# ---- kernels ---------------------------------------------------------------------------------------------------------


class Launch(NamedTuple):
    """One kernel on a GPU."""

    name: str
    begin_us: float
    duration_us: float


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    barrier_comm_profiling: bool = False,
    num_kernels_per_period: int = 1,
    barrier: Callable[[], Any] | None = None,
) -> Any:
    """Seconds of kernels whose name contains a given one, on average: a number for a string, a list for a tuple. With
    so many kernels a period each is a list, by their order in it. A small time stands for kernels that are not there.

    barrier: called before each fn(); barrier_comm_profiling: all ranks meet there. EP_USE_NVIDIA_TOOLS=1: another
    profiler is at work; fn() runs, and all times are 1."""
    names = (kernel_names,) if isinstance(kernel_names, str) else tuple(kernel_names)
    if int(os.environ.get("EP_USE_NVIDIA_TOOLS", "0")):
        _run(fn, num_tests, flush_l2, barrier_comm_profiling, barrier)
        return 1 if isinstance(kernel_names, str) else (1,) * len(names)
    run = functools.partial(_run, fn, num_tests, flush_l2, barrier_comm_profiling, barrier)
    launches: list[Launch] = []
    with _quiet(suppress_kineto_output):
        if trace_path is None and not torch.cuda.is_available():
            run()  # a profiler would find no kernels, and say so
        else:
            launches = _profiled(run, trace_path)
    times = _average(launches, names, num_kernels_per_period)
    return times[0] if isinstance(kernel_names, str) else times


def _run(
    fn: Callable[[], Any],
    num_tests: int,
    flush_l2: bool,
    barrier_comm_profiling: bool,
    barrier: Callable[[], Any] | None,
) -> None:
    for _ in range(num_tests):
        _flush(flush_l2)
        if barrier_comm_profiling:
            _meet()
        if barrier is not None:
            barrier()
        fn()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _profiled(run: Callable[[], None], trace_path: str | None) -> list[Launch]:
    """The kernels of run(), under a profiler. Without a GPU what that says of itself goes nowhere: it looks for one."""
    kind, on_gpu = torch.profiler.ProfilerActivity, torch.cuda.is_available()
    profiler = _profiler([kind.CUDA] if on_gpu else [kind.CPU])
    aside = functools.partial(_quiet, not on_gpu)
    with aside():
        profiler.start()
    try:
        run()
    finally:
        with aside():
            profiler.stop()
    with aside():
        if trace_path is not None:
            profiler.export_chrome_trace(trace_path)
        events = profiler.events() or []
    spans = [(each.name, each.time_range) for each in events if each.device_type.name == "CUDA"]
    return [Launch(name, span.start, span.elapsed_us()) for name, span in spans]


def _profiler(activities: list[Any]) -> Any:
    """One that keeps its events, where PyTorch has that: another warns of them."""
    make = torch.profiler.profile
    options: dict[str, Any] = {}
    if "acc_events" in inspect.signature(make).parameters:
        options["acc_events"] = True
    return make(activities=activities, **options)


def _average(launches: Iterable[Launch], names: tuple[str, ...], period: int) -> list[Any]:
    """Of each name: seconds, or with a period that many."""
    times: list[Any] = []
    for name in names:
        found = sorted((each for each in launches if name in each.name), key=lambda each: each.begin_us)
        turns = [[each.duration_us for each in found[turn::period]] for turn in range(period)]
        means = [sum(each) / len(each) / 1e6 if each else _NO_KERNEL_S for each in turns]
        times.append(means if period > 1 else means[0])
    return times


@contextlib.contextmanager
def _quiet(whether: bool) -> Iterator[None]:
    """Nothing goes to this process's output, also from C."""
    if not whether:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept):
            os.dup2(old, number)
            os.close(old)
        os.close(nowhere)
