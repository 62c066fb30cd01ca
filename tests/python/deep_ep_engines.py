# SPDX-License-Identifier: Apache-2.0
"""Calls of `deep_ep` as engines make them, keyword by keyword, each with what has to come: a body an engine.

Arguments are omitted, positional or named exactly as in that engine; the layers around calls are not.
"""

from __future__ import annotations

from typing import Any

import torch
from deep_ep_elastic_calls import Options, check_plain_topk, check_rows
from deep_ep_elastic_reference import Elastic, World
from deep_ep_reference import BATCH, Shape, Traffic, here, ll_check, ll_traffic, same

import deep_ep
from deep_ep import Buffer, ElasticBuffer
from deep_ep.utils import EventHandle, EventOverlap

MOST = 9  # M


def _traffic(group: Any, seed: int) -> Traffic:
    return Traffic(Shape(group.size(), group.size() * 2, 2, 256, 20, torch.bfloat16), seed, distinct=True)


def _elastic(group: Any, seed: int, alignment: int = 1) -> Elastic:
    return Elastic(World(group.size(), group.size() * 2, 2, 64, MOST, alignment), seed)


def _sizes(group: Any, hidden_bytes: int) -> tuple[int, int]:
    """The engines' arguments of normal buffers."""
    num_nvl_bytes, num_rdma_bytes = 0, 0
    for config in (Buffer.get_dispatch_config(group.size()), Buffer.get_combine_config(group.size())):
        num_nvl_bytes = max(config.get_nvl_buffer_size_hint(hidden_bytes, group.size()), num_nvl_bytes)
        num_rdma_bytes = max(config.get_rdma_buffer_size_hint(hidden_bytes, group.size()), num_rdma_bytes)
    return num_nvl_bytes, num_rdma_bytes


def _check_received(
    traffic: Traffic, rank: int, x: Any, idx: Any, weights: Any, counts: Any, alignment: int = 1
) -> None:
    for one, other in zip((x, idx, weights), traffic.received(rank)):
        same(one, other)
    assert counts == traffic.per_expert(rank, alignment)


# ---- vLLM ------------------------------------------------------------------------------------------------------------


def vllm(group: Any) -> None:
    """Prefill with configs of the group's size, decode by hooks into memory of the engine's own. The second generation
    without waiting for counts, with rows after the last one masked."""
    traffic = _traffic(group, 61)
    rank, ranks, experts = group.rank(), group.size(), traffic.shape.experts
    buffer = Buffer(
        group=group, num_nvl_bytes=1 << 20, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24
    )
    buffer.set_num_sms(20)
    x, idx, weights = here((traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]))
    per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
        topk_idx=idx, num_experts=experts, previous_event=None, async_finish=False, allocate_on_comm_stream=False
    )
    recv_x, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(
        x=x,
        handle=None,
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=idx,
        topk_weights=weights,
        expert_alignment=1,
        config=Buffer.get_dispatch_config(ranks),
        previous_event=None,
        async_finish=True,
        allocate_on_comm_stream=False,
    )
    if event.event is not None:
        event.current_stream_wait()
    _check_received(traffic, rank, recv_x, recv_idx, recv_weights, counts)
    y, _, event = buffer.combine(
        x=traffic.answer(rank, recv_x),
        handle=handle,
        topk_weights=None,
        config=Buffer.get_combine_config(ranks),
        previous_event=None,
        async_finish=False,
        allocate_on_comm_stream=False,
    )
    assert event.event is None
    same(y, traffic.combined(rank)[0])
    _vllm_decode(group)
    _vllm_elastic(group)


def _vllm_decode(group: Any) -> None:
    ranks, rank = group.size(), group.rank()
    size = Buffer.get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank=BATCH, hidden=256, num_ranks=ranks, num_experts=ranks * 2
    )
    buffer = Buffer(
        group=group,
        num_nvl_bytes=1 << 20,
        num_rdma_bytes=size,
        low_latency_mode=True,
        num_qps_per_rank=2,
        allow_nvlink_for_low_latency_mode=True,
        allow_mnnvl=False,
    )
    traffic = ll_traffic(buffer, 62)
    x, idx, weights = here((traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]))
    for use_fp8, use_ue8m0 in ((True, False), (True, True), (False, False)):
        rows, count, handle, _, hook = buffer.low_latency_dispatch(
            x,
            idx,
            BATCH,
            ranks * 2,
            use_fp8=use_fp8,
            round_scale=use_ue8m0,
            use_ue8m0=use_ue8m0,
            async_finish=False,
            return_recv_hook=True,
        )
        hook()
        found = ll_check(traffic, rank, rows, count, handle, use_ue8m0)
        output = torch.empty_like(x)
        _, event, recv_hook = buffer.low_latency_combine(
            here(traffic.answer(rank, found)),
            idx,
            weights,
            handle,
            async_finish=False,
            zero_copy=False,
            return_recv_hook=True,
            out=output,
        )
        recv_hook()
        same(output, traffic.weighted(rank))


