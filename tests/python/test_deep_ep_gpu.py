# SPDX-License-Identifier: Apache-2.0
"""`deep_ep` on a simulated GPU, on thread ranks: the same bodies as on the CPU."""

from __future__ import annotations

import copy
import functools
import os
import signal
import threading
import unittest
from typing import Any, Callable
from unittest import mock

import deep_ep_ranks
import deep_ep_rows_calls
import simulated
import simulated_torch
import ranks
import torch
from deep_ep_engines import ENGINES
from deep_ep_reference import BATCH, Shape, Traffic, ll_check, ll_traffic, same

import deep_ep
import expar
from deep_ep import _call, _low_latency, _place
from expar import _abi


def _simulated(group: Any, body: Any) -> None:
    with simulated_torch.Behind():
        body(simulated_torch.group_of(group))


def beside(group: Any) -> None:
    """Work on the stream for communication: results and arguments are told to the allocator, and the event exists when
    the call returns."""
    buffer = deep_ep.Buffer(group)
    rank = buffer.rank
    traffic = Traffic(Shape(buffer.group_size, buffer.group_size * 2, 3, 64, 12), 4)
    x = traffic.x[rank]
    found = deep_ep_ranks.fresh(buffer, traffic, async_finish=True, previous_event=buffer.capture())
    handle, event = found[4:]
    assert event.event is not None and event.event.point is not None
    event.current_stream_wait()
    assert (x.data_ptr(), True) in simulated_torch.GPU.used
    y, _, event = buffer.combine(traffic.answer(rank, found[0]), handle, async_finish=True)
    assert event.event.work is not None and (y.data_ptr(), False) in simulated_torch.GPU.used
    event.current_stream_wait()
    same(y, traffic.combined(rank)[0])
    y, _, event = buffer.combine(traffic.answer(rank, found[0]), handle)
    assert event.event is None
    same(y, traffic.combined(rank)[0])
    assert isinstance(buffer.get_comm_stream(), simulated_torch._Stream)


def slow_work(group: Any) -> None:
    """The stream for communication comes after slow work of the current one, and the current one after slow work there:
    both ways of a call, with an event and without."""
    buffer = deep_ep.Buffer(group)
    size, gpu = buffer.group_size, simulated_torch.GPU
    traffic = Traffic(Shape(size, size * 2, 3, 64, 24), 8)
    source, wanted = traffic.x[buffer.rank], traffic.received(buffer.rank)[0]
    handle = deep_ep_ranks.fresh(buffer, traffic)[4]
    for previous in (False, True):
        x = torch.full_like(source, -3.0)
        gpu.current().slowly(functools.partial(x.copy_, source))
        rows, _, _, _, _, event = buffer.dispatch(
            x, handle=handle, async_finish=True, previous_event=buffer.capture() if previous else None
        )
        event.current_stream_wait()
        same(rows, wanted)
        gpu.comm().slowly(lambda: None)
        same(buffer.dispatch(x, handle=handle, previous_event=buffer.capture())[0], wanted)


def cleaned(group: Any) -> None:
    """A clean comes after all work of all current streams."""
    buffer = deep_ep.Buffer(group)
    done: list[int] = []
    simulated_torch.GPU.current().slowly(lambda: done.append(buffer.rank))
    buffer.clean_low_latency_buffer(12, 256, 4)
    assert done == [buffer.rank]


def hooks_elsewhere(group: Any) -> None:
    """A hook runs on the stream that is current when it is called: that of the call is held meanwhile."""
    buffer, gpu, other = deep_ep.Buffer(group, low_latency_mode=True), simulated_torch.GPU, simulated_torch._Stream()
    traffic = ll_traffic(buffer, 9)
    rank, experts = buffer.rank, traffic.shape.experts
    x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]

    def received(hook: Callable[[], None], check: Callable[[], Any]) -> Any:
        """The check of the results, after the hook on the other stream alone."""
        release = threading.Event()
        gpu.current().slowly(lambda: release.wait(ranks.DEADLINE_S))
        try:
            with gpu.on(other):
                hook()
                return check()
        finally:
            release.set()
            gpu.current().synchronize()

    for _ in range(3):
        rows, count, handle, _, hook = buffer.low_latency_dispatch(
            x, idx, BATCH, experts, use_fp8=False, return_recv_hook=True
        )
        found = received(hook, lambda: ll_check(traffic, rank, rows, count, handle))
        y, _, hook = buffer.low_latency_combine(
            traffic.answer(rank, found), idx, weights, handle, return_recv_hook=True
        )
        received(hook, lambda: same(y, traffic.weighted(rank)))


