# SPDX-License-Identifier: Apache-2.0
"""Bodies for ranks test the news of `EPBuffer`. deep_ep_elastic_calls.py has calls that `ElasticBuffer` has, too."""

from __future__ import annotations

import gc
import itertools
from typing import Any, Callable

import torch
from deep_ep_elastic_calls import (
    HINTS,
    Options,
    across_nodes,
    check_handle,
    check_plain_topk,
    check_rows,
    combinations,
    combine,
    dispatch,
    gathered,
    payload,
    waited,
    without_tokens,
)
from deep_ep_elastic_reference import Elastic, World
from deep_ep_reference import here, same

import deep_ep

ASIDE: dict[str, Any] = dict(async_with_compute_stream=True, defer_epilogue=True)
DEFERRED = Options(asynchronous=True, deferred=True)


def every_combination(group: Any, few: bool = False, shapes: int = 2) -> None:
    combinations(group, few, shapes, deep_ep.EPBuffer)


def on_nodes(group: Any) -> None:
    across_nodes(group, deep_ep.EPBuffer)


def of_nobody(group: Any) -> None:
    without_tokens(group, kind=deep_ep.EPBuffer)


def form_of(e: Elastic) -> dict[str, Any]:
    world = e.world
    return dict(
        num_experts=world.experts, num_max_tokens_per_rank=world.most, expert_alignment=world.alignment
    )


def launch(buffer: Any, e: Elastic, expand: bool, synced: bool, **others: Any) -> Any:
    """A deferred dispatch that nobody has waited for."""
    rank = buffer.rank_idx
    return buffer.dispatch(
        here(e.x[rank]), here(e.topk_idx[rank]), here(e.weights[rank]), **form_of(e), **ASIDE, do_expand=expand,
        do_cpu_sync=synced, **others,
    )


def check_launched(buffer: Any, e: Elastic, found: Any, expand: bool, synced: bool) -> None:
    options, rank = Options(expand, synced), buffer.rank_idx
    x, idx, weights, handle = found
    check_rows(e, rank, options, x, weights)
    check_handle(e, buffer, options, handle)
    if not expand:
        check_plain_topk(e, rank, idx, weights, synced)


def answers_of(e: Elastic, handle: Any, rank: int, expand: bool, seed: int) -> tuple[Any, list[torch.Tensor]]:
    """This rank's rows with that handle, and those of all ranks."""
    lengths = [len(e.expanded(r) if expand else e.plain(r)) for r in range(e.world.ranks)]
    of_all = [e.answers(r, n, seed) for r, n in enumerate(lengths)]
    rows = handle.num_expanded_tokens if expand else handle.num_recv_tokens
    mine = torch.zeros((rows, e.world.hidden), dtype=torch.bfloat16)
    mine[: lengths[rank]] = of_all[rank]
    return here(mine), of_all


def pending(group: Any) -> None:
    """Many calls are pending at once, and are waited for in any order; some are dropped. Other calls come between."""
    buffer = deep_ep.EPBuffer(group, **HINTS)
    size, rank = buffer.num_ranks, buffer.rank_idx
    cases = [Elastic(World(size, 3 * size, 3, 64, 9, 4), seed) for seed in range(4)]
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        forms = list(itertools.product((False, True), repeat=2))
        launched = [launch(buffer, e, *form) for e, form in zip(cases, forms)]
        launch(buffer, cases[0], True, True)  # and is dropped
        dispatch(buffer, cases[1], Options(True))
        handles: list[Any] = [None] * len(cases)
        for number in order:
            found = launched[number].wait()
            check_launched(buffer, cases[number], found, *forms[number])
            handles[number] = found[3]
        sums = []
        for e, handle, (expand, _) in zip(cases, handles, forms):
            mine, of_all = answers_of(e, handle, rank, expand, 5)
            bias = here(e.biases[rank][0])
            for given in (None, bias):
                wanted = e.combined(rank, of_all, expand, True, () if given is None else (e.biases[rank][0],))
                sums.append((buffer.combine(mine, handle, bias=given, **ASIDE), wanted))
            buffer.combine(mine, handle, bias=bias, **ASIDE)  # and is dropped
            again = buffer.dispatch(here(e.x[rank]), handle=handle, do_expand=expand, **ASIDE)
            rows, _, _, same_one = again.wait()
            assert same_one is handle
            check_rows(e, rank, Options(expand, handle.num_recv_tokens_per_expert_list != []), rows, None)
        for number in order:
            for event, wanted in sums[2 * number : 2 * number + 2]:
                y, weights = event.wait()
                assert weights is None
                same(y, wanted)
    gc.collect()
    buffer.barrier()


