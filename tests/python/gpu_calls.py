# SPDX-License-Identifier: Apache-2.0
"""Calls of `expar` on a GPU against the references, for ranks of any kind.

Bodies take a group and a card. A card puts arrays on the GPU and gets them from there (`put`, `get`, `empty`), makes
streams (`lane`), and names the device. `SimulatedCard` is for simulated GPUs, `torch_card.TorchCard` for PyTorch's.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from typing import Any, Iterator

import numpy

import expar
from expar import LlFormat, LlSum

import simulated
from reference import Shape, Traffic, from_float, to_float

same = numpy.testing.assert_array_equal
DEADLINE_S = 60


class SimulatedCard:
    """NumPy's arrays. Streams are named in each call. One card a rank."""

    device = "cuda:0"

    def __init__(self) -> None:
        self._stream = simulated.Stream()

    def put(self, values: Any, dtype: str | None = None) -> Any:
        return simulated.on_gpu(values, dtype if dtype == "bf16" else None)

    def empty(self, shape: Any, dtype: str) -> Any:
        return simulated.empty(shape, dtype)

    def get(self, tensor: Any) -> Any:
        return simulated.values_of(tensor, self._stream)

    @contextlib.contextmanager
    def lane(self) -> Iterator[dict[str, Any]]:
        """Work of this block has a stream of its own: what calls are told of it."""
        self._stream = simulated.Stream()
        yield {"stream": self._stream}


# ---- normal mode -----------------------------------------------------------------------------------------------------


def _exchange(card: Any, buffer: expar.Buffer, traffic: Traffic, lane: dict[str, Any], **options: Any) -> None:
    """A dispatch and its combine, and another pair with the handle."""
    rank, dtype = buffer.group.rank, traffic.shape.dtype
    x, experts = card.put(traffic.x[rank], dtype), card.put(traffic.topk_idx[rank])
    weights = card.put(traffic.weights[rank])
    expected = traffic.received(rank)
    alignment = options.get("expert_alignment", 1)
    first: Any = None
    for given in (options, {key: options[key] for key in options if key == "async_finish"}):
        given = {**given, **lane}
        if first is not None:
            given["handle"] = first.handle
        done = buffer.dispatch(x, experts, weights, traffic.shape.experts, **given)
        if done.event is not None:
            done.event.wait()
        same(card.get(done.x), expected[0])
        same(card.get(done.topk_idx), expected[1])
        same(card.get(done.topk_weights), expected[2])
        if first is None:
            first = done
            assert done.num_recv_tokens == len(expected[0]) and done.handle is not None
            assert done.tokens_per_expert == traffic.per_expert(rank, alignment)
        answers = card.put(traffic.answer(rank, card.get(done.x)), dtype)
        bias = [from_float(numpy.full(traffic.x[rank].shape, 0.25, "float32"), dtype)] if alignment > 1 else []
        sums = buffer.combine(
            answers,
            first.handle,
            done.topk_weights,
            bias=[card.put(each, dtype) for each in bias],
            async_finish="async_finish" in options,
            **lane,
        )
        if sums.event is not None:
            sums.event.wait()
        y, total = traffic.combined(rank, bias)
        same(card.get(sums.y), y)
        same(card.get(sums.topk_weights), total)


def normal(group: expar.Group, card: Any) -> None:
    """Counts, rows, sums: waited for, by events, with a handle; of several shapes on one buffer."""
    with card.lane() as lane, expar.Buffer(group, device=card.device, num_sms=2) as buffer:
        assert buffer.device == expar._device.device_of(card.device)
        for seed, dtype in enumerate(("f32", "bf16", "f16")):
            shape = Shape(group.size, group.size * 2, 3, 64, 20, dtype, ("int64", "int32")[seed % 2])
            options: Any = ({}, {"async_finish": True}, {"expert_alignment": 4})[seed]
            _exchange(card, buffer, Traffic(shape, seed + 1), lane, **options)
        buffer.query()


