# SPDX-License-Identifier: Apache-2.0
"""Calls of `ElasticBuffer` and `EPBuffer` with all their options, each against the reference: bodies for ranks."""

from __future__ import annotations

import itertools
from typing import Any, Callable, NamedTuple

import torch
from deep_ep_elastic_reference import Elastic, World
from deep_ep_reference import here, indexable, same

import deep_ep


HINTS = dict(num_max_tokens_per_rank=16, hidden=64)


class Options(NamedTuple):
    expand: bool = False
    synced: bool = True
    fp8: bool = False
    asynchronous: bool = False
    biases: int = 0
    weights: bool = True
    padding: bool = False
    column_major: bool = False
    deferred: bool = False  # asynchronous, too


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def finish(event: Any, asynchronous: bool) -> None:
    assert isinstance(event, deep_ep.EventOverlap) and (event.event is not None) == asynchronous
    with event:
        pass


def streams(buffer: Any, options: Options) -> dict[str, Any]:
    if not options.asynchronous:
        return {}
    given = dict(async_with_compute_stream=True, previous_event=buffer.capture(), allocate_on_comm_stream=True)
    return {**given, "defer_epilogue": True} if options.deferred else given


def waited(made: Any, options: Options) -> Any:
    """The results of a call, after its event."""
    if not options.deferred:
        finish(made[-1], options.asynchronous)
        return made[:-1]
    assert isinstance(made, deep_ep.EventOverlap) and made.event is not None
    found = made.wait()
    assert made.wait() is None  # later waits return nothing
    return found


def payload(e: Elastic, rank: int, options: Options) -> Any:
    return here((e.fp8[rank], e.scales[rank]) if options.fp8 else e.x[rank])


def gathered(of_ranks: Any, rows: Any) -> torch.Tensor:
    """Those tokens' rows, each from its source."""
    found = [of_ranks[row.source][row.token] for row in rows]
    return torch.stack(found) if found else of_ranks[0][:0]