def late(group: Any) -> None:
    """Rows did not fit, which is known only when the call has returned. A later call raises the error, on the rank that
    it came to, and the buffer goes on."""
    buffer = deep_ep.Buffer(group)
    rank, size = buffer.rank, buffer.group_size
    x = torch.ones((4, 64))
    idx = torch.full((4, 1), 0)  # all to rank 0
    wanted = buffer.get_dispatch_layout(idx, size)[:4]
    many = []
    for _ in range(3):
        try:
            buffer.dispatch(
                x, None, wanted[0], None, wanted[3], wanted[2], idx, torch.ones((4, 1)), num_worst_tokens=5
            )
        except RuntimeError as error:
            many.append(str(error))
        simulated_torch.GPU.current().synchronize()  # now it is known
    assert bool(many) == (rank == 0), many
    assert rank or "dropped" in many[0], many


def graphs(group: Any) -> None:
    """A low-latency step is captured and launched with other rows, and waits for signals in each launch. With a shape
    that no call was made of before it is a RuntimeError on every rank, and leaves the stream and the buffer as they
    were."""
    buffer, gpu = deep_ep.Buffer(group, low_latency_mode=True), simulated_torch.GPU
    traffic = ll_traffic(buffer, 5)
    rank, experts, stream = buffer.rank, traffic.shape.experts, gpu.current()
    x, idx, weights = traffic.x[rank].clone(), traffic.topk_idx[rank], traffic.weights[rank]
    words = torch.full((traffic.local,), 5, dtype=torch.int32)
    signals: Any = dict(overlap=True, src_signals=words, src_signal_expect_value=5)

    def step() -> Any:
        rows, count, handle, _, _ = buffer.low_latency_dispatch(x, idx, BATCH, experts, use_fp8=False)
        return rows, count, handle, buffer.low_latency_combine(rows, idx, weights, handle, **signals)[0]

    def refused(text: str) -> None:
        with simulated.captured(stream):
            try:
                step()
            except RuntimeError as error:
                assert text in str(error), error
            else:
                raise AssertionError("a shape that was not made before is captured")

    refused(f"of {BATCH} tokens, hidden 256, {experts} experts and top-3 is captured: expected one such call before")
    step()
    with simulated.captured(stream) as graph:
        held = step()
    for factor in (1, -2, 4):
        x.copy_(traffic.x[rank] * factor)
        words.fill_(4)
        graph.launch(stream)
        assert not stream.query()
        gemm = threading.Thread(target=words.fill_, args=(5,))
        gemm.start()
        gemm.join()
        wanted = torch.zeros(x.shape)
        for slot in range(idx.shape[1]):
            there = idx[:, slot] >= 0
            wanted[there] += weights[there, slot, None] * x[there].float()
        same(held[3], wanted.bfloat16())
    same(step()[3], wanted.bfloat16())
    idx = torch.cat([idx, idx[:, :1]], dim=1)  # top-4 is more than there is memory for
    refused("top-4 is captured")


def apart(group: Any) -> None:
    """Rows of the memory for zero copy lie as far apart as the library says; a combine sends from there."""
    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    traffic = ll_traffic(buffer, 7)
    rank = buffer.rank
    x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, BATCH, traffic.shape.experts, use_fp8=False)
    region = buffer.get_next_low_latency_combine_buffer(handle)
    assert region.shape == rows.shape and region.stride()[1:] == (256 + GAP, 1), region.stride()
    region.copy_(traffic.answer(rank, rows))
    y, _, _ = buffer.low_latency_combine(torch.zeros_like(rows), idx, weights, handle, zero_copy=True)
    same(y, traffic.weighted(rank))


GAP = 8  # elements between rows
_lent: list[Any] = []


def lend(_buffer: int, _handle: int, _dtype: int, view: int) -> int:
    """As a library whose rows lie further apart than H."""
    _lent.append(torch.zeros((2, 2 * BATCH, 256 + GAP), dtype=torch.bfloat16))
    _call.put(_abi.Tensor.from_address(view), 0, _lent[-1][..., :256], "rows")
    return 0


