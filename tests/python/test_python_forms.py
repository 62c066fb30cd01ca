# SPDX-License-Identifier: Apache-2.0
"""Calls of expar's buffers with PyTorch's tensors that repeat an earlier call. Their results, errors and lifetimes are
those of the general way."""

from __future__ import annotations

import contextlib
import gc
import os
import unittest
import warnings
from typing import Any, Callable, Iterator
from unittest import mock

import numpy

import expar
import ranks
from expar import _buffer, _buffer_forms, _exchange, _low_latency, _low_latency_forms, _quick, _tensor
from reference import Shape, Traffic
from wrong_calls import CALLS, World

same = numpy.testing.assert_array_equal
CHECKED = ("Buffer.dispatch", "Buffer.combine", "LowLatencyBuffer.dispatch", "LowLatencyBuffer.combine")


@contextlib.contextmanager
def general() -> Iterator[None]:
    """No call goes by a form."""
    with mock.patch.object(_exchange, "tensor_type", _exchange.Nothing):
        yield


@contextlib.contextmanager
def by_forms() -> Iterator[None]:
    """A call that does not go by a form fails."""
    wrong = AssertionError("the call went the general way")
    with mock.patch.object(_buffer, "Arguments", side_effect=wrong):
        with mock.patch.object(_low_latency, "Arguments", side_effect=wrong):
            yield


def torch_of(value: Any) -> Any:
    """PyTorch's tensor of a NumPy array that it can take, else the value."""
    if isinstance(value, numpy.ndarray) and value.flags.writeable and value.dtype != numpy.dtype("uint16"):
        return torch.from_numpy(value)
    return value


class TorchWorld(World):
    """The same with PyTorch's tensors, after calls that made forms."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("x", "idx", "weights", "ll_x", "sent"):
            setattr(self, name, torch.from_numpy(getattr(self, name)))
        for name in CHECKED:
            call, good, _ = CALLS[name]
            call(self)(**good(self))
            with by_forms():
                call(self)(**good(self))


class Case(unittest.TestCase):
    def setUp(self) -> None:
        global torch
        torch = ranks.torch_for(self)
        if _exchange.table() is None:
            self.skipTest("this PyTorch does not show its tensors to C")


class Errors(Case):
    def test_are_those_of_the_general_way(self) -> None:
        """One argument wrong at a time: exception and text, and the next call is good."""
        world, count = TorchWorld(), 0
        again = dict(x=world.x, handle=world.rows.handle)
        world.buffer.dispatch(**again)
        goods: dict[str, list[dict[str, Any]]] = {name: [CALLS[name][1](world)] for name in CHECKED}
        goods["Buffer.dispatch"].append(again)
        for name in CHECKED:
            call, _, wrong = CALLS[name]
            for good in goods[name]:
                for argument, values in wrong.items():
                    for value, _, _ in values:
                        with self.subTest(call=name, argument=argument, handle="handle" in good, value=str(value)):
                            self.same(call(world), {**good, argument: torch_of(value)})
                        count += 1
        self.assertGreater(count, 300)
        with by_forms():
            world.buffer.dispatch(**again)
            world.low.combine(world.sent, world.idx, world.weights, world.ll_rows.handle)

    def same(self, call: Callable[..., Any], given: dict[str, Any]) -> None:
        said = []
        for way in (general(), contextlib.nullcontext()):
            with way:
                try:
                    call(**given)
                    said.append("")
                except Exception as error:
                    said.append(f"{type(error).__name__}: {error}")
        self.assertEqual(said[0], said[1])

    def test_closed(self) -> None:
        world = TorchWorld()
        given = [(CALLS[name][0](world), CALLS[name][1](world)) for name in CHECKED]
        world.buffer.close()
        world.low.close()
        for call, good in given:
            with self.assertRaisesRegex(ValueError, "buffer is closed"):
                call(**good)

    def test_in_a_child(self) -> None:
        world = TorchWorld()
        for name in CHECKED:
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    try:
                        CALLS[name][0](world)(**CALLS[name][1](world))
                    except expar.Error as error:
                        os._exit(0 if "was forked from it" in str(error) else 3)
                os._exit(2)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, name)

    def test_dropped(self) -> None:
        """A dispatch that may drop rows has no form, since its error has the result."""
        world = TorchWorld()
        for _ in range(3):
            with self.assertRaises(expar.DroppedError) as caught:
                world.buffer.dispatch(world.x, world.idx, world.weights, 2, num_worst_tokens=5)
            self.assertEqual(caught.exception.result.num_dropped_tokens, 1)  # type: ignore[attr-defined]

    def test_gradients(self) -> None:
        """Warned of once, by a call that could have gone by a form."""
        world = TorchWorld()
        x = world.x.clone().requires_grad_()
        with mock.patch.object(_tensor, "_warned_of_gradients", False), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            world.buffer.combine(x, world.rows.handle)
            world.buffer.combine(x, world.rows.handle)
            self.assertEqual(len(told), 1)
            with by_forms():
                world.buffer.combine(x, world.rows.handle)
            with mock.patch.object(_tensor, "_warned_of_gradients", False), torch.no_grad(), by_forms():
                self.assertFalse(world.buffer.combine(x, world.rows.handle).y.torch().requires_grad)
        self.assertEqual(len(told), 1)


# ---- results ---------------------------------------------------------------------------------------------------------


def items(result: Any) -> list[Any]:
    """Returns what can be compared of a result: tensors as NumPy's, and numbers."""
    found = []
    for name, each in zip(result._fields, result):
        if isinstance(each, (torch.Tensor, expar.Tensor)):
            found.append((name, each.dtype, each.numpy().copy()))
        elif not isinstance(each, (expar.Event, expar.Handle, expar.LowLatencyHandle, expar.Hook)):
            found.append((name, None, each))
    return found


