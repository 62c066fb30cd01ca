# SPDX-License-Identifier: Apache-2.0
"""The low-latency calls of `Buffer`, and its masks. Letters in shapes: as in legacy.py."""

from __future__ import annotations

from typing import Any, Callable

import torch
from expar import LlFormat

from .. import _handles, _place
from .._checks import whole
from .._forms import Forms, keep_form
from .._low_latency import Combined, CombineForm, Dispatched, DispatchForm, LowLatencyMode
from .._orders import combine_in_either_order, dispatch_in_either_order
from .._signals import Signals, signals_of
from ..utils.event import EventOverlap
from .low_latency_rows import LowLatencyRows
from .modes import Modes


class LowLatencyCalls(LowLatencyRows, Modes):
    """The low-latency part of `Buffer`."""

    rank: int
    group_size: int
    enable_shrink: bool
    _masked: set[int]
    _forms: Forms

    def _low_latency(self, x: Any) -> LowLatencyMode:
        """Returns the mode for calls with that tensor."""
        return self._at(_place.of(x, "x"))[1]

    # ---- low latency -------------------------------------------------------------------------------------------------

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Prepares low-latency calls after normal ones. Collective. No rank leaves before all have come, and the work
        on their current streams is done by then. The two modes share no memory here, so nothing is cleaned.

        With enable_shrink ranks meet by an empty low-latency call, on a GPU in the current stream. A rank that does not
        come in time is masked. Before the first call of a shape, ranks wait only if the reserve takes that shape."""
        self._check_open()
        shape = (
            whole(num_max_dispatch_tokens_per_rank, "num_max_dispatch_tokens_per_rank"),
            whole(hidden, "hidden"),
            whole(num_experts, "num_experts"),
        )
        if self.enable_shrink:
            for _, low_latency in list((self._modes or {}).values()):
                low_latency.meet(*shape)
        else:
            _place.usual().settle()
            self._group.barrier()

    @dispatch_in_either_order
    def low_latency_dispatch(
        self,
        x: Any,
        topk_idx: Any,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Any = None,
        dispatch_wait_recv_cost_stats: Any = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        use_nvfp4: bool = False,
        x_global_scale: Any = None,
        topk_weights: Any = None,
        use_ue8m0_for_sf: bool = False,
    ) -> Any:
        """Carries each token to its experts. Returns (recv_x [L, N*B, H] or a pair (FP8, scales), rows of each expert
        [L], handle, event, hook). Collective; the first call with new B, H, E, or a larger K allocates memory.

        x: [T, H] bf16, f16 or f32. T <= B, which is num_max_dispatch_tokens_per_rank.
        topk_idx: int64 or int32 [T, K], -1 for none.
        cumulative_local_expert_recv_stats: int32 [L], to which the counts of rows are added.
        dispatch_wait_recv_cost_stats: int64 [N], to which nanoseconds of waiting are added.
        use_fp8: rows are FP8 with scales float32 [L, N*B, H/128]. round_scale: scales are powers of two. use_ue8m0:
            scales are their exponents, int32 [L, N*B, ceil(H/512)]. In memory, scales are contiguous along the rows.
        return_recv_hook: the call only sends. The hook receives; results are valid after it was called.
        use_nvfp4: rows are NVFP4, uint8 [N*B, H/2, L] with scales e4m3 [32, 4, N*B/128, 4, H/64, L]. x is bf16.
        x_global_scale: float32 [1], with use_nvfp4: what the scales are multiplied by.
        topk_weights: float32 [T, K]. With it there are seven results: after the counts come the weight of each row,
            float32 [L, N*B], and the rank that it is from, int32 [L, N*B]."""
        if use_nvfp4 or topk_weights is not None or x_global_scale is not None or use_ue8m0_for_sf:
            return self._dispatch_rows(
                (x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts),
                (cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats),
                (use_fp8, round_scale, use_ue8m0),
                (async_finish, return_recv_hook),
                x_global_scale if use_nvfp4 else None,
                (use_nvfp4, x_global_scale is not None, use_ue8m0_for_sf),
                topk_weights,
            )
        tokens, experts = num_max_dispatch_tokens_per_rank, num_experts
        if type(tokens) is not int or type(experts) is not int:
            tokens = whole(tokens, "num_max_dispatch_tokens_per_rank")
            experts = whole(experts, "num_experts")
        shape = getattr(x, "shape", None)
        key = (shape, tokens, experts, use_fp8, round_scale, use_ue8m0, async_finish, return_recv_hook)
        form: DispatchForm | None = self._forms.get(key)
        given = x, topk_idx, cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        found = None if form is None else form.dispatch(*given)
        return self._first_dispatch(key, *given) if found is None else found

    def _first_dispatch(self, key: tuple[Any, ...], x: Any, topk_idx: Any, stats: Any, wait_ns: Any) -> Dispatched:
        """Makes the first dispatch of its form."""
        _, tokens, experts, use_fp8, round_scale, use_ue8m0, async_finish, hook = key
        self._check_hook(async_finish, hook)
        if use_fp8 and use_ue8m0 and not round_scale:
            raise AssertionError("use_ue8m0 needs round_scale")
        format = LlFormat.PLAIN
        if use_fp8:
            format = LlFormat.FP8_UE8M0 if use_ue8m0 else LlFormat.FP8_ROUND if round_scale else LlFormat.FP8
        mode, options = self._low_latency(x), (format, bool(async_finish), bool(hook))
        form = mode.dispatch_form(x, topk_idx, tokens, experts, stats, wait_ns, options)
        keep_form(self._forms, key, form)
        made = form.dispatch(x, topk_idx, stats, wait_ns, alike=False)
        assert made is not None
        return made

    @combine_in_either_order
    def low_latency_combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: tuple[Any, ...],
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Any = None,
        combine_wait_recv_cost_stats: Any = None,
        overlap: bool = False,
        packed_recv_count: Any = None,
        comp_signal: Any = None,
        block_m: int = 64,
        threshold: int = 0,
        num_sms: int | None = None,
        src_signals: Any = None,
        src_signal_expect_value: int = 0,
    ) -> tuple[Any, EventOverlap, Callable[[], None] | None]:
        """Brings the experts' rows back. Returns (y [T, H], event, hook). Collective. y is the sum of weight times row
        over the token's slots, in ascending order, in FP32, rounded once.

        x: bf16, f16 or f32 [L, N*B, H], in the dispatch's layout. zero_copy: the tensor from
            get_next_low_latency_combine_buffer is sent in its place.
        topk_idx: int64 or int32 [T, K]. topk_weights: float32 [T, K]. Both are those of the dispatch's tokens.
        out: [T, H], dtype of x: memory for y from the caller.
        use_logfmt: rows travel in 10 bits an element.
        combine_wait_recv_cost_stats: int64 [N], to which nanoseconds of waiting are added.
        overlap: a GEMM may still be writing x. The call first waits for its signals, if they are given. Words count
            when they equal the value, and none is reset. On a CPU the call polls. On a GPU one block does, on the
            call's stream; the GEMM must have been launched before.
        src_signals: uint32 [L]: all rows of an expert are there when its word is src_signal_expect_value. Or
            comp_signal: int32 [L*S], S = ceil(N*B / block_m): block_m rows are there when a word is threshold. Only
            blocks of the first packed_recv_count rows, int32 [L], count.
        num_sms: a hint.
        """
        signals = None
        if overlap:
            signals = signals_of(
                x, packed_recv_count, comp_signal, block_m, threshold, src_signals, src_signal_expect_value
            )
        found = _handles.find_low_latency(handle)
        shape = getattr(topk_idx, "shape", None)
        key = (shape, found.buffer, out is None, use_logfmt, zero_copy, async_finish, return_recv_hook, signals is None)
        form: CombineForm | None = self._forms.get(key)
        given = x, topk_idx, topk_weights, found, out, combine_wait_recv_cost_stats, signals
        made = None if form is None else form.combine(*given)
        return self._first_combine(key, *given) if made is None else made

    def _first_combine(
        self,
        key: tuple[Any, ...],
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: _handles.LowLatencyHandle,
        out: Any,
        wait_ns: Any,
        signals: Signals | None,
    ) -> Combined:
        """Makes the first combine of its form."""
        _, _, _, logfmt, zero_copy, async_finish, hook, _ = key
        self._check_hook(async_finish, hook)
        if logfmt and zero_copy:
            raise AssertionError("use_logfmt does not go with zero_copy")
        mode, format = self._low_latency(x), LlFormat.LOGFMT if logfmt else LlFormat.PLAIN
        options = (format, bool(async_finish), bool(hook))
        tensors = x, topk_idx, topk_weights, out, wait_ns
        form = mode.combine_form(tensors, handle, zero_copy, options, signals is not None)
        keep_form(self._forms, key, form)
        made = form.combine(*tensors[:3], handle, out, wait_ns, signals, alike=False)
        assert made is not None
        return made

    @staticmethod
    def _check_hook(async_finish: bool, return_recv_hook: bool) -> None:
        if async_finish and return_recv_hook:
            raise AssertionError("async_finish and return_recv_hook do not go together")

    def get_next_low_latency_combine_buffer(self, handle: tuple[Any, ...]) -> Any:
        """Returns bf16 [L, N*B, H], to which a GEMM can write. A combine with zero_copy sends from it."""
        found = _handles.find_low_latency(handle)
        return self._low_latency(handle[0]).region(found, torch.bfloat16)

    # ---- masks -------------------------------------------------------------------------------------------------------

    def _with_masks(self) -> list[LowLatencyMode]:
        """Returns the modes that exist now. Masks are local, so none is created: that would be collective."""
        if not self.enable_shrink:
            raise AssertionError("masks need enable_shrink=True")
        self._check_open()
        return [low_latency for _, low_latency in (self._modes or {}).values()]

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks the rank on this rank, or ends its mask. Nothing is sent to a masked rank, and no call waits for it. On
        a GPU this first waits for the rank's own calls so far."""
        modes = self._with_masks()
        if not 0 <= whole(rank_to_mask, "rank_to_mask") < self.group_size or rank_to_mask == self.rank:
            raise AssertionError(
                f"rank_to_mask is {rank_to_mask}: expected 0 to {self.group_size - 1}, and not this rank, {self.rank}"
            )
        for low_latency in modes:
            low_latency.mask(rank_to_mask, bool(mask))
        (self._masked.add if mask else self._masked.discard)(rank_to_mask)

    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Fills mask_status with 1 for masked ranks, else 0. mask_status: int32 [N], on the device of the calls'
        tensors. On a GPU the current stream fills it, after this rank's calls, and the host does not wait."""
        modes = self._with_masks()
        _place.of(mask_status, "mask_status")
        if mask_status.dtype is not torch.int32 or tuple(mask_status.shape) != (self.group_size,):
            raise AssertionError(
                f"mask_status is {mask_status.dtype} {tuple(mask_status.shape)}: expected int32 [{self.group_size}]"
            )
        mask_status.zero_()
        for rank in self._masked:
            mask_status[rank] = 1
        for low_latency in modes:
            low_latency.add_masked(mask_status)

    def low_latency_clean_mask_buffer(self) -> None:
        """Ends the masks of all ranks. Collective among the living."""
        for low_latency in self._with_masks():
            low_latency.clean_masks()
        self._masked.clear()