def _vllm_elastic(group: Any) -> None:
    e, rank = _elastic(group, 63), group.rank()
    buffer = ElasticBuffer(group, num_max_tokens_per_rank=MOST, hidden=64, num_topk=2, explicitly_destroy=True)
    x, idx, weights, handle, event = buffer.dispatch(
        here(e.x[rank]),
        topk_idx=here(e.topk_idx[rank]),
        topk_weights=here(e.weights[rank]),
        num_experts=e.world.experts,
        num_max_tokens_per_rank=MOST,
        async_with_compute_stream=False,
        do_handle_copy=False,
        do_cpu_sync=False,
    )
    assert event.event is None
    check_rows(e, rank, Options(synced=False), x, None)
    check_plain_topk(e, rank, idx, weights, False)
    came = handle.psum_num_recv_tokens_per_scaleup_rank[-1]  # in every mode
    idx.masked_fill_(torch.arange(len(idx), device=idx.device)[:, None] >= came, -1)
    check_plain_topk(e, rank, idx, weights, False)
    answers = [e.answers(r, e.worst(False), 3) for r in range(group.size())]
    y, _, _ = buffer.combine(here(answers[rank]), handle=handle, async_with_compute_stream=False)
    same(y, e.combined(rank, answers, False, True, ()))
    buffer.destroy()


# ---- SGLang ----------------------------------------------------------------------------------------------------------


def sglang(group: Any) -> None:
    """Prefill on the stream for communication, decode by hooks and by events, on one buffer with a clean between; the
    second generation, whose last reference is dropped."""
    rank, ranks, hidden_bytes = group.rank(), group.size(), 512
    num_nvl_bytes, num_rdma_bytes = _sizes(group, hidden_bytes)
    num_rdma_bytes = max(Buffer.get_low_latency_rdma_size_hint(BATCH, 256, ranks, ranks * 2), num_rdma_bytes)
    buffer = Buffer(group, num_nvl_bytes, num_rdma_bytes, low_latency_mode=True, num_qps_per_rank=2, allow_mnnvl=True)
    traffic = _traffic(group, 64)
    x, idx, weights = here((traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]))
    for asynchronous in (True, False):
        previous_event = Buffer.capture() if asynchronous else None
        per_rank, per_node, per_expert, in_rank, previous_event = buffer.get_dispatch_layout(
            idx,
            traffic.shape.experts,
            previous_event=previous_event,
            async_finish=asynchronous,
            allocate_on_comm_stream=previous_event is not None,
        )
        recv_x, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(
            x,
            topk_idx=idx,
            topk_weights=weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            previous_event=previous_event,
            async_finish=asynchronous,
            allocate_on_comm_stream=(previous_event is not None) and asynchronous,
            expert_alignment=128,
            config=Buffer.get_dispatch_config(ranks),
        )
        event.current_stream_wait() if asynchronous else ()
        _check_received(traffic, rank, recv_x, recv_idx, recv_weights, counts, 128)
        answers = traffic.answer(rank, recv_x)
        previous_event = Buffer.capture() if asynchronous else None  # after what is combined: no more is waited for
        y, _, event = buffer.combine(
            answers,
            handle,
            async_finish=asynchronous,
            previous_event=previous_event,
            allocate_on_comm_stream=previous_event is not None,
            config=Buffer.get_combine_config(ranks),
        )
        event.current_stream_wait() if asynchronous else ()
        same(y, traffic.combined(rank)[0])
    buffer.clean_low_latency_buffer(BATCH, 256, ranks * 2)
    _sglang_decode(buffer)
    _sglang_elastic(group)


def _sglang_decode(buffer: Any) -> None:
    traffic, rank = ll_traffic(buffer, 65), buffer.rank
    x, idx, weights = here((traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]))
    for by_hook in (True, False):
        rows, count, handle, event, hook = buffer.low_latency_dispatch(
            x,
            idx,
            BATCH,
            traffic.shape.experts,
            use_fp8=True,
            async_finish=not by_hook,
            return_recv_hook=by_hook,
            round_scale=False,
            use_ue8m0=False,
        )
        hook() if by_hook else event.current_stream_wait()
        found = ll_check(traffic, rank, rows, count, handle)
        y, event, hook = buffer.low_latency_combine(
            x=here(traffic.answer(rank, found)),
            topk_idx=idx,
            topk_weights=weights,
            handle=handle,
            async_finish=not by_hook,
            return_recv_hook=by_hook,
            overlap=False,
            packed_recv_count=None,
            comp_signal=None,
            block_m=64,
            threshold=0,
            num_sms=None,
        )
        hook() if by_hook else event.current_stream_wait()
        same(y, traffic.weighted(rank))


