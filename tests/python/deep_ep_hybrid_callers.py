# SPDX-License-Identifier: Apache-2.0
"""Calls of `HybridEPBuffer` as engines make them, keyword by keyword, each with what has to come: a body an engine.

Arguments are omitted, positional or named exactly as in that engine; the layers around calls are not.
"""

import inspect
from typing import Any, List

import torch
from deep_ep_hybrid_calls import capacity_of, check_counts, check_rows, Options, places_of, rows_of
from deep_ep_hybrid_reference import floats, Hybrid, World
from deep_ep_reference import here, same

from deep_ep import HybridEPBuffer
from deep_ep.hybrid_ep_buffer import indices_to_map


def _hybrid(group: Any, seed: int, topk: int = 2) -> Hybrid:
    return Hybrid(World(group.size(), 2 * group.size(), 128, 9, topk), seed)


def _check_sums(h: Hybrid, rank: int, options: Options, seed: int, y: Any, back: Any = None) -> None:
    places = places_of(h, options)
    rows = [rows_of(h, r, options) for r in range(h.world.ranks)]
    same(y, h.combined(rank, [h.answers(r, rows[r], seed) for r in range(h.world.ranks)], places))
    if back is not None:
        same(back, h.returned(rank, [floats(r, rows[r], seed) for r in range(h.world.ranks)], places))


def megatron(group: Any) -> None:
    """A map and probs; the fused permutation if the signature has it; the dispatch's backward with probs, and the
    combine's backward with the rows of its input."""
    h, rank = _hybrid(group, 61, 0), group.rank()
    buffer = HybridEPBuffer(
        group=group,
        hidden_dim=h.world.hidden,
        max_num_of_tokens_per_rank=h.tokens[rank],
        num_local_experts=h.local,
        use_fp8=False,
        num_sms_dispatch_api=24,
        num_sms_combine_api=24,
    )
    fused = {}
    if "fuse_permute_dispatch" in inspect.signature(buffer.dispatch_with_permute).parameters:
        fused = dict(fuse_permute_dispatch=True)
    for options in (Options(16), Options(16, non_blocking=True, capacity="more"), Options()):
        rows, probs, scales, per_expert, handle = buffer.dispatch_with_permute(
            hidden=here(h.x[rank]),
            routing_map=here(h.maps[rank]),
            probs=here(h.probs[rank]),
            scaling_factor=None,
            num_of_experts_per_rank=h.local,
            pad_multiple=options.pad,
            num_permuted_tokens=capacity_of(h, rank, options),
            non_blocking=options.non_blocking,
            **fused,
        )
        check_rows(h, rank, options, rows, probs, scales)
        check_counts(h, rank, options, per_expert, handle)
        answers = here(h.answers(rank, rows.shape[0], 1))
        y, _ = buffer.combine_with_unpermute(hidden=answers, handle=handle, pad_multiple=options.pad)
        _check_sums(h, rank, options, 1, y)
        # Autograd may make gradients with any strides.
        spread = torch.zeros((h.world.hidden, h.tokens[rank]), dtype=torch.bfloat16).t()
        spread.copy_(h.x[rank])
        grad, _, _, _, _ = buffer.dispatch_with_permute(
            hidden=here(spread),
            scaling_factor=None,
            handle=handle,
            num_permuted_tokens=answers.shape[0],
            pad_multiple=options.pad,
        )
        check_rows(h, rank, options._replace(probs=False), grad, None, None)
        grad, of_probs = buffer.combine_with_unpermute(
            hidden=answers, probs=here(floats(rank, rows.shape[0], 1)), handle=handle, pad_multiple=options.pad
        )
        _check_sums(h, rank, options, 1, grad, of_probs)


_buffers: dict[int, HybridEPBuffer] = {}  # by rank; operators take tensors and numbers
_ITEMS = (0, 1, 2, 3, 4, 5, 6, 7, 10)  # the tensors of a handle


@torch.library.custom_op("hybrid_test::dispatch", mutates_args=())
def _dispatch(
    rank: int, hidden: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, experts: int, rows: int, pad: int
) -> List[torch.Tensor]:
    found, probs, _, per_expert, handle = _buffers[rank].dispatch_with_permute(
        hidden=hidden,
        topk_idx=idx,
        topk_weights=weights,
        num_of_experts=experts,
        num_permuted_tokens=rows,
        pad_multiple=pad,
        non_blocking=True,
    )
    _configs[rank] = handle[8:10]
    return [found, probs, per_expert, *(handle[item] for item in _ITEMS)]


