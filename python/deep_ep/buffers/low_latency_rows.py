# SPDX-License-Identifier: Apache-2.0
"""Low-latency dispatches with more than the library carries: NVFP4 rows, and weights and sources of rows.

They are made of the calls that the library has. Letters in shapes: as in legacy.py."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .. import _nvfp4, _place, _slots
from ..utils.event import EventOverlap, event_of


class LowLatencyRows:
    """The part of `Buffer` for such dispatches."""

    rank: int
    group_size: int
    low_latency_dispatch: Callable[..., Any]

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
            x = _nvfp4.packed(x, global_scale)
        rows, count, handle, event, hook = self.low_latency_dispatch(x, *given[1:], *counted, *fp8, *how)
        small = None
        if topk_weights is not None:
            carried = _slots.rows_of(topk_idx, topk_weights)
            small = self.low_latency_dispatch(carried, *given[1:], None, None, False, False, False, *how)
        fills: list[Callable[[], None]] = []
        found = rows
        if nvfp4:
            local, places, hidden = rows.shape
            codes, scales = _nvfp4.memory(local, places, hidden, rows.device)
            fills.append(lambda: _nvfp4.unpack(rows, codes, scales))
            found = _nvfp4.shown(codes, scales)
        more: tuple[Any, ...] = ()
        if small is not None:
            shape, first = handle[0].shape, self.rank * (experts // self.group_size)
            weights = torch.empty(shape, dtype=torch.float32, device=count.device)
            sources = torch.empty(shape, dtype=torch.int32, device=count.device)
            topk, brought = topk_weights.shape[1], small[0]
            fills.append(lambda: _slots.fill(brought, topk, first, handle[1], weights, sources))
            more = (weights, sources)
        calls = [(event, hook)] if small is None else [(event, hook), (small[3], small[4])]
        own = [*((codes, scales) if nvfp4 else ()), *more]
        event, hook = self._ends(_place.of(x, "x"), calls, fills, own, how)
        return (found, count, *more, handle, event, hook)

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
        if x.shape[1] % _nvfp4.BLOCK:
            raise AssertionError(f"x has {x.shape[1]} columns: expected a multiple of {_nvfp4.BLOCK} with use_nvfp4")
        return True

    @staticmethod
    def _ends(
        place: _place.Place,
        calls: list[tuple[Any, Any]],
        fills: list[Callable[[], None]],
        own: list[Any],
        how: tuple[bool, bool],
    ) -> tuple[EventOverlap, Callable[[], None] | None]:
        """Returns event and hook of these calls together. own: the results, which are filled when the calls' have
        come."""

        def fill() -> None:
            for each in fills:
                each()

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
            made.point, made.kept = place.record(place.comm()), [calls, fills]
            return EventOverlap(made), None
        last = calls[-1][0].event

        def finish() -> None:
            for event, _ in calls[:-1]:
                event.current_stream_wait()
            fill()

        last.finish_by(finish)
        return EventOverlap(last), None
