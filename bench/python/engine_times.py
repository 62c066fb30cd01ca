# SPDX-License-Identifier: Apache-2.0
"""Measures loops of calls for engine_view.py, finds the C figures that belong to them, and prints the table."""

from __future__ import annotations

import collections
import dataclasses
import json
import statistics
import time
from typing import Any, Callable, Sequence

try:
    import torch
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None
import torch.distributed as dist

FLUSHED_BYTES = 256 << 20  # more than the L2 of any GPU has
Members = dict[str, Any]


@dataclasses.dataclass
class Case:
    """One kind of call, and its references."""

    through: str  # the class that makes the call
    name: str
    tokens: int
    call: Callable[[], Any]
    rows_of: Callable[[Any], Any]  # the tensor of a result that is compared
    isolated: Sequence[Members]  # the isolated calls of C that it consists of, by members of their results
    loop: Members  # the loop of C that makes the same calls
    wanted: Any = None  # what rows_of gives; None: what the first call gave
    keep: int = 0  # results that stay alive at a time
    flush: bool = False  # the L2 is flushed before each call


@dataclasses.dataclass
class Times:
    """Microseconds of the slowest rank. loop_us is a call's share of a loop; the others are times of single calls."""

    loop_us: float
    single_us: float
    most_us: float
    host_us: float
    host_p99_us: float
    verified: bool


class Meter:
    """Measures on one rank; all ranks measure the same cases in the same order."""

    def __init__(self, device: torch.device, calls: int, warmup: int) -> None:
        self.device, self.calls, self.warmup = device, calls, warmup
        self.on_gpu = device.type == "cuda"
        self._flushed = torch.empty(FLUSHED_BYTES if self.on_gpu else 0, dtype=torch.uint8, device=device)

    def meet(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
        dist.barrier()

    def _repeat(self, case: Case, count: int, around: Callable[[Callable[[], None]], None]) -> list[float]:
        """Makes calls back to back, each by `around`. Returns the host's time in each, with the release of a result."""
        held: collections.deque[Any] = collections.deque(maxlen=case.keep)
        host_us: list[float] = []

        def one() -> None:
            begin_ns = time.perf_counter_ns()
            held.append(case.call())
            host_us.append((time.perf_counter_ns() - begin_ns) / 1000)

        for _ in range(count):
            if case.flush:
                self._flushed.zero_()
            around(one)
        return host_us

    def _loop(self, case: Case) -> tuple[float, float, list[float]]:
        """Returns begin and end of a loop in microseconds, and the host's times. CPUs have one clock for all ranks;
        GPUs count from their own begin. Ranks leave a barrier at different times, so one more call brings them
        together."""
        self.meet()
        self._repeat(case, 1, lambda one: one())
        if not self.on_gpu:
            begin_ns = time.monotonic_ns()
            host_us = self._repeat(case, self.calls, lambda one: one())
            return begin_ns / 1000, time.monotonic_ns() / 1000, host_us
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        host_us = self._repeat(case, self.calls, lambda one: one())
        end.record()
        self.meet()
        return 0.0, begin.elapsed_time(end) * 1000, host_us

    def _singles(self, case: Case) -> list[float]:
        """Returns the times of calls back to back, by events around each. PyTorch makes an event when it is first
        recorded, which would hold up some of the calls."""
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(self.calls)]
        for pair in pairs:
            for each in pair:
                each.record()
        left = iter(pairs)

        def around(one: Callable[[], None]) -> None:
            begin, end = next(left)
            begin.record()
            one()
            end.record()

        self._repeat(case, self.calls, around)
        self.meet()
        return [begin.elapsed_time(end) * 1000 for begin, end in pairs]

    def _is_right(self, case: Case, wanted: Any) -> bool:
        seen = case.rows_of(case.call())
        return bool(torch.equal(seen.view(torch.uint8), wanted.view(torch.uint8)))

    def measure(self, case: Case) -> Times:
        wanted = case.rows_of(case.call()).clone() if case.wanted is None else case.wanted
        self._repeat(case, self.warmup, lambda one: one())
        begin_us, end_us, host_us = self._loop(case)
        singles = self._singles(case) if self.on_gpu else host_us
        host = statistics.median(host_us), statistics.quantiles(host_us, n=100, method="inclusive")[98]
        mine = (begin_us, end_us, statistics.median(singles), max(singles), *host, self._is_right(case, wanted))
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, mine)
        begins, ends, *others, right = zip(*ranks)
        return Times((max(ends) - min(begins)) / self.calls, *map(max, others), all(right))


# ---- the C figures ---------------------------------------------------------------------------------------------------


class Bench:
    """Results of `expar bench --json`."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._results: list[Members] = []
        for path in paths:
            try:
                with open(path, encoding="utf-8") as file:
                    self._results += json.load(file)["results"]
            except OSError as error:
                raise SystemExit(f"C_JSON '{path}': {error.strerror}") from None
            except (ValueError, KeyError, TypeError):
                raise SystemExit(f"C_JSON '{path}': what `expar bench --json` prints is expected") from None

    def _find(self, member: str, tokens: int, pattern: str, wanted: Members) -> float | None:
        members = {"tokens": tokens, "pattern": pattern, **wanted}
        for result in self._results:
            if all(result.get(name) == value for name, value in members.items()):
                found: float = result[member]
                return found
        return None

    def isolated_us(self, case: Case) -> float | None:
        """Returns the sum of the calls that the case consists of."""
        found = [self._find("median_us", case.tokens, "isolated", part) for part in case.isolated]
        known = [us for us in found if us is not None]
        return sum(known) if known and len(known) == len(found) else None

    def loop_us(self, case: Case, member: str = "median_us") -> float | None:
        wanted = dict(case.loop)
        return self._find(member, case.tokens, wanted.pop("pattern"), wanted)


# ---- the table -------------------------------------------------------------------------------------------------------

_WIDE = 46


def heading(bench: Bench | None) -> str:
    own = "".join(f"{title:>9}" for title in ("T", "loop", "single", "most", "host", "p99"))
    of_c = "".join(f"{title:>9}" for title in ("C alone", "C loop", "C host", "of alone"))
    return f"{'us':{_WIDE}}{own}{of_c if bench else ''}  verified"


def _cell(value: float | None, form: str = ".1f") -> str:
    return f"{'-' if value is None else format(value, form):>9}"


def row(case: Case, times: Times, bench: Bench | None) -> str:
    loop_us = None if case.flush else times.loop_us  # it includes the flush
    own = [loop_us, times.single_us, times.most_us, times.host_us, times.host_p99_us]
    cells = "".join(map(_cell, own))
    if bench:
        alone_us = bench.isolated_us(case)
        engine_us = times.single_us if loop_us is None else loop_us
        cells += "".join(map(_cell, (alone_us, bench.loop_us(case), bench.loop_us(case, "host_us"))))
        cells += _cell(engine_us / alone_us if alone_us else None, ".2f")
    name = f"{case.through} {case.name}"
    return f"{name:{_WIDE}}{case.tokens:9}{cells}  {'yes' if times.verified else 'NO'}"