def worst_case(group: expar.Group, card: Any) -> None:
    """Nothing is waited for: counts are told on the GPU alone, and rows after them have no experts."""
    shape = Shape(group.size, group.size * 2, 3, 64, 20, "f32")
    traffic = Traffic(shape, 9)
    rank, worst = group.rank, group.size * shape.tokens
    with card.lane() as lane, expar.Buffer(group, device=card.device, num_sms=2) as buffer:
        counts = [card.empty(n, kind) for n, kind in ((2, "int32"), (3, "int32"), (group.size, "int32"), (1, "int64"))]
        done = buffer.dispatch(
            card.put(traffic.x[rank]),
            card.put(traffic.topk_idx[rank]),
            card.put(traffic.weights[rank]),
            shape.experts,
            num_worst_tokens=worst,
            recv_counts=expar.RecvCounts(*counts),
            **lane,
        )
        expected = traffic.received(rank)
        many = len(expected[0])
        assert done.num_recv_tokens == -1 and done.tokens_per_expert is None
        same(card.get(counts[0]), traffic.per_expert(rank))
        assert card.get(counts[1])[-1] == sum(traffic.per_expert(rank)), card.get(counts[1])
        assert card.get(counts[2])[-1] == many and card.get(counts[3])[0] == many
        same(card.get(done.x)[:many], expected[0])
        indices = card.get(done.topk_idx)
        same(indices[:many], expected[1])
        assert indices.shape == (worst, 3) and (indices[many:] == -1).all()
        answers = numpy.zeros((worst, shape.hidden), "float32")
        answers[:many] = traffic.answer(rank, expected[0])
        assert done.handle is not None
        sums = buffer.combine(card.put(answers), done.handle, **lane)
        same(card.get(sums.y), traffic.combined(rank)[0])
        buffer.query()


def layout(group: expar.Group, card: Any) -> None:
    """Counts and a routing by themselves, and a dispatch of that routing into memory of the caller's."""
    shape = Shape(group.size, group.size * 2, 3, 64, 20, "f32")
    traffic = Traffic(shape, 4)
    rank = group.rank
    experts = traffic.topk_idx[rank]
    with card.lane() as lane, expar.Buffer(group, device=card.device, num_sms=2, pool_bytes=1 << 20) as buffer:
        counts = buffer.layout(card.put(experts), shape.experts, **lane)
        same(card.get(counts.tokens_per_rank), [traffic.goes_to(rank, r).sum() for r in range(group.size)])
        same(card.get(counts.tokens_per_expert), [(experts == e).sum() for e in range(shape.experts)])
        in_rank = numpy.stack([traffic.goes_to(rank, r) for r in range(group.size)], 1)
        same(card.get(counts.token_in_rank), in_rank)
        route = buffer.route(card.put(experts), shape.experts, **lane)
        expected = traffic.received(rank)
        assert route.num_recv_tokens == len(expected[0]) and route.tokens_per_expert == traffic.per_expert(rank)
        out = card.empty((len(expected[0]), shape.hidden), "float32")
        done = buffer.dispatch(card.put(traffic.x[rank]), handle=route.handle, out_x=out, **lane)
        assert done.x is out
        same(card.get(out), expected[0])


def expert_major(group: expar.Group, card: Any) -> None:
    shape = Shape(group.size, group.size * 2, 3, 64, 20, "f32")
    traffic = Traffic(shape, 5)
    rank = group.rank
    with card.lane() as lane, expar.Buffer(group, device=card.device, num_sms=2, pool_bytes=1 << 20) as buffer:
        rows = buffer.dispatch(
            card.put(traffic.x[rank]),
            card.put(traffic.topk_idx[rank]),
            card.put(traffic.weights[rank]),
            shape.experts,
            expert_major=True,
            zero_padding=True,
            expert_alignment=8,
            **lane,
        )
        row_map, sources = traffic.expert_major(rank, 8)
        same(card.get(rows.row_map), row_map)
        received = traffic.received(rank)[0]
        x = card.get(rows.x)
        same(x[sources >= 0], received[sources[sources >= 0]])
        assert not x[sources < 0].any() and rows.handle is not None
        done = buffer.combine(rows.x, rows.handle, expert_major=True, expert_weights=rows.topk_weights, **lane)
        assert card.get(done.y).shape == traffic.x[rank].shape


