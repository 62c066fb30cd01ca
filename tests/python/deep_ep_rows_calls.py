# SPDX-License-Identifier: Apache-2.0
"""Bodies for ranks test low-latency dispatches with NVFP4 rows, and with the weight and the source of each row. They
also test combines that wait for signals."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any, Callable

import torch
from deep_ep_reference import BATCH, here, ll_check, ll_traffic, place, same

import deep_ep

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
REST_S = 0.02
HOWS: tuple[dict[str, Any], ...] = ({}, dict(return_recv_hook=True), dict(async_finish=True))


def finish(event: Any, hook: Any) -> None:
    if hook is not None:
        hook()
    with event:
        pass


def nearest(value: float) -> float:
    """The number of e2m1 that is nearest; of two the one with an even code."""
    size = min(abs(value), 6.0)
    best = min(range(8), key=lambda code: (abs(E2M1[code] - size), code % 2))
    return E2M1[best]


def reference(x: torch.Tensor, g: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Sizes of the codes' values [T, H], and scales e4m3 [T, H/16], element by element from the definition."""
    blocks = x.float().view(x.shape[0], -1, 16)
    wide = torch.tensor(g)
    scales = (wide * blocks.abs().amax(dim=2) / 6).clamp(max=448).to(torch.float8_e4m3fn)
    sizes = torch.zeros(blocks.shape)
    for t, b in itertools.product(range(blocks.shape[0]), range(blocks.shape[1])):
        s = scales[t, b].float()
        if s != 0:
            for i in range(16):
                sizes[t, b, i] = nearest(float(blocks[t, b, i] * wide / s))
    return sizes.view(x.shape), scales


def values_of(codes: torch.Tensor) -> torch.Tensor:
    """[..., H] of codes [..., H/2]"""
    table = torch.tensor([*E2M1, *(-each for each in E2M1)])
    return torch.stack((table[(codes & 15).long()], table[(codes >> 4).long()]), dim=-1).flatten(-2)


def ll_rows(traffic: Any, rank: int) -> torch.Tensor:
    """The rows that come, [L, N*B, H], with zeros after them."""
    expected, _, _ = traffic.received_by_expert(rank)
    found = torch.zeros((traffic.local, traffic.shape.ranks * BATCH, traffic.shape.hidden), dtype=traffic.shape.dtype)
    for expert, each in enumerate(expected):
        found[expert, : len(each)] = each
    return found