def _sglang_elastic(group: Any) -> None:
    e, rank = _elastic(group, 66, 4), group.rank()
    buffer: Any = ElasticBuffer(
        group, num_bytes=ElasticBuffer.get_buffer_size_hint(group, MOST, 64, num_topk=2, use_fp8_dispatch=True)
    )
    options = Options(True, True, True, column_major=True)
    x, none, weights, handle, _ = buffer.dispatch(
        here((e.fp8[rank], e.scales[rank])),
        topk_idx=here(e.topk_idx[rank]),
        topk_weights=here(e.weights[rank]),
        num_experts=e.world.experts,
        num_max_tokens_per_rank=MOST,
        expert_alignment=4,
        do_expand=True,
        do_cpu_sync=True,
        use_tma_aligned_col_major_sf=True,
    )
    assert none is None and handle.num_recv_tokens_per_expert_list == e.aligned(rank)
    check_rows(e, rank, options, x, weights)
    answers = [e.answers(r, len(e.expanded(r)), 4) for r in range(group.size())]
    y, _, event = buffer.combine(here(answers[rank]), handle, async_with_compute_stream=True)
    del buffer, x
    event.current_stream_wait()
    same(y, e.combined(rank, answers, True, True, ()))


# ---- Megatron-LM -----------------------------------------------------------------------------------------------------