def allocators(group: expar.Group, card: Any) -> None:
    """Outputs that do not fit come from the program's memory. It gets that back after the calls that may use it. Its
    errors are reported, and the buffer goes on."""
    shape = Shape(group.size, group.size * 2, 3, 64, 20, "f32")
    traffic = Traffic(shape, 7)
    rank = group.rank
    lent: list[Any] = []
    wrong: list[Any] = []

    def allocate(size: int) -> Any:
        if wrong:
            return wrong.pop()
        block = card.empty(size, "uint8")
        lent.append(weakref.ref(block))
        return block

    def in_use() -> int:
        return sum(each() is not None for each in lent)

    with card.lane() as lane:
        buffer = expar.Buffer(group, device=card.device, num_sms=2, pool_limit_bytes=128, allocator=allocate)
        for _ in range(3):
            _exchange(card, buffer, traffic, lane)
        assert lent and buffer.stats()["other_blocks"] > 0
        x, experts = card.put(traffic.x[rank]), card.put(traffic.topk_idx[rank])
        for answer, text in ((numpy.empty(1 << 20, "uint8"), "or not on GPU 0"), (card.empty(5, "uint8"), "has 5 bytes")):
            if rank == 0:
                wrong[:] = [answer]
            try:
                buffer.dispatch(x, experts, num_experts=shape.experts, **lane)
                raise AssertionError("there was memory")
            except expar.Error as error:
                assert error.status == (expar.Status.ERR_REMOTE if rank else expar.Status.ERR_MEMORY), error
                assert rank or text in str(error.__cause__), error.__cause__
        rows = buffer.dispatch(x, experts, num_experts=shape.experts, **lane)
        try:
            rows.x.__dlpack__()
            raise AssertionError("another library has it")
        except BufferError:
            pass
        buffer.close()
        assert in_use() > 0
        same(card.get(rows.x), traffic.received(rank)[0])
        del rows, buffer
        deadline = time.monotonic() + DEADLINE_S
        while in_use() and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)
        assert in_use() == 0, in_use()


def refusals(group: expar.Group, card: Any) -> None:
    """Both ranks learn of one rank's error, and the buffer goes on. A wait_event that a stream makes happen."""
    shape = Shape(group.size, group.size * 2, 3, 64, 20, "f32")
    traffic = Traffic(shape, 6)
    rank = group.rank
    with card.lane() as lane, expar.Buffer(group, device=card.device, num_sms=2) as buffer:
        experts = traffic.topk_idx[rank].copy() if rank else numpy.full_like(traffic.topk_idx[rank], shape.experts)
        try:
            buffer.dispatch(card.put(traffic.x[rank]), card.put(experts), num_experts=shape.experts, **lane)
            raise AssertionError("a bad index is taken")
        except expar.Error as error:
            expected = expar.Status.ERR_REMOTE if rank else expar.Status.ERR_INDEX
            assert error.status == expected, error
        try:
            buffer.dispatch(traffic.x[rank], traffic.topk_idx[rank], num_experts=shape.experts, **lane)
            raise AssertionError("memory of the host's is taken")
        except expar.Error as error:
            assert error.status == expar.Status.ERR_DEVICE, error
        _exchange(card, buffer, traffic, lane)


# ---- low latency -----------------------------------------------------------------------------------------------------


def _ll_exchange(card: Any, buffer: expar.LowLatencyBuffer, traffic: Traffic, lane: dict[str, Any], hook: bool) -> None:
    rank = buffer.group.rank
    x, experts = card.put(traffic.x[rank], traffic.shape.dtype), card.put(traffic.topk_idx[rank])
    weights = card.put(traffic.weights[rank])
    done = buffer.dispatch(x, experts, weights, hook=hook, **lane)
    if done.hook is not None:
        done.hook(**lane)
    rows, tokens, counts = traffic.received_by_expert(rank)
    many = card.get(done.count)
    same(many, counts.sum(axis=1))
    same(card.get(done.handle.range), (counts.cumsum(axis=1) - counts) << 32 | counts)
    received, sources = card.get(done.x), card.get(done.handle.src_info)
    answers = numpy.zeros_like(received)
    for expert, expected in enumerate(rows):
        same(received[expert, : len(expected)], expected)
        same(sources[expert, : len(expected)], tokens[expert])
        answers[expert, : len(expected)] = traffic.answer(rank, expected)
    for kind in LlSum:
        sums = buffer.combine(
            card.put(answers, traffic.shape.dtype), experts, weights, done.handle, sum=kind, hook=hook, **lane
        )
        if sums.hook is not None:
            sums.hook(**lane)
        same(card.get(sums.y), traffic.weighted(rank, reduced=kind == LlSum.REDUCED))


