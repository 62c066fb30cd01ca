# SPDX-License-Identifier: Apache-2.0
"""Times of calls and kernels. Without a GPU there are no kernels, and the clock times calls."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sys
import time
from typing import Any, Callable, Iterable, Iterator, NamedTuple

import torch
import torch.distributed as dist

# The time that is returned for missing kernels. Tests divide by it.
_NO_KERNEL_S = 1e-6
_FLUSH_BYTES = 256 << 20  # more than a GPU's L2
# GPU cycles, about a millisecond. A host under a profiler needs less for a call.
_REST_CYCLES = 2_000_000


_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_num_bytes(text: str) -> int:
    """Returns the bytes of '512k', '64MiB', '1G' and the like, by powers of 1024. ValueError for another text."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text!r}: expected a number of bytes, such as 512k, 64MiB or 1G")
    return int(float(found[1]) * _FACTORS[found[2].upper()])


def bench(
    fn: Callable[[], Any],
    num_warmups: int = 30,
    num_tests: int = 30,
    post_fn: Callable[[], Any] | None = None,
    flush_l2: bool = True,
) -> tuple[float, float, float]:
    """Returns mean, least and most seconds of fn(). post_fn() runs after each fn() and is not counted."""
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
    """Waits until all ranks of the default group are here, if there is one.

    With NCCL the streams meet. The GPUs rest first, so that hosts can enqueue what follows, and kernels after the
    meeting start together. Otherwise the hosts meet."""
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
    """Returns the mean seconds of kernels whose name contains a given one: a number for a string, a list for a tuple.
    With several kernels a period, each is a list by their order in it. Missing kernels get a small time.

    barrier: called before each fn(). barrier_comm_profiling: all ranks meet before each fn().
    EP_USE_NVIDIA_TOOLS=1 says that another profiler runs; then fn() runs, and all times are 1."""
    names = (kernel_names,) if isinstance(kernel_names, str) else tuple(kernel_names)
    if int(os.environ.get("EP_USE_NVIDIA_TOOLS", "0")):
        _run(fn, num_tests, flush_l2, barrier_comm_profiling, barrier)
        return 1 if isinstance(kernel_names, str) else (1,) * len(names)
    run = functools.partial(_run, fn, num_tests, flush_l2, barrier_comm_profiling, barrier)
    launches: list[Launch] = []
    with _quiet(suppress_kineto_output):
        if trace_path is None and not torch.cuda.is_available():
            run()  # a profiler would warn that it found no kernels
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
    """Returns the kernels of run(), found by a profiler. Without a GPU the profiler's warnings are dropped."""
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
    """Returns a profiler that keeps its events if PyTorch supports that; others warn about them."""
    make = torch.profiler.profile
    options: dict[str, Any] = {}
    if "acc_events" in inspect.signature(make).parameters:
        options["acc_events"] = True
    return make(activities=activities, **options)


def _average(launches: Iterable[Launch], names: tuple[str, ...], period: int) -> list[Any]:
    """Returns the mean seconds of each name, or with a period a list of that length."""
    times: list[Any] = []
    for name in names:
        found = sorted((each for each in launches if name in each.name), key=lambda each: each.begin_us)
        turns = [[each.duration_us for each in found[turn::period]] for turn in range(period)]
        means = [sum(each) / len(each) / 1e6 if each else _NO_KERNEL_S for each in turns]
        times.append(means if period > 1 else means[0])
    return times


@contextlib.contextmanager
def _quiet(whether: bool) -> Iterator[None]:
    """Drops all output of this process, including that of C code."""
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
