# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine against references from the definitions; how long results live; what is refused."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
import unittest
import weakref
from typing import Any

import numpy

import expar

import ranks
from reference import bits, from_float, Shape, Traffic

same = numpy.testing.assert_array_equal


def of(values: Any, dtype: str) -> Any:
    """NumPy has no bfloat16: its bits with that type."""
    return expar.View(values, "bf16") if dtype == "bf16" else values


def exchange(buffer: expar.Buffer, traffic: Traffic, **options: Any) -> None:
    """A dispatch and its combine, and another pair with the handle."""
    rank, dtype = buffer.group.rank, traffic.shape.dtype
    alignment = options.get("expert_alignment", 1)
    x, experts, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
    expected = traffic.received(rank)
    for handle in (None, "again"):
        given = options
        if handle is not None:
            given = {**options, "handle": rows.handle}  # noqa: F821
        done = buffer.dispatch(of(x, dtype), experts, weights, traffic.shape.experts, **given)
        if done.event is not None:
            done.event.wait()
            assert done.event.done
        same(bits(done.x), expected[0])
        same(done.topk_idx.numpy(), expected[1])
        same(done.topk_weights.numpy(), expected[2])
        assert done.num_recv_tokens == len(expected[0]) and done.num_dropped_tokens == 0
        if handle is None:
            rows = done
            assert done.handle is not None and done.handle.num_experts == traffic.shape.experts
            assert done.tokens_per_expert == traffic.per_expert(rank, alignment)
        else:
            assert done.handle is rows.handle and done.tokens_per_expert is None
        answers = traffic.answer(rank, bits(done.x))
        bias = [from_float(numpy.full(x.shape, 0.25, "float32"), dtype)] if alignment > 1 else []
        assert rows.handle is not None
        sums = buffer.combine(
            of(answers, dtype),
            rows.handle,
            done.topk_weights,
            bias=[of(each, dtype) for each in bias],
            async_finish="async_finish" in options,
        )
        del answers  # the call keeps what it needs
        if sums.event is not None:
            sums.event.wait()
        y, total = traffic.combined(rank, bias)
        same(bits(sums.y), y)
        same(sums.topk_weights.numpy(), total)


def random_shapes(group: expar.Group, number: int = 12) -> None:
    random = numpy.random.default_rng(77 + group.size)
    with expar.Buffer(group) as buffer:
        for seed in range(int(number)):
            shape = Shape(
                ranks=group.size,
                experts=group.size * int(random.integers(1, 5)),
                topk=int(random.integers(1, 9)),
                hidden=8 * int(random.integers(1, 40)),
                tokens=int(random.integers(1, 60)),
                dtype=("f32", "bf16", "f16")[seed % 3],
                index=("int64", "int32")[seed % 2],
            )
            options = ({}, {"async_finish": True}, {"expert_alignment": 4})[seed % 3]
            exchange(buffer, Traffic(shape, seed), **options)
        assert buffer.stats()["direct_calls"] > 0


