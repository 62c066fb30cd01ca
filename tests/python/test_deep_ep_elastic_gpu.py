# SPDX-License-Identifier: Apache-2.0
"""`ElasticBuffer` on a GPU that is played, on thread ranks: the bodies that run on real ones, too."""

from __future__ import annotations

import functools
import itertools
import os
import unittest
from typing import Any
from unittest import mock

import deep_ep_elastic_calls as calls
import played_torch
import ranks
import torch
from deep_ep_elastic_layer import dense, layer, step
from deep_ep_elastic_reference import Elastic, World
from deep_ep_reference import same
from test_python_group import FakeComm

import deep_ep
import expar
from deep_ep import operators
from deep_ep.utils import event


def _played(group: Any, body: Any) -> None:
    with played_torch.Behind():
        body(played_torch.group_of(group))


def event_of(stream: Any) -> Any:
    """All that the stream holds now."""
    made = event.event_of(None)
    made.point = played_torch.GPU.record(stream)
    return made


def slow_work(group: Any) -> None:
    """A call comes behind slow work of the current stream, and behind events of another one, before it or before its
    results; what comes behind the call comes behind slow work of the stream for communication."""
    buffer, gpu, other = deep_ep.ElasticBuffer(group, **calls.HINTS), played_torch.GPU, played_torch._Stream()
    rank, options = buffer.rank_idx, calls.Options()
    e = Elastic(World(2, 6, 3, 64, 16, 2), 12)
    source, handle = e.x[rank], calls.dispatch(buffer, e, options)[2]
    for name in (None, "previous_event", "previous_event_before_epilogue"):
        for asynchronous in (False, True):
            x = torch.full_like(source, -3.0)
            stream = other if name else gpu.current()
            stream.slowly(functools.partial(x.copy_, source))
            events = {name: event_of(stream)} if name else {}
            rows, _, _, _, done = buffer.dispatch(
                x, handle=handle, async_with_compute_stream=asynchronous, allocate_on_comm_stream=True, **events
            )
            calls.finish(done, asynchronous)
            calls.check_rows(e, rank, options, rows, None)
    gpu.comm().slowly(lambda: None)
    calls.check_rows(
        e, rank, options,
        buffer.dispatch(x, handle=handle, previous_event=buffer.capture(), allocate_on_comm_stream=True)[0], None,
    )


def memory(group: Any) -> None:
    """Arguments and results of calls beside the current stream are said to the allocator, not those of others."""
    buffer, gpu = deep_ep.ElasticBuffer(group, **calls.HINTS), played_torch.GPU
    rank, e = buffer.rank_idx, Elastic(World(2, 6, 3, 64, 16, 2), 13)
    x, idx = e.x[rank].clone(), e.topk_idx[rank].clone()
    rows, _, _, handle, _ = buffer.dispatch(x, idx, num_experts=6)
    assert not {(x.data_ptr(), True), (idx.data_ptr(), True)} & set(gpu.used)
    rows, _, _, handle, done = buffer.dispatch(x, idx, num_experts=6, async_with_compute_stream=True)
    assert done.event.point is not None
    assert {(x.data_ptr(), True), (idx.data_ptr(), True), (handle.topk_idx.data_ptr(), False)} <= set(gpu.used)
    done.current_stream_wait()
    y, _, done = buffer.combine(rows, handle, bias=x, async_with_compute_stream=True)
    assert {(y.data_ptr(), False), (x.data_ptr(), True)} <= set(gpu.used)
    done.current_stream_wait()
    with gpu.on(buffer.get_comm_stream()):
        try:
            buffer.combine(rows, handle)
        except RuntimeError as error:
            assert "the stream for communication is current" in str(error)
        else:
            raise AssertionError("a call with the stream for communication as the current one")
    same(buffer.combine(rows, handle, bias=x)[0], y)


def counted(group: Any) -> None:
    """Rows that came are added to the statistics, on the call's stream, whether anybody waits or not."""
    buffer = deep_ep.ElasticBuffer(group, **calls.HINTS)
    e = Elastic(World(2, 6, 3, 64, 16, 2), 14)
    stats = torch.tensor([100, 200, 300], dtype=torch.int32)
    for asynchronous, synced in ((False, False), (True, False), (True, True), (False, True)):
        calls.dispatch(
            buffer, e, calls.Options(asynchronous=asynchronous, synced=synced),
            cumulative_local_expert_recv_stats=stats,
        )
    same(stats, torch.tensor([100, 200, 300], dtype=torch.int32) + 4 * torch.tensor(e.counts(buffer.rank_idx)).int())


def refused(group: Any) -> None:
    """What one rank is refused the other learns of, by a later call where it does not wait, and the buffer goes on."""
    buffer = deep_ep.ElasticBuffer(group, **calls.HINTS)
    rank, e = buffer.rank_idx, Elastic(World(2, 6, 3, 64, 16, 2), 15)
    rows, _, handle = calls.dispatch(buffer, e, calls.Options())
    x = e.x[rank]
    for call in (
        lambda wrong: buffer.dispatch(x.float() if wrong else x, e.topk_idx[rank], num_experts=6),
        lambda wrong: buffer.combine(rows.float() if wrong else rows, handle),
    ):
        heard = []
        for wrong in (rank == 0, False):
            try:
                call(wrong)
            except RuntimeError as error:
                heard.append(str(error))
            played_torch.GPU.synchronize()  # now it is known
        assert len(heard) == 1 and ("torch.float32" if rank == 0 else "rank 0") in heard[0], heard
    calls.exchange(buffer, e, calls.Options(), 2)


def trained(group: Any) -> None:
    """Forward and backward by operators, of known and of unknown size, against the dense computation in double."""
    buffer = deep_ep.ElasticBuffer(group, **calls.HINTS)
    number = operators.number_of(buffer)
    for expand, synced in itertools.product((False, True), repeat=2):
        e = Elastic(World(2, 4, 2, 32, 8, 2), 5)
        found, wanted = step(layer, number, e, buffer.rank_idx, expand, synced), dense(e, buffer.rank_idx)
        for one, other in zip(found, wanted):
            torch.testing.assert_close(one.double(), other, rtol=0.05, atol=0.05)


class Gpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        torch.set_num_threads(1)
        played_torch.play()

    def on_ranks(self, *bodies: Any) -> None:
        for body in bodies:
            with self.subTest(body=getattr(body, "__name__", None) or body.func.__name__):
                ranks.on_threads(2, _played, body)

    def test_combinations(self) -> None:
        self.on_ranks(functools.partial(calls.combinations, few=True))

    def test_streams(self) -> None:
        self.on_ranks(calls.chains, calls.barriers, slow_work, memory)

    def test_calls(self) -> None:
        self.on_ranks(counted, refused)

    def test_layer(self) -> None:
        self.on_ranks(trained)

    def test_time_outs(self) -> None:
        """With GPUs the less of both acts."""
        given = []

        def making(comm: Any, **options: Any) -> Any:
            given.append(options)
            raise KeyError

        with mock.patch.object(expar.Group, "from_mpi4py", making), mock.patch.dict(os.environ):
            os.environ.pop("EXPAR_TIMEOUT", None)
            for cpu, gpu in ((7, 5), (5, 7)):
                with self.assertRaises(KeyError):
                    deep_ep.ElasticBuffer(
                        FakeComm(1).rank(0), **calls.HINTS, num_cpu_timeout_secs=cpu, num_gpu_timeout_secs=gpu
                    )
        self.assertEqual(given, [{"timeout_ms": 5000}] * 2)


if __name__ == "__main__":
    unittest.main()