class _Dispatch(torch.autograd.Function):
    """Forward a dispatch, backward a combine with weights; the handle is an attribute of autograd's context."""

    @staticmethod
    def forward(ctx: Any, buffer: Any, x: Any, indices: Any, probs: Any, num_experts: int, wanted: Any) -> Any:
        previous_event = EventOverlap(EventHandle())
        per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
            indices, num_experts, previous_event=previous_event, async_finish=True, allocate_on_comm_stream=True
        )
        recv_x, recv_indices, recv_probs, counts, handle, after = buffer.dispatch(
            x,
            topk_idx=indices,
            topk_weights=probs,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            previous_event=event,
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        after.current_stream_wait()
        _check_received(wanted, buffer.rank, recv_x, recv_indices, recv_probs, counts)
        ctx.buffer, ctx.handle = buffer, handle
        ctx.mark_non_differentiable(recv_indices)
        return recv_x, recv_indices, recv_probs, handle

    @staticmethod
    def backward(ctx: Any, grad: Any, _indices: Any, grad_probs: Any, _handle: Any) -> Any:  # type: ignore[override]
        grad_x, grad_weights, after = ctx.buffer.combine(
            grad.contiguous(),
            ctx.handle,
            topk_weights=grad_probs.float(),
            previous_event=EventOverlap(EventHandle()),
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        after.current_stream_wait()
        return None, grad_x, None, grad_weights, None, None


class _Combine(torch.autograd.Function):
    """Forward a combine, backward a dispatch with its handle."""

    @staticmethod
    def forward(ctx: Any, buffer: Any, x: Any, handle: Any) -> Any:
        y, _, after = buffer.combine(
            x,
            handle=handle,
            async_finish=False,
            previous_event=None,
            allocate_on_comm_stream=False,
        )
        ctx.buffer, ctx.handle = buffer, handle
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        grad_x, _, _, _, _, after = ctx.buffer.dispatch(
            grad.contiguous(),
            handle=ctx.handle,
            previous_event=None,
            async_finish=False,
            allocate_on_comm_stream=False,
        )
        return None, grad_x, None


def megatron(group: Any) -> None:
    """Both calls as functions of autograd, in both directions; one buffer that is kept while it is large enough."""
    num_nvl_bytes, num_rdma_bytes = _sizes(group, 512)
    buffer = Buffer(group, num_nvl_bytes, num_rdma_bytes)
    assert buffer.group is group
    assert buffer.num_nvl_bytes >= num_nvl_bytes and buffer.num_rdma_bytes >= num_rdma_bytes
    traffic, rank = _traffic(group, 67), group.rank()
    x = here(traffic.x[rank]).requires_grad_()
    probs = here(traffic.weights[rank]).requires_grad_()
    recv_x, recv_idx, recv_probs, handle = _Dispatch.apply(
        buffer, x, here(traffic.topk_idx[rank]), probs, traffic.shape.experts, traffic
    )
    y = _Combine.apply(buffer, traffic.answer(rank, recv_x), handle)
    same(y.detach(), traffic.combined(rank)[0])
    (y.float().sum() + (2 * recv_probs).masked_fill(recv_idx < 0, 0).sum()).backward()
    slots = traffic.topk_idx[rank]
    same(probs.grad, 2.0 * (slots >= 0))
    # Each rank that has the token makes 1 + its own factor of a gradient of ones.
    ones = torch.ones_like(traffic.x[rank])
    grads = [traffic.answer(r, ones) * traffic.goes_to(rank, r)[:, None] for r in range(group.size())]
    same(x.grad, torch.stack(grads).float().sum(0).bfloat16())


# ---- torchtitan ------------------------------------------------------------------------------------------------------


def torchtitan(group: Any) -> None:
    """All by keywords, on the stream for communication; handles are kept in a dict by numbers, which tensors carry. The
    second generation is announced to be destroyed, and never is."""
    Buffer.set_num_sms(20)
    buffer = Buffer(group, *_sizes(group, 512))
    traffic, rank = _traffic(group, 68), group.rank()
    idx = here(traffic.topk_idx[rank])
    handles: dict[int, Any] = {}
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(
        topk_idx=idx, num_experts=traffic.shape.experts
    )
    recv_x, recv_idx, recv_scores, counts, handle, after = buffer.dispatch(
        x=here(traffic.x[rank]),
        topk_idx=idx,
        topk_weights=here(traffic.weights[rank]).to(torch.float32),
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        previous_event=EventOverlap(EventHandle()),
        async_finish=True,
        allocate_on_comm_stream=True,
    )
    after.current_stream_wait()
    number = torch.tensor([len(handles)], dtype=torch.int64, device="cpu")
    handles[int(number.item())] = handle
    del handle
    _check_received(traffic, rank, recv_x, recv_idx, recv_scores, counts)
    y, _, after = buffer.combine(
        x=traffic.answer(rank, recv_x),
        handle=handles[int(number.item())],
        previous_event=EventOverlap(EventHandle()),
        async_finish=True,
        allocate_on_comm_stream=True,
    )
    after.current_stream_wait()
    same(y, traffic.combined(rank)[0])
    handles.clear()

    e = _elastic(group, 69, 8)
    elastic = ElasticBuffer(
        group, num_max_tokens_per_rank=MOST, hidden=64, num_topk=2, allow_hybrid_mode=False, explicitly_destroy=True
    )
    rows, _, gates, way, event = elastic.dispatch(
        x=here(e.x[rank]),
        topk_idx=here(e.topk_idx[rank]),
        topk_weights=here(e.weights[rank]),
        num_experts=e.world.experts,
        num_max_tokens_per_rank=MOST,
        expert_alignment=8,
        async_with_compute_stream=True,
        do_expand=True,
        do_zero_padding=True,
    )
    event.current_stream_wait()
    check_rows(e, rank, Options(True, padding=True), rows, gates)
    answers = [e.answers(r, len(e.expanded(r)), 5) for r in range(group.size())]
    y, _, event = elastic.combine(x=here(answers[rank]), handle=way, async_with_compute_stream=True)
    event.current_stream_wait()
    same(y, e.combined(rank, answers, True, True, ()))
    elastic.explicitly_destroy = False  # the warning is another test's


# ---- DeepSpeed -------------------------------------------------------------------------------------------------------


def deepspeed(group: Any) -> None:
    """An expanded handle is replayed without do_expand, and gives plain rows; weights come back by their owners."""
    e, rank = _elastic(group, 70), group.rank()
    buffer = ElasticBuffer(group, num_max_tokens_per_rank=MOST, hidden=64)
    _, _, gates, handle, _ = buffer.dispatch(
        here(e.x[rank]), here(e.topk_idx[rank]), here(e.weights[rank]), num_experts=e.world.experts, do_expand=True
    )
    plain, idx, _, same_handle, _ = buffer.dispatch(here(e.x[rank]), handle=handle)
    assert same_handle is handle
    check_rows(e, rank, Options(), plain, None)
    check_plain_topk(e, rank, idx, None, True)
    answers = [e.answers(r, len(e.expanded(r)), 6) for r in range(group.size())]
    given = [e.back_weights(r, (len(e.expanded(r)),), 6) for r in range(group.size())]
    y, weights, _ = buffer.combine(here(answers[rank]), handle, topk_weights=here(given[rank]))
    same(y, e.combined(rank, answers, True, True, ()))
    same(weights, e.combined_weights(rank, given, True))


ENGINES = (vllm, sglang, megatron, torchtitan, deepspeed)
assert deep_ep.topk_idx_t is torch.int64  # what engines make their indices of