_configs: dict[int, Any] = {}


def _by_operator(*arguments: Any) -> tuple[Any, Any, Any, Any]:
    """The results of a dispatch in an operator, and its handle, put together again."""
    found, probs, per_expert, *items = _dispatch(*arguments)
    return found, probs, per_expert, _Opaque((*items[:8], *_configs[arguments[0]], items[8]))


class _Opaque:
    """Holds a handle."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle


def torchtitan(group: Any) -> None:
    """topk_idx and a capacity, without waits; the overflow is added to a flag in place; the backward gives no
    pad_multiple, and the gradient of probs is gathered by topk_idx."""
    h, rank = _hybrid(group, 62), group.rank()
    buffer = HybridEPBuffer(
        group=group,
        hidden_dim=h.world.hidden,
        max_num_of_tokens_per_rank=h.world.most,
        num_local_experts=h.local,
        use_fp8=False,
    )
    _buffers[rank] = buffer
    config = buffer.configurer.buffer_config
    assert buffer.group is group and config.hidden_dim >= h.world.hidden
    assert config.max_num_of_tokens_per_rank >= h.world.most and config.num_of_experts_per_rank >= h.local
    flag = here(torch.zeros(1, dtype=torch.int32))
    overflows = 0
    idx, weights = here(h.topk_idx[rank]), here(h.weights[rank])
    for options in (Options(8, False, non_blocking=True, capacity=name) for name in ("more", "half", "exact")):
        rows, probs, per_expert, held = _by_operator(
            rank, here(h.x[rank]), idx, weights, h.world.experts, capacity_of(h, rank, options), options.pad
        )
        handle = held.handle
        check_rows(h, rank, options, rows, probs, None)
        check_counts(h, rank, options, per_expert, handle)
        flag |= handle[-1]
        overflows += rows_of(h, rank, options) < len(h.permuted(rank, 8)) and options.capacity == "half"
        seen = int(rows.shape[0])
        answers = here(h.answers(rank, seen, 2))
        y, _ = buffer.combine_with_unpermute(hidden=answers, handle=handle)
        _check_sums(h, rank, options, 2, y)
        grad_rows, _, _, _, _ = buffer.dispatch_with_permute(
            hidden=here(h.x[rank]), handle=handle, num_permuted_tokens=seen, pad_multiple=None
        )
        check_rows(h, rank, options._replace(probs=False), grad_rows, None, None)
        grad, of_map = buffer.combine_with_unpermute(
            hidden=answers, probs=here(floats(rank, seen, 2)), handle=handle
        )
        _check_sums(h, rank, options, 2, grad, of_map)
        of_topk = of_map.gather(1, idx.clamp(min=0))
        assert of_topk.shape == weights.shape
    assert int(flag) == int(overflows > 0)
    del _buffers[rank]


def nemo(group: Any) -> None:
    """Old arguments: use_host_meta instead of non_blocking, num_dispatched_tokens, and the map made from topk_idx."""
    h, rank = _hybrid(group, 63), group.rank()
    buffer = HybridEPBuffer(group, h.world.hidden, h.tokens[rank], h.local, use_fp8=False)
    routing_map, probs = indices_to_map(here(h.topk_idx[rank]), here(h.weights[rank]), h.tokens[rank], h.world.experts)
    same(routing_map, h.maps[rank])
    for host in (True, False):
        options = Options(4, non_blocking=not host, capacity=None if host else "exact")
        rows, found, scales, per_expert, handle = buffer.dispatch_with_permute(
            hidden=here(h.x[rank]),
            routing_map=routing_map,
            probs=probs,
            scaling_factor=None,
            num_of_experts_per_rank=h.local,
            pad_multiple=4,
            num_dispatched_tokens=None,
            num_permuted_tokens=capacity_of(h, rank, options),
            use_host_meta=host,
        )
        check_rows(h, rank, options, rows, found, scales)
        check_counts(h, rank, options, per_expert, handle)
        y, _ = buffer.combine_with_unpermute(
            hidden=here(h.answers(rank, rows.shape[0], 3)), handle=handle, num_dispatched_tokens=None, pad_multiple=4
        )
        _check_sums(h, rank, options, 3, y)
        total = per_expert.sum()
        again, *_ = buffer.dispatch_with_permute(
            hidden=here(h.x[rank]), handle=handle, num_permuted_tokens=total, pad_multiple=4
        )
        check_rows(h, rank, options._replace(probs=False), again, None, None)


CALLERS = (megatron, torchtitan, nemo)
