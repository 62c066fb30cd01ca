# SPDX-License-Identifier: Apache-2.0
"""Low-latency calls against references from the definitions: hooks, formats, memory of the buffer, masks."""

from __future__ import annotations

import sys
import unittest
from typing import Any, Callable

import numpy

import expar
from expar import LlFormat, LlSum

import ranks
from reference import bits, Shape, Traffic
from test_python_buffer import of, resident_bytes

same = numpy.testing.assert_array_equal
BATCH = 24


def shape_of(group: expar.Group, dtype: str = "f32", experts: int = 2, hidden: int = 128) -> Shape:
    return Shape(group.size, group.size * experts, min(3, group.size * experts), hidden, BATCH, dtype)


def buffer_of(group: expar.Group, shape: Shape, **options: int) -> expar.LowLatencyBuffer:
    return expar.LowLatencyBuffer(
        group, BATCH, shape.hidden, shape.topk, shape.experts, max_row_bytes=4 * shape.hidden, **options
    )


def check_rows(traffic: Traffic, rank: int, done: expar.LowLatencyDispatched) -> None:
    rows, tokens, counts = traffic.received_by_expert(rank)
    same(done.count.numpy(), counts.sum(axis=1))
    same(done.handle.range.numpy(), (counts.cumsum(axis=1) - counts) << 32 | counts)
    for expert in range(traffic.local):
        same(bits(done.x)[expert, : len(rows[expert])], rows[expert])
        same(done.handle.src_info.numpy()[expert, : len(rows[expert])], tokens[expert])


def answers_of(traffic: Traffic, rank: int, x: Any, counts: Any) -> Any:
    answers = numpy.zeros_like(x)
    for expert, count in enumerate(counts):
        answers[expert, :count] = traffic.answer(rank, x[expert, :count])
    return answers


def exchange(buffer: expar.LowLatencyBuffer, traffic: Traffic, **options: bool) -> None:
    rank, dtype = buffer.group.rank, traffic.shape.dtype
    x, experts, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]

    def finish(done: Any) -> None:
        if done.hook is not None:
            done.hook()
        if done.event is not None:
            done.event.wait()

    done = buffer.dispatch(of(x, dtype), experts, weights, **options)
    finish(done)
    check_rows(traffic, rank, done)
    answers = answers_of(traffic, rank, bits(done.x), done.count.numpy())
    for kind in LlSum:
        sums = buffer.combine(of(answers, dtype), experts, weights, done.handle, sum=kind, **options)
        finish(sums)
        same(bits(sums.y), traffic.weighted(rank, reduced=kind == LlSum.REDUCED))


def random_calls(group: expar.Group) -> None:
    for experts, dtype in ((1, "f32"), (3, "bf16"), (2, "f16")):
        shape = shape_of(group, dtype, experts)
        with buffer_of(group, shape) as buffer:
            for seed in range(6):
                options = ({}, {"hook": True}, {"async_finish": True})[seed % 3]
                exchange(buffer, Traffic(shape, seed, distinct=True), **options)
            assert buffer.stats()["dispatches"] == 6 and buffer.stats()["combines"] == 12


def hooks(group: expar.Group) -> None:
    """Two dispatches open at once, received in the other order; a third is refused; each hook is called once."""
    shape = shape_of(group)
    both = [Traffic(shape, seed, distinct=True) for seed in (1, 2)]
    rank = group.rank
    with buffer_of(group, shape) as buffer:
        opened = [buffer.dispatch(t.x[rank], t.topk_idx[rank], hook=True) for t in both]
        for wrong in (lambda: buffer.dispatch(both[0].x[rank], both[0].topk_idx[rank], hook=True), None):
            try:
                wrong() if wrong else opened[1].hook()  # type: ignore[misc,no-untyped-call]
                if wrong is None:
                    opened[1].hook()  # type: ignore[misc]
                raise AssertionError("it is taken")
            except expar.Error as error:
                assert error.status == expar.Status.ERR_STATE, error
        assert opened[0].hook is not None
        try:
            opened[0].hook(stream=5)
            raise AssertionError("a stream is taken on the CPU")
        except ValueError as error:
            assert str(error) == "stream is 0x5: expected None, since the buffer lies on the CPU", error
        opened[0].hook()
        for traffic, done in zip(both, opened):
            check_rows(traffic, rank, done)
        exchange(buffer, both[0])
        forgotten = buffer.dispatch(both[0].x[rank], both[0].topk_idx[rank], hook=True).hook
        del forgotten


