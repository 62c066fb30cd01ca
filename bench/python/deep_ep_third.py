# SPDX-License-Identifier: Apache-2.0
"""Calls of `EPBuffer` and `HybridEPBuffer` for deep_ep_overhead.py, as engines make them and bare.

A deferred call is one with its first wait. Bare it is the library's asynchronous call, and a wait for its event."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

try:
    import torch

    import expar
    from expar import _abi
    from expar._library import lib
    from overhead import sized
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

Pair = tuple[Callable[[], Any], Callable[[], Any]]
ASIDE: dict[str, Any] = dict(async_with_compute_stream=True, defer_epilogue=True)
UNIT = 2 << 20


class _Bare:
    """Bare calls of one library buffer."""

    def __init__(self, own: Any, ep: Any, group: Any, view: Callable[[Any], Any]) -> None:
        self._own, self._ep, self._group, self._view = own, ep, group.pointer, view
        self._kept: list[Any] = []  # what arguments point to

    def counts(self, **places: int) -> int:
        """Returns the address of counts at these places."""
        at = self._own.counts.data_ptr()
        made = sized(_abi.EpRecvCounts, **{name: at + 4 * place for name, place in places.items()})
        self._kept.append(made)
        return ctypes.addressof(made)

    def view(self, tensor: Any) -> Any:
        """Returns the view of a tensor, which lives as long as these calls."""
        self._kept.append(tensor)
        return self._view(tensor)

    def dispatch(self, fresh: bool = True, **values: Any) -> Callable[[], None]:
        """Returns a dispatch; if it is asynchronous, with a wait. fresh: it has no handle."""
        args, result = sized(_abi.EpDispatchArgs, **values), sized(_abi.EpDispatchResult)
        waits = values.get("async_finish") and not self._own.on_gpu

        def call() -> None:
            lib.expar_ep_dispatch(self._ep.pointer, ctypes.byref(args), ctypes.byref(result))
            if waits:
                lib.expar_event_wait(result.event)
            self._own.give_back(result, fresh)

        return call

    def combine(self, **values: Any) -> Callable[[], None]:
        args, result = sized(_abi.EpCombineArgs, **values), sized(_abi.EpCombineResult)
        waits = values.get("async_finish") and not self._own.on_gpu

        def call() -> None:
            lib.expar_ep_combine(self._ep.pointer, ctypes.byref(args), ctypes.byref(result))
            if waits:
                lib.expar_event_wait(result.event)
            lib.expar_event_release(result.event)

        return call


    def late_sums(self, bias: Any, experts: int) -> Callable[[], None]:
        """Returns a combine whose bias comes late: rows return, and are summed. An older library only returns them."""
        own, view = self._own, self.view
        owners = torch.zeros((1, 1), dtype=torch.int64, device=own.x.device)
        send = self.dispatch(x=view(own.x), topk_idx=view(owners), num_experts=1, num_worst_tokens=1, async_finish=1)
        if not hasattr(lib, "expar_ep_sum_terms"):
            return send
        terms = torch.empty(own.topk_idx.shape, dtype=torch.int64, device=own.x.device)
        found = sized(_abi.EpTermsArgs, topk_idx=view(own.topk_idx), num_experts=experts, sum_order=1)
        found.out_terms = view(terms)
        summed = sized(_abi.EpSumArgs, x=view(own.x), terms=view(terms), out_y=view(own.y))
        summed.bias[0] = view(bias)

        def call() -> None:
            lib.expar_ep_find_terms(self._group, ctypes.byref(found))
            send()
            lib.expar_ep_sum_terms(self._group, ctypes.byref(summed))

        return call


def _of_layout(buffer: Any, own: Any, bare: _Bare, expand: bool, experts: int) -> dict[str, Pair]:
    view = bare.view
    rows, _, weights, handle, _ = buffer.dispatch(
        own.x, own.topk_idx, own.weights, num_experts=experts, do_expand=expand
    )
    bias = torch.ones_like(own.x)
    workers = dict(num_sms=buffer._workers(buffer.get_theoretical_num_sms(experts, own.topk_idx.shape[1]), own.place))
    routed = dict(x=view(own.x), topk_idx=view(own.topk_idx), topk_weights=view(own.weights), **workers)
    routed.update(expert_major=expand, row_weights=expand)
    places = {"expert_ends" if expand else "expert_prefix": experts + 1}
    fresh = dict(
        num_experts=experts,
        expert_alignment=1,
        keep_slots=1,
        src_stride=handle.num_max_tokens_per_rank,
        recv_counts=bare.counts(tokens_per_expert=0, rank_prefix=experts, **places),
        **routed,
    )
    unsynced = dict(num_worst_tokens=handle._form.worst_tokens(expand), async_finish=1)
    again = dict(handle=handle._routing.pointer, **routed)
    back = dict(
        handle=handle._routing.pointer,
        x=view(rows),
        out_y=view(own.y),
        expert_major=expand,
        sum_order=expar.EpSumOrder.BY_SLOT,
        **workers,
    )
    one = (_abi.Tensor * 2)(view(bias))
    late = bare.late_sums(bias, experts)
    later = own.later()
    what = ", expanded" if expand else ""
    dispatch, combine = buffer.dispatch, buffer.combine

    def fresh_call(**more: Any) -> Any:
        return dispatch(own.x, own.topk_idx, own.weights, num_experts=experts, do_expand=expand, **more)

    def again_call(**more: Any) -> Any:
        return dispatch(own.x, topk_weights=own.weights, handle=handle, do_expand=expand, **more)

    calls: dict[str, Pair] = {
        "EP dispatch": (fresh_call, bare.dispatch(**fresh)),
        "EP, handle": (again_call, bare.dispatch(False, **again, **later)),
        "EP, unsynced": (lambda: fresh_call(do_cpu_sync=False), bare.dispatch(**{**fresh, **later})),
        "EP, async": (
            lambda: fresh_call(async_with_compute_stream=True)[4].wait(),
            bare.dispatch(**fresh, async_finish=1),
        ),
        "EP, deferred": (lambda: fresh_call(**ASIDE).wait(), bare.dispatch(**fresh, **unsynced)),
        "EP, handle, deferred": (
            lambda: again_call(**ASIDE).wait(),
            bare.dispatch(False, **again, async_finish=1),
        ),
        "EP combine": (lambda: combine(rows, handle), bare.combine(**back, **later)),
        "EP combine, bias": (lambda: combine(rows, handle, bias=bias), bare.combine(**back, **later, bias=one)),
        "EP combine, deferred": (lambda: combine(rows, handle, **ASIDE).wait(), bare.combine(**back, async_finish=1)),
        "EP combine, bias, deferred": (
            lambda: combine(rows, handle, bias=bias, **ASIDE).wait(),
            late,
        ),
    }
    if not expand:
        weighed = dict(
            topk_weights=view(weights), out_topk_weights=view(own.out_weights), weights_of=expar.EpWeightsOf.OWNER
        )
        calls["EP combine, weights"] = (
            lambda: combine(rows, handle, weights),
            bare.combine(**back, **weighed, **later),
        )
    return {name + what: pair for name, pair in calls.items()}


def third(buffer: Any, own: Any, view: Callable[[Any], Any], experts: int) -> dict[str, Pair]:
    """Returns the calls of an EPBuffer with memory for replicas of 2 MiB."""
    bare = _Bare(own, buffer._at(own.place).ep, buffer._group, view)
    calls: dict[str, Pair] = {}
    for expand in (False, True):
        calls.update(_of_layout(buffer, own, bare, expand, experts))
    group = buffer.group
    calls["EP get_buffer_size_hint"] = (lambda: buffer.get_buffer_size_hint(group, 16, 128, 8), lambda: None)
    calls["EP get_theoretical_num_sms"] = (lambda: buffer.get_theoretical_num_sms(experts, 8), lambda: None)
    calls["EP capture"] = (buffer.capture, lambda: None)
    calls["EP barrier"] = (buffer.barrier, lambda: lib.expar_group_barrier(buffer._group.pointer))
    return calls


def _permuted(buffer: Any, own: Any, bare: _Bare, experts: int) -> dict[str, Pair]:
    view = bare.view
    routing_map = torch.zeros((1, experts), dtype=torch.bool, device=own.x.device)
    routing_map[:, : own.topk_idx.shape[1]] = True
    probs = routing_map.float()
    slots = torch.where(routing_map, torch.arange(experts, device=own.x.device), -1).int()
    call = buffer.dispatch_with_permute
    rows, scores, _, _, handle = call(hidden=own.x, routing_map=routing_map, probs=probs)
    routing = handle[0].untyped_storage().expar_owner.made.pointer
    out = torch.empty_like(probs)
    common = dict(x=view(own.x), topk_weights=view(probs), expert_major=1, zero_padding=1, row_weights=1)
    counts = bare.counts(rank_prefix=0, expert_prefix=1, expert_ends=experts + 2)
    by_map = dict(common, topk_idx=view(slots), num_experts=experts, keep_slots=1, recv_counts=counts)
    by_topk = dict(by_map, topk_idx=view(own.topk_idx), topk_weights=view(own.weights))
    back = dict(handle=routing, x=view(rows), out_y=view(own.y), expert_major=1, weights_of=1, nodes_sum=3)
    weighed = dict(topk_weights=view(scores.view(-1, 1)), out_topk_weights=view(out))
    later, many = own.later(), rows.shape[0]
    combine = buffer.combine_with_unpermute
    return {
        "hybrid permuted, map": (
            lambda: call(hidden=own.x, routing_map=routing_map, probs=probs),
            bare.dispatch(**by_map),
        ),
        "hybrid permuted, map, no probs": (
            lambda: call(hidden=own.x, routing_map=routing_map),
            bare.dispatch(**{**by_map, "topk_weights": _abi.Tensor(), "row_weights": 0}),
        ),
        "hybrid permuted, topk": (
            lambda: call(hidden=own.x, topk_idx=own.topk_idx, topk_weights=own.weights, num_of_experts=experts),
            bare.dispatch(**by_topk),
        ),
        "hybrid permuted, map, given rows": (
            lambda: call(hidden=own.x, routing_map=routing_map, probs=probs, num_permuted_tokens=many),
            bare.dispatch(**by_map, num_expert_rows=many),
        ),
        "hybrid permuted, non_blocking": (
            lambda: call(
                hidden=own.x, routing_map=routing_map, probs=probs, num_permuted_tokens=many, non_blocking=True
            ),
            bare.dispatch(**by_map, num_expert_rows=many, num_worst_tokens=16 if own.on_gpu else 0),
        ),
        "hybrid permuted, handle": (
            lambda: call(hidden=own.x, handle=handle, num_permuted_tokens=many),
            bare.dispatch(
                False, handle=routing, x=view(own.x), expert_major=1, zero_padding=1, **later
            ),
        ),
        "hybrid permuted, handle, probs": (
            lambda: call(hidden=own.x, probs=probs, handle=handle, num_permuted_tokens=many),
            bare.dispatch(False, handle=routing, topk_idx=view(slots), **common, **later),
        ),
        "hybrid unpermute": (lambda: combine(hidden=rows, handle=handle), bare.combine(**back, **later)),
        "hybrid unpermute, probs": (
            lambda: combine(hidden=rows, probs=scores, handle=handle),
            bare.combine(**back, **weighed, **later),
        ),
    }


def _plain(buffer: Any, own: Any, bare: _Bare, experts: int) -> dict[str, Pair]:
    view = bare.view
    routing_map = torch.zeros((1, experts), dtype=torch.bool, device=own.x.device)
    routing_map[:, : own.topk_idx.shape[1]] = True
    probs = routing_map.float()
    slots = torch.where(routing_map, torch.arange(experts, device=own.x.device), -1).int()
    rows, scores, _, handle = buffer.dispatch(own.x, routing_map=routing_map, probs=probs)
    routing = handle[0].untyped_storage().expar_owner.made.pointer
    out, later = torch.empty_like(probs), own.later()
    fresh = dict(x=view(own.x), topk_idx=view(slots), num_experts=experts)
    again = bare.dispatch(False, handle=routing, x=view(own.x), **later)
    sent = bare.dispatch(False, handle=routing, x=view(probs), **later)
    first = bare.dispatch(**fresh)
    back = dict(handle=routing, x=view(rows), out_y=view(own.y), nodes_sum=3)
    weighed = dict(topk_weights=view(scores), out_topk_weights=view(out))

    def both() -> None:
        first()
        sent()

    return {
        "hybrid dispatch": (lambda: buffer.dispatch(own.x, routing_map=routing_map), first),
        "hybrid dispatch, probs": (lambda: buffer.dispatch(own.x, routing_map=routing_map, probs=probs), both),
        "hybrid dispatch, handle": (
            lambda: buffer.dispatch(own.x, num_of_experts=experts, handle=handle),
            again,
        ),
        "hybrid combine": (lambda: buffer.combine(rows, handle=handle), bare.combine(**back, **later)),
        "hybrid combine, probs": (
            lambda: buffer.combine(rows, scores, handle),
            bare.combine(**back, **weighed, **later),
        ),
    }


def hybrid(buffer: Any, own: Any, view: Callable[[Any], Any], experts: int) -> dict[str, Pair]:
    """Returns the calls of a HybridEPBuffer."""
    bare = _Bare(own, buffer._at(own.place).ep, buffer._group, view)
    calls = {**_permuted(buffer, own, bare, experts), **_plain(buffer, own, bare, experts)}
    calls["hybrid update_template_config"] = (buffer.update_template_config, lambda: None)
    return calls
