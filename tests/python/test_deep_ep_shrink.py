# SPDX-License-Identifier: Apache-2.0
"""deep_ep: ranks of a `Buffer` with enable_shrink that live and stay away from low-latency calls: one from its first
dispatch, one from its first combine, one from its first clean. The others mask each of them, and go on with right
results. What such a buffer reserves, and the variables that say how long it waits."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import threading
import unittest
from typing import Any, Callable
from unittest import mock

import torch
from deep_ep_ranks import BATCH, ll_traffic
from deep_ep_reference import same
from deep_ep_threads import alone, on_threads, said

import deep_ep
import expar
import ranks
from deep_ep import _groups, _place, _shrink

RANKS, MASK_SECS = 8, 4
NO_DISPATCH, NO_COMBINE, NO_CLEAN = 1, 3, 5


class Absences:
    """Shared by the ranks, which are threads. A rank that stays away does so until all others have gone on without
    it."""

    def __init__(self, away: int) -> None:
        """away: how many stay away."""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._left = RANKS - away

    def stay_away(self) -> None:
        assert self._over.wait(ranks.DEADLINE_S), "the others do not go on"

    def gone_on(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._over.set()

    def given_up(self) -> None:
        self._over.set()


def without(traffic: Any, *away: int) -> Any:
    """That traffic, with nothing for the experts of those ranks."""
    made = copy.copy(traffic)
    made.topk_idx = [
        torch.where(torch.isin(each // traffic.local, torch.tensor(away)), -1, each) for each in traffic.topk_idx
    ]
    return made


class Member:
    """One rank, and what it does."""

    def __init__(self, comm: Any, absences: Absences) -> None:
        self.absences = absences
        hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(BATCH, 512, RANKS, 32)
        self.buffer = deep_ep.Buffer(
            comm=comm, num_rdma_bytes=hint, low_latency_mode=True, enable_shrink=True, explicitly_destroy=True
        )
        self.rank = self.buffer.rank
        self.traffic = ll_traffic(self.buffer, 7)
        self.experts, self.hidden = self.traffic.shape.experts, self.traffic.shape.hidden
        given = self.traffic.x, self.traffic.topk_idx, self.traffic.weights
        self.x, self.idx, self.weights = (each[self.rank] for each in given)
        self.found: Any = None  # of the first dispatch

    def dispatch(self) -> Any:
        return self.buffer.low_latency_dispatch(self.x, self.idx, BATCH, self.experts, use_fp8=False)

    def combine(self, found: Any) -> Any:
        answer = self.traffic.answer(self.rank, found[0])
        return self.buffer.low_latency_combine(answer, self.idx, self.weights, found[2])[0]

    def clean(self) -> None:
        self.buffer.clean_low_latency_buffer(BATCH, self.hidden, self.experts)

    def check_masked(self, *away: int) -> None:
        status = torch.full((RANKS,), 9, dtype=torch.int32)
        self.buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [int(r in away) for r in range(RANKS)], (self.rank, status, away)

    def go_on(self) -> None:
        """With a dispatch, a combine and a clean, each of which one rank stays away from."""
        self.found = self.dispatch()
        self.check_masked(NO_DISPATCH)
        assert not (self.found[2][1][:, NO_DISPATCH] & 0xFFFFFFFF).any()
        if self.rank == NO_COMBINE:
            return
        same(self.combine(self.found), without(self.traffic, NO_DISPATCH, NO_COMBINE).weighted(self.rank))
        self.check_masked(NO_DISPATCH, NO_COMBINE)
        if self.rank == NO_CLEAN:
            return
        self.clean()
        self.check_masked(NO_DISPATCH, NO_COMBINE, NO_CLEAN)
        for _ in range(3):
            y = self.combine(self.dispatch())
            same(y, without(self.traffic, NO_DISPATCH, NO_COMBINE, NO_CLEAN).weighted(self.rank))
        self.absences.gone_on()

    def come_late(self) -> None:
        """To the call that it was missed in, for which the others had sent their rows. Then it finds itself masked by
        all of them, masks them, and works alone."""
        if self.rank == NO_COMBINE:
            same(self.combine(self.found), without(self.traffic, NO_DISPATCH).weighted(self.rank))
        elif self.rank == NO_CLEAN:
            self.clean()
        others = [r for r in range(RANKS) if r != self.rank]
        same(self.combine(self.dispatch()), without(self.traffic, *others).weighted(self.rank))
        self.check_masked(*others)


def stay_away(comm: Any, absences: Absences) -> None:
    member = Member(comm, absences)
    try:
        if member.rank != NO_DISPATCH:
            member.go_on()
        if member.rank in (NO_DISPATCH, NO_COMBINE, NO_CLEAN):
            absences.stay_away()
            member.come_late()
    except BaseException:
        absences.given_up()
        raise
    # All ranks live, and all come to a clean of masks: it takes all in again.
    member.buffer.low_latency_clean_mask_buffer()
    member.check_masked()
    same(member.combine(member.dispatch()), member.traffic.weighted(member.rank))
    member.buffer.destroy()


def first_clean(comm: Any, absences: Absences) -> None:
    """The first low-latency call of all is a clean, and a rank does not come to it; its own first call is the clean of
    masks."""
    member = Member(comm, absences)
    if member.rank == NO_CLEAN:
        absences.stay_away()
    else:
        try:
            member.clean()
            member.check_masked(NO_CLEAN)
            same(member.combine(member.dispatch()), without(member.traffic, NO_CLEAN).weighted(member.rank))
        finally:
            absences.gone_on()
    member.buffer.low_latency_clean_mask_buffer()
    member.check_masked()
    same(member.combine(member.dispatch()), member.traffic.weighted(member.rank))
    member.buffer.destroy()


# ---- tests -----------------------------------------------------------------------------------------------------------


def on_ranks(size: int, body: Callable[..., None], *arguments: Any) -> None:
    """A rank that fails ends the waits of the others."""

    def run(comm: Any) -> None:
        torch.set_num_threads(1)
        try:
            body(comm, *arguments)
        except BaseException:
            _groups.group_of(None, comm).abort()
            raise

    on_threads(size, run)


class Away(unittest.TestCase):
    def setUp(self) -> None:
        seconds = mock.patch.dict(os.environ, EXPAR_DEEP_EP_MASK_TIMEOUT=str(MASK_SECS))
        seconds.start()
        self.addCleanup(seconds.stop)

    def test_stay_away(self) -> None:
        on_ranks(RANKS, stay_away, Absences(3))

    def test_first_clean(self) -> None:
        on_ranks(RANKS, first_clean, Absences(1))


def shapes(comm: Any, bytes_of: Callable[[], int], **options: Any) -> None:
    """Calls of several shapes, of which the first that fits takes the reserve, and masks of all buffers. Options by
    name are for ranks that share no memory: they have no reserve."""
    buffer = deep_ep.Buffer(
        comm=comm,
        num_rdma_bytes=bytes_of(),
        low_latency_mode=True,
        enable_shrink=True,
        explicitly_destroy=True,
        **options,
    )
    rank = buffer.rank
    for seed, batch in ((7, BATCH), (8, BATCH + 4), (7, BATCH)):
        traffic = ll_traffic(buffer, seed)
        x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
        recv, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, batch, traffic.shape.experts, use_fp8=False)
        same(buffer.low_latency_combine(traffic.answer(rank, recv), idx, weights, handle)[0], traffic.weighted(rank))
        buffer.clean_low_latency_buffer(batch, traffic.shape.hidden, traffic.shape.experts)
    made = buffer._at(_place.CPU)[1]
    assert (made._reserve is not None) == (bytes_of() > 4096 and not options), (bytes_of(), options)
    assert len(made.buffers()) >= 2, made.buffers()
    status = torch.full((2,), 9, dtype=torch.int32)
    buffer.low_latency_clean_mask_buffer()
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0, 0], status
    buffer.destroy()


class Reserve(unittest.TestCase):
    def test_shapes(self) -> None:
        """The reserve is no limit: what does not fit, and further shapes, take memory as they come."""
        for count in (0, 4096, deep_ep.Buffer.get_low_latency_rdma_size_hint(64, 1024, 2, 64)):
            with self.subTest(num_rdma_bytes=count):
                on_ranks(2, shapes, lambda: count)

    def test_without_shared_memory(self) -> None:
        """There is no reserve; calls and masks work as without one."""
        on_ranks(2, functools.partial(shapes, allow_nvlink_for_low_latency_mode=False), lambda: 1 << 24)

    def test_hint(self) -> None:
        """A reserve that a hint has made holds a buffer with masks of that shape, and half of the largest K."""
        for size, tokens, hidden, experts in itertools.product((1, 2, 8, 64), (1, 100, 1024), (128, 7168), (1, 4)):
            hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(tokens, hidden, size, experts * size)
            topk = max(min(experts * size, 32) // 2, 1)
            shape = (size, tokens, hidden, topk, experts * size)
            self.assertLessEqual(expar.LowLatencyBuffer.bytes_needed(*shape, masking=1), _shrink.reserve_of(hint), shape)
        hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(16, 256, 1, 64)
        buffer = alone(num_rdma_bytes=hint, low_latency_mode=True, enable_shrink=True)
        x, idx = torch.ones((4, 256), dtype=torch.bfloat16), torch.arange(32).repeat(4, 1)
        with mock.patch("deep_ep._low_latency.LowLatencyBuffer", side_effect=AssertionError("another buffer")):
            recv, count, handle, _, _ = buffer.low_latency_dispatch(x, idx, 16, 64, use_fp8=False)
        assert count.tolist() == [4] * 32 + [0] * 32, count

    def test_bytes_differ(self) -> None:
        def body(comm: Any) -> None:
            given = (1 << 20) << comm.Get_rank()
            heard = said(
                RuntimeError,
                lambda: deep_ep.Buffer(comm=comm, num_rdma_bytes=given, low_latency_mode=True, enable_shrink=True),
            )
            self.assertIn("config.reserve_bytes", heard)

        on_ranks(2, body)


class Variables(unittest.TestCase):
    def test_seconds(self) -> None:
        for given, wanted in (
            ({}, 100_000),
            ({"EXPAR_TIMEOUT": "7"}, 7000),
            ({"EXPAR_TIMEOUT": "7", "EXPAR_DEEP_EP_MASK_TIMEOUT": "0.25"}, 250),
        ):
            with mock.patch.dict(os.environ, given):
                for name in {"EXPAR_TIMEOUT", "EXPAR_DEEP_EP_MASK_TIMEOUT"} - given.keys():
                    os.environ.pop(name, None)
                self.assertEqual(_shrink.mask_ms(), wanted)
        for value in ("0", "-1", "inf", "nan", "soon"):
            with mock.patch.dict(os.environ, EXPAR_DEEP_EP_MASK_TIMEOUT=value):
                heard = said(RuntimeError, lambda: alone(low_latency_mode=True, enable_shrink=True))
                self.assertEqual(heard, f"EXPAR_DEEP_EP_MASK_TIMEOUT is {value!r}: expected seconds, more than 0")


if __name__ == "__main__":
    unittest.main()
