# SPDX-License-Identifier: Apache-2.0
"""Joint work of ranks of `deep_ep`: a program for torchrun, and bodies for threads.

As a program: `deep_ep_ranks.py [STEPS [soak]]`. Every rank does all of it in groups of 2, 4 and 8, of which the last
may be two nodes. Or it makes the many steps alone in those of 2, and leaves without an end.
"""

from __future__ import annotations

import copy
import gc
import os
import sys
from typing import Any, Callable

import torch
import torch.distributed as dist
from deep_ep_engines import ENGINES
from deep_ep_reference import BATCH, Shape, Traffic, here, indexable, ll_check, ll_traffic, place, quantised, same

import deep_ep


def fresh(buffer: Any, traffic: Traffic, **options: Any) -> Any:
    """A dispatch of that traffic, after its layout."""
    rank, shape = buffer.rank, traffic.shape
    topk_idx = here(traffic.topk_idx[rank])
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, shape.experts)
    x = options.pop("x", traffic.x[rank])
    given: dict[str, Any] = dict(topk_idx=topk_idx, topk_weights=here(traffic.weights[rank]))
    given.update(options)
    x = here(x)
    if given.get("previous_event") is not None:
        given["previous_event"] = buffer.capture()  # after the layout
    return buffer.dispatch(
        x,
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        **given,
    )


# ---- normal mode -----------------------------------------------------------------------------------------------------


