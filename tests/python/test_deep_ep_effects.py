# SPDX-License-Identifier: Apache-2.0
"""deep_ep: what options of buffers and calls do, as real buffers on the CPU show it: threads, memory and results."""

from __future__ import annotations

import functools
import itertools
import os
import unittest
from typing import Any, Callable
from unittest import mock

import torch
from deep_ep_elastic_calls import HINTS, Options, dispatch, exchange
from deep_ep_elastic_reference import Elastic, World
from deep_ep_ranks import fresh
from deep_ep_reference import BATCH, Shape, Traffic, ll_check, ll_traffic, same
from deep_ep_threads import on_threads
from test_python_group import FakeComm

import expar
from deep_ep import Buffer, Config, ElasticBuffer, _place

HIDDEN = 256
CORES = 128  # more than these tests ask for


def started(call: Callable[[], Any]) -> int:
    """Threads of this process that a call has started and not ended."""
    before = set(os.listdir("/proc/self/task"))
    call()
    return len(set(os.listdir("/proc/self/task")) - before)


def alone(kind: type[Any], *given: Any, cores: int = CORES, **options: Any) -> Any:
    """A buffer of one rank whose calls have one thread, the caller's, unless they are told of more."""
    with mock.patch.dict(os.environ, EXPAR_THREADS="1"):
        made = kind(*given, **options)
    made._max_threads = cores
    return made


class Threads(unittest.TestCase):
    """SMs are threads of the rank on a CPU: the caller's, and those that a call starts and the next one finds."""

    def setUp(self) -> None:
        torch.set_num_threads(1)
        self.traffic = Traffic(Shape(1, 2, 2, 32, 9), 4)

    def test_of_buffer(self) -> None:
        """By the config of a call, the buffer, or all buffers; where a rank lacks cores for as many: no more."""
        buffer = alone(Buffer, comm=FakeComm(1).rank(0))
        call = functools.partial(fresh, buffer, self.traffic)
        self.assertEqual([started(lambda: call(config=Config(n))) for n in (2, 6, 4, 10)], [1, 4, 0, 4])
        buffer.num_sms = 14
        self.assertEqual(started(call), 4)
        try:
            Buffer.set_num_sms(16)
            self.assertEqual(started(call), 0)  # the buffer has a number of its own
            other = alone(Buffer, comm=FakeComm(1).rank(0))
            self.assertEqual(started(lambda: fresh(other, self.traffic)), 15)
        finally:
            Buffer.set_num_sms(20)
        few = alone(Buffer, comm=FakeComm(1).rank(0), cores=6)
        self.assertEqual([started(lambda: fresh(few, self.traffic, config=Config(n))) for n in (6, 4)], [0, 3])

    def test_of_other_calls(self) -> None:
        buffer = alone(Buffer, comm=FakeComm(1).rank(0))
        rows, _, _, _, handle, _ = fresh(buffer, self.traffic, config=Config(2))
        x, answers = self.traffic.x[0], self.traffic.answer(0, rows)
        self.assertEqual(started(lambda: buffer.dispatch(x, handle=handle, config=Config(4))), 2)
        self.assertEqual(started(lambda: buffer.combine(answers, handle, config=Config(8))), 4)

    def test_of_elastic_buffer(self) -> None:
        """The number of a call holds; without one the number that is theoretically needed, which is more without
        overlap."""
        e = Elastic(World(1, 4, 3, 32, 9), 5)
        for overlaps in (True, False):
            buffer = alone(ElasticBuffer, FakeComm(1).rank(0), **HINTS, prefer_overlap_with_compute=overlaps)
            call = functools.partial(buffer.dispatch, e.x[0], e.topk_idx[0], num_experts=4)
            made: list[Any] = []
            self.assertEqual(started(lambda: made.extend(call(num_sms=2))), 1)
            combine = functools.partial(buffer.combine, made[0], made[3])
            self.assertEqual(started(combine), 0)  # as many as the dispatch
            usual = buffer.get_theoretical_num_sms(4, 3)
            self.assertEqual(started(call), usual - 2)
            self.assertEqual(usual >= 64, not overlaps)
            self.assertEqual(started(lambda: combine(num_sms=usual + 4)), 4)


