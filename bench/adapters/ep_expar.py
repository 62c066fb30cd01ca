#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pairs of dispatch and combine through the package expar, measured as CollectiveX does, for its harness and alone.

`ExparAdapter` makes the calls; `measure` gives the figures:

- Pairs run back to back, without a word of the host between them: 4 trials of 128 pairs, of which the first 16 are
  dropped. `pair_period_us` is the median of a rank's pairs, and then of the ranks.
- A second chain, with a moment between the two calls, gives each call's floor: the median of the fastest rank.
- The spread and the drift of the periods, and the gap between two pairs, stand beside it.
- FP8 rows are quantised by the caller. That is part of the dispatch, and of its time.

On a GPU moments are events of the stream, on the CPU readings of the clock.
usage: expar run -n N -- python3 bench/adapters/ep_expar.py [--device cuda] [--fp8] …
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import time
from typing import Any, Callable

try:
    import torch
    import expar
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar comes with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

TRIALS, PAIRS, MOST_DROPPED = 4, 128, 16
FP8, FP8_MOST, FP8_GROUP = torch.float8_e4m3fn, 448.0, 128
BEGIN, BETWEEN, END = range(3)


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes rows as e4m3, with a scale for each 128 elements."""
    groups = x.float().view(x.shape[0], -1, FP8_GROUP)
    scales = groups.abs().amax(2).clamp(min=1e-4) / FP8_MOST
    return (groups / scales[:, :, None]).to(FP8).view(x.shape), scales.contiguous()


def restored(coded: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns coded rows as BF16."""
    groups = coded.float().view(coded.shape[0], -1, FP8_GROUP) * scales[:, :, None]
    return groups.view(coded.shape).bfloat16()