def expert_major(group: expar.Group) -> None:
    shape = Shape(group.size, group.size * 3, 4, 16, 40, "f32")
    traffic = Traffic(shape, 5)
    rank = group.rank
    with expar.Buffer(group) as buffer:
        rows = buffer.dispatch(
            traffic.x[rank],
            traffic.topk_idx[rank],
            traffic.weights[rank],
            shape.experts,
            expert_major=True,
            zero_padding=True,
            expert_alignment=8,
            src_tokens=True,
            row_weights=True,
            src_stride=100,
        )
        row_map, sources = traffic.expert_major(rank, 8)
        received = traffic.received(rank)
        same(rows.row_map.numpy(), row_map)
        same(rows.src_token.numpy(), received[3])
        same(rows.x.numpy()[sources >= 0], received[0][sources[sources >= 0]])
        assert not rows.x.numpy()[sources < 0].any()
        row_weights = numpy.zeros(len(sources), "float32")
        row_weights[row_map[row_map >= 0]] = rows.topk_weights.numpy()[row_map >= 0]
        same(rows.row_weights.numpy(), row_weights)
        from_ranks = [numpy.full(traffic.goes_to(source, rank).sum(), source) for source in range(group.size)]
        ranks = numpy.concatenate(from_ranks)
        same(rows.src_metadata.numpy(), numpy.column_stack([ranks * 100 + received[3], ranks, row_map]))
        answers = buffer.alloc(rows.x.shape, "f32")
        answers.numpy()[:] = rows.x.numpy() * 2
        y = numpy.full(traffic.x[rank].shape, 9, "float32")
        assert rows.handle is not None
        done = buffer.combine(answers, rows.handle, out_y=y, expert_major=True, expert_weights=rows.topk_weights)
        assert done.y is y
        expected = numpy.zeros_like(y)
        for other in range(group.size):
            part = numpy.zeros_like(y)
            for slot in range(shape.topk):
                experts = traffic.topk_idx[rank][:, slot]
                here = (experts >= 0) & (experts // traffic.local == other)
                part[here] += traffic.weights[rank][here, slot, None] * (traffic.x[rank][here] * 2)
            expected += part
        same(y, expected)


def routes(group: expar.Group) -> None:
    """Routing apart from rows, routing by hand, worst cases, layouts, scales."""
    shape = Shape(group.size, group.size * 2, 3, 32, 30, "f32", "int32")
    traffic = Traffic(shape, 9)
    rank = group.rank
    x, experts = traffic.x[rank], traffic.topk_idx[rank]
    expected = traffic.received(rank)
    with expar.Buffer(group, max_tokens=64, max_row_bytes=256, max_topk=4, max_experts=64) as buffer:
        layout = buffer.layout(experts, shape.experts)
        in_rank = numpy.stack([traffic.goes_to(rank, other) for other in range(group.size)], axis=1)
        same(layout.token_in_rank, in_rank)
        assert layout.tokens_per_rank == in_rank.sum(axis=0).tolist()
        assert layout.tokens_per_expert == [int((experts == e).sum()) for e in range(shape.experts)]

        route = buffer.route(experts, shape.experts)
        assert route.num_recv_tokens == route.num_rows == len(expected[0])
        assert route.tokens_per_expert == traffic.per_expert(rank)
        out_x = numpy.full((route.num_rows + 2, shape.hidden), 7, "float32")
        rows = buffer.dispatch(x, experts, handle=route.handle, out_x=out_x, src_tokens=True)
        assert rows.x is out_x
        same(out_x[: route.num_rows], expected[0])
        same(rows.src_token.numpy(), expected[3])

        hand = buffer.dispatch(x, num_experts=shape.experts, token_in_rank=layout.token_in_rank)
        same(hand.x.numpy(), expected[0])
        assert hand.topk_idx is None and hand.tokens_per_expert == [0] * traffic.local

        worst = shape.tokens * group.size
        rows = buffer.dispatch(x, experts, num_experts=shape.experts, num_worst_tokens=worst)
        same(rows.x.numpy()[: len(expected[0])], expected[0])
        assert (rows.topk_idx.numpy()[len(expected[0]) :] == -1).all() and rows.x.shape[0] == worst

        values = numpy.arange(x.size, dtype="uint8").reshape(x.shape)
        scales = numpy.arange(2 * len(x), dtype="float32").reshape(2, len(x)).T
        rows = buffer.dispatch(expar.View(values, "f8e4m3"), experts, num_experts=shape.experts, x_scales=scales)
        assert rows.x.dtype == expar.Dtype.F8E4M3 and rows.scales.shape == (len(expected[0]), 2)

        begin = expar.Event()
        threading.Timer(0.05, begin.signal).start()
        rows = buffer.dispatch(x, experts, num_experts=shape.experts, wait_event=begin, async_finish=True)
        assert rows.event is not None
        rows.event.wait()
        same(rows.x.numpy(), expected[0])


def counts(group: expar.Group) -> None:
    """Beside the rows, and beside a route; fresh and with a handle."""
    shape = Shape(group.size, group.size * 3, 2, 16, 20, "f32")
    traffic = Traffic(shape, 12)
    rank = group.rank
    expected = [len(traffic.received(rank)[0])]
    prefix = numpy.cumsum([traffic.goes_to(source, rank).sum() for source in range(group.size)])
    with expar.Buffer(group) as buffer:
        handle = None
        for call in ("dispatch", "route", "cached"):
            arrays = [numpy.full(n, -9, "int32") for n in (3, 4, group.size)] + [numpy.full(1, -9, "int64")]
            arrays.append(numpy.full(3, -9, "int32"))
            wanted = expar.RecvCounts(*arrays)
            if call == "dispatch":
                handle = buffer.dispatch(
                    traffic.x[rank], traffic.topk_idx[rank], None, shape.experts, expert_alignment=4, recv_counts=wanted
                ).handle
            elif call == "route":
                buffer.route(traffic.topk_idx[rank], shape.experts, expert_alignment=4, recv_counts=wanted)
            else:
                buffer.dispatch(traffic.x[rank], traffic.topk_idx[rank], handle=handle, recv_counts=wanted)
            same(arrays[0], traffic.per_expert(rank))
            same(arrays[1], numpy.cumsum([0, *traffic.per_expert(rank, 4)]))
            same(arrays[2], prefix)
            assert arrays[3].tolist() == expected
            same(arrays[4], arrays[1][:-1] + arrays[0])
        alone = numpy.zeros(1, "int64")
        buffer.route(traffic.topk_idx[rank], shape.experts, recv_counts=expar.RecvCounts(num_recv_tokens=alone))
        assert alone.tolist() == expected
        for wrong, error, text in (
            (expar.RecvCounts(numpy.zeros(3, "int64")), TypeError, "tokens_per_expert: expected elements of i32"),
            (expar.RecvCounts(None, numpy.zeros(3, "int32")), ValueError, r"expert_prefix has the shape \(3,\)"),
            (expar.RecvCounts(numpy.zeros(6, "int32")[::2]), ValueError, "expected 3 elements, contiguous"),
        ):
            with unittest.TestCase().assertRaisesRegex(error, text):
                buffer.route(traffic.topk_idx[rank], shape.experts, recv_counts=wrong)


def allocators(group: expar.Group) -> None:
    """Outputs that do not fit come from the program's memory, which it gets back when nobody reads them any more."""
    lent: list[Any] = []

    def allocate(size: int) -> Any:
        block = numpy.empty(size, "uint8")
        lent.append(weakref.ref(block))
        return block

    traffic = Traffic(Shape(group.size, group.size, 2, 64, 30, "f32"), 13)
    buffer = expar.Buffer(group, pool_limit_bytes=128, allocator=allocate)
    exchange(buffer, traffic)
    gc.collect()
    assert lent and not [each for each in lent if each() is not None]
    rows = buffer.dispatch(traffic.x[group.rank], traffic.topk_idx[group.rank], num_experts=group.size)
    with unittest.TestCase().assertRaisesRegex(BufferError, "by numpy\\(\\) or torch\\(\\)"):
        rows.x.__dlpack__()
    array = rows.x.numpy()
    assert rows.x.data_ptr % 128 == 0
    buffer.close()
    del rows, buffer
    same(array, traffic.received(group.rank)[0])
    assert [each for each in lent if each() is not None]
    del array
    gc.collect()
    assert not [each for each in lent if each() is not None]


def allocators_that_fail(group: expar.Group) -> None:
    """One that raises, and one that gives too little: the error says so; the others learn who; the buffer stays
    usable."""
    x, experts = numpy.ones((8, 64), "float32"), numpy.zeros((8, 1), "int64")
    answers: list[Any] = []

    def allocate(size: int) -> Any:
        if not answers or group.rank > 0:
            return numpy.empty(size, "uint8")
        answer = answers.pop()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    with expar.Buffer(group, pool_limit_bytes=128, allocator=allocate) as buffer:
        wrong = [(numpy.empty(5, "uint8"), "has 5 bytes: expected"), (OverflowError("no more"), "no more")]
        wrong.append((numpy.empty((99, 999), "uint8")[:, ::2], "is not contiguous"))
        for answer, text in wrong:
            answers[:] = [answer]
            try:
                buffer.dispatch(x, experts, num_experts=group.size)
                raise AssertionError("there was memory")
            except expar.Error as error:
                expected = "ERR_MEMORY" if group.rank == 0 else "ERR_REMOTE"
                assert error.status.name == expected, error
                assert group.rank > 0 or text in str(error.__cause__), error.__cause__
            rows = buffer.dispatch(x, experts, num_experts=group.size)
            assert rows.num_recv_tokens == (8 * group.size if group.rank == 0 else 0)


def dropped(group: expar.Group) -> None:
    """The rows that fit come with the exception."""
    x = numpy.full((4, 8), group.rank, "float32")
    experts = numpy.zeros((4, 1), "int64")
    with expar.Buffer(group) as buffer:
        try:
            done = buffer.dispatch(x, experts, num_experts=group.size, num_worst_tokens=5)
            assert group.rank > 0 and done.num_recv_tokens == 0
        except expar.DroppedError as error:
            assert group.rank == 0 and error.status == expar.Status.ERR_DROPPED
            assert isinstance(error.result, expar.Dispatched)
            assert error.result.num_dropped_tokens == 4 * group.size - 5
            same(error.result.x.numpy()[:4], x)


def refused(group: expar.Group) -> None:
    """Wrong arguments of one rank: that one is told which, the others who; the buffer stays usable."""
    traffic = Traffic(Shape(group.size, group.size, 2, 8, 10, "f32"), 3)
    x, experts = numpy.zeros((3, 8), "float32"), numpy.zeros((3, 2), "int64")
    wrong = (
        ((x, experts + 1000), "ERR_INDEX", "topk_idx[0][0] is 1000"),
        ((x[:, :7], experts), "ERR_SHAPE", "x has rows of 28 bytes"),
        ((x, experts[:2]), "ERR_SHAPE", "topk_idx"),
        ((x, experts.astype("float32")), "ERR_DTYPE", "topk_idx"),
    )
    with expar.Buffer(group) as buffer:
        for given, status, text in wrong:
            try:
                buffer.dispatch(*(given if group.rank == 0 else (x, experts)), num_experts=group.size)
                raise AssertionError("nothing was refused")
            except expar.Error as error:
                assert error.status.name == (status if group.rank == 0 else "ERR_REMOTE"), error
                assert (text if group.rank == 0 else "rank 0") in str(error), error
            exchange(buffer, traffic)


def outlives(group: expar.Group) -> None:
    """Results stay when handle, buffer and group have gone, in every order of their ends."""
    traffic = Traffic(Shape(group.size, group.size, 2, 16, 20, "f32"), 4)
    rank = group.rank
    expected = traffic.received(rank)[0]
    for order in itertools.permutations(("rows", "handle", "buffer")):
        buffer = expar.Buffer(group)
        rows = buffer.dispatch(traffic.x[rank], traffic.topk_idx[rank], num_experts=group.size)
        held: dict[str, Any] = {"rows": rows, "handle": rows.handle, "buffer": buffer}
        array = rows.x.numpy()
        del rows, buffer
        for name in order:
            if name == "buffer":
                held[name].close()
            del held[name]
            same(array, expected)


def soak(group: expar.Group) -> None:
    """Memory is flat over thousands of steps, asynchronous ones too, whichever results are dropped."""
    traffic = Traffic(Shape(group.size, group.size, 2, 64, 16, "f32"), 6)
    x, experts = traffic.x[group.rank], traffic.topk_idx[group.rank]
    with expar.Buffer(group) as buffer:
        for step in range(1500):
            rows = buffer.dispatch(x, experts, num_experts=group.size, async_finish=step % 3 == 0)
            if rows.event is not None:
                rows.event.wait()
            assert rows.handle is not None
            buffer.combine(rows.x, rows.handle, async_finish=step % 2 == 0)
            if step == 300:
                early, resident = buffer.stats()["used_high_bytes"], resident_bytes()
        assert buffer.stats()["used_high_bytes"] == early
        assert resident_bytes() < resident + (16 << 20), (resident, resident_bytes())
        buffer.trim()
        buffer.query()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Exchange(unittest.TestCase):
    def test_threads(self) -> None:
        for size in (1, 2, 4, 8):
            ranks.on_threads(size, random_shapes)

    def test_processes(self) -> None:
        ranks.on_processes(4, "test_python_buffer", "random_shapes", "9")

    def test_expert_major(self) -> None:
        ranks.on_threads(3, expert_major)

    def test_routes(self) -> None:
        ranks.on_threads(2, routes)

    def test_counts(self) -> None:
        ranks.on_threads(3, counts)

    def test_dropped(self) -> None:
        ranks.on_threads(2, dropped)

    def test_rejected(self) -> None:
        ranks.on_threads(3, refused)


class Allocators(unittest.TestCase):
    def test_outputs(self) -> None:
        ranks.on_threads(2, allocators)

    def test_failures(self) -> None:
        ranks.on_threads(2, allocators_that_fail)

    def test_exit(self) -> None:
        """With memory of an allocator's in use, which nobody can take back any more."""
        code = """
import expar, numpy, sys
group = expar.Group.from_env()
buffer = expar.Buffer(group, pool_limit_bytes=128, allocator=lambda size: numpy.empty(size, "u1"))
x = numpy.zeros((50, 64), "float32")
rows = buffer.dispatch(x, numpy.zeros((50, 1), "int64"), num_experts=1)
assert buffer.stats()["other_blocks"] > 0
array = rows.x.numpy()
sys.kept = [array, rows]
%s
"""
        for end in ("", "del group, buffer", "del rows", "sys.modules.clear()"):
            ended = ranks.start([sys.executable, "-c", code % end])
            self.assertEqual((ended.returncode, ended.stdout), (0, ""), end)

    def test_torch(self) -> None:
        """Where it is installed."""
        torch = ranks.torch_for(self)
        with expar.Group.from_env() as group:
            buffer = expar.Buffer(group, pool_limit_bytes=128, allocator=lambda n: torch.empty(n, dtype=torch.uint8))
            for dtype in (torch.bfloat16, torch.float32):
                x = torch.arange(4096).reshape(8, 512).to(dtype)
                rows = buffer.dispatch(x, torch.zeros((8, 1), dtype=torch.int64), num_experts=1)
                self.assertTrue(torch.equal(rows.x.torch(), x))
            self.assertGreater(buffer.stats()["other_blocks"], 0)
            buffer.close()

    def test_bytes_needed(self) -> None:
        sizes = [expar.Buffer.bytes_needed(num_ranks, max_row_bytes=256, ring_slots=64) for num_ranks in (2, 8)]
        self.assertLess(0, sizes[0])
        self.assertLess(sizes[0], sizes[1])
        self.assertLess(0, expar.LowLatencyBuffer.bytes_needed(2, 16, 128, 2, 8))
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'max_hidden'"):
            expar.Buffer.bytes_needed(2, max_hidden=1)


class Lives(unittest.TestCase):
    def test_every_order(self) -> None:
        ranks.on_threads(2, outlives)

    def test_memory_is_flat(self) -> None:
        ranks.on_processes(2, "test_python_buffer", "soak")

    def test_exit_without_an_end(self) -> None:
        """With a buffer, results of several kinds and a call under way, and its group or not."""
        code = """
import expar, numpy, sys
groups = expar.Group.threads(1)
buffer = expar.Buffer(groups[0])
x = numpy.zeros((5, 8), "float32")
rows = buffer.dispatch(x, numpy.zeros((5, 1), "int64"), num_experts=1)
array, capsule = rows.x.numpy(), rows.x.__dlpack__()
other = numpy.from_dlpack(rows.topk_idx)
sums = buffer.combine(rows.x, rows.handle, async_finish=True)
%s
"""
        for end in ("", "del groups, buffer", "sys.exit(0)", "del rows, sums", "sys.modules.clear()"):
            ended = ranks.start([sys.executable, "-c", code % end])
            self.assertEqual((ended.returncode, ended.stdout), (0, ""), end)

    def test_dlpack(self) -> None:
        """Capsules that others take hold the memory; the others are released."""
        group = expar.Group.from_env()
        buffer = expar.Buffer(group)
        used = lambda: buffer.stats()["used_bytes"]  # noqa: E731
        x = numpy.arange(40, dtype="float32").reshape(5, 8)
        rows = buffer.dispatch(x, numpy.zeros((5, 1), "int64"), num_experts=1)
        taken = numpy.from_dlpack(rows.x)
        index = numpy.from_dlpack(rows.topk_idx)
        capsule = rows.x.__dlpack__(max_version=(1, 0))
        self.assertRegex(repr(capsule), "dltensor_versioned")
        self.assertEqual(rows.x.__dlpack_device__(), (1, 0))
        with self.assertRaises(BufferError):
            rows.x.__dlpack__(copy=True)
        with self.assertRaises(BufferError):
            rows.x.__dlpack__(dl_device=(2, 0))
        del rows
        gc.collect()
        self.assertGreater(used(), 0)
        same(taken, x)
        del taken, index, capsule
        gc.collect()
        more = buffer.alloc((4,), "i32")
        numpy.from_dlpack(more)
        del more
        gc.collect()
        self.assertEqual(used(), 0)
        buffer.close()
        group.close()

    def test_a_group_with_a_buffer(self) -> None:
        group = expar.Group.from_env()
        buffer = expar.Buffer(group)
        with self.assertRaises(expar.Error) as caught:
            group.close()
        self.assertEqual(caught.exception.status, expar.Status.ERR_STATE)
        del buffer  # abandoned
        group.close()

    def test_an_exception(self) -> None:
        """The other rank's call ends; it can make another buffer with nobody."""
        said: list[expar.Error] = []
        mine, other = expar.Group.threads(2)

        def stay() -> None:
            try:
                with other, expar.Buffer(other) as buffer:
                    buffer.dispatch(numpy.zeros((1, 8), "float32"), numpy.zeros((1, 1), "int64"), num_experts=2)
            except expar.Error as error:
                said.append(error)

        thread = threading.Thread(target=stay)
        thread.start()
        with self.assertRaises(ZeroDivisionError):
            with mine, expar.Buffer(mine):
                raise ZeroDivisionError
        thread.join(ranks.DEADLINE_S)
        self.assertEqual([error.status for error in said], [expar.Status.ERR_PEER])


class Signals(unittest.TestCase):
    def test_a_call_of_several_threads(self) -> None:
        """Whichever of them waits; the buffer is poisoned then."""
        mine, other = expar.Group.threads(2)
        made: list[expar.Buffer] = []
        thread = threading.Thread(target=lambda: made.append(expar.Buffer(other)))
        thread.start()
        buffer = expar.Buffer(mine, num_threads=3)
        thread.join()
        x, experts = numpy.zeros((64, 512), "float32"), numpy.zeros((64, 1), "int64")
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        with self.assertRaises(KeyboardInterrupt):
            timer.start()  # in here: on a busy machine it may come before the call
            buffer.dispatch(x, experts, num_experts=2)
        with self.assertRaisesRegex(expar.Error, "poisoned") as caught:
            buffer.dispatch(x, experts, num_experts=2)
        self.assertEqual(caught.exception.status, expar.Status.ERR_INTERRUPTED)
        buffer.abandon()
        made[0].abandon()
        mine.abandon()
        other.abandon()


class Arguments(unittest.TestCase):
    def test_kinds_of_tensors(self) -> None:
        """DLPack with versions and without, an array interface, CUDA's."""
        x = numpy.arange(16, dtype="float32").reshape(2, 8)

        class New:
            __dlpack_device__ = staticmethod(lambda: (1, 0))
            __dlpack__ = staticmethod(lambda stream=None, max_version=None: x.__dlpack__())

        class Old:
            __dlpack_device__ = staticmethod(lambda: (1, 0))
            __dlpack__ = staticmethod(lambda stream=None: x.__dlpack__())

        class Interface:
            __array_interface__ = x.__array_interface__

        class Cuda:
            __cuda_array_interface__ = x.__array_interface__

        experts = numpy.zeros((2, 1), "int32")
        with expar.Group.from_env() as group, expar.Buffer(group) as buffer:
            for given in (x, New(), Old(), Interface()):
                rows = buffer.dispatch(given, experts, num_experts=1)
                same(rows.x.numpy(), x)
                assert rows.handle is not None
                same(buffer.combine(rows.x, rows.handle).y.numpy(), x)
            with self.assertRaises(expar.Error) as caught:
                buffer.dispatch(Cuda(), experts, num_experts=1)
            self.assertEqual(caught.exception.status, expar.Status.ERR_DEVICE)
            for given, text in (
                ([1], "x: list is no tensor"),
                (x.astype("complex64"), "x: expar has no element type complex64: pass x.real.astype"),
                (expar.View(x, "bf16"), "x: elements of <f4 do not have the 2 bytes of BF16"),
                (numpy.zeros((1, 1, 1, 1, 1), "float32"), "x: a tensor has 5 dimensions"),
            ):
                with self.assertRaisesRegex(TypeError, text):
                    buffer.dispatch(given, experts, num_experts=1)
            with self.assertRaisesRegex(TypeError, "no element type 'f64'"):
                expar.View(x, "f64")
            with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'max_hidden'"):
                expar.Buffer(group, max_hidden=3)
            with self.assertRaisesRegex(ValueError, "tokens_per_expert has 3 entries: expected num_experts, 1"):
                buffer.route(token_in_rank=numpy.ones((1, 1), "bool"), num_experts=1, tokens_per_expert=[1, 2, 3])
            y = numpy.zeros((2, 8), "float32")
            y.flags.writeable = False
            assert rows.handle is not None
            with self.assertRaisesRegex(TypeError, "out_y: the array is read only"):
                buffer.combine(rows.x, rows.handle, out_y=y)
        with self.assertRaisesRegex(ValueError, "the buffer is closed"):
            buffer.stats()

    def test_torch(self) -> None:
        """Where it is installed."""
        torch = ranks.torch_for(self)
        with expar.Group.from_env() as group, expar.Buffer(group) as buffer:
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                x = torch.arange(16).reshape(2, 8).to(dtype)
                rows = buffer.dispatch(x, torch.zeros((2, 1), dtype=torch.int64), num_experts=1)
                received = rows.x.torch()
                self.assertEqual((received.dtype, received.data_ptr()), (dtype, rows.x.data_ptr))
                self.assertTrue(torch.equal(received, x))
                assert rows.handle is not None
                y = torch.empty_like(x)
                buffer.combine(received * 2, rows.handle, out_y=y)
                self.assertTrue(torch.equal(y, x * 2))
            empty = torch.from_numpy(numpy.zeros((0, 8), "float32"))  # whose strides NumPy may leave to be anything
            for x in (empty, empty.as_strided((0, 8), (0, 0))):
                self.assertEqual(len(buffer.dispatch(x, torch.zeros((0, 1), dtype=torch.int64), num_experts=1).x), 0)
            x = torch.arange(256).to(torch.uint8).reshape(2, 128).view(torch.float8_e4m3fn)
            received = buffer.dispatch(x, torch.zeros((2, 1), dtype=torch.int32), num_experts=1).x.torch()
            self.assertEqual(received.dtype, torch.float8_e4m3fn)
            self.assertTrue(torch.equal(received.view(torch.uint8), x.view(torch.uint8)))


if __name__ == "__main__":
    unittest.main()
