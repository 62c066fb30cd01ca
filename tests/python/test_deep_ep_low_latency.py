# SPDX-License-Identifier: Apache-2.0
"""deep_ep: what options of low-latency calls do beside what comes: times of waiting, LogFMT, hooks without an event."""

from __future__ import annotations

import gc
import os
import threading
import time
import unittest
from typing import Any, Callable
from unittest import mock

import torch
from deep_ep_ranks import ll_finish
from deep_ep_reference import BATCH, ll_traffic, same
from deep_ep_threads import alone, on_threads, said

import deep_ep
import expar
import ranks
from deep_ep._groups import group_of
from expar import LlFormat

REST_S = 0.02  # by which a rank is late; until it is seen, it is late again
DEADLINE_S = 20
BEFORE = 1000  # stands in statistics that are added to
WAYS: tuple[dict[str, bool], ...] = ({}, {"return_recv_hook": True}, {"async_finish": True})


def on_ranks(body: Callable[[Any], None]) -> None:
    """body(comm) on two ranks that are threads. One that fails ends the other's waits."""

    def run(comm: Any) -> None:
        try:
            body(comm)
        except BaseException:
            group_of(None, comm).abort()
            raise

    on_threads(2, run)


class Late:
    """Rank 1 comes late to a call again and again, until rank 0 has waited for it. One for both ranks."""

    def __init__(self) -> None:
        self._meeting = threading.Barrier(2)
        self._over = False  # as rank 0 sees it

    def repeat(self, rank: int, call: Callable[[Any], None]) -> None:
        """call: with statistics, int64 [2]"""
        waits = torch.full((2,), BEFORE, dtype=torch.int64)
        end = time.monotonic() + DEADLINE_S
        while not self._over:
            if rank == 1:
                time.sleep(REST_S)
            call(waits)
            if rank == 0:
                self._over = bool(waits[1] > BEFORE) or time.monotonic() > end
            self._meeting.wait(ranks.DEADLINE_S)
        self._meeting.wait(ranks.DEADLINE_S)  # both have seen it
        self._over = False
        self._meeting.wait(ranks.DEADLINE_S)
        assert rank == 1 or waits[1] > BEFORE, f"rank 0 has never waited for rank 1: {waits}"
        assert waits[rank] == BEFORE and waits[1 - rank] >= BEFORE, waits  # nobody waits for itself


class Waits(unittest.TestCase):
    def test_added(self) -> None:
        """Dispatches and combines have them, each where it was given, in each way of a call."""
        late = Late()

        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm, low_latency_mode=True)
            traffic = ll_traffic(buffer, 2)
            rank, experts = buffer.rank, traffic.shape.experts
            x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]

            def dispatch(waits: Any, **how: bool) -> Any:
                found = buffer.low_latency_dispatch(
                    x, idx, BATCH, experts, dispatch_wait_recv_cost_stats=waits, use_fp8=False, **how
                )
                ll_finish(*found[3:])
                return found

            def combine(waits: Any, **how: bool) -> None:
                y, event, hook = buffer.low_latency_combine(
                    answers, idx, weights, handle, combine_wait_recv_cost_stats=waits, **how
                )
                ll_finish(event, hook)
                same(y, traffic.weighted(rank))

            for how in WAYS:
                late.repeat(rank, lambda waits, how=how: dispatch(waits, **how))
            rows, _, handle, _, _ = dispatch(None)
            answers = traffic.answer(rank, rows)
            for how in WAYS:
                late.repeat(rank, lambda waits, how=how: combine(waits, **how))

        on_ranks(body)


class Formats(unittest.TestCase):
    def test_logfmt(self) -> None:
        """To the bit what the library's own buffer gives, and not the sums without; exact, whatever others are."""

        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm, low_latency_mode=True)
            traffic = ll_traffic(buffer, 8)
            rank, shape = buffer.rank, traffic.shape
            x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
            rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, BATCH, shape.experts, use_fp8=False)
            answers = traffic.answer(rank, rows) / 64  # small ones are coded
            without = buffer.low_latency_combine(answers, idx, weights, handle)[0]
            with expar.LowLatencyBuffer(buffer._group, BATCH, shape.hidden, shape.topk, shape.experts) as low:
                sent = low.dispatch(x, idx)
                wanted = low.combine(answers, idx, weights, sent.handle, format=LlFormat.LOGFMT).y.torch().clone()
                del sent
            assert torch.count_nonzero(wanted != without) > wanted.numel() // 4
            for how in WAYS:
                y, event, hook = buffer.low_latency_combine(answers, idx, weights, handle, use_logfmt=True, **how)
                ll_finish(event, hook)
                same(y, wanted)
            same(buffer.low_latency_combine(answers, idx, weights, handle)[0], without)

        for sums in ("exact", "reduced"):
            with mock.patch.dict(os.environ, EXPAR_DEEP_EP_SUM=sums):
                on_ranks(body)


class Doubles(unittest.TestCase):
    def test_an_expert_twice(self) -> None:
        """Routing simulators that draw with replacement, and dummy batches, name an expert in several slots."""

        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm, low_latency_mode=True)
            x = torch.arange(256, dtype=torch.float32).reshape(2, 128).to(torch.bfloat16)
            idx, weights = torch.tensor([[0, 0], [0, 1]]), torch.tensor([[1.0, 2.0], [4.0, 0.5]])
            for how in WAYS:
                rows, counts, handle, event, hook = buffer.low_latency_dispatch(x, idx, 4, 2, use_fp8=False, **how)
                ll_finish(event, hook)
                tokens = [0, 0, 1] * 2 if buffer.rank == 0 else [1] * 2
                self.assertEqual(counts.tolist(), [len(tokens)])
                same(rows[0, : len(tokens)], x[tokens])
                y, event, hook = buffer.low_latency_combine(rows, idx, weights, handle, **how)
                ll_finish(event, hook)
                same(y, (x.float() * weights.sum(1)[:, None]).to(torch.bfloat16))

        on_ranks(body)


class Wrong(unittest.TestCase):
    def test_a_hook_with_an_event(self) -> None:
        """A dispatch's is in test_deep_ep.py."""
        buffer = alone(low_latency_mode=True)
        traffic = ll_traffic(buffer, 3)
        x, idx, weights = traffic.x[0], traffic.topk_idx[0], traffic.weights[0]
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, BATCH, traffic.shape.experts, use_fp8=False)
        given = traffic.answer(0, rows), idx, weights, handle
        both = dict(async_finish=True, return_recv_hook=True)
        self.assertIn("do not go together", said(AssertionError, lambda: buffer.low_latency_combine(*given, **both)))
        same(buffer.low_latency_combine(*given)[0], traffic.weighted(0))


if __name__ == "__main__":
    gc.freeze()  # of PyTorch there is much, and none of it goes
    unittest.main()