def wait(result: Any) -> Any:
    if result.event is not None:
        result.event.wait()
    if getattr(result, "hook", None) is not None:
        result.hook()
    return result


class Results(Case):
    def alike(self, call: Callable[[], Any]) -> Any:
        """The call's result the general way, by its first call, and twice by a form."""
        with general():
            wanted = items(wait(call()))
        wait(call())
        for _ in range(2):
            with by_forms():
                made = wait(call())
            for (name, dtype, before), (_, now_dtype, now) in zip(wanted, items(made)):
                self.assertEqual(dtype, now_dtype, name)
                same(before, now, name)
        return made

    def test_normal_mode(self) -> None:
        """All options, and the caller's own memory."""
        with expar.Group.from_env() as group, expar.Buffer(group) as buffer:
            traffic = Traffic(Shape(1, 4, 3, 64, 9, "f32"), 5)
            x, idx, weights = (torch.from_numpy(each[0]) for each in (traffic.x, traffic.topk_idx, traffic.weights))
            bf16, codes = x.bfloat16(), x.to(torch.float8_e4m3fn)
            scales = torch.rand(len(x), 2)
            rows = buffer.dispatch(x, idx, weights, 4, keep_slots=True)
            handle, count = rows.handle, rows.num_recv_tokens
            major = dict(expert_major=True, expert_alignment=4, row_weights=True, zero_padding=True)
            for given in (dict(), dict(async_finish=True), major, dict(path=expar.EpPath.QUEUE)):
                self.alike(lambda: buffer.dispatch(x, idx, weights, 4, **given))
            self.alike(lambda: buffer.dispatch(bf16, idx.int(), None, 4, src_tokens=True, src_stride=16))
            self.alike(lambda: buffer.dispatch(codes, idx, weights, 4, x_scales=scales, column_scales=True))
            self.alike(lambda: buffer.dispatch(codes, x_scales=scales, handle=handle))
            self.alike(lambda: buffer.dispatch(bf16, idx, weights, handle=handle, async_finish=True))
            self.alike(lambda: buffer.dispatch(x, handle=handle, wait_event=self.happened()))
            copied = torch.empty_like(idx)
            self.alike(lambda: buffer.dispatch(x, idx, weights, 4, topk_idx_copy=copied))
            self.assertTrue(torch.equal(copied, idx))
            self.alike(lambda: buffer.dispatch(x, token_in_rank=(idx >= 0).any(1, keepdim=True), num_experts=4))
            own = torch.empty(count, 64)
            made = self.alike(lambda: buffer.dispatch(x, idx, weights, handle=handle, out_x=own))
            self.assertIs(made.x, own)
            received, sums = rows.x.torch(), torch.empty_like(x)
            for given in (dict(), dict(bias=x), dict(bias=(x, x)), dict(sum_order=expar.EpSumOrder.BY_SLOT)):
                self.alike(lambda: buffer.combine(received, handle, **given))
            self.alike(lambda: buffer.combine(received.half(), handle, rows.topk_weights.torch(), async_finish=True))
            self.alike(lambda: buffer.combine(received, handle, rows.topk_weights))
            made = self.alike(lambda: buffer.combine(received, handle, rows.topk_weights, out_y=sums))
            self.assertIs(made.y, sums)
            self.alike(lambda: buffer.combine(rows.x, handle))
            del made, rows, received
            self.assertEqual(self.settled(buffer), 0)

    @staticmethod
    def happened() -> expar.Event:
        event = expar.Event()
        event.signal()
        return event

    @staticmethod
    def settled(buffer: expar.Buffer) -> int:
        """Bytes that outputs use."""
        gc.collect()
        return buffer.stats()["used_bytes"]

    def test_low_latency(self) -> None:
        with expar.Group.from_env() as group, expar.LowLatencyBuffer(group, 9, 256, 3, 4, max_row_bytes=1024) as buffer:
            traffic = Traffic(Shape(1, 4, 3, 256, 9, "f32"), 6, distinct=True)
            x, idx, weights = (torch.from_numpy(each[0]) for each in (traffic.x, traffic.topk_idx, traffic.weights))
            format, stats = expar.LlFormat.FP8, torch.zeros(4, dtype=torch.int32)
            for given in (dict(), dict(hook=True), dict(async_finish=True), dict(topk_weights=weights)):
                made = wait(buffer.dispatch(x, idx, **given))
                with by_forms():
                    again = wait(buffer.dispatch(x, idx, **given))
                for one, other in ((made.count, again.count), (made.handle.src_info, again.handle.src_info)):
                    same(one.numpy(), other.numpy())
                for expert, rows in enumerate(made.count.numpy()):
                    same(made.x.numpy()[expert, :rows], again.x.numpy()[expert, :rows])
                self.assertIsNone(again.scales)
            wait(buffer.dispatch(x.half(), idx, format=format, expert_recv_stats=stats))
            with by_forms():
                coded = wait(buffer.dispatch(x.half(), idx, format=format, expert_recv_stats=stats))
            self.assertEqual(coded.x.torch().dtype, torch.float8_e4m3fn)
            self.assertEqual(coded.scales.strides[1], 1)
            same(stats.numpy(), 2 * made.count.numpy())
            rows, out = made.x.torch(), torch.empty_like(x)
            for given in (dict(), dict(hook=True), dict(async_finish=True), dict(out_y=out)):
                self.alike(lambda: buffer.combine(rows, idx, weights, made.handle, **given))
            self.alike(lambda: buffer.combine(made.x, idx, weights, made.handle))

    def test_shapes_in_turns(self) -> None:
        """One form serves all shapes and types. NumPy's arrays go the general way between."""
        with expar.Group.from_env() as group, expar.Buffer(group) as buffer:
            for tokens in (5, 0, 3, 7):
                for dtype in (torch.float32, torch.bfloat16):
                    x = torch.randn(tokens, 64).to(dtype)
                    done = buffer.dispatch(x, torch.zeros(tokens, 1, dtype=torch.int64), None, 2)
                    again = buffer.dispatch(x, handle=done.handle)
                    y = buffer.combine(again.x.torch(), done.handle)
                    self.assertTrue(torch.equal(again.x.torch(), x))
                    self.assertTrue(torch.equal(y.y.torch(), x))
                    self.assertEqual(y.y.shape, (tokens, 64))
                array = numpy.ones((tokens, 64), "float32")
                same(buffer.dispatch(array, handle=done.handle).x.numpy(), array)
                same(buffer.combine(array, done.handle, torch.ones(tokens, 1)).y.numpy(), array)
            self.assertEqual(len(buffer._forms._forms), 3)

    def test_on_ranks(self) -> None:
        ranks.on_threads(3, on_ranks)