class LowLatency(unittest.TestCase):
    def test_mapped_memory(self) -> None:
        """Without it a buffer has the memory of one that reaches its peers by messages, and the same results."""

        def body(comm: Any) -> None:
            heaps, sums = [], []
            for allowed in (True, False):
                buffer = Buffer(comm=comm, low_latency_mode=True, allow_nvlink_for_low_latency_mode=allowed)
                traffic, rank = ll_traffic(buffer, 4), buffer.rank
                x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
                experts, topk = traffic.shape.experts, idx.shape[1]
                found = buffer.low_latency_dispatch(x, idx, BATCH, experts, use_fp8=False)
                rows = ll_check(traffic, rank, *found[:3])
                sums.append(buffer.low_latency_combine(traffic.answer(rank, rows), idx, weights, found[2])[0])
                same(sums[-1], traffic.weighted(rank))
                (made,) = buffer._at(_place.CPU)[1].buffers()
                heaps.append(made.stats()["heap_bytes"])
                options = dict(max_row_bytes=2 * HIDDEN, unmapped=int(not allowed))
                needed = expar.LowLatencyBuffer.bytes_needed(buffer.group_size, BATCH, HIDDEN, topk, experts, **options)
                assert heaps[-1] == needed, (options, heaps[-1], needed)
            assert heaps[1] > heaps[0], heaps
            same(*sums)

        on_threads(2, body)

    def test_masks(self) -> None:
        """Masks exist with enable_shrink alone, and act on later calls."""

        def body(comm: Any) -> None:
            status = torch.full((2,), 9, dtype=torch.int32)
            plain, buffer = (Buffer(comm=comm, low_latency_mode=True, enable_shrink=on) for on in (False, True))
            try:
                plain.low_latency_query_mask_buffer(status)
            except AssertionError as error:
                assert "enable_shrink" in str(error), error
            else:
                raise AssertionError("masks without enable_shrink")
            buffer.low_latency_query_mask_buffer(status)
            assert status.tolist() == [0, 0]
            other = 1 - buffer.rank
            buffer.low_latency_update_mask_buffer(other, True)
            x, idx = torch.ones((3, HIDDEN), dtype=torch.bfloat16), torch.tensor([[0, 2], [1, 3], [2, 0]])
            rows, count, *_ = buffer.low_latency_dispatch(x, idx, BATCH, 4, use_fp8=False)
            mine = [(idx == 2 * buffer.rank + expert).sum().item() for expert in range(2)]
            assert count.tolist() == mine, (count, mine)  # of this rank's own tokens

        on_threads(2, body)


class Results(unittest.TestCase):
    def test_hints_of_buffer(self) -> None:
        """Options that are only stored change no bit of a dispatch and a combine."""

        def body(comm: Any) -> None:
            hints: Any = (
                {},
                dict(num_nvl_bytes=1 << 20, num_rdma_bytes=1 << 20, low_latency_mode=True),
                dict(num_qps_per_rank=1, allow_mnnvl=True, use_fabric=True),
            )
            traffic = Traffic(Shape(2, 4, 3, 64, 20), 3)
            for options in hints:
                buffer = Buffer(comm=comm, **options)
                rows, _, _, _, handle, _ = fresh(buffer, traffic)
                same(rows, traffic.received(buffer.rank)[0])
                y = buffer.combine(traffic.answer(buffer.rank, rows), handle)[0]
                same(y, traffic.combined(buffer.rank)[0])

        on_threads(2, body)

    def test_options_of_elastic_buffer(self) -> None:
        """Rows are in order and sums are right to the bit, deterministic or not, and whatever the hints are."""

        def body(comm: Any) -> None:
            choices: Any = (
                dict(deterministic=True),
                dict(deterministic=False),
                dict(deterministic=True, allow_multiple_reduction=False, allow_hybrid_mode=False),
                dict(sl_idx=1, num_cpu_bytes=1 << 30, num_allocated_qps=1, prefer_overlap_with_compute=False),
            )
            e = Elastic(World(2, 6, 3, 64, 12, 4), 8)
            for number, (options, expand) in enumerate(itertools.product(choices, (False, True))):
                exchange(ElasticBuffer(comm, **HINTS, **options), e, Options(expand, biases=2), number)

        on_threads(2, body)

    def test_sizes_of_elastic_buffer(self) -> None:
        """num_bytes by the options is what FP8 rows, or others, take with their combine, for the largest top-k, too."""

        def body(comm: Any) -> None:
            tokens, hidden = 256, 2048
            for fp8, topk in itertools.product((False, True), (4, 0)):
                hints = dict(num_max_tokens_per_rank=tokens, hidden=hidden, num_topk=topk, use_fp8_dispatch=fp8)
                buffer = ElasticBuffer(comm, **hints)
                assert buffer.num_bytes == ElasticBuffer.get_buffer_size_hint(comm, *hints.values())
                x = torch.zeros((tokens, hidden), dtype=torch.bfloat16)
                given = (x.to(torch.float8_e4m3fn), torch.ones((tokens, hidden // 128))) if fp8 else x
                idx = torch.arange(topk or 32).repeat(tokens, 1)  # all to all ranks
                rows, _, weights, handle, _ = buffer.dispatch(given, idx, torch.ones(idx.shape), num_experts=topk or 32)
                y = buffer.combine(torch.zeros((2 * tokens, hidden), dtype=torch.bfloat16), handle, weights)[0]
                taken = buffer._at(_place.CPU).ep.stats()["used_high_bytes"]
                assert 0 < taken <= buffer.num_bytes, (hints, taken, buffer.num_bytes)
                del rows, weights, handle, y

        on_threads(2, body)

    def test_most_tokens_of_elastic_buffer(self) -> None:
        """The number of the buffer counts in calls that say nothing."""

        def body(comm: Any) -> None:
            buffer = ElasticBuffer(comm, **{**HINTS, "num_max_tokens_per_rank": 12})
            e = Elastic(World(2, 4, 3, 32, 12, 1), 6)
            wanted = dispatch(buffer, e, Options(synced=False))[2]
            rank = buffer.rank_idx
            given = e.x[rank], e.topk_idx[rank]
            handle = buffer.dispatch(*given, num_experts=4, do_cpu_sync=False)[3]
            assert (handle.num_max_tokens_per_rank, handle.num_recv_tokens) == (12, 24)
            same(handle.recv_src_metadata[:, 0], wanted.recv_src_metadata[:, 0])

        on_threads(2, body)


if __name__ == "__main__":
    unittest.main()