def formats(group: expar.Group) -> None:
    """Rows in FP8 and INT8: scales to the bit, values within half a step."""
    shape = shape_of(group, "f32", 2, 256)
    traffic = Traffic(shape, 8, distinct=True)
    rank = group.rank
    x = traffic.x[rank]
    codes = numpy.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = numpy.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    fp8 = numpy.where(codes > 127, -magnitude, magnitude).astype("float32")
    rows, _, _ = traffic.received_by_expert(rank)
    with buffer_of(group, shape) as buffer:
        for kind, largest, step in ((LlFormat.FP8, 448, 1 / 16), (LlFormat.INT8, 127, 1 / 254)):
            done = buffer.dispatch(x, traffic.topk_idx[rank], format=kind)
            values, scales = bits(done.x), done.scales.numpy()
            assert scales.strides[1] == 4 and scales.shape == (2, group.size * BATCH, 2)
            for expert, expected in enumerate(rows):
                groups = expected.reshape(len(expected), 2, 128)
                amax = numpy.maximum(numpy.abs(groups).max(axis=2), numpy.float32(1e-4))
                got = values[expert, : len(expected)].reshape(groups.shape)
                plain = fp8[got] if kind == LlFormat.FP8 else got.astype("float32")
                same(scales[expert, : len(expected)], amax / numpy.float32(largest))
                error = numpy.abs(plain * (amax / numpy.float32(largest))[:, :, None] - groups)
                bound = numpy.abs(groups) * step if kind == LlFormat.FP8 else amax[:, :, None] * step
                assert (error <= bound * 1.001 + amax[:, :, None] * 2.0**-17).all()
        done = buffer.dispatch(x, traffic.topk_idx[rank], traffic.weights[rank])
        answers = answers_of(traffic, rank, bits(done.x), done.count.numpy())
        sums = buffer.combine(
            answers / 64, traffic.topk_idx[rank], traffic.weights[rank], done.handle, format=LlFormat.LOGFMT
        )
        numpy.testing.assert_allclose(sums.y.numpy(), traffic.weighted(rank, False) / 64, rtol=0, atol=0.05)


def own_memory(group: expar.Group) -> None:
    """Results in the caller's memory, counters that are added to, and rows that are sent from where they were made."""
    shape = shape_of(group)
    traffic = Traffic(shape, 4, distinct=True)
    rank = group.rank
    x, experts, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
    buffer = buffer_of(group, shape)
    stats, wait_ns = numpy.full(2, 100, "int32"), numpy.zeros(group.size, "int64")
    out_x = numpy.zeros((2, group.size * BATCH, shape.hidden), "float32")
    done = buffer.dispatch(x, experts, weights, out_x=out_x, expert_recv_stats=stats, wait_ns=wait_ns)
    assert done.x is out_x
    _, _, counts = traffic.received_by_expert(rank)
    same(stats, 100 + counts.sum(axis=1))
    assert (wait_ns >= 0).all()
    lent = buffer.combine_buffer(done.handle, expar.Dtype.F32)
    assert buffer.combine_buffer(done.handle, expar.Dtype.F32) is lent
    lent.numpy()[:] = answers_of(traffic, rank, out_x, done.count.numpy())
    y = numpy.full(x.shape, 5, "float32")
    assert buffer.combine(lent, experts, weights, done.handle, out_y=y).y is y
    same(y, traffic.weighted(rank, False))
    rows = lent.numpy()[0]
    for wrong in (buffer.close, group.close, lent.__dlpack__):
        try:
            wrong()
            raise AssertionError(f"{wrong} is possible")
        except BufferError:
            pass
        if wrong is buffer.close:
            del lent
            continue
        lent = buffer.combine_buffer(done.handle, expar.Dtype.F32)
    again = buffer.combine(lent, experts, weights, done.handle, async_finish=True)
    del rows, lent, wrong
    buffer.close()  # after that call
    same(again.y.numpy(), traffic.weighted(rank, False))
    same(done.count.numpy(), counts.sum(axis=1))  # which outlives it
    assert done.handle.src_info.numpy().shape == (2, group.size * BATCH)


def refused(group: expar.Group) -> None:
    shape = shape_of(group)
    traffic = Traffic(shape, 7, distinct=True)
    x, experts = numpy.zeros((2, shape.hidden), "float32"), numpy.full((2, 2), -1)
    with buffer_of(group, shape) as buffer:
        for given, status in (
            ((x, numpy.full((2, 2), shape.experts)), "ERR_INDEX"),
            ((numpy.zeros((BATCH + 1, shape.hidden), "float32"), numpy.full((BATCH + 1, 2), -1)), "ERR_LIMIT"),
            ((x[:, :64], experts), "ERR_SHAPE"),
        ):
            try:
                buffer.dispatch(*(given if group.rank == 0 else (x, experts)))
                raise AssertionError("nothing was refused")
            except expar.Error as error:
                assert error.status.name == (status if group.rank == 0 else "ERR_REMOTE"), error
            exchange(buffer, traffic)
        try:
            buffer.mask_set(0)
            raise AssertionError("there are no masks")
        except expar.Error as error:
            assert error.status == expar.Status.ERR_STATE