def exchange(buffer: Any, traffic: Traffic, step: int) -> None:
    """Layout, a dispatch and its combine, and a dispatch with the handle."""
    rank, shape = buffer.rank, traffic.shape
    per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
        here(traffic.topk_idx[rank]), shape.experts
    )
    nodes = buffer.runtime.get_num_rdma_ranks()
    assert event.event is None and (per_node is None) == (nodes == 1)
    if per_node is not None:
        same(per_node, traffic.layout(rank)[2].view(-1, nodes, shape.ranks // nodes).any(2).sum(0).int())
    for one, other in zip((per_rank, per_expert, in_rank), traffic.layout(rank)):
        same(one, other)
    expected_x, expected_idx, expected_weights = traffic.received(rank)
    async_finish, alignment = step % 2 == 1, (1, 1, 8)[step % 3]
    worst = len(expected_x) + 5 if step % 4 == 3 else 0
    recv_x, idx, weights, counts, handle, event = fresh(
        buffer,
        traffic,
        expert_alignment=alignment,
        num_worst_tokens=worst,
        async_finish=async_finish,
        previous_event=buffer.capture() if async_finish else None,
        allocate_on_comm_stream=async_finish,
    )
    assert isinstance(event, deep_ep.EventOverlap)
    if async_finish:
        event.current_stream_wait()
    rows = len(expected_x)
    assert len(recv_x) == (worst or rows)
    same(recv_x[:rows], expected_x)
    same(idx[:rows], expected_idx)
    same(weights[:rows], expected_weights)
    assert (idx[rows:] == -1).all()
    assert counts == ([] if worst else traffic.per_expert(rank, alignment))
    check_handle(handle, in_rank, traffic.prefix(rank), rank, nodes)

    answers = traffic.answer(rank, recv_x)
    biases = [torch.full_like(traffic.x[rank], 0.5), torch.full_like(traffic.x[rank], -2.0)][: step % 3]
    bias = here((None, biases[0] if biases else None, tuple(biases))[len(biases)])
    y, sums, event = buffer.combine(answers, handle, weights, bias, async_finish=async_finish)
    del answers  # the call keeps what it needs
    with event:
        pass
    for one, other in zip((y, sums), traffic.combined(rank, tuple(biases), nodes)):
        same(one, other)

    again, *nothing, event = buffer.dispatch(here(traffic.x[rank]), handle=handle, async_finish=async_finish)
    with event:
        pass
    assert nothing == [None] * 4
    same(again[:rows], expected_x)
    y, sums, _ = buffer.combine(traffic.answer(rank, again), handle)
    assert sums is None
    same(y, traffic.combined(rank, (), nodes)[0])


def check_handle(handle: Any, in_rank: Any, prefix: Any, rank: int, nodes: int) -> None:
    """The attributes that engines read. prefix: of rows from ranks 0..i."""
    assert all(isinstance(each, torch.Tensor) for each in handle)
    assert len({each.data_ptr() for each in handle if each.numel()}) == sum(each.numel() > 0 for each in handle)
    if nodes > 1:
        assert len(handle) == 10
        same(handle[0], in_rank)
        same(handle[-4], prefix)
        return
    assert len(handle) == 6
    assert handle[0].shape == (len(prefix), len(prefix)) and handle[0][-1][rank].item() == prefix[-1]
    same(handle[0][:, rank], prefix)
    same(handle[4], in_rank)


def normal(group: Any, number: int = 10, first: int = 0) -> None:
    """Random shapes."""
    buffer = deep_ep.Buffer(group, 1 << 20)
    random = torch.Generator().manual_seed(17 + buffer.group_size + first)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    for step in range(first, first + number):
        shape = Shape(
            ranks=buffer.group_size,
            experts=buffer.group_size * draw(1, 5),
            topk=draw(1, 9),
            hidden=8 * draw(1, 40),
            tokens=draw(1, 40),
            dtype=(torch.bfloat16, torch.float32, torch.float16)[step % 3],
            index=(torch.int64, torch.int64, torch.int32)[step % 3],
        )
        exchange(buffer, Traffic(shape, step), step)


def pairs(group: Any) -> None:
    """Rows with scales of any strides, carried bit for bit, with a handle, too."""
    buffer = deep_ep.Buffer(group)
    rank = buffer.rank
    traffic = Traffic(Shape(buffer.group_size, buffer.group_size * 2, 3, 256, 20), 5)
    fp8 = [quantised(x, False) for x in traffic.x]
    packed = [torch.arange(x.shape[0] * 3, dtype=torch.int32).view(3, -1).t() for x in traffic.x]
    for scales in ([scales for _, scales in fp8], packed):
        (recv_x, recv_scales), _, _, _, handle, _ = fresh(buffer, traffic, x=(fp8[rank][0], scales[rank]))
        others = [traffic.goes_to(source, rank) for source in range(buffer.group_size)]
        for _ in range(2):
            same(indexable(recv_x), torch.cat([indexable(q)[tokens] for (q, _), tokens in zip(fp8, others)]))
            same(recv_scales, torch.cat([each[tokens] for each, tokens in zip(scales, others)]))
            assert recv_scales.is_contiguous()
            recv_x, recv_scales = buffer.dispatch(here((fp8[rank][0], scales[rank])), handle=handle)[0]


def by_hand(group: Any) -> None:
    """A routing made by hand, without top-k."""
    buffer = deep_ep.Buffer(group)
    rank, size = buffer.rank, buffer.group_size
    x = [torch.arange(6 * 8).view(6, 8).float() + 100 * r for r in range(size)]
    in_rank = [(torch.arange(6)[:, None] + torch.arange(size) + r) % 3 == 0 for r in range(size)]
    per_expert = torch.full((size * 2,), rank + 1, dtype=torch.int32)
    recv_x, idx, weights, counts, handle, _ = buffer.dispatch(
        here(x[rank]),
        num_tokens_per_rank=here(in_rank[rank].sum(0).int()),
        is_token_in_rank=here(in_rank[rank]),
        num_tokens_per_expert=here(per_expert),
    )
    same(recv_x, torch.cat([x[r][in_rank[r][:, rank]] for r in range(size)]))
    assert idx is None and weights is None and counts == [size * (size + 1) // 2] * 2
    y = buffer.combine(recv_x, handle)[0]
    same(y, x[rank] * in_rank[rank].sum(1, keepdim=True))


def handles(group: Any) -> None:
    """A handle goes through autograd's context, a dict, unpacking and operators, and serves later buffers."""
    traffic = Traffic(Shape(dist.get_world_size(group), dist.get_world_size(group), 2, 32, 20), 9)

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, *handle: Any) -> Any:
            ctx.save_for_backward(*handle)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
            buffer = deep_ep.Buffer(group)
            return (buffer.combine(grad.contiguous(), ctx.saved_tensors)[0].sum().expand_as(grad), *[None] * len(ctx.saved_tensors))

    buffer = deep_ep.Buffer(group)
    rank = buffer.rank
    recv_x, _, _, _, handle, _ = fresh(buffer, traffic)
    kept = {"first": handle[0], "others": list(handle[1:])}
    wanted = traffic.combined(rank, (), buffer.runtime.get_num_rdma_ranks())[0]
    x = torch.zeros_like(recv_x, requires_grad=True)
    y = Keeps.apply(x, *handle)
    del buffer, handle
    gc.collect()
    later = deep_ep.Buffer(group)
    for _ in range(2):
        same(later.combine(traffic.answer(rank, recv_x), (kept["first"], *kept["others"]))[0], wanted)
    del kept
    gc.collect()
    y.sum().backward()
    count = later.combine(torch.ones_like(recv_x), fresh(later, traffic)[4])[0].sum()
    assert x.grad is not None and (x.grad == count).all()
    numbers["of operators"] = later
    rows, *carried = torch.ops.deep_ep_test.dispatch(
        here(traffic.x[rank]), here(traffic.topk_idx[rank]), traffic.shape.experts
    )
    same(rows, recv_x)
    same(torch.ops.deep_ep_test.combine(traffic.answer(rank, rows), carried), wanted)
    numbers.clear()


numbers: dict[str, Any] = {}  # the buffer that operators work on


# Not by torch.library.custom_op, whose operators load all of PyTorch's compiler, in each rank.
operators = torch.library.Library("deep_ep_test", "FRAGMENT")
operators.define("dispatch(Tensor x, Tensor topk_idx, int num_experts) -> Tensor[]")
operators.define("combine(Tensor x, Tensor[] handle) -> Tensor")


def dispatch_operator(x: torch.Tensor, topk_idx: torch.Tensor, num_experts: int) -> list[torch.Tensor]:
    buffer = numbers["of operators"]
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, num_experts)
    rows, _, _, _, handle, _ = buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, topk_idx)
    return [rows, *handle]