def late_biases(group: Any) -> None:
    """Biases are written after the call. The first wait reads them."""
    for on in (True, False):
        buffer = deep_ep.EPBuffer(group, **HINTS, allow_multiple_reduction=on)
        size, rank = buffer.num_ranks, buffer.rank_idx
        e = Elastic(World(size, 3 * size, 3, 64, 9, 4), 7)
        for expand in (False, True):
            handle = dispatch(buffer, e, DEFERRED._replace(expand=expand))[2]
            mine, of_all = answers_of(e, handle, rank, expand, 6)
            biases = here(tuple(torch.full_like(each, 9.0) for each in e.biases[rank]))
            event = buffer.combine(mine, handle, bias=biases, **ASIDE)
            for late, wanted in zip(biases, e.biases[rank]):
                late.copy_(here(wanted))
            same(event.wait()[0], e.combined(rank, of_all, expand, on, e.biases[rank]))


def in_turns(group: Any) -> None:
    """Calls of the same form take turns, deferred or not, with one bias and with two. Each has its own results."""
    for on in (True, False):
        buffer = deep_ep.EPBuffer(group, **HINTS, allow_multiple_reduction=on)
        size, rank = buffer.num_ranks, buffer.rank_idx
        for turn in range(3):
            e = Elastic(World(size, 3 * size, 3, 64, 9, 4), 20 + turn)
            for expand in (False, True):
                pending = [launch(buffer, e, expand, synced) for synced in (True, False)]
                made = buffer.dispatch(
                    here(e.x[rank]), here(e.topk_idx[rank]), here(e.weights[rank]), **form_of(e), do_expand=expand,
                    async_with_compute_stream=True,
                )
                made[4].wait()
                check_launched(buffer, e, made[:4], expand, True)
                for event, synced in zip(pending, (True, False)):
                    found = event.wait()
                    check_launched(buffer, e, found, expand, synced)
                    mine, of_all = answers_of(e, found[3], rank, expand, 5)
                    for count in (1, 2, 0, 2, 1):
                        biases = e.biases[rank][:count]
                        given = here((None, biases[0] if biases else None, biases)[count])
                        y, none = buffer.combine(mine, found[3], bias=given, **ASIDE).wait()
                        same(y, e.combined(rank, of_all, expand, on, biases))
                        assert none is None


def written_over(group: Any) -> None:
    """A launch that has run has read its rows, so the caller may write to them. Rows of a replay have any length."""
    buffer = deep_ep.EPBuffer(group, **HINTS)
    size, rank = buffer.num_ranks, buffer.rank_idx
    e = Elastic(World(size, 2 * size, 2, 64, 9, 2), 15)
    for expand in (False, True):
        x, idx, weights = here(e.x[rank]).clone(), here(e.topk_idx[rank]), here(e.weights[rank])
        event = buffer.dispatch(x, idx, weights, **form_of(e), **ASIDE, do_expand=expand)
        event.event.current_stream_wait()
        x.fill_(7.0)
        found = event.wait()
        check_launched(buffer, e, found, expand, True)
        mine, of_all = answers_of(e, found[3], rank, expand, 5)
        for biases in ((), e.biases[rank]):
            sent = mine.clone()
            event = buffer.combine(sent, found[3], bias=here(biases) or None, **ASIDE)
            event.event.current_stream_wait()
            sent.fill_(7.0)
            same(event.wait()[0], e.combined(rank, of_all, expand, True, biases))
        for hidden in (8, 128):
            wide = [torch.cat((each, each), dim=1)[:, :hidden].contiguous() for each in e.x]
            rows = buffer.dispatch(here(wide[rank]), handle=found[3], do_expand=expand)[0]
            there = [row for row in (e.expanded(rank) if expand else e.plain(rank)) if row is not None]
            if not expand:
                same(rows, gathered(wide, there))
            rows = rows.nan_to_num()
            bias = here(wide[rank]).clone()
            late = buffer.combine(rows, found[3], bias=bias, **ASIDE)
            same(late.wait()[0], buffer.combine(rows, found[3], bias=bias)[0].cpu())