class Tensors(Case):
    def test_of_a_result(self) -> None:
        """The first tensor is the call's own, and another one has the same memory. Tensors outlive all else."""
        group = expar.Group.from_env()
        buffer = expar.Buffer(group)
        x = torch.randn(6, 64)
        handle = buffer.dispatch(x, torch.zeros(6, 1, dtype=torch.int64), None, 1).handle
        buffer.dispatch(x, handle=handle)
        with by_forms():
            done = buffer.dispatch(x, handle=handle)
        first, second = done.x.torch(), done.x.torch()
        self.assertIsNot(first, second)
        self.assertEqual(first.data_ptr(), second.data_ptr())
        self.assertEqual(done.x.data_ptr, first.data_ptr())
        self.assertEqual((done.x.shape, done.x.strides, done.x.dtype), ((6, 64), (64, 1), expar.Dtype.F32))
        y = buffer.combine(first, handle).y
        with by_forms():
            y = buffer.combine(first, handle).y
        same(numpy.from_dlpack(y), x.numpy())
        del done
        buffer.close()
        group.close()
        self.assertTrue(torch.equal(first, x) and torch.equal(second, x) and torch.equal(y.torch(), x))

    def test_without_the_table(self) -> None:
        """A PyTorch that does not show its tensors to C takes capsules."""
        with expar.Group.from_env() as group, expar.Buffer(group) as buffer, general():
            with mock.patch.object(_exchange, "maker", lambda: None):
                for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
                    x = torch.randn(6, 64).to(dtype)
                    scales = torch.rand(6, 1) if dtype is torch.float8_e4m3fn else None
                    for _ in range(2):
                        done = buffer.dispatch(x, torch.zeros(6, 1, dtype=torch.int64), None, 1, x_scales=scales)
                        rows = done.x.torch()
                        self.assertIs(rows.dtype, dtype)
                        self.assertTrue(torch.equal(rows.view(torch.uint8), x.view(torch.uint8)))
            del done, rows

    def test_inference(self) -> None:
        """A tensor is one of inference if it was asked for there, wherever the call was made."""
        with expar.Group.from_env() as group, expar.Buffer(group) as buffer:
            x = torch.randn(6, 64)
            handle = buffer.dispatch(x, torch.zeros(6, 1, dtype=torch.int64), None, 1).handle
            buffer.dispatch(x, handle=handle)
            for there in (False, True):
                for here in (False, True):
                    with torch.inference_mode(there), by_forms():
                        done = buffer.dispatch(x, handle=handle)
                    with torch.inference_mode(here):
                        rows = done.x.torch()
                    self.assertEqual(rows.is_inference(), here)
                    self.assertTrue(torch.equal(rows, x))
            del done, rows

    def test_allocator(self) -> None:
        """Memory from Python's allocator: no call has a form."""
        with expar.Group.from_env() as group:
            allocate = lambda size: torch.empty(size, dtype=torch.uint8)  # noqa: E731
            with expar.Buffer(group, allocator=allocate, pool_limit_bytes=1) as buffer:
                x = torch.randn(6, 64)
                handle = buffer.dispatch(x, torch.zeros(6, 1, dtype=torch.int64), None, 1).handle
                for _ in range(3):
                    self.assertTrue(torch.equal(buffer.dispatch(x, handle=handle).x.torch(), x))
                self.assertEqual(len(buffer._forms._forms), 0)