class ExparAdapter:
    """The calls of one rank on one routing. cached: dispatches repeat the first one's routing."""

    name = "expar"

    def __init__(
        self,
        group: expar.Group,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        num_experts: int,
        *,
        fp8: bool = False,
        cached: bool = False,
    ) -> None:
        if x.dtype != torch.bfloat16 or x.dim() != 2:
            raise ValueError(f"x is {x.dtype} of {x.dim()} dimensions: BF16 rows [T, H] are expected")
        if fp8 and x.shape[1] % FP8_GROUP:
            raise ValueError(f"x has rows of {x.shape[1]} elements: a multiple of {FP8_GROUP} is expected for FP8")
        self.group, self.x, self.fp8, self.cached = group, x, fp8, cached
        self._routing = dict(topk_idx=topk_idx, topk_weights=topk_weights, num_experts=num_experts)
        self.buffer = expar.Buffer(group, device=x.device if x.is_cuda else None)
        self.y = torch.empty_like(x)
        self._handle: Any = None
        self._last: Any = None
        first = self.dispatch()
        self._kept = first.handle
        self._rows = self._experts_output(first)
        if cached:
            self._handle = first.handle

    def _experts_output(self, dispatched: Any) -> torch.Tensor:
        """Returns what the experts would: the rows as they came, in BF16."""
        rows = torch.from_dlpack(dispatched.x)
        if not self.fp8:
            return rows.clone()
        return restored(rows.view(torch.uint8).clone().view(FP8), torch.from_dlpack(dispatched.scales).clone())

    def dispatch(self) -> Any:
        """Quantises if the rows travel as FP8, and dispatches."""
        x, scales = quantised(self.x) if self.fp8 else (self.x, None)
        if self._handle is not None:
            self._last = self.buffer.dispatch(x, x_scales=scales, handle=self._handle)
        else:
            self._last = self.buffer.dispatch(x, x_scales=scales, **self._routing)
        return self._last

    def combine(self) -> torch.Tensor:
        """Combines: plain rows where the dispatch has put them, coded ones as the experts have restored them."""
        rows = self._rows if self.fp8 else self._last.x
        self.buffer.combine(rows, self._handle or self._last.handle, out_y=self.y)
        return self.y

    def verify(self) -> bool:
        """Returns whether a combine's sums are what rows that return as they were add up to."""
        sent = restored(*quantised(self.x)) if self.fp8 else self.x
        local = self._routing["num_experts"] // self.group.size
        ranks = torch.zeros((self.x.shape[0], self.group.size), device=self.x.device)
        index = self._routing["topk_idx"].long()
        ranks.scatter_(1, index.clamp(min=0) // local, (index >= 0).float(), reduce="add")
        expected = (sent.float() * (ranks > 0).sum(1, keepdim=True)).bfloat16()
        return bool(torch.equal(self.y, expected))

    def close(self) -> None:
        """Ends the buffer. Collective."""
        self._last = self._kept = self._handle = None
        self.buffer.close()


class Clock:
    """Moments of a rank: events of the stream on a GPU, readings of the clock on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def now(self) -> Any:
        """Takes a moment."""
        if not self._cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def us(self, begin: Any, end: Any) -> float:
        """Returns the microseconds between two moments that have come."""
        return float(begin.elapsed_time(end) * 1e3 if self._cuda else (end - begin) * 1e-3)

    def settle(self) -> None:
        """Waits until all moments have come."""
        if self._cuda:
            torch.cuda.synchronize()


def chain(adapter: ExparAdapter, clock: Clock, pairs: int, split: bool) -> list[list[Any]]:
    """Makes pairs back to back; returns each pair's moments."""
    moments = []
    adapter.group.barrier()
    for _ in range(pairs):
        taken = [clock.now(), None, None]
        adapter.dispatch()
        if split:
            taken[BETWEEN] = clock.now()
        adapter.combine()
        taken[END] = clock.now()
        moments.append(taken)
    clock.settle()
    return moments


def middle(values: list[float]) -> float:
    """Returns the width of the middle 80 % of values, as a share of their median."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[(9 * len(ordered) - 1) // 10]
    return (high - low) / statistics.median(ordered)


def figures_of_rank(adapter: ExparAdapter, pairs: int, trials: int) -> list[float]:
    """Measures both chains: period, gap, spread, drift, and the times of a dispatch and of a combine."""
    clock, dropped = Clock(adapter.x.device), min(MOST_DROPPED, pairs // 8)
    periods: list[float] = []
    gaps: list[float] = []
    early: list[float] = []
    late: list[float] = []
    calls: list[tuple[float, float]] = []
    chain(adapter, clock, min(pairs, MOST_DROPPED), False)
    for _ in range(trials):
        taken = chain(adapter, clock, pairs, False)[dropped:]
        of_trial = [clock.us(a[BEGIN], b[BEGIN]) for a, b in zip(taken, taken[1:])]
        periods += of_trial
        gaps += [clock.us(a[END], b[BEGIN]) for a, b in zip(taken, taken[1:])]
        quarter = max(1, len(of_trial) // 4)
        early += of_trial[:quarter]
        late += of_trial[-quarter:]
    for _ in range(trials):
        for taken in chain(adapter, clock, pairs, True)[dropped:]:
            calls.append((clock.us(taken[BEGIN], taken[BETWEEN]), clock.us(taken[BETWEEN], taken[END])))
    median = statistics.median
    drift = median(late) / median(early) - 1
    return [median(periods), median(gaps), middle(periods), drift, *(median(each) for each in zip(*calls))]


def measure(adapter: ExparAdapter, pairs: int = PAIRS, trials: int = TRIALS) -> dict[str, Any]:
    """Measures and verifies. Collective; all ranks get the same figures."""
    if pairs < 2:
        raise ValueError(f"pairs is {pairs}: at least 2 are expected")
    mine = figures_of_rank(adapter, pairs, trials)
    form = struct.Struct("=6d?")
    sent = adapter.group.allgather(form.pack(*mine, adapter.verify()))
    ranks = list(zip(*(form.unpack(each) for each in sent)))
    return {
        "library": adapter.name,
        "version": expar.__version__,
        "pair_period_us": statistics.median(ranks[0]),
        "gap_us": statistics.median(ranks[1]),
        "spread": max(ranks[2]),
        "drift": statistics.median(ranks[3]),
        "dispatch_floor_us": min(ranks[4]),
        "combine_floor_us": min(ranks[5]),
        "trials": trials,
        "pairs": pairs,
        "dropped": min(MOST_DROPPED, pairs // 8),
        "dtype": "fp8" if adapter.fp8 else "bf16",
        "cached": adapter.cached,
        "verified": all(ranks[6]),
    }


def inputs(rank: int, options: argparse.Namespace, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Draws this rank's tokens and their routing."""
    random = torch.Generator().manual_seed(1000 * options.seed + rank)
    x = torch.randn((options.tokens, options.hidden), generator=random).bfloat16()
    idx = torch.rand((options.tokens, options.experts), generator=random).topk(options.topk, dim=1).indices
    weights = torch.rand((options.tokens, options.topk), generator=random)
    return tuple(tensor.to(device) for tensor in (x, idx, weights))


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pairs of dispatch and combine, as CollectiveX measures them.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    for name, default in dict(tokens=128, hidden=7168, topk=8, experts=256, pairs=PAIRS, trials=TRIALS, seed=1).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--fp8", action="store_true", help="rows travel as FP8; their coding is part of the dispatch")
    parser.add_argument("--cached", action="store_true", help="dispatches repeat the first one's routing")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None, tell: Callable[[str], None] = print) -> None:
    options = parsed(arguments)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    with expar.Group.from_env() as group:
        device = torch.device(options.device, group.local_rank if options.device == "cuda" else None)
        if device.type == "cuda":
            torch.cuda.set_device(device if "LOCAL_RANK" not in os.environ else local)
        x, idx, weights = inputs(group.rank, options, device)
        adapter = ExparAdapter(group, x, idx, weights, options.experts, fp8=options.fp8, cached=options.cached)
        found = measure(adapter, options.pairs, options.trials)
        adapter.close()
        if group.rank == 0:
            tell(json.dumps({**found, "config": {**vars(options), "ranks": group.size}}, indent=2))
    if not found["verified"]:
        raise SystemExit("ep_expar: a sum differs from what the routing demands")


if __name__ == "__main__":
    main()