def odd_numbers(group: Any) -> None:
    """Infinities, numbers that are none, zeros of both signs, and tiny ones: a deferred sum has the bits of others."""
    buffer = deep_ep.EPBuffer(group, **HINTS)
    size, rank = buffer.num_ranks, buffer.rank_idx
    e = Elastic(World(size, 2 * size, 2, 64, 9, 2), 8)
    odd = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1e-40, -1e-40, 3e38]).bfloat16()
    random = torch.Generator().manual_seed(rank)
    bias = here(odd[torch.randint(0, 8, e.x[rank].shape, generator=random)])
    for expand in (False, True):
        handle = dispatch(buffer, e, Options(expand))[2]
        rows = handle.num_expanded_tokens if expand else handle.num_recv_tokens
        x = here(odd[torch.randint(0, 8, (rows, 64), generator=random)])
        same(buffer.combine(x, handle, bias=bias, **ASIDE).wait()[0], buffer.combine(x, handle, bias=bias)[0])


def changed(group: Any) -> None:
    """The handle has the caller's topk_idx. After a change in place it is rejected."""
    buffer = deep_ep.EPBuffer(group, **HINTS)
    size, rank = buffer.num_ranks, buffer.rank_idx
    e = Elastic(World(size, 2 * size, 2, 64, 9, 2), 9)
    x, none = here(e.x[rank]), here(e.topk_idx[rank])
    for deferred, change in itertools.product(
        (False, True), (lambda idx: idx.add_(0), lambda idx: idx[:1].add_(0), lambda idx: idx.view(-1).mul_(1))
    ):
        idx = none.clone()
        made = buffer.dispatch(x, idx, **form_of(e), **(ASIDE if deferred else {}))
        rows, handle = made.wait()[::3] if deferred else made[:4:3]
        assert handle.topk_idx is idx
        wanted = buffer.combine(rows, handle)[0]
        change(idx)
        for call in (
            lambda: handle.topk_idx,
            lambda: buffer.combine(rows, handle),
            lambda: buffer.dispatch(x, handle=handle),
            lambda: buffer.combine(rows, handle, bias=x, **ASIDE),
            lambda: buffer.dispatch(x, handle=handle, **ASIDE),
        ):
            rejected(AssertionError, "topk_idx was changed in place", call)
        handle.topk_idx = none
        same(buffer.combine(rows, handle)[0], wanted)
    idx = none.clone()
    rows, _, _, handle, _ = buffer.dispatch(x, idx, **form_of(e))
    wanted = buffer.combine(rows, handle)[0]
    idx.data.add_(0)
    same(buffer.combine(rows, handle)[0], wanted)
    with torch.inference_mode():  # such tensors count no changes
        idx = none.clone()
        rows, _, _, handle, _ = buffer.dispatch(x, idx, **form_of(e))
        idx.add_(0)
        same(buffer.combine(rows, handle)[0], wanted)


def rejected(kind: type[BaseException], text: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"it is taken: {text}")


def host_goes_on(group: Any) -> None:
    """Deferred calls of rank 0 return before another rank has made them, the very first one, too."""
    buffer = deep_ep.EPBuffer(group, **HINTS)
    size, rank = buffer.num_ranks, buffer.rank_idx
    e = Elastic(World(size, 2 * size, 2, 64, 9, 2), 10)

    def rank_0_first(call: Callable[[], Any]) -> Any:
        made = call() if rank == 0 else None
        buffer._group.broadcast(b"")  # from rank 0
        return call() if made is None else made

    for expand, synced in itertools.product((False, True), repeat=2):
        handle = rank_0_first(lambda: launch(buffer, e, expand, synced)).wait()[3]
        mine, of_all = answers_of(e, handle, rank, expand, 5)
        for biases in ((), e.biases[rank]):
            event = rank_0_first(lambda: buffer.combine(mine, handle, bias=here(biases) or None, **ASIDE))
            same(event.wait()[0], e.combined(rank, of_all, expand, True, biases))
        event = rank_0_first(lambda: buffer.dispatch(here(e.x[rank]), handle=handle, do_expand=expand, **ASIDE))
        check_rows(e, rank, Options(expand, synced), event.wait()[0], None)