def kernels(group: Any) -> None:
    """Profilers find one kernel a call with `dispatch`, or with `combine`, in its name; in hook mode one a phase."""
    buffer = deep_ep.Buffer(group)
    elastic = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=BATCH, hidden=256)
    traffic = ll_traffic(buffer, 6)
    rank, size, experts = buffer.rank, buffer.group_size, traffic.shape.experts
    x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]

    def launched(wanted: tuple[int, int], call: Callable[[], Any]) -> Any:
        """By all ranks, whose counts are one."""
        buffer._group.barrier()
        before = simulated.launches()
        buffer._group.barrier()
        result = call()
        simulated_torch.GPU.synchronize()
        buffer._group.barrier()
        found = simulated.launches()
        assert (found[0] - before[0], found[1] - before[1]) == (size * wanted[0], size * wanted[1]), (found, before)
        return result

    def sent(hook: bool, fp8: bool = False) -> Any:
        found = buffer.low_latency_dispatch(x, idx, BATCH, experts, use_fp8=fp8, return_recv_hook=hook)
        if hook:
            found[4]()
        return found

    def summed(found: Any, hook: bool) -> None:
        back = buffer.low_latency_combine(found[0], idx, weights, found[2], return_recv_hook=hook)
        if hook:
            back[2]()

    rows, _, _, _, handle, _ = launched((1, 0), lambda: deep_ep_ranks.fresh(buffer, traffic))
    launched((1, 0), lambda: buffer.dispatch(x, handle=handle))
    launched((0, 1), lambda: buffer.combine(rows, handle))
    for expand in (False, True):
        rows, _, _, way, _ = launched(
            (1, 0), lambda: elastic.dispatch(x, idx, weights, num_experts=experts, do_expand=expand)
        )
        launched((1, 0), lambda: elastic.dispatch(x, handle=way, do_expand=expand))
        launched((0, 1), lambda: elastic.combine(rows, way))
    sent(False)
    for hook in (False, True):
        launched((1 + hook, 0), lambda: sent(hook, True))
        found = launched((1 + hook, 0), lambda: sent(hook))
        launched((0, 1 + hook), lambda: summed(found, hook))


def at_the_start(group: Any) -> None:
    """Sizes that hold for NVLink and RDMA together are taken with the buffer, in low-latency mode of NVLink alone."""
    mib = 1 << 20

    def taken(*given: Any) -> int:
        buffer = deep_ep.Buffer(group, *given)
        stats = buffer._at(simulated_torch.GPU)[0].ep.stats()
        assert (stats["used_bytes"], stats["growths"]) == (0, 0), stats
        return int(stats["reserved_bytes"])

    least = taken()
    for given, wanted in (
        ((32 * mib,), 32),
        ((0, 64 * mib), 64),
        ((32 * mib, 64 * mib), 96),
        ((32 * mib, 64 * mib, True), 32),
        ((0, 64 * mib, True), 0),
    ):
        found = taken(*given)
        assert wanted * mib <= found <= least + wanted * mib, (given, found, least)


def unmapped(group: Any) -> None:
    """Without mapped memory low-latency calls go by the proxy, and give the same."""
    buffer = deep_ep.Buffer(group, low_latency_mode=True, allow_nvlink_for_low_latency_mode=False)
    traffic = ll_traffic(buffer, 4)
    rank, experts = buffer.rank, traffic.shape.experts
    x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
    for _ in range(2):
        found = buffer.low_latency_dispatch(x, idx, BATCH, experts, use_fp8=False)
        rows = ll_check(traffic, rank, found[0], found[1], found[2])
        same(buffer.low_latency_combine(traffic.answer(rank, rows), idx, weights, found[2])[0], traffic.weighted(rank))
    deep_ep_ranks.normal(group, number=1, first=1)