def low_latency(group: expar.Group, card: Any) -> None:
    """Calls, and phases of calls, in both sums."""
    shape = Shape(group.size, group.size * 2, 3, 128, 12, "bf16")
    options: Any = dict(device=card.device, num_sms=2)
    with card.lane() as lane, expar.LowLatencyBuffer(group, 12, 128, 3, shape.experts, **options) as buffer:
        for seed in range(2):
            _ll_exchange(card, buffer, Traffic(shape, seed + 3, distinct=True), lane, hook=bool(seed))


def low_latency_fp8(group: expar.Group, card: Any) -> None:
    """Scales to the bit, values within half a step."""
    shape = Shape(group.size, group.size * 2, 3, 256, 12, "bf16")
    traffic = Traffic(shape, 8, distinct=True)
    rank = group.rank
    bits = numpy.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    magnitude = numpy.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    fp8 = numpy.where(bits > 127, -magnitude, magnitude).astype("float32")
    options: Any = dict(device=card.device, num_sms=2)
    with card.lane() as lane, expar.LowLatencyBuffer(group, 12, 256, 3, shape.experts, **options) as buffer:
        x, experts = card.put(traffic.x[rank], "bf16"), card.put(traffic.topk_idx[rank])
        done = buffer.dispatch(x, experts, format=LlFormat.FP8, **lane)
        values, scales = card.get(done.x), card.get(done.scales)
        assert done.x.dtype == expar.Dtype.F8E4M3 and done.scales.strides[1] == 1
        for expert, rows in enumerate(traffic.received_by_expert(rank)[0]):
            groups = to_float(rows, "bf16").reshape(len(rows), 2, 128)
            amax = numpy.maximum(numpy.abs(groups).max(axis=2), numpy.float32(1e-4))
            same(scales[expert, : len(rows)], amax / numpy.float32(448))
            plain = fp8[values[expert, : len(rows)]].reshape(groups.shape)
            error = numpy.abs(plain * scales[expert, : len(rows), :, None] - groups)
            assert (error <= numpy.abs(groups) / 16 * 1.001 + amax[:, :, None] * 2.0**-17).all()


def masks(group: expar.Group, card: Any) -> None:
    """Rank 1 is masked by the others, which are told so where tensors of calls lie, and is back after a clean."""
    shape = Shape(group.size, group.size * 2, 3, 128, 12, "bf16")
    traffic = Traffic(shape, 6, distinct=True)
    rank = group.rank
    x, experts = card.put(traffic.x[rank], "bf16"), card.put(traffic.topk_idx[rank])
    options: Any = dict(device=card.device, num_sms=2, masking=1)
    with card.lane() as lane, expar.LowLatencyBuffer(group, 12, 128, 3, shape.experts, **options) as buffer:

        def check_masked(wanted: int | None) -> None:
            status = card.empty(group.size, "int32")
            assert buffer.mask_query(status, **lane) is None
            same(card.get(status), [int(r == wanted) for r in range(group.size)])

        check_masked(None)
        _ll_exchange(card, buffer, traffic, lane, hook=False)
        if rank != 1:
            buffer.mask_set(1)
            check_masked(1)
            done = buffer.dispatch(x, experts, **lane)
            assert not (card.get(done.handle.range)[:, 1] & 0xFFFFFFFF).any()
        group.barrier()
        buffer.mask_clean()
        check_masked(None)
        _ll_exchange(card, buffer, traffic, lane, hook=True)


ALL = (normal, worst_case, layout, expert_major, allocators, refusals, low_latency, low_latency_fp8, masks)