def events(group: Any) -> None:
    """Blocks drop the results, released events are none, and hooks of the caller's are run."""
    buffer = deep_ep.EPBuffer(group, **HINTS)
    size, rank = buffer.num_ranks, buffer.rank_idx
    e = Elastic(World(size, 2 * size, 2, 64, 9, 2), 11)
    event = launch(buffer, e, False, True)
    assert not hasattr(event, "ev") and buffer.capture().current_stream_wait() is None
    with event as entered:
        assert entered is event
    assert event.wait() is None and event.hook_after_wait is None
    with launch(buffer, e, True, True)(release_handle=True) as event:
        pass
    assert event.event is None
    rejected(AssertionError, "there is no event", event.wait)
    event = launch(buffer, e, False, True)
    check_launched(buffer, e, event.current_stream_wait(release_handle=True), False, True)
    assert event.event is None
    own = deep_ep.EventOverlap(buffer.capture())
    own.register_hook_after_wait(lambda: 7)
    assert own.wait() == 7 and own.wait() is None
    failing = deep_ep.EventOverlap(buffer.capture())
    failing.register_hook_after_wait(lambda: 1 // 0)
    for _ in range(2):
        rejected(ZeroDivisionError, "", failing.wait)
    first = launch(buffer, e, False, True)
    second = launch(buffer, e, False, True, previous_event=first, allocate_on_comm_stream=True)
    third = launch(buffer, e, False, False, previous_event=second.event, allocate_on_comm_stream=True)
    for event, synced in ((third, False), (second, True), (first, True)):
        check_launched(buffer, e, event.wait(), False, synced)


def counted(group: Any) -> None:
    """Deferred dispatches add to the statistics, whether anybody waits or not."""
    buffer = deep_ep.EPBuffer(group, **HINTS)
    e = Elastic(World(buffer.num_ranks, 2 * buffer.num_ranks, 2, 64, 9, 2), 12)
    stats = here(torch.tensor([100, 200], dtype=torch.int32))
    for synced in (False, True):
        launch(buffer, e, False, synced, cumulative_local_expert_recv_stats=stats).wait()
        launch(buffer, e, True, synced, cumulative_local_expert_recv_stats=stats)
    dispatch(buffer, e, Options())  # after all of them
    same(stats, torch.tensor([100, 200]).int() + 4 * torch.tensor(e.counts(buffer.rank_idx)).int())


def barriers(group: Any) -> None:
    """In each form, between calls."""
    buffer = deep_ep.EPBuffer(group, **HINTS)
    e = Elastic(World(buffer.num_ranks, 2 * buffer.num_ranks, 2, 64, 8), 3)
    for form in itertools.product((False, True), repeat=3):
        event = launch(buffer, e, False, True)
        buffer.barrier(*form)
        deep_ep.comm.barrier(buffer, *form, context_idx=0)
        check_launched(buffer, e, event.wait(), False, True)


def refused(group: Any) -> None:
    """A rejection of one rank reaches the others, by their waits; the buffer stays usable."""
    buffer = deep_ep.EPBuffer(group, **HINTS)
    size, rank = buffer.num_ranks, buffer.rank_idx
    e = Elastic(World(size, 2 * size, 2, 64, 9, 2), 13)
    x, idx = here(e.x[rank]), here(e.topk_idx[rank])
    rows, _, handle = dispatch(buffer, e, Options())
    for call in (
        lambda wrong: buffer.dispatch(x.float() if wrong else x, idx, **form_of(e), **ASIDE),
        lambda wrong: buffer.dispatch(x.float() if wrong else x, handle=handle, **ASIDE),
        lambda wrong: buffer.combine(rows.float() if wrong else rows, handle, **ASIDE),
    ):
        if rank == 0:
            rejected(RuntimeError, "torch.float32", lambda: call(True))
        else:
            event = call(False)
            for _ in range(2):
                rejected(RuntimeError, "rank 0", event.wait)
            assert event.hook_after_wait is not None
    y = buffer.combine(rows, handle)[0]
    same(buffer.combine(rows, handle, **ASIDE).wait()[0], y)


def late_rejection(group: Any) -> None:
    """The library finds a wrong index when the call is under way."""
    buffer = deep_ep.EPBuffer(group, **HINTS)
    size, rank = buffer.num_ranks, buffer.rank_idx
    e = Elastic(World(size, 2 * size, 2, 64, 9, 2), 14)
    idx = here(e.topk_idx[rank]).clone()
    if rank == 0:
        idx.fill_(2 * size)
    for kept in (True, False):  # without a wait, a later call reports the error, once
        event = buffer.dispatch(here(e.x[rank]), idx, **form_of(e), **ASIDE)
        if kept:
            rejected(RuntimeError, "topk_idx[0][0]", event.wait)
        else:
            rejected(RuntimeError, "topk_idx[0][0]", buffer.barrier)
        dispatch(buffer, e, DEFERRED)


# ---- callers ---------------------------------------------------------------------------------------------------------


def sglang(group: Any) -> None:
    """A buffer with planned memory for replicas, found by the names that SGLang imports; its calls, by keywords."""
    from deep_ep import BufferAllocator, EPBuffer, get_num_tma_alignment
    from deep_ep.utils.envs import get_physical_domain_size

    allocation = BufferAllocator()
    pitch = 1024 // get_num_tma_alignment() * get_num_tma_alignment()
    planned = tuple(allocation.allocate((2, pitch), dtype) for dtype in (torch.uint8, torch.bfloat16))
    nodes, _ = get_physical_domain_size(group)
    assert nodes == 1 and all(each.is_meta for each in planned)
    buffer = EPBuffer(
        group,
        num_max_tokens_per_rank=16,
        hidden=64,
        num_topk=3,
        use_fp8_dispatch=True,
        allow_hybrid_mode=False,
        sl_idx=0,
        prefer_overlap_with_compute=False,
        lb_allocation_plan_or_num_bytes=allocation,
    )
    assert [each.shape for each in planned] == [(2, pitch)] * 2 and not any(each.is_meta for each in planned)
    planned[1].fill_(3.0)
    rank, size = buffer.rank_idx, buffer.num_ranks
    e = Elastic(World(size, 2 * size, 3, 64, 16, 4), 66)
    options = Options(True, True, True, column_major=True)
    x, none, weights, handle, _ = buffer.dispatch(
        payload(e, rank, options),
        topk_idx=here(e.topk_idx[rank]),
        topk_weights=here(e.weights[rank]),
        num_experts=e.world.experts,
        num_max_tokens_per_rank=16,
        expert_alignment=4,
        do_expand=True,
        do_cpu_sync=True,
        use_tma_aligned_col_major_sf=True,
    )
    assert none is None and handle.num_recv_tokens_per_expert_list == e.aligned(rank)
    check_rows(e, rank, options, x, weights)
    mine, of_all = answers_of(e, handle, rank, True, 4)
    y, _, event = buffer.combine(mine, handle, async_with_compute_stream=True)
    event.current_stream_wait()
    same(y, e.combined(rank, of_all, True, True, ()))
    assert (planned[1] == 3).all()


class _Dispatch(torch.autograd.Function):
    """Forward a dispatch, backward a combine with weights. The handle is an attribute of autograd's context."""

    @staticmethod
    def forward(ctx: Any, buffer: Any, x: Any, idx: Any, weights: Any, e: Elastic, found: dict[str, Any]) -> Any:
        rows, _, scores, handle, event = buffer.dispatch(
            x,
            topk_idx=idx,
            topk_weights=weights,
            num_experts=e.world.experts,
            num_max_tokens_per_rank=buffer.num_max_tokens_per_rank,
            expert_alignment=1,
            num_sms=0,
            previous_event=buffer.capture(),
            async_with_compute_stream=True,
            allocate_on_comm_stream=True,
            do_cpu_sync=True,
            do_expand=True,
        )
        ctx.buffer, ctx.handle = buffer, handle
        found["handle"], found["event"] = handle, event
        return rows, scores

    @staticmethod
    def backward(ctx: Any, grad: Any, grad_scores: Any) -> Any:  # type: ignore[override]
        own, own_scores, event = ctx.buffer.combine(
            grad.contiguous(),
            handle=ctx.handle,
            topk_weights=grad_scores.float(),
            num_sms=0,
            previous_event=ctx.buffer.capture(),
            async_with_compute_stream=True,
            allocate_on_comm_stream=True,
        )
        event.current_stream_wait()
        return None, own, None, own_scores, None, None


class _Combine(torch.autograd.Function):
    """Forward a combine, whose event the caller waits for; backward a dispatch with its handle."""

    @staticmethod
    def forward(ctx: Any, buffer: Any, x: Any, found: dict[str, Any]) -> Any:
        y, _, event = buffer.combine(
            x,
            handle=found["handle"],
            num_sms=0,
            previous_event=buffer.capture(),
            async_with_compute_stream=True,
            allocate_on_comm_stream=True,
        )
        event.current_stream_wait()
        ctx.buffer, ctx.handle = buffer, found["handle"]
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        own, _, _, _, event = ctx.buffer.dispatch(
            grad.contiguous(),
            handle=ctx.handle,
            num_sms=0,
            previous_event=ctx.buffer.capture(),
            async_with_compute_stream=True,
            allocate_on_comm_stream=True,
            do_expand=True,
            do_zero_padding=True,
        )
        event.current_stream_wait()
        return None, own, None


def counts_of(handle: Any) -> torch.Tensor:
    """Rows of each expert, as trainers compute them where the host does not know them."""
    ends, alignment = handle.psum_num_recv_tokens_per_expert, handle.expert_alignment
    begins = torch.cat((ends.new_zeros(1), ends[:-1]))
    counts: torch.Tensor = ends - (begins + alignment - 1) // alignment * alignment
    return counts


def train(group: Any, e: Elastic) -> tuple[int, tuple[torch.Tensor, ...]]:
    """A training step of a layer as trainers write it: x plus the weighted sum of tanh(x @ experts[i]). Returns this
    rank, y, and the gradients of tokens, weights and this rank's experts."""
    from deep_ep_elastic_layer import experts_of, gradients_of

    buffer = deep_ep.EPBuffer(
        group, num_max_tokens_per_rank=e.world.most, hidden=e.world.hidden, num_topk=e.world.topk,
        prefer_overlap_with_compute=True,
    )
    rank, found = buffer.rank_idx, dict[str, Any]()
    x, weights = here(e.x[rank]).clone().requires_grad_(), here(e.weights[rank]).clone().requires_grad_()
    experts = here(experts_of(e)[rank * e.local : (rank + 1) * e.local]).clone().requires_grad_()
    rows, scores = _Dispatch.apply(buffer, x, here(e.topk_idx[rank]), weights, e, found)
    found["event"].current_stream_wait()
    same(counts_of(found["handle"]), torch.tensor(found["handle"].num_recv_tokens_per_expert_list).int())
    parts = rows.float().split(found["handle"].num_recv_tokens_per_expert_list)
    made = torch.cat([torch.tanh(part @ expert) for part, expert in zip(parts, experts)])
    y = _Combine.apply(buffer, (made * scores[:, None]).to(x.dtype), found) + x
    y.backward(here(gradients_of(e)[rank]))
    assert x.grad is not None and weights.grad is not None and experts.grad is not None
    return rank, (y.detach(), x.grad, weights.grad, experts.grad)


def trained(group: Any) -> None:
    """The step against the dense computation in double."""
    from deep_ep_elastic_layer import dense

    size = deep_ep.get_physical_domain_size(group)[1] * deep_ep.get_physical_domain_size(group)[0]
    e = Elastic(World(size, 2 * size, 2, 32, 8), 5)
    rank, found = train(group, e)
    for one, other in zip(found, dense(e, rank)):
        torch.testing.assert_close(one.cpu().double(), other, rtol=0.05, atol=0.05)


EVERYWHERE = (pending, late_biases, in_turns, written_over, odd_numbers, changed, events, counted, barriers, sglang, trained)