def is_rejected(text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except expar.Error as error:
        assert text in str(error), error
    else:
        raise AssertionError("it is taken")


def reserve(group: expar.Group) -> None:
    """A buffer gets its shape later: the largest K that fits."""
    needed = expar.LowLatencyBuffer.bytes_needed(group.size, 6, 128, 4, 4 * group.size, masking=1)
    buffer = expar.LowLatencyBuffer(group, 0, 0, 0, 0, masking=1, reserve_bytes=needed, late_limit_ms=60_000)
    x, idx = numpy.full((6, 128), group.rank, "float16"), numpy.zeros((6, 1), "int64")
    with buffer:
        assert buffer.mask_query() == [False] * group.size
        is_rejected("has no shape; expected expar_ll_set_shape", lambda: buffer.dispatch(x, idx))
        is_rejected("max_topk 8; expected at most", lambda: buffer.set_shape(6, 128, 8, 4 * group.size))
        assert buffer.set_shape(6, 128, 2, 4 * group.size) == 4
        is_rejected("the buffer has its shape", lambda: buffer.set_shape(6, 128, 2, 4 * group.size))
        found = buffer.dispatch(x, idx)
        assert found.count.numpy().tolist() == [6 * group.size if group.rank == 0 else 0, 0, 0, 0]


def masks(group: expar.Group) -> None:
    """Rank 1 is masked by all, itself included by not coming, and is back after a clean."""
    shape = shape_of(group)
    traffic = Traffic(shape, 6, distinct=True)
    rank = group.rank
    x, experts, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
    with buffer_of(group, shape, masking=1) as buffer:
        exchange(buffer, traffic)
        if rank != 1:
            buffer.mask_set(1)
            assert buffer.mask_query() == [r == 1 for r in range(group.size)]
            status = numpy.full(group.size, 9, "int32")
            buffer.mask_query(status)
            assert status.tolist() == [int(r == 1) for r in range(group.size)]
            done = buffer.dispatch(x, experts, weights)
            assert not (done.handle.range.numpy()[:, 1] & 0xFFFFFFFF).any()
        group.barrier()
        buffer.mask_clean()
        assert not any(buffer.mask_query())
        exchange(buffer, traffic)


def soak(group: expar.Group) -> None:
    shape = shape_of(group)
    traffic = Traffic(shape, 6, distinct=True)
    x, experts, weights = (each[group.rank] for each in (traffic.x, traffic.topk_idx, traffic.weights))
    with buffer_of(group, shape) as buffer:
        for step in range(1500):
            done = buffer.dispatch(x, experts, weights, hook=step % 2 == 0)
            if done.hook is not None:
                done.hook()
            buffer.combine(done.x, experts, weights, done.handle)
            if step == 300:
                resident = resident_bytes()
        assert resident_bytes() < resident + (16 << 20), (resident, resident_bytes())


class LowLatency(unittest.TestCase):
    def test_threads(self) -> None:
        for size in (1, 2, 4, 8):
            ranks.on_threads(size, random_calls)

    def test_processes(self) -> None:
        ranks.on_processes(4, "test_python_low_latency", "random_calls")

    def test_hooks(self) -> None:
        ranks.on_threads(2, hooks)

    def test_formats(self) -> None:
        ranks.on_threads(2, formats)

    def test_own_memory(self) -> None:
        ranks.on_threads(2, own_memory)

    def test_rejected(self) -> None:
        ranks.on_threads(3, refused)

    def test_reserve(self) -> None:
        ranks.on_threads(2, reserve)

    def test_masks(self) -> None:
        ranks.on_threads(3, masks)

    def test_memory_is_flat(self) -> None:
        ranks.on_processes(2, "test_python_low_latency", "soak")

    def test_exit_with_an_open_hook(self) -> None:
        code = """
import expar, numpy
group = expar.Group.from_env()
buffer = expar.LowLatencyBuffer(group, 4, 64, 1, 2)
done = buffer.dispatch(numpy.zeros((3, 64), "float16"), numpy.zeros((3, 1), "int64"), hook=True)
other = buffer.dispatch(numpy.zeros((3, 64), "float16"), numpy.zeros((3, 1), "int64"))
lent = buffer.combine_buffer(other.handle, expar.Dtype.F16)
array = lent.numpy()
"""
        ended = ranks.start([sys.executable, "-c", code])
        self.assertEqual((ended.returncode, ended.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
