# SPDX-License-Identifier: Apache-2.0
"""`ElasticBuffer` on a simulated GPU, on thread ranks: the bodies that run on real ones, too."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import unittest
import weakref
from typing import Any
from unittest import mock

import deep_ep_elastic_calls as calls
import simulated
import simulated_torch
import ranks
import torch
from deep_ep_elastic_layer import dense, layer, step
from deep_ep_elastic_reference import Elastic, World
from deep_ep_reference import same
from deep_ep_silence import told
from test_python_group import FakeComm

import deep_ep
import expar
from deep_ep import operators
from deep_ep.utils import event


def _simulated(group: Any, body: Any) -> None:
    with simulated_torch.Behind():
        body(simulated_torch.group_of(group))


def event_of(stream: Any) -> Any:
    """All that the stream holds now."""
    made = event.event_of(None)
    made.point = simulated_torch.GPU.record(stream)
    return made


def slow_work(group: Any) -> None:
    """A call comes after slow work of the current stream, and after events of another one, before it or before its
    results. Work after the call comes after slow work of the stream for communication."""
    buffer, gpu, other = deep_ep.ElasticBuffer(group, **calls.HINTS), simulated_torch.GPU, simulated_torch._Stream()
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
    buffer, gpu = deep_ep.ElasticBuffer(group, **calls.HINTS), simulated_torch.GPU
    rank, e = buffer.rank_idx, Elastic(World(2, 6, 3, 64, 16, 2), 13)
    x, idx = e.x[rank].clone(), e.topk_idx[rank].clone()
    before = len(gpu.used)  # said of other tensors, which may have lain there
    rows, _, _, handle, _ = buffer.dispatch(x, idx, num_experts=6)
    assert not {(x.data_ptr(), True), (idx.data_ptr(), True)} & set(gpu.used[before:])
    rows, _, _, handle, done = buffer.dispatch(x, idx, num_experts=6, async_with_compute_stream=True)
    assert done.event.point is not None
    assert {(x.data_ptr(), True), (idx.data_ptr(), True), (handle.topk_idx.untyped_storage().data_ptr(), False)} <= set(gpu.used)
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


def kept(group: Any) -> None:
    """With EP_AVOID_RECORD_STREAM=1 the event of a call keeps its arguments, and the allocator is told of none of them.
    It is told of results as ever, since they go to the current stream."""
    buffer, gpu = deep_ep.ElasticBuffer(group, **calls.HINTS), simulated_torch.GPU
    rank, e = buffer.rank_idx, Elastic(World(2, 6, 3, 64, 16, 2), 13)
    handle = calls.dispatch(buffer, e, calls.Options())[2]
    for _ in range(2):
        x = e.x[rank].clone()
        told, stays = gpu.used.count((x.data_ptr(), True)), weakref.ref(x)
        with gpu.current().held():  # x is still to be read when nobody else has it
            rows, _, _, _, event = buffer.dispatch(x, handle=handle, async_with_compute_stream=True)
            assert gpu.used.count((x.data_ptr(), True)) == told
            del x
            gc.collect()
            assert stays() is not None
        event.current_stream_wait()
        calls.check_rows(e, rank, calls.Options(), rows, None)
        bias = e.x[rank].clone()
        told, later = gpu.used.count((bias.data_ptr(), True)), weakref.ref(bias)
        y, _, summed = buffer.combine(rows, handle, bias=bias, async_with_compute_stream=True)
        assert gpu.used.count((bias.data_ptr(), True)) == told and (y.data_ptr(), False) in gpu.used
        del bias, event
        gc.collect()
        assert stays() is None and later() is not None
        summed.current_stream_wait()
        same(y, buffer.combine(rows, handle, bias=e.x[rank])[0])
        del summed
        gc.collect()
        assert later() is None


def set_anew(group: Any) -> None:
    """Attributes that an engine has set on a handle count, also where nobody has looked at the handle's own."""
    buffer = deep_ep.ElasticBuffer(group, **calls.HINTS)
    rank, e, options = buffer.rank_idx, Elastic(World(2, 4, 3, 32, 6, 2), 4), calls.Options(synced=False)
    _, _, handle = calls.dispatch(buffer, e, options)
    form = dict(num_experts=4, num_max_tokens_per_rank=6, expert_alignment=2, do_cpu_sync=False)
    _, _, _, other, _ = buffer.dispatch(e.x[rank], e.topk_idx[rank], **form)
    rows = len(e.plain(rank))
    other.recv_src_metadata = handle.recv_src_metadata[:rows].clone()
    answers = [e.answers(r, len(e.plain(r)), 9) for r in range(2)]
    same(buffer.combine(answers[rank], other)[0], e.combined(rank, answers, False, True, ()))