def nvfp4_rows(buffer: Any) -> None:
    """Rows that came are those of the definition, in the layouts of the interface, whatever the way of the call."""
    traffic, rank = ll_traffic(buffer, 8), buffer.rank
    expected, _, _ = traffic.received_by_expert(rank)
    x, idx, weights = here((traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]))
    for how, g in itertools.product(HOWS, (1.0, 37.5)):
        (codes, scales), count, handle, event, hook = buffer.low_latency_dispatch(
            x, idx, BATCH, traffic.shape.experts, use_fp8=False, use_nvfp4=True, x_global_scale=here(torch.tensor([g])),
            **how,
        )
        finish(event, hook)
        rows, hidden, local = buffer.group_size * BATCH, traffic.shape.hidden, traffic.local
        assert (codes.shape, codes.dtype) == ((rows, hidden // 2, local), torch.uint8)
        assert codes.permute(2, 0, 1).is_contiguous()
        tiles = -(-rows // 128)
        assert scales.shape == (32, 4, tiles, 4, -(-hidden // 64), local)
        assert scales.permute(5, 2, 4, 0, 1, 3).is_contiguous()
        codes, scales, count = codes.cpu(), scales.cpu().float(), count.cpu()
        for expert, each in enumerate(expected):
            sizes, wanted = reference(each, g)
            n = len(each)
            assert int(count[expert]) == n
            values = values_of(codes[:n, :, expert])
            same(values.abs(), sizes)
            assert ((values <= 0) | (each >= 0)).all() and ((values >= 0) | (each <= 0)).all()
            for r, b in itertools.product(range(n), range(hidden // 16)):
                found = scales[r % 32, r % 128 // 32, r // 128, b % 4, b // 4, expert]
                assert float(found) == float(wanted[r, b])
            error = values * wanted.float().repeat_interleave(16, dim=1) / g - each.float()
            largest = each.float().view(n, -1, 16).abs().amax(dim=2).repeat_interleave(16, dim=1)
            assert (error.abs() <= largest * 0.25 + 1e-6).all()  # half of the widest gap, and the scale's rounding
        y = buffer.low_latency_combine(here(traffic.answer(rank, ll_rows(traffic, rank))), idx, weights, handle)[0]
        same(y, traffic.weighted(rank))


def check_weights(buffer: Any, traffic: Any, made_of: Callable[..., Any], how: dict[str, Any]) -> None:
    rank = buffer.rank
    rows, count, weights, sources, handle, event, hook = made_of(**how)
    finish(event, hook)
    found = ll_check(traffic, rank, rows, count, handle)
    assert weights.shape == sources.shape == handle[0].shape
    assert (weights.dtype, sources.dtype) == (torch.float32, torch.int32)
    for expert in range(traffic.local):
        wanted = []
        for source, idx in enumerate(traffic.topk_idx):
            for token, slot in (idx == rank * traffic.local + expert).nonzero().tolist():
                wanted.append((source, float(traffic.weights[source][token, slot])))
        n = len(wanted)
        assert int(count[expert]) == n
        assert list(zip(sources[expert, :n].tolist(), weights[expert, :n].tolist())) == wanted
        assert (sources[expert, n:] == -1).all() and not weights[expert, n:].any()
    given = here((traffic.answer(rank, found), traffic.topk_idx[rank], traffic.weights[rank]))
    y = buffer.low_latency_combine(*given, handle)[0]
    same(y, traffic.weighted(rank))


def weights_in_orders(buffer: Any) -> None:
    """By keyword, and fifth by position; further arguments by position or by keyword."""
    traffic, rank = ll_traffic(buffer, 9), buffer.rank
    first = *here((traffic.x[rank], traffic.topk_idx[rank])), BATCH, traffic.shape.experts
    weights = here(traffic.weights[rank])
    stats = here(torch.zeros(traffic.local, dtype=torch.int32))
    waits = here(torch.zeros(buffer.group_size, dtype=torch.int64))
    dispatch = buffer.low_latency_dispatch
    for how in HOWS:
        flags = how.get("async_finish", False), how.get("return_recv_hook", False)
        for call in (
            lambda **how: dispatch(*first, topk_weights=weights, use_fp8=False, **how),
            lambda **how: dispatch(*first, weights, use_fp8=False, **how),
            lambda **how: dispatch(*first, weights, stats, waits, use_fp8=False, **how),
            lambda **how: dispatch(*first, weights, stats, waits, None, False, False, False, False, False, *flags),
        ):
            check_weights(buffer, traffic, call, how)
    same(stats, 6 * torch.tensor([len(each) for each in traffic.received_by_expert(rank)[0]]).int())


def aside() -> Any:
    """Work of this block does not wait for that of other threads' streams."""
    on_gpu = place["device"] != "cpu"
    # A new thread's current GPU is number 0.
    return torch.cuda.stream(torch.cuda.Stream(place["device"])) if on_gpu else contextlib.nullcontext()


def late_rows(buffer: Any) -> None:
    """A GEMM, for which a thread stands, writes rows expert by expert after the combine was called. Each expert's
    signal comes after its rows, and nothing is reset."""
    traffic, rank, block_m = ll_traffic(buffer, 5), buffer.rank, 5
    x, idx, weights = here((traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]))
    for how, by_expert in itertools.product(HOWS, (True, False)):
        rows, count, handle, event, hook = buffer.low_latency_dispatch(
            x, idx, BATCH, traffic.shape.experts, use_fp8=False, **how
        )
        finish(event, hook)
        found = ll_check(traffic, rank, rows, count, handle)
        answers, late = here(traffic.answer(rank, found)), here(torch.full_like(found, 9.0))
        blocks = 1 if by_expert else -(-found.shape[1] // block_m)
        words = here(torch.full((traffic.local * blocks,), 3, dtype=torch.int32))
        due = [1 if by_expert else -(-int(each) // block_m) for each in count.cpu()]
        called = threading.Event()

        def write(rows: Any, signals: Any) -> None:
            for expert in reversed(range(traffic.local)):
                rows[expert].copy_(answers[expert])
                signals[expert * blocks : expert * blocks + due[expert]].fill_(7)

        def compute() -> None:
            called.wait(REST_S)
            with aside():
                write(late, words)

        # CUDA loads a kernel when it is first launched, and that may wait for kernels that run: for those that wait for
        # the signals, too.
        write(late.clone(), words.clone())

        signals: Any = dict(src_signals=words.view(torch.uint32), src_signal_expect_value=7)
        if not by_expert:
            signals = dict(packed_recv_count=count, comp_signal=words, block_m=block_m, threshold=7)
        worker = threading.Thread(target=compute)
        worker.start()
        y, event, hook = buffer.low_latency_combine(late, idx, weights, handle, overlap=True, **signals, **how)
        called.set()
        worker.join()
        finish(event, hook)
        same(y, here(traffic.weighted(rank)))
        assert int((words == 7).sum()) == sum(due) and int((words == 3).sum()) == words.numel() - sum(due)


def more_rows(group: Any) -> None:
    """Both, on a buffer of that group."""
    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    nvfp4_rows(buffer)
    weights_in_orders(buffer)
    late_rows(buffer)