def check_rows(e: Elastic, rank: int, options: Options, found: Any, weights: Any) -> None:
    """recv_x and what goes beside it, in rows that came; with padding also in the gaps."""
    rows = e.expanded(rank) if options.expand else e.plain(rank)
    x, scales = found if options.fp8 else (found, None)
    length = len(rows) if options.synced else e.worst(options.expand)
    assert x.shape == (length, e.world.hidden), (x.shape, length)
    if scales is not None:
        wanted = (1, -(-length // 4) * 4) if options.column_major else (scales.shape[1], 1)
        assert scales.shape == (length, 3) and scales.stride() == wanted, (scales.shape, scales.stride())
    here = torch.tensor([place for place, row in enumerate(rows) if row is not None], dtype=torch.int64)
    there = [row for row in rows if row is not None]
    x = indexable(x)
    same(x[here], gathered([indexable(each) for each in (e.fp8 if options.fp8 else e.x)], there))
    if scales is not None:
        same(scales[here], gathered(e.scales, there))
    if options.expand and weights is not None:
        slots = torch.tensor([row.slot for row in there], dtype=torch.int64)
        same(weights[here], gathered(e.weights, there).gather(1, slots[:, None])[:, 0])
    if options.padding:
        gaps = torch.tensor([place for place, row in enumerate(rows) if row is None], dtype=torch.int64)
        assert not x[gaps].view(torch.uint8).any()
        assert scales is None or not scales[gaps].any()
        assert weights is None or not weights[gaps].any()


def check_plain_topk(e: Elastic, rank: int, idx: Any, weights: Any, synced: bool) -> None:
    expected = e.local_idx(rank)
    rows = len(expected)
    assert idx.dtype == torch.int64 and len(idx) == (rows if synced else e.worst(False))
    same(idx[:rows], expected)
    assert (idx[rows:] == -1).all()
    if weights is not None:
        assert weights.shape == idx.shape and weights.dtype == torch.float32
        same(weights[:rows][expected >= 0], gathered(e.weights, e.plain(rank))[expected >= 0])


def check_handle(e: Elastic, buffer: Any, options: Options, handle: Any) -> None:
    world, expand, rank = e.world, options.expand, buffer.rank_idx
    assert isinstance(handle, deep_ep.EPHandle)
    assert (handle.do_expand, handle.num_experts) == (expand, world.experts)
    assert (handle.expert_alignment, handle.num_max_tokens_per_rank) == (world.alignment, world.most)
    assert handle.num_sms >= 4
    same(handle.topk_idx, e.topk_idx[rank])
    rows = len(e.plain(rank))
    if options.synced:
        assert handle.num_recv_tokens == rows and handle.num_expanded_tokens == sum(e.aligned(rank))
        assert handle.num_recv_tokens_per_expert_list == e.aligned(rank)
    else:
        assert (handle.num_recv_tokens, handle.num_expanded_tokens) == (e.worst(False), e.worst(True))
        assert handle.num_recv_tokens_per_expert_list == []
    same(handle.num_unaligned_recv_tokens_per_expert, ints(e.counts(rank)))
    same(handle.psum_num_recv_tokens_per_expert, ints(e.ends(rank, expand)))
    same(handle.psum_num_recv_tokens_per_scaleup_rank, ints(e.from_ranks(rank, buffer.num_scaleup_ranks)))
    g, where = e.metadata(rank, expand)
    metadata = handle.recv_src_metadata
    assert metadata.shape == (rows if options.synced else e.worst(False), 2 + world.topk)
    same(metadata[:rows, 0], g)
    same(metadata[:rows, 2:], where)
    assert isinstance(handle.dst_buffer_slot_idx, torch.Tensor)
    one_node = buffer.num_rdma_ranks == 1
    for of_forwarder in (handle.token_metadata_at_forward, handle.channel_linked_list):
        assert of_forwarder is None if one_node else isinstance(of_forwarder, torch.Tensor)


def dispatch(buffer: Any, e: Elastic, options: Options, **others: Any) -> Any:
    """A fresh one, with all that it gives."""
    rank = buffer.rank_idx
    weights = here(e.weights[rank]) if options.weights else None
    made = buffer.dispatch(
        payload(e, rank, options),
        here(e.topk_idx[rank]),
        weights,
        num_experts=e.world.experts,
        num_max_tokens_per_rank=e.world.most,
        expert_alignment=e.world.alignment,
        do_cpu_sync=None if options.synced else False,
        do_expand=options.expand,
        do_zero_padding=options.padding,
        use_tma_aligned_col_major_sf=options.column_major,
        **streams(buffer, options),
        **others,
    )
    x, idx, found, handle = waited(made, options)
    assert (found is not None) == options.weights
    check_rows(e, rank, options, x, found)
    if options.expand:
        assert idx is None
    else:
        check_plain_topk(e, rank, idx, found, options.synced)
    check_handle(e, buffer, options, handle)
    return x, found, handle


def replay(buffer: Any, e: Elastic, options: Options, handle: Any, expand: bool) -> None:
    """With the handle of that dispatch: other rows, and plain ones of an expanded handle."""
    rank = buffer.rank_idx
    options = options._replace(expand=expand, fp8=not options.fp8, padding=options.padding and expand)
    weights = here(e.weights[rank]) if options.weights else None
    made = buffer.dispatch(
        payload(e, rank, options),
        topk_weights=weights,
        handle=handle,
        do_expand=expand,
        do_zero_padding=options.padding,
        use_tma_aligned_col_major_sf=options.column_major,
        **streams(buffer, options),
    )
    x, idx, found, again = waited(made, options)
    assert again is handle
    check_rows(e, rank, options, x, found)
    if expand:
        assert idx is None
    else:
        check_plain_topk(e, rank, idx, found, options.synced)


def combine(buffer: Any, e: Elastic, options: Options, handle: Any, seed: int) -> None:
    rank, reduces = buffer.rank_idx, buffer.allow_multiple_reduction
    ranks = range(e.world.ranks)
    lengths = [
        (len(e.expanded(r)) if options.expand else len(e.plain(r))) if options.synced else e.worst(options.expand)
        for r in ranks
    ]
    answers = [e.answers(r, lengths[r], seed) for r in ranks]
    weighs = options.weights and (reduces or not options.expand)
    shapes = [(n,) if options.expand else (n, e.world.topk) for n in lengths]
    given = [e.back_weights(r, shapes[r], seed) for r in ranks]
    biases = e.biases[rank][: options.biases]
    made = buffer.combine(
        here(answers[rank]).clone(),
        handle,
        here(given[rank]) if weighs else None,
        bias=here((None, biases[0] if biases else None, biases)[options.biases]),
        **streams(buffer, options),
    )
    y, weights = waited(made, options)
    nodes = buffer.num_scaleout_ranks if reduces else 1  # that have sums of their own
    same(y, e.combined(rank, answers, options.expand, reduces, biases, nodes))
    assert (weights is not None) == weighs
    if weighs:
        same(weights, e.combined_weights(rank, given, options.expand))


def exchange(buffer: Any, e: Elastic, options: Options, seed: int) -> Any:
    """A dispatch, two replays, and two combines."""
    x, weights, handle = dispatch(buffer, e, options)
    combine(buffer, e, options, handle, seed)
    replay(buffer, e, options, handle, options.expand)
    replay(buffer, e, options, handle, False)
    combine(buffer, e, options, handle, seed + 1)
    check_handle(e, buffer, options, handle)
    check_rows(e, buffer.rank_idx, options, x, weights)
    return handle


# Asynchronous or not, and deferred or not.
_WAYS = ((False, False), (True, False), (True, True))


def ways_of(kind: Any) -> Any:
    return _WAYS if kind is deep_ep.EPBuffer else _WAYS[:2]


def combinations(group: Any, few: bool = False, shapes: int = 2, kind: Any = deep_ep.ElasticBuffer) -> None:
    """Plain or expanded, synchronous or not, FP8 or BF16, on the compute stream or beside it, or deferred. Without
    biases, with one and two, in two shapes, with sums on each rank and without. few: one of these four for each of the
    others."""
    buffers = [kind(group, **HINTS, allow_multiple_reduction=on) for on in (True, False)]
    size = buffers[0].num_ranks
    worlds = [World(size, 4 * size, 5, 64, 12, 1), World(size, 3 * size, 3, 32, 15, 4)]
    cases = [Elastic(world, seed) for seed, world in enumerate(worlds[:shapes])]
    every = itertools.product((False, True), (True, False), (False, True), ways_of(kind), range(3))
    for number, (expand, synced, fp8, (asynchronous, deferred), biases) in enumerate(every):
        options = Options(
            expand,
            synced,
            fp8,
            asynchronous,
            biases,
            weights=number % 5 != 0,
            padding=expand and number % 2 == 0,
            column_major=number % (3 if kind is deep_ep.ElasticBuffer else 2) == 0,
            deferred=deferred,
        )
        for turn, (e, buffer) in enumerate(itertools.product(cases, buffers)):
            if not few or number % (2 * shapes) == turn:
                exchange(buffer, e, options, number)


def without_tokens(group: Any, few: bool = False, kind: Any = deep_ep.ElasticBuffer) -> None:
    """No rank has a token: num_max_tokens_per_rank is the most of all, 0, or more. few: half of all options."""
    buffers = [kind(group, 2 << 20, allow_multiple_reduction=on) for on in (True, False)]
    size = buffers[0].num_ranks
    none, some = (Elastic(World(size, 4 * size, 3, 32, most, 4), 0) for most in (0, 1))
    some.tokens = none.tokens
    for name in ("x", "fp8", "scales", "topk_idx", "weights", "biases"):
        setattr(some, name, getattr(none, name))
    every = itertools.product((False, True), (False, True), (False, True), ways_of(kind))
    for number, (expand, synced, fp8, (asynchronous, deferred)) in enumerate(every):
        options = Options(
            expand, synced, fp8, asynchronous, number % 3, column_major=number % 2 == 0, deferred=deferred
        )
        for e in (none, some):
            if not few or number % 2 == e.world.most:
                exchange(buffers[number % 2], e, options, number)
    e = Elastic(World(size, 4 * size, 3, 32, 9, 4), 1)
    exchange(buffers[0], e, Options(), 1)  # and then some


def too_many_tokens(group: Any) -> None:
    """For one rank, where none has been announced: it is told, and so are the others."""
    buffer = deep_ep.ElasticBuffer(group, 2 << 20)
    size, rank = buffer.num_ranks, buffer.rank_idx
    tokens = 2 if rank == size - 1 else 0
    x, idx = torch.ones((tokens, 32), dtype=torch.bfloat16), torch.zeros((tokens, 1), dtype=torch.int64)
    try:
        buffer.dispatch(x, idx, num_experts=size, num_max_tokens_per_rank=0)
    except RuntimeError as error:
        text = "x has 2 tokens: expected at most num_max_tokens_per_rank, 0" if tokens else f"rank {size - 1}"
        assert text in str(error), error
    else:
        raise AssertionError("more tokens than were announced")


def across_nodes(group: Any, kind: Any = deep_ep.ElasticBuffer) -> None:
    """On a group of several nodes: with sums of these, without any, and with all ranks as one domain."""
    ways = ({}, dict(allow_multiple_reduction=False), dict(allow_hybrid_mode=False))
    buffers = [kind(group, **HINTS, **way) for way in ways]
    size = buffers[0].num_ranks
    assert buffers[0].num_scaleout_ranks > 1 and (buffers[2].num_scaleout_ranks, buffers[2].num_scaleup_ranks) == (1, size)
    e = Elastic(World(size, max(2 * size, 8), 5, 64, 8, 4), 3)
    for number, (expand, buffer) in enumerate(itertools.product((False, True), buffers)):
        options = Options(
            expand,
            synced=number % 4 != 1,
            fp8=number % 2 == 1,
            asynchronous=number % 3 == 1,
            biases=number % 3,
            padding=expand,
            column_major=number % 4 == 0,
        )
        exchange(buffer, e, options, number)
        if kind is deep_ep.EPBuffer:
            for biases in range(3):
                deferred = options._replace(asynchronous=True, deferred=True, biases=biases, synced=biases != number % 3)
                exchange(buffer, e, deferred, number)
    buffers[0].barrier()
    without_tokens(group, few=True, kind=kind)


def chains(group: Any) -> None:
    """Calls after calls, with their events or without, and results of those that nobody has waited for."""
    buffer = deep_ep.ElasticBuffer(group, **HINTS)
    size, rank = buffer.num_ranks, buffer.rank_idx
    e = Elastic(World(size, 3 * size, 3, 64, 9, 4), 5)
    options = Options(True, fp8=True, column_major=True, padding=True)
    answers = [e.answers(r, len(e.expanded(r)), 1) for r in range(size)]
    mine, rows = here(answers[rank]), payload(e, rank, options)
    idx, weights = here(e.topk_idx[rank]), here(e.weights[rank])
    wanted = e.combined(rank, answers, True, True, ())

    def begin(**others: Any) -> Any:
        return buffer.dispatch(
            rows, idx, weights, num_experts=3 * size, num_max_tokens_per_rank=9, expert_alignment=4, do_expand=True,
            do_zero_padding=True, use_tma_aligned_col_major_sf=True, async_with_compute_stream=True, **others,
        )

    def check(given: Any) -> None:
        check_rows(e, rank, options, given[0], given[2])

    first = begin()
    y, none, event = buffer.combine(
        mine, first[3], previous_event=first[4], allocate_on_comm_stream=True, async_with_compute_stream=True
    )
    second = begin(previous_event=event.event, previous_event_before_epilogue=first[4], allocate_on_comm_stream=True)
    first[4].current_stream_wait()
    check(first)
    same(buffer.combine(mine, second[3])[0], wanted)
    check(second)  # a later call that the current stream has waited for
    same(y, wanted)
    third = begin()
    buffer.barrier()
    check(third)
    for given in (first, second, third):
        with given[4](True):
            pass
    forgotten = [begin()[0] for _ in range(5)]
    del forgotten
    assert none is None and len(buffer._unfinished) <= 5
    same(buffer.combine(mine, third[3])[0], wanted)
    assert not buffer._unfinished


def overwritten(group: Any) -> None:
    """The caller writes to topk_idx after a dispatch, in its stream: the handle has what was dispatched."""
    buffer = deep_ep.ElasticBuffer(group, **HINTS)
    size, rank = buffer.num_ranks, buffer.rank_idx
    e = Elastic(World(size, 3 * size, 3, 64, 9, 4), 6)
    form = dict(num_experts=3 * size, num_max_tokens_per_rank=9, expert_alignment=4)
    rows, weights = here(e.x[rank]), here(e.weights[rank])
    for synced, asynchronous in itertools.product((True, False), repeat=2):
        options, idx = Options(synced=synced, asynchronous=asynchronous), here(e.topk_idx[rank]).clone()
        more = streams(buffer, options)
        x, _, found, handle, event = buffer.dispatch(rows, idx, weights, do_cpu_sync=synced, **form, **more)
        finish(event, asynchronous)
        idx.fill_(-1)
        check_rows(e, rank, options, x, found)
        check_handle(e, buffer, options, handle)
        for numbers in ({}, form, form, dict(num_experts=3 * size)):  # a call that repeats another is a shorter way
            again, local, _, _, _ = buffer.dispatch(rows, handle=handle, **numbers)
            check_rows(e, rank, options, again, None)
            check_plain_topk(e, rank, local, None, synced)
        for name, number in form.items():
            wrong = ""
            try:
                buffer.dispatch(rows, handle=handle, **{**form, name: number + 1})
            except AssertionError as error:
                wrong = str(error)
            assert wrong.startswith(f"{name} is {number + 1}: expected the handle's, {number}"), wrong


def barriers(group: Any) -> None:
    """In each form, between calls."""
    buffer = deep_ep.ElasticBuffer(group, **HINTS)
    e = Elastic(World(buffer.num_ranks, 2 * buffer.num_ranks, 2, 64, 8), 3)
    for form in itertools.product((False, True), repeat=3):
        buffer.barrier(*form)
        check_rows(e, buffer.rank_idx, Options(), dispatch(buffer, e, Options())[0], None)


def held_back(group: Any, came: list[bool], late: Callable[[Callable[[], None]], None], wait: Callable[[], None]) -> None:
    """Rank 1 comes late to a barrier in each form, and nobody has gone on before that. came: one list of all ranks.
    `late` sets it in rank 1's order after a rest; `wait` waits until the work after the barrier may go on."""
    buffer = deep_ep.ElasticBuffer(group, **HINTS)

    def arrive() -> None:
        came[0] = True

    for form in itertools.product((False, True), repeat=3):
        if buffer.rank_idx == 1:
            late(arrive)
        buffer.barrier(*form)
        wait()
        assert came[0], form
        buffer._group.barrier()  # all have looked
        came[0] = False
        buffer._group.barrier()