def combine_operator(x: torch.Tensor, handle: list[torch.Tensor]) -> torch.Tensor:
    y: torch.Tensor = numbers["of operators"].combine(x, tuple(handle))[0]
    return y


operators.impl("dispatch", dispatch_operator, "CompositeExplicitAutograd")
operators.impl("combine", combine_operator, "CompositeExplicitAutograd")


# ---- low latency -----------------------------------------------------------------------------------------------------


def ll_finish(event: Any, hook: Any) -> None:
    if hook is not None:
        hook()
    with event:
        pass


def low_latency(group: Any, number: int = 6) -> None:
    """Formats, hooks, events, zero copy, and memory of the caller's; two combines of one handle."""
    buffer = deep_ep.Buffer(group, 0, 1 << 20, low_latency_mode=True)
    rank, size = buffer.rank, buffer.group_size
    buffer.clean_low_latency_buffer(BATCH, 256, size * 2)
    rows_so_far = here(torch.zeros(2, dtype=torch.int32))
    waits = [here(torch.zeros(size, dtype=torch.int64)) for _ in range(2)]
    for step in range(number):
        traffic = ll_traffic(buffer, 40 + step)
        x, idx, weights = here((traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]))
        how = ({}, {"return_recv_hook": True}, {"async_finish": True})[step % 3]
        fp8 = step % 4
        rows, count, handle, event, hook = buffer.low_latency_dispatch(
            x, idx, BATCH, size * 2, rows_so_far, waits[0], fp8 > 0, fp8 > 1, fp8 > 2, **how
        )
        assert (hook is not None) == ("return_recv_hook" in how)
        assert (event.event is not None) == ("async_finish" in how)
        ll_finish(event, hook)
        found = ll_check(traffic, rank, rows, count, handle, fp8 > 1)
        answers = here(traffic.answer(rank, found))
        y, event, hook = buffer.low_latency_combine(
            answers, idx, weights, handle, combine_wait_recv_cost_stats=waits[1], **how
        )
        ll_finish(event, hook)
        same(y, traffic.weighted(rank))
        out = torch.full_like(x, 7)
        region = buffer.get_next_low_latency_combine_buffer(handle)
        assert region.data_ptr() == buffer.get_next_low_latency_combine_buffer(handle).data_ptr()
        region[:] = answers
        y, event, hook = buffer.low_latency_combine(
            torch.zeros_like(answers), idx, weights, handle, zero_copy=True, out=out, **how
        )
        ll_finish(event, hook)
        assert y is out
        same(out, traffic.weighted(rank))
        y, event, hook = buffer.low_latency_combine(answers / 64, idx, weights, handle, use_logfmt=True, **how)
        ll_finish(event, hook)
        torch.testing.assert_close(y.cpu().float(), traffic.weighted(rank).float() / 64, rtol=0.05, atol=0.05)
    wanted = [
        [len(each) for each in ll_traffic(buffer, 40 + step).received_by_expert(rank)[0]] for step in range(number)
    ]
    same(rows_so_far, torch.tensor(wanted).sum(0).int())
    assert all((each >= 0).all() and each[rank] == 0 for each in waits)