def stays_away(group: Any, over: threading.Event) -> None:
    """Rank 1 lives, and comes to no low-latency call before rank 0 has gone on without it. The others mask it, and it
    masks them; a clean takes it in."""
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(BATCH, 512, 2, 16)
    buffer = deep_ep.Buffer(group, num_rdma_bytes=hint, low_latency_mode=True, enable_shrink=True)
    traffic, rank = ll_traffic(buffer, 7), buffer.rank
    x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
    alone, status = copy.copy(traffic), torch.full((2,), 9, dtype=torch.int32)
    alone.topk_idx = [torch.where(each // traffic.local == 1 - rank, -1, each) for each in traffic.topk_idx]

    def check(wanted: Any, masks: list[int]) -> None:
        found = buffer.low_latency_dispatch(x, idx, BATCH, traffic.shape.experts, use_fp8=False)
        same(buffer.low_latency_combine(traffic.answer(rank, found[0]), idx, weights, found[2])[0], wanted)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == masks, (rank, status)

    if rank == 1:
        assert over.wait(ranks.DEADLINE_S)
    try:
        for _ in range(2):
            check(alone.weighted(rank), [rank, 1 - rank])
    finally:
        over.set()
    buffer.low_latency_clean_mask_buffer()
    check(traffic.weighted(rank), [0, 0])


def silent_gemm(group: Any) -> None:
    """A signal that never comes ends the wait on the GPU. A later call raises the error."""
    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    traffic, rank = ll_traffic(buffer, 5), buffer.rank
    idx, weights = traffic.topk_idx[rank], traffic.weights[rank]
    rows, count, handle, _, _ = buffer.low_latency_dispatch(
        traffic.x[rank], idx, BATCH, traffic.shape.experts, use_fp8=False
    )
    words = torch.full((traffic.local,), 5, dtype=torch.int32)
    words[1] = 4
    buffer.low_latency_combine(rows, idx, weights, handle, overlap=True, src_signals=words, src_signal_expect_value=5)
    simulated_torch.GPU.current().synchronize()
    text = "signals of local expert 1: word 0 is 4 at the time-out; expected 5"
    try:
        buffer.low_latency_combine(rows, idx, weights, handle)
    except RuntimeError as error:
        assert text in str(error), error
    else:
        raise AssertionError("the call after the time-out went well")


class Gpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        torch.set_num_threads(1)
        simulated_torch.play()

    def test_bodies(self) -> None:
        bodies: list[Any] = [
            functools.partial(deep_ep_ranks.normal, number=3, first=1),
            functools.partial(deep_ep_ranks.low_latency, number=4),
            deep_ep_ranks.pairs,
            deep_ep_ranks.by_hand,
            deep_ep_ranks.micro_batches,
            deep_ep_ranks.masks,
            deep_ep_rows_calls.more_rows,
            beside,
            slow_work,
            cleaned,
            hooks_elsewhere,
            late,
            graphs,
            kernels,
            at_the_start,
            unmapped,
            *ENGINES,
        ]
        for body in bodies:
            name = getattr(body, "__name__", None) or body.func.__name__
            with self.subTest(body=name):
                ranks.on_threads(2, _simulated, body)

    def test_across_nodes(self) -> None:
        bodies: list[Any] = [
            functools.partial(deep_ep_ranks.normal, number=1, first=1),
            deep_ep_ranks.pairs,
            deep_ep_ranks.by_hand,
            deep_ep_ranks.micro_batches,
            deep_ep_ranks.masks,
            graphs,
            slow_work,
        ]
        for body in bodies:
            with self.subTest(body=getattr(body, "__name__", None) or body.func.__name__):
                ranks.on_threads(4, _simulated, body, ranks_per_node=2)

    def test_stays_away(self) -> None:
        with mock.patch.dict(os.environ, EXPAR_DEEP_EP_MASK_TIMEOUT="4"):
            ranks.on_threads(2, _simulated, functools.partial(stays_away, over=threading.Event()))

    def test_silent_gemm(self) -> None:
        with mock.patch.dict(os.environ, EXPAR_DEEP_EP_MASK_TIMEOUT="0.2"):
            ranks.on_threads(2, _simulated, silent_gemm)

    def test_interrupted(self) -> None:
        """Ctrl-C while the host waits for what the current stream holds."""
        (group,) = expar.Group.threads(1)
        with group:
            buffer, stream = deep_ep.Buffer(simulated_torch.group_of(group)), simulated_torch.GPU.current()
            go_on = threading.Event()
            stream.slowly(functools.partial(go_on.wait, ranks.DEADLINE_S))
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            with self.assertRaises(KeyboardInterrupt):
                timer.start()  # in here: on a busy machine it may come before the call
                buffer.clean_low_latency_buffer(12, 256, 4)
                timer.join()
                raise AssertionError("the call did not wait")
            self.assertFalse(stream.query())
            go_on.set()
            stream.synchronize()

    def test_rows_apart(self) -> None:
        with mock.patch.object(_low_latency, "_combine_buffer", lend):
            ranks.on_threads(2, _simulated, apart)


class Memory(unittest.TestCase):
    """Memory of PyTorch's, by the short way, and where there is none."""

    def test_of_which_gpu(self) -> None:
        """The short way takes that of the current one."""
        gpu = _place.Gpu(1)
        gpu.device = torch.device("cpu")
        for short, current, calls in ((True, 1, 1), (True, 0, 0), (False, 1, 0)):
            taken = mock.Mock(side_effect=_call.strided_on_cpu)
            with mock.patch.multiple(
                _place, strided_on_gpu=taken if short else None, _current_gpu=lambda current=current: current
            ):
                made = gpu.strided((2, 3), (1, 2), torch.int64)
            self.assertEqual((made.shape, made.stride(), made.dtype), ((2, 3), (1, 2), torch.int64))
            self.assertEqual(taken.call_count, calls)

    def test_alike(self) -> None:
        for sizes in ((0,), (5,), (0, 3), (3, 0), (2, 3)):
            for inference in (False, True):
                with torch.inference_mode(inference):
                    plain = torch.empty(sizes, dtype=torch.bfloat16, device="cpu")
                    for way in (_call.strided_on_cpu, _call._strided_on_cpu):
                        made = way(sizes, plain.stride(), torch.bfloat16)
                        self.assertEqual((made.shape, made.stride()), (plain.shape, plain.stride()))
                        self.assertEqual((made.dtype, made.device), (plain.dtype, plain.device))
                        self.assertEqual(made.is_inference(), inference)
                    place = _place.CPU
                    shaped = place.vector(*sizes, plain.dtype) if len(sizes) == 1 else place.matrix(*sizes, plain.dtype)
                    self.assertEqual((shaped.shape, shaped.stride()), (plain.shape, plain.stride()))


if __name__ == "__main__":
    unittest.main()