def on_ranks(group: expar.Group) -> None:
    """Each call against the definitions, twice, so that the second one goes by a form."""
    low = expar.LowLatencyBuffer(group, 7, 128, 2, 6, max_row_bytes=512)
    with expar.Buffer(group) as buffer, low:
        for seed in range(6):
            traffic, rank = Traffic(Shape(group.size, 6, 2, 128, 7, "f32"), seed, distinct=True), group.rank
            x, idx, weights = (
                torch.from_numpy(each[rank]) for each in (traffic.x, traffic.topk_idx, traffic.weights)
            )
            expected, sums = traffic.received(rank), traffic.combined(rank)
            done = wait(buffer.dispatch(x, idx, weights, 6, async_finish=seed % 2 == 1))
            rows = wait(buffer.dispatch(x, handle=done.handle)).x.torch()
            for given, wanted in ((done.x, 0), (done.topk_idx, 1), (done.topk_weights, 2)):
                same(given.numpy(), expected[wanted])
            same(rows.numpy(), expected[0])
            assert done.tokens_per_expert == traffic.per_expert(rank) and done.num_recv_tokens == len(rows)
            answers = torch.from_numpy(traffic.answer(rank, rows.numpy()))
            back = buffer.combine(answers, done.handle, done.topk_weights.torch())
            same(back.y.numpy(), sums[0])
            same(back.topk_weights.numpy(), sums[1])
            few = low.dispatch(x, idx, hook=True)
            few.hook()
            placed = torch.from_numpy(traffic.answer(rank, few.x.numpy()))
            same(low.combine(placed, idx, weights, few.handle).y.numpy(), traffic.weighted(rank, False))
            found, tokens, _ = traffic.received_by_expert(rank)
            for expert, part in enumerate(found):
                same(few.x.numpy()[expert, : len(part)], part)
        assert len(buffer._forms._forms) == 3 and len(low._forms._forms) == 2
        del few, done, back, rows
        group.barrier()


if __name__ == "__main__":
    unittest.main()