def held(group: Any) -> None:
    """While the caller keeps the output of a fresh dispatch, one with its handle goes straight to the pool."""
    hints = {**calls.HINTS, "hidden": 7168, "num_max_tokens_per_rank": 96}
    buffer = deep_ep.ElasticBuffer(group, **hints)
    x = torch.ones((96, 7168), dtype=torch.bfloat16)
    idx = torch.arange(2).repeat(96, 1)  # each row goes to both ranks, 2.6 MiB in all: a piece of memory has 2 MiB
    first = buffer.dispatch(x, idx, num_experts=2)
    (mode,) = buffer._modes.values()
    again = buffer.dispatch(x, handle=first[3], num_experts=2)
    simulated_torch.GPU.synchronize()
    assert again[0].shape == (192, 7168) and bool((again[0] == 1).all())
    stats = mode.ep.stats()
    assert (stats["direct_calls"], stats["queue_calls"], stats["other_blocks"]) == (2, 0, 0), stats


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
    """A rejection of one rank reaches the other, by a later call where it does not wait, and the buffer goes on."""
    buffer = deep_ep.ElasticBuffer(group, **calls.HINTS)
    rank, e = buffer.rank_idx, Elastic(World(2, 6, 3, 64, 16, 2), 15)
    rows, _, handle = calls.dispatch(buffer, e, calls.Options())
    x = e.x[rank]
    most = simulated_torch.GPU.num_sms()
    for call in (  # a GPU has no more SMs than it has
        lambda number: buffer.dispatch(x, e.topk_idx[rank], num_experts=6, num_sms=number),
        lambda number: buffer.dispatch(x, handle=handle, num_sms=number),
        lambda number: buffer.combine(rows, handle, num_sms=number),
    ):
        try:
            call(most + 1)
        except RuntimeError as error:
            assert str(error) == f"num_sms is {most + 1}: expected at most the GPU's {most}", error
        else:
            raise AssertionError("more SMs than there are")
        with contextlib.suppress(RuntimeError):
            simulated_torch.GPU.synchronize()
            call(most)
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
            simulated_torch.GPU.synchronize()  # now it is known
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


silence: Any = None  # two ranks, while this process has not used the library


def setUpModule() -> None:
    """A rank is silent after the less of both time-outs."""

    def body(comm: Any) -> None:
        torch.set_num_threads(1)
        simulated_torch.play()
        simulated.driver()
        with simulated_torch.Behind():
            told(comm, num_gpu_timeout_secs=3)

    global silence
    silence = ranks.Forks(body)


class Gpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        torch.set_num_threads(1)
        simulated_torch.play()

    def on_ranks(self, *bodies: Any, **options: int) -> None:
        for body in bodies:
            with self.subTest(body=getattr(body, "__name__", None) or body.func.__name__):
                ranks.on_threads(2, _simulated, body, **options)

    def test_combinations(self) -> None:
        self.on_ranks(functools.partial(calls.combinations, few=True))

    def test_across_nodes(self) -> None:
        self.on_ranks(trained, ranks_per_node=1)

    def test_streams(self) -> None:
        self.on_ranks(calls.chains, calls.overwritten, calls.barriers, slow_work, memory)
        came = [False]
        # Work on rank 1's current stream is late.
        late, wait = (lambda arrive: simulated_torch.GPU.current().slowly(arrive)), (lambda: simulated_torch.GPU.synchronize())
        self.on_ranks(functools.partial(calls.held_back, came=came, late=late, wait=wait))

    def test_kept_by_events(self) -> None:
        with mock.patch.dict(os.environ, {"EP_AVOID_RECORD_STREAM": "1"}):
            self.on_ranks(kept)

    def test_calls(self) -> None:
        self.on_ranks(counted, held, refused, set_anew, calls.without_tokens, calls.too_many_tokens)

    def test_layer(self) -> None:
        self.on_ranks(trained)

    def test_silence(self) -> None:
        """A stopped rank is reported by calls that come after work that has waited for it."""
        self.assertEqual(silence.failure(), "")

    def test_time_outs(self) -> None:
        """With GPUs the less of both acts."""
        given = []

        def making(comm: Any, **options: Any) -> Any:
            given.append(options)
            raise KeyError

        with mock.patch.object(expar.Group, "from_mpi4py", making), mock.patch.dict(os.environ):
            os.environ.pop("EXPAR_TIMEOUT", None)
            os.environ.pop("EXPAR_LATE_LIMIT", None)
            for cpu, gpu in ((7, 5), (5, 7)):
                with self.assertRaises(KeyError):
                    deep_ep.ElasticBuffer(
                        FakeComm(1).rank(0), **calls.HINTS, num_cpu_timeout_secs=cpu, num_gpu_timeout_secs=gpu
                    )
        self.assertEqual(given, [{"timeout_ms": 5000, "late_limit_ms": 5000}] * 2)


if __name__ == "__main__":
    unittest.main()