def micro_batches(group: Any) -> None:
    """Two micro-batches in turn: the rows of one are on their way while the other computes."""
    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    rank = buffer.rank
    both = [ll_traffic(buffer, seed) for seed in (3, 4)]
    for _ in range(4):
        sent = [
            buffer.low_latency_dispatch(
                *here((t.x[rank], t.topk_idx[rank])), BATCH, t.shape.experts, use_fp8=False, return_recv_hook=True
            )
            for t in both
        ]
        back = []
        for traffic, (rows, count, handle, _, hook) in zip(both, sent):
            hook()
            answers = here(traffic.answer(rank, ll_check(traffic, rank, rows, count, handle)))
            back.append(
                buffer.low_latency_combine(
                    answers, *here((traffic.topk_idx[rank], traffic.weights[rank])), handle, return_recv_hook=True
                )
            )
            del answers
        for traffic, (y, _, hook) in reversed(list(zip(both, back))):
            hook()
            same(y, traffic.weighted(rank))


def masks(group: Any) -> None:
    """Rank 1 is masked by the others, before they have made a call and between calls: they go on without it, and it is
    back after a clean. The status is told where tensors of calls lie, and on the host."""
    buffer = deep_ep.Buffer(group, low_latency_mode=True, enable_shrink=True)
    traffic = ll_traffic(buffer, 6)
    rank, size, experts = buffer.rank, buffer.group_size, traffic.shape.experts
    x, idx, weights = here((traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]))
    without = copy.copy(traffic)  # what goes to rank 1 goes nowhere
    without.topk_idx = [torch.where(each // traffic.local == 1, -1, each) for each in traffic.topk_idx]

    def check_masked(*wanted: int) -> None:
        for status in (torch.full((size,), 9, dtype=torch.int32), here(torch.full((size,), 9, dtype=torch.int32))):
            buffer.low_latency_query_mask_buffer(status)
            same(status, torch.tensor([int(r in wanted) for r in range(size)], dtype=torch.int32))

    def exchange() -> tuple[Any, Any]:
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, BATCH, experts, use_fp8=False)
        answers = traffic.answer(rank, rows)
        return buffer.low_latency_combine(answers, idx, weights, handle)[0], handle[1]

    check_masked()
    if rank != 1:
        buffer.low_latency_update_mask_buffer(1, True)  # of buffers that are to come
        check_masked(1)
        buffer.low_latency_update_mask_buffer(1)
        check_masked()
    same(exchange()[0], traffic.weighted(rank))
    if rank != 1:
        buffer.low_latency_update_mask_buffer(1, True)
        check_masked(1)
        y, spans = exchange()
        same(y, without.weighted(rank))
        assert not (spans[:, 1] & 0xFFFFFFFF).any()
    buffer._group.barrier()
    buffer.low_latency_clean_mask_buffer()
    check_masked()
    same(exchange()[0], traffic.weighted(rank))


# ---- a layer ---------------------------------------------------------------------------------------------------------


def layer(group: Any) -> None:
    """Forward and backward of an MoE layer against the dense computation in float64."""
    from moe import MoeLayer

    buffer = deep_ep.Buffer(group)
    rank, size = buffer.rank, buffer.group_size
    hidden, inner, experts, topk, tokens = 32, 48, size * 2, 2, 25
    torch.manual_seed(23)
    x = torch.randn((size, tokens, hidden))
    router = torch.randn((experts, hidden))
    up, down = torch.randn((experts, hidden, inner)) / hidden**0.5, torch.randn((experts, inner, hidden)) / inner**0.5
    grad = torch.randn((size, tokens, hidden))

    moe = MoeLayer(buffer, hidden, inner, experts, topk).to(place["device"])
    own = slice(rank * 2, rank * 2 + 2)
    with torch.no_grad():
        moe.router.weight.copy_(router)
        moe.experts.up.copy_(up[own])
        moe.experts.down.copy_(down[own])
    mine = here(x[rank]).clone().requires_grad_()
    y = moe(mine)
    (y * here(grad[rank])).sum().backward()  # a gradient given to backward() loads half of PyTorch's compiler

    wide = [each.double().requires_grad_() for each in (x, router, up, down)]
    scores = torch.softmax(wide[0] @ wide[1].t(), dim=-1)
    weights, chosen = torch.topk(scores, topk)
    dense = torch.zeros(x.shape, dtype=torch.float64)
    for expert in range(experts):
        weight = torch.where(chosen == expert, weights, 0.0).sum(-1, keepdim=True)
        out = torch.nn.functional.silu(wide[0] @ wide[2][expert]) @ wide[3][expert]
        dense = dense + weight * out
    (dense * grad).sum().backward()

    close = dict(rtol=1e-4, atol=1e-4)
    total = moe.router.weight.grad.clone()
    dist.all_reduce(total, group=group)
    found = (y, mine.grad, moe.experts.up.grad, moe.experts.down.grad, total)
    wanted = (dense[rank], wide[0].grad[rank], wide[2].grad[own], wide[3].grad[own], wide[1].grad)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one.cpu(), other.float(), **close)


