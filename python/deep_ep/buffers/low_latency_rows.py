# SPDX-License-Identifier: Apache-2.0
"""Low-latency dispatches with more than the library carries: NVFP4 rows, and weights and sources of rows.

Weights and sources come by a second dispatch. Letters in shapes: as in legacy.py."""

from __future__ import annotations

from typing import Any, Callable

import torch
from expar import LlFormat

from .. import _place, _slots
from .._checks import whole
from .._forms import Forms, keep_form
from .._low_latency import Dispatched, LowLatencyMode
from ..utils.event import EventOverlap, event_of

_NVFP4_COLUMNS = 128  # of which H is a multiple


def _nvfp4_views(codes: Any, scales: Any) -> tuple[Any, Any]:
    """Returns views as callers want them: uint8 [R, H/2, L], and e4m3 [32, 4, R/128, 4, H/64, L], R = N*B.

    codes: uint8 [L, R, H/2]. scales: e4m3 [L, R/128, H/64, 512]."""
    return codes.permute(1, 2, 0), scales.unflatten(3, (32, 4, 4)).permute(3, 4, 1, 5, 2, 0)


class LowLatencyRows:
    """The part of `Buffer` for such dispatches."""

    rank: int
    group_size: int
    low_latency_dispatch: Callable[..., Any]
    _forms: Forms
    _low_latency: Callable[[Any], LowLatencyMode]
    _check_hook: Callable[[bool, bool], None]

    def _dispatch_nvfp4(
        self, given: tuple[Any, ...], counted: tuple[Any, Any], global_scale: Any, how: tuple[bool, bool]
    ) -> Dispatched:
        """Makes a dispatch with NVFP4 rows. Its first result is a pair: codes uint8 [L, N*B, H/2], and scales e4m3
        [L, N*B/128, H/64, 512], rounded up."""
        x, topk_idx, tokens, experts = given
        tokens, experts = whole(tokens, "num_max_dispatch_tokens_per_rank"), whole(experts, "num_experts")
        key = (x.shape, tokens, experts, LlFormat.NVFP4, *how)
        form = self._forms.get(key)
        made = None if form is None else form.dispatch(x, topk_idx, *counted, more=(global_scale,))
        if made is None:
            self._check_hook(*how)
            options = (LlFormat.NVFP4, bool(how[0]), bool(how[1]))
            form = self._low_latency(x).dispatch_form(x, topk_idx, tokens, experts, *counted, options, global_scale)
            keep_form(self._forms, key, form)
            made = form.dispatch(x, topk_idx, *counted, alike=False, more=(global_scale,))
            assert made is not None
        return made

    def _dispatch_rows(
        self,
        given: tuple[Any, ...],
        counted: tuple[Any, Any],
        fp8: tuple[bool, bool, bool],
        how: tuple[bool, bool],
        global_scale: Any,
        asked: tuple[bool, bool, bool],
        topk_weights: Any,
    ) -> Any:
        """Makes such a dispatch.

        given: x, topk_idx, B, E. counted: counts of rows, and times of waiting. fp8: use_fp8, round_scale, use_ue8m0.
        how: async_finish, return_recv_hook. asked: use_nvfp4, whether there is a global scale, use_ue8m0_for_sf."""
        x, topk_idx, tokens, experts = given
        nvfp4 = self._check_rows(x, topk_idx, fp8[0], global_scale, asked, topk_weights)
        if nvfp4:
            rows, count, handle, event, hook = self._dispatch_nvfp4(given, counted, global_scale, how)
            rows = _nvfp4_views(*rows)
        else:
            rows, count, handle, event, hook = self.low_latency_dispatch(x, *given[1:], *counted, *fp8, *how)
        if topk_weights is None:
            return rows, count, handle, event, hook
        carried = _slots.rows_of(topk_idx, topk_weights)
        small = self.low_latency_dispatch(carried, *given[1:], None, None, False, False, False, *how)
        shape, first = handle[0].shape, self.rank * (experts // self.group_size)
        weights = torch.empty(shape, dtype=torch.float32, device=count.device)
        sources = torch.empty(shape, dtype=torch.int32, device=count.device)
        topk, brought = topk_weights.shape[1], small[0]

        def fill() -> None:
            _slots.fill(brought, topk, first, handle[1], weights, sources)

        calls = [(event, hook), (small[3], small[4])]
        ended = self._ends(_place.of(x, "x"), calls, fill, [weights, sources], how)
        return (rows, count, weights, sources, handle, *ended)

    @staticmethod
    def _check_rows(
        x: Any, topk_idx: Any, use_fp8: bool, global_scale: Any, asked: tuple[bool, bool, bool], topk_weights: Any
    ) -> bool:
        """Checks the arguments. Returns whether rows are NVFP4."""
        nvfp4, scaled, ue8m0 = asked
        if ue8m0:
            raise RuntimeError("use_ue8m0_for_sf is True: expected False; scales of NVFP4 rows are e4m3")
        if topk_weights is not None:
            wanted = tuple(getattr(topk_idx, "shape", ()))
            good = isinstance(topk_weights, torch.Tensor) and topk_weights.dtype is torch.float32
            if not good or tuple(topk_weights.shape) != wanted:
                had = tuple(getattr(topk_weights, "shape", ()))
                raise AssertionError(f"topk_weights has shape {had}: expected float32 {wanted}")
        if not nvfp4:
            if scaled:
                raise AssertionError("x_global_scale is given: expected use_nvfp4 with it")
            return False
        if use_fp8:
            raise AssertionError("use_nvfp4 and use_fp8 do not go together: expected use_fp8=False")
        if not isinstance(global_scale, torch.Tensor) or global_scale.dtype is not torch.float32:
            raise AssertionError("x_global_scale is no float32 tensor: expected one of one element with use_nvfp4")
        if global_scale.numel() != 1:
            raise AssertionError(f"x_global_scale has {global_scale.numel()} elements: expected one")
        if not isinstance(x, torch.Tensor) or x.dtype is not torch.bfloat16 or x.dim() != 2:
            raise AssertionError(f"x is {getattr(x, 'dtype', type(x))}: expected torch.bfloat16 [T, H] with use_nvfp4")
        if x.shape[1] % _NVFP4_COLUMNS:
            raise AssertionError(
                f"x has {x.shape[1]} columns: expected a multiple of {_NVFP4_COLUMNS} with use_nvfp4"
            )
        return True

    @staticmethod
    def _ends(
        place: _place.Place,
        calls: list[tuple[Any, Any]],
        fill: Callable[[], None],
        own: list[Any],
        how: tuple[bool, bool],
    ) -> tuple[EventOverlap, Callable[[], None] | None]:
        """Returns event and hook of these calls together. own: the results, which are filled when the calls' have
        come."""
        asynchronous, by_hook = how
        if by_hook:

            def receive() -> None:
                for _, hook in calls:
                    hook()
                fill()

            return EventOverlap(), receive
        if not asynchronous:
            fill()
            return EventOverlap(), None
        if isinstance(place, _place.Gpu):
            with place.on(place.comm()):  # on which the calls are
                fill()
            for each in own:
                place.used_on(each, place.comm())
            made = event_of(None)
            made.point, made.kept = place.record(place.comm()), [calls, fill]
            return EventOverlap(made), None
        last = calls[-1][0].event

        def finish() -> None:
            for event, _ in calls[:-1]:
                event.current_stream_wait()
            fill()

        last.finish_by(finish)
        return EventOverlap(last), None
