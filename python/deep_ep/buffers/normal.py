# SPDX-License-Identifier: Apache-2.0
"""The calls of normal mode of `Buffer`. Letters in shapes: as in legacy.py."""

from __future__ import annotations

from typing import Any

import torch

from .. import _handles, _place
from .._checks import whole
from .._config import Config
from .._forms import Forms, keep_form
from .._normal import NormalMode
from .._normal_forms import Again, AgainForm, CombineForm, Fresh, FreshForm, Given, LayoutForm, Options
from ..utils.event import before, EventHandle, EventOverlap
from .modes import Modes

class NormalCalls(Modes):
    """The part of `Buffer` for normal mode."""

    num_sms: int
    _max_threads: int
    _normal_forms: Forms
    _of_torch: bool

    def _workers(self, config: Config | None, place: _place.Place) -> int:
        """Returns the number of SMs or CPU threads that a call uses. With 0 the library chooses."""
        try:
            wanted = whole(self.num_sms if config is None else config.num_sms, "num_sms")
        except AttributeError:
            raise AssertionError(f"config is {config!r}: expected a Config") from None
        most = place.num_sms() if place.on_gpu else self._max_threads - 1
        return wanted if 0 < wanted <= most else 0

    def get_dispatch_layout(
        self,
        topk_idx: Any,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, Any, EventOverlap]:
        """Returns (tokens per rank int32 [N], per node int32 [M] or None on one node, per expert int32 [E],
        is_token_in_rank bool [T, N], event). topk_idx: [T, K] int64 or int32, -1 for none."""
        if allocate_on_comm_stream:
            self._check_streams(previous_event, async_finish)
        previous = None if previous_event is None else before(previous_event)
        key = getattr(topk_idx, "shape", None), num_experts
        form: LayoutForm | None = self._normal_forms.get(key) if type(num_experts) is int else None
        made = None if form is None else form.layout(topk_idx, previous, async_finish)
        if made is not None:
            return made
        self._check_open()
        experts = whole(num_experts, "num_experts")
        form = LayoutForm(self._group, topk_idx, experts)
        keep_form(self._normal_forms, (topk_idx.shape, experts), form)
        made = form.layout(topk_idx, previous, async_finish, alike=False)
        assert made is not None
        return made

    @staticmethod
    def _check_streams(previous: EventOverlap | None, async_finish: bool) -> None:
        """Checks a call with allocate_on_comm_stream."""
        if previous is None or not async_finish:
            raise AssertionError("allocate_on_comm_stream needs previous_event and async_finish")

    def dispatch(
        self,
        x: Any,
        handle: tuple[Any, ...] | None = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, list[int] | None, Any, EventOverlap]:
        """Carries each token to the ranks that hold its experts. Returns (recv_x [R, H], recv_topk_idx [R, K],
        recv_topk_weights float32 [R, K], rows of each local expert, handle, event). With a handle it uses its routing,
        and returns (recv_x, None, None, None, None, event).

        x: [T, H] bf16, f16, f32, or a pair of FP8 or int8 [T, H] and scales [T, n] float32 or int32. recv_x has the
            same form.
        is_token_in_rank: bool [T, N]. It defines the routing.
        num_tokens_per_rank: int32 [N]. num_tokens_per_rdma_rank: int32 [M] or None. num_tokens_per_expert: int32 [E].
            These and is_token_in_rank come from get_dispatch_layout, or from the caller.
        topk_idx: int64 or int32 [T, K], -1 for none; recv_topk_idx has its dtype. topk_weights: float32 [T, K].
        expert_alignment: counts are rounded up to multiples of it.
        num_worst_tokens: recv_x has this number of rows, whatever comes. The list of rows is empty, and recv_topk_idx
            is -1 after the last received row.

        Rows are ordered by source rank, then by the source's token."""
        if allocate_on_comm_stream:
            self._check_streams(previous_event, async_finish)
        previous = None if previous_event is None else before(previous_event)
        scales = None
        if isinstance(x, tuple):
            if len(x) != 2:
                raise AssertionError(f"x is a tuple of {len(x)}: expected rows and scales")
            x, scales = x
            if scales is None:
                raise AssertionError("x[1] is None: expected scales")
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise AssertionError("topk_idx and topk_weights do not go with a handle, which has its routing")
            return self._dispatch_again(x, scales, handle, config, previous, async_finish)
        given = x, scales, topk_idx, topk_weights, is_token_in_rank, num_tokens_per_expert
        key = self._fresh_key(given, expert_alignment, num_worst_tokens, config, async_finish, previous)
        form: FreshForm | None = self._normal_forms.get(key)
        if form is not None and num_tokens_per_rank is not None:
            made = form.dispatch(given, previous, async_finish)
            if made is not None:
                return made
        place = _place.of(x, "x")
        mode = self._at(place)[0]
        self._check_routing(place, num_tokens_per_rank, given)
        if num_worst_tokens and topk_idx is None:
            raise AssertionError("num_worst_tokens needs topk_idx")
        alignment, worst = whole(expert_alignment, "expert_alignment"), whole(num_worst_tokens, "num_worst_tokens")
        options = alignment, worst, self._workers(config, place)
        return self._first_fresh(key, mode, given, options, previous, async_finish)

    def _key(self, x: Any, config: Config | None, *more: Any) -> tuple[Any, ...] | None:
        """Returns the key of a call's form. None if the call has none, because an argument is wrong."""
        sms = self.num_sms if config is None else getattr(config, "num_sms", None)
        return (getattr(x, "shape", None), sms, *more) if type(sms) is int else None

    def _fresh_key(
        self,
        given: Given,
        alignment: int,
        worst: int,
        config: Config | None,
        async_finish: bool,
        previous: EventHandle | None,
    ) -> tuple[Any, ...] | None:
        """Returns the key of a fresh dispatch's form. None if an argument is wrong."""
        if type(alignment) is not int or type(worst) is not int:
            return None
        x, scales, topk_idx, topk_weights, _, _ = given
        absent = scales is None, topk_idx is None, topk_weights is None
        return self._key(x, config, absent, alignment, worst, async_finish, previous is None)

    def _first_fresh(
        self,
        key: tuple[Any, ...] | None,
        mode: NormalMode,
        given: Given,
        options: Options,
        previous: EventHandle | None,
        async_finish: bool,
    ) -> Fresh:
        """Makes the first fresh dispatch of its form."""
        if mode.routes_first(options[1], async_finish):
            return mode.dispatch_routed(given, options, previous, async_finish)
        form = mode.fresh_form(given, options, bool(async_finish or previous is not None))
        if key is not None:
            keep_form(self._normal_forms, key, form)
        made = form.dispatch(given, previous, async_finish, alike=False)
        assert made is not None
        return made

    def _dispatch_again(
        self,
        x: Any,
        scales: Any,
        handle: tuple[Any, ...],
        config: Config | None,
        previous: EventHandle | None,
        async_finish: bool,
    ) -> Again:
        """Makes a dispatch with a handle."""
        found, aside = _handles.find(handle), async_finish or previous is not None
        key = self._key(x, config, scales is None, aside)
        form: AgainForm | None = self._normal_forms.get(key)
        made = None if form is None else form.dispatch(x, scales, found, previous, async_finish)
        if made is not None:
            return made
        place = _place.of(x, "x")
        mode, workers = self._at(place)[0], self._workers(config, place)
        if self._of_torch:
            rows, row_scales, event = mode.dispatch_again(x, scales, found, workers, previous, async_finish)
            return rows if scales is None else (rows, row_scales), None, None, None, None, EventOverlap(event)
        form = mode.again_form(x, scales, workers, bool(aside))
        if key is not None:
            keep_form(self._normal_forms, key, form)
        made = form.dispatch(x, scales, found, previous, async_finish, alike=False)
        assert made is not None
        return made

    @staticmethod
    def _check_routing(place: _place.Place, per_rank: Any, given: Given) -> None:
        _, _, topk_idx, topk_weights, in_rank, per_expert = given
        if per_rank is None or in_rank is None or per_expert is None:
            raise AssertionError(
                "without a handle num_tokens_per_rank, is_token_in_rank and num_tokens_per_expert are needed"
            )
        if topk_weights is not None and topk_idx is None:
            raise AssertionError("topk_weights needs topk_idx")
        if not isinstance(per_expert, torch.Tensor):
            raise AssertionError(f"num_tokens_per_expert is of type {type(per_expert).__name__}: expected a tensor")
        there = per_expert.device == place.device
        if per_expert.dtype is not torch.int32 or not per_expert.is_contiguous() or not there:
            raise AssertionError(
                f"num_tokens_per_expert is {per_expert.dtype} on {per_expert.device}: expected contiguous int32 [E] on "
                f"{place.device}, as x"
            )

    def combine(
        self,
        x: Any,
        handle: tuple[Any, ...] | None,
        topk_weights: Any = None,
        bias: Any = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, EventOverlap]:
        """Brings rows back and sums them. Returns (y [T, H], topk_weights float32 [T, K] or None, event).

        x: [R, H] bf16, f16 or f32, with the rows of recv_x.
        topk_weights: float32 [R, K]. They are summed slot by slot.
        bias: [T, H], dtype of x, or a pair of such. It is added first.

        y is the sum over the ranks that had the token, in ascending order, in FP32, rounded once."""
        if allocate_on_comm_stream:
            self._check_streams(previous_event, async_finish)
        biases = bias if isinstance(bias, tuple) else () if bias is None else (bias,)
        if len(biases) > 2:
            raise AssertionError(f"bias is a tuple of {len(biases)}: expected at most 2")
        if biases:
            biases = tuple(each for each in biases if each is not None)
        previous = None if previous_event is None else before(previous_event)
        aside = async_finish or previous is not None
        found = _handles.find(handle)
        key = self._key(x, config, topk_weights is None, len(biases), found.num_tokens, found.num_topk, aside)
        form: CombineForm | None = self._normal_forms.get(key)
        if form is not None:
            made = form.combine(x, found, topk_weights, biases, previous, async_finish)
            if made is not None:
                return made
        place = _place.of(x, "x")
        workers = self._workers(config, place)
        form = self._at(place)[0].combine_form(x, found, topk_weights, biases, workers, bool(aside))
        if key is not None:
            keep_form(self._normal_forms, key, form)
        made = form.combine(x, found, topk_weights, biases, previous, async_finish, alike=False)
        assert made is not None
        return made

    def internode_dispatch(
        self,
        x: Any,
        handle: tuple[Any, ...] | None = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, list[int] | None, Any, EventOverlap]:
        """As `dispatch`, which finds out by itself where ranks are."""
        return self.dispatch(
            x,
            handle,
            num_tokens_per_rank,
            num_tokens_per_rdma_rank,
            is_token_in_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            num_worst_tokens,
            config,
            previous_event,
            async_finish,
            allocate_on_comm_stream,
        )

    def internode_combine(
        self,
        x: Any,
        handle: tuple[Any, ...] | None,
        topk_weights: Any = None,
        bias: Any = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, EventOverlap]:
        """As `combine`, which finds out by itself where ranks are."""
        return self.combine(
            x, handle, topk_weights, bias, config, previous_event, async_finish, allocate_on_comm_stream
        )