# ---- many steps ------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def flat(name: str, steps: int, one: Callable[[int], None]) -> None:
    """Memory is flat over so many steps, whichever results are dropped."""
    early = 0
    for step in range(steps):
        one(step)
        if step == steps // 3:
            gc.collect()
            early = resident_bytes()
    gc.collect()
    late = resident_bytes()
    print(f"{name}: {steps} steps; resident {early / 2**20:.1f} MiB after a third, {late / 2**20:.1f} MiB at the end")
    assert late < early + (16 << 20), (early, late)


def soak(group: Any, steps: int) -> None:
    """Events, hooks' results and handles are forgotten."""
    buffer = deep_ep.Buffer(group)
    traffic, small = Traffic(Shape(buffer.group_size, buffer.group_size, 2, 64, 16), 6), ll_traffic(buffer, 7)
    rank = buffer.rank
    x, idx, weights = small.x[rank], small.topk_idx[rank], small.weights[rank]

    def one(step: int) -> None:
        again = step % 3 == 0
        recv_x, _, recv_weights, _, handle, event = fresh(buffer, traffic, async_finish=again)
        if again:
            event.current_stream_wait()
        buffer.combine(recv_x, handle, recv_weights, previous_event=event, async_finish=not again)
        buffer.dispatch(traffic.x[rank], handle=handle)
        rows, _, ll_handle, _, hook = buffer.low_latency_dispatch(
            x, idx, BATCH, small.shape.experts, use_fp8=again, return_recv_hook=not again
        )
        if hook:
            hook()
        answers = torch.zeros(rows[0].shape, dtype=torch.bfloat16) if again else rows
        buffer.low_latency_combine(answers, idx, weights, ll_handle, async_finish=again)

    flat("soak of Buffer", steps, one)


def soak_elastic(group: Any, steps: int) -> None:
    """Likewise for `ElasticBuffer`: events that nobody waits for, handles and their tensors, replays, calls without
    rows."""
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=16, hidden=64)
    traffic = Traffic(Shape(buffer.num_ranks, 2 * buffer.num_ranks, 2, 64, 16, torch.bfloat16), 6)
    rank = buffer.rank_idx
    x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
    old: list[Any] = []

    def one(step: int) -> None:
        expand, synced, beside = step % 2 == 0, step % 3 > 0, step % 5 == 0
        rows, _, recv_weights, handle, event = buffer.dispatch(
            x,
            idx if step % 7 else torch.full_like(idx, -1),
            weights,
            num_experts=traffic.shape.experts,
            do_expand=expand,
            do_cpu_sync=synced,
            async_with_compute_stream=beside,
            do_handle_copy=not beside,
        )
        with event:
            pass
        if step % 11 == 0:
            old[:] = [handle.recv_src_metadata, handle]  # those of before go
        buffer.dispatch(x, topk_weights=weights, handle=handle, do_expand=expand)
        buffer.combine(rows, handle, recv_weights, bias=x, async_with_compute_stream=beside)

    flat("soak of ElasticBuffer", steps, one)


ACROSS = (handles,)
BODIES = (normal, pairs, by_hand, handles, low_latency, micro_batches, masks, layer)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = {
        size: [dist.new_group(list(range(first, first + size))) for first in range(0, world, size)]
        for size in (2, 4, 8)
        if size <= world
    }
    for size, all_of_size in groups.items():
        for body in () if sys.argv[2:] == ["soak"] else (*BODIES, *ENGINES):
            body(all_of_size[rank // size])
    if world == 8 and sys.argv[2:] != ["soak"]:
        os.environ["EXPAR_RANKS_PER_NODE"] = "4"  # two simulated nodes
        for body in ACROSS:
            body(dist.new_group())
    for body in (soak, soak_elastic):
        body(groups[2][rank // 2], int(sys.argv[1]) if len(sys.argv) > 1 else 150)
    print(f"rank {rank} is through", flush=True)


if __name__ == "__main__":
    main()
