# SPDX-License-Identifier: Apache-2.0
"""The part of `ElasticBuffer` that `EPBuffer` has, too: its state, and calls after their arguments have names.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts.
M num_max_tokens_per_rank, A expert_alignment, R rows received, X rows expanded.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from expar._copies import Shared

from .. import _elastic_checks as checks
from .. import _elastic_sizes as sizes
from .. import _place
from .._checks import integer, real
from .._deferred import PendingCombine, PendingDispatch
from .._elastic import ElasticMode, Form
from .._elastic_forms import AgainForm, combine_key, CombineForm, dispatch_key, fresh_key, FreshForm, Tensors
from .._elastic_handle import EPHandle, Routing
from .._forms import Forms, keep_form
from .._late_sums import late_key, LateForm, send_back
from ..utils.event import EventHandle, EventOverlap
from .elastic_sizes import Sizes
from .legacy import Runtime

_Tensor: Any = torch.Tensor
_comm_stream: Any = None
CPU_TIMEOUT_SECS, GPU_TIMEOUT_SECS = sizes.Usual(300), sizes.Usual(100)
Layout = tuple[bool, bool, bool]  # do_expand, do_zero_padding, use_tma_aligned_col_major_sf


class ElasticCore(Sizes, Shared):
    """Calls of a group's ranks by one library buffer for each place of tensors.

    _modes: one mode for each place of tensors; None after `destroy`. Where there is a choice, the tensors of the first
    call decide."""

    _watches = False  # whether a handle is the caller's topk_idx, and rejects one that was changed since
    explicitly_destroy = False  # until there is something to destroy
    _modes: dict[_place.Place, ElasticMode] | None = None

    def _open(
        self,
        group: Any,
        num_max_tokens_per_rank: int,
        deterministic: bool,
        allow_hybrid_mode: bool,
        allow_multiple_reduction: bool,
        prefer_overlap_with_compute: bool,
        num_allocated_qps: int,
        num_cpu_timeout_secs: int,
        num_gpu_timeout_secs: int,
    ) -> None:
        """Checks the arguments that both generations have, and sets the attributes that follow from them."""
        qps = integer(num_allocated_qps, "num_allocated_qps")
        if qps < 0:
            raise AssertionError(f"num_allocated_qps is {qps}: expected 0 (the default number) or more")
        for name, seconds in (("cpu", num_cpu_timeout_secs), ("gpu", num_gpu_timeout_secs)):
            if real(seconds, f"num_{name}_timeout_secs") <= 0:
                raise AssertionError(f"num_{name}_timeout_secs is {seconds!r}: expected more than 0")
        usual = _place.usual()
        limits = sizes.limits_of(num_cpu_timeout_secs, num_gpu_timeout_secs, usual.on_gpu)
        self._group = sizes.group_for(group, **limits)
        self.group = group
        self.rank_idx, self.num_ranks = self._group.rank, self._group.size
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.deterministic = deterministic
        self.allow_hybrid_mode = allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.num_cpu_timeout_secs, self.num_gpu_timeout_secs = num_cpu_timeout_secs, num_gpu_timeout_secs
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx = self.rank_idx // self.num_scaleup_ranks
        self.scaleup_rank_idx = self.rank_idx % self.num_scaleup_ranks
        self._one_order = not allow_multiple_reduction or self.num_scaleout_ranks == 1  # over all nodes
        self.num_allocated_qps = sizes.allocated_qps(qps, allow_hybrid_mode)
        self._most_sms = usual.num_sms() if usual.on_gpu else None
        # More threads than cores for each rank only get in each other's way.
        self._max_threads = max((os.cpu_count() or 1) // self._group.ranks_per_node, 1)
        self._usual_sms: dict[tuple[int, int], int] = {}  # by experts and top-k
        self._forms: dict[Any, Form] = {}  # of dispatches that have been looked at
        self._calls: Forms = {}  # and of calls that repeat one
        self._unfinished: list[EventHandle] = []  # of calls whose results nobody has waited for
        self._modes = {}
        if not usual.on_gpu:
            self._at(_place.CPU)
        self.runtime: Runtime | None = None

    @classmethod
    def _total_bytes(cls, given: int | None, group: Any, max_tokens: int, hidden: int, topk: int) -> int:
        if given is None:
            if integer(max_tokens, "num_max_tokens_per_rank") <= 0 or integer(hidden, "hidden") <= 0:
                raise RuntimeError(
                    f"num_max_tokens_per_rank is {max_tokens} and hidden {hidden}: expected both, or num_bytes"
                )
            return cls.get_buffer_size_hint(group, max_tokens, hidden, topk)
        if integer(given, "num_bytes") <= 0 or given % sizes.UNIT_BYTES:
            raise RuntimeError(f"num_bytes is {given}: expected a multiple of 2 MiB")
        return given

    def _close(self) -> None:
        """Destroys the library's buffers. Collective. Without effect for a buffer that has been destroyed."""
        if self._modes is None:
            return
        modes, self._modes, self.runtime = self._modes, None, None
        self._unfinished.clear()
        self._calls.clear()
        for mode in modes.values():  # in the order of the first calls, which is that of all ranks
            mode.ep.close()

    def _at(self, place: _place.Place) -> ElasticMode:
        """Returns the mode for tensors in that place. Collective if it must be created, as calls are."""
        if self._modes is None:
            raise AssertionError("the buffer has been destroyed")
        found = self._modes.get(place)
        if found is None:
            found = self._modes[place] = ElasticMode(self._group, place)
        return found

    # ---- streams -----------------------------------------------------------------------------------------------------

    @staticmethod
    def capture() -> EventHandle:
        """Returns an event after all work that the current stream holds now."""
        return EventHandle()

    def get_comm_stream(self) -> Any:
        """Returns the stream of calls with async_with_compute_stream or previous_event; there is one for each process
        and GPU. Other calls run on the current stream, in the same order. It must not be current in a call. On a CPU it
        is a stream that does nothing."""
        return comm_stream()

    def _settle(self, wait: bool) -> None:
        """Finishes calls on the CPU that are done. wait: waits for all others, and finishes them too. RuntimeError with
        the error of a call that nobody has waited for; it is raised once."""
        left: list[EventHandle] = []
        errors: list[RuntimeError] = []
        todo, self._unfinished = self._unfinished, []
        try:
            while todo:
                handle = todo[0]
                if not (wait or handle.work is None or handle.work.done):
                    left.append(handle)
                elif not handle.failed:
                    try:
                        handle.current_stream_wait()
                    except RuntimeError as error:
                        errors.append(error)
                del todo[0]
        finally:  # a signal leaves the others for the next call
            self._unfinished = left + todo
        if errors:
            raise errors[0]

    @staticmethod
    def _event_of(given: Any, name: str) -> EventHandle | None:
        handle = given.event if isinstance(given, EventOverlap) else given
        if handle is not None and not isinstance(handle, EventHandle):
            raise TypeError(f"{name} is of type {type(given).__name__}: expected an EventHandle")
        return handle

    def _turn(self, place: _place.Place, previous: Any, before_epilogue: Any, asynchronous: bool) -> _place.Turn:
        """Returns the streams of a call that waits for these events."""
        first = self._event_of(previous, "previous_event")
        second = self._event_of(before_epilogue, "previous_event_before_epilogue")
        turn = place.turn(first, asynchronous)
        if second is not None:
            turn.follow(second)
        return turn

    def _event(self, place: _place.Place, handle: EventHandle | None) -> EventOverlap:
        """Returns the event of a call that was just made."""
        if self._unfinished:
            self._settle(wait=handle is None)
        if handle is not None and not place.on_gpu:
            self._unfinished.append(handle)
        return EventOverlap(handle)

    def _deferred(self, place: _place.Place, handle: EventHandle | None, results: Any) -> EventOverlap:
        """Returns the event of a call whose results its first wait makes."""
        made = self._event(place, handle)
        made.register_hook_after_wait(results)
        return made

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _sms(self, num_sms: int, num_experts: int, num_topk: int, num_qps: int) -> int:
        """Returns the number of SMs that a call uses."""
        if num_sms != 0 or num_qps != 0:
            for name, given in (("num_sms", num_sms), ("num_qps", num_qps)):
                if integer(given, name) < 0:
                    raise AssertionError(f"{name} is {given}: expected 0 or more")
            if num_qps > self.num_allocated_qps:
                raise AssertionError(f"num_qps is {num_qps}: expected at most the {self.num_allocated_qps} allocated")
        if num_sms:
            return num_sms
        key = num_experts, num_topk
        found = self._usual_sms.get(key)
        if found is None:
            found = self._usual_sms[key] = self._theoretical_num_sms(num_experts, num_topk)
        return found

    def _theoretical_num_sms(self, num_experts: int, num_topk: int) -> int:
        """Returns the number that num_sms=0 of a call stands for."""
        return self.get_theoretical_num_sms(num_experts, num_topk)

    def _workers(self, num_sms: int, place: _place.Place) -> int:
        """Returns the number of SMs or CPU threads that a call uses. With 0 the library chooses."""
        most = place.num_sms() if place.on_gpu else self._max_threads - 1
        return num_sms if 0 < num_sms <= most else 0

    def _wrong_call(
        self, place: _place.Place, num_sms: int, previous_event: Any, allocate_on_comm_stream: bool
    ) -> str | None:
        if self._most_sms is not None and num_sms > self._most_sms:
            return f"num_sms is {num_sms}: expected at most the GPU's {self._most_sms}"
        if not allocate_on_comm_stream and self._event_of(previous_event, "previous_event") is not None:
            return "previous_event is given: expected allocate_on_comm_stream with it"
        if place.on_comm():
            return "the stream for communication is current: expected another one"
        return None

    def _usual_most(self) -> int:
        if self.num_max_tokens_per_rank == 0:
            raise AssertionError(
                "num_max_tokens_per_rank is not given: expected 0 or more here, or 1 or more in the constructor"
            )
        return self.num_max_tokens_per_rank

    def _routing(
        self, topk_idx: Any, num_experts: int, most: int, alignment: int, synced: bool, copied: bool, deferred: bool
    ) -> Routing:
        """Checks the arguments of a fresh dispatch, and returns its routing. most: M."""
        if topk_idx is None or num_experts is None:
            raise AssertionError("without a handle topk_idx and num_experts are needed")
        integer(num_experts, "num_experts")
        if integer(most, "num_max_tokens_per_rank") < 0:
            raise AssertionError(f"num_max_tokens_per_rank is {most}: expected 0 or more")
        if integer(alignment, "expert_alignment") <= 0:
            raise AssertionError(f"expert_alignment is {alignment}: expected 1 or more")
        topk = topk_idx.shape[-1] if topk_idx.dim() else 0
        ranks = self.num_ranks, self.num_scaleup_ranks
        return Routing(topk, num_experts, most, alignment, *ranks, synced, copied, self._watches, deferred)

    def _form(
        self, mode: ElasticMode, tensors: Tensors, numbers: tuple[Any, ...], flags: tuple[Any, ...], handle: Any
    ) -> tuple[Form, Any, str | None]:
        """Returns a dispatch's form, its frame, and the text of an error or None. The arguments of a form are checked
        once."""
        x, scales, topk_idx, topk_weights = tensors
        experts, most, alignment, num_sms, num_qps = numbers
        key = (mode.place, x.shape, scales is None, topk_weights is None, handle is None, flags, numbers)
        # Other types are no numbers, which is reported below, or they equal a number of another type.
        plain = topk_idx is not None
        plain &= type(experts) is type(most) is type(alignment) is type(num_sms) is type(num_qps) is int
        found = self._forms.get(key) if plain else None
        if found is not None:
            if (frame := mode.frame(found, tensors)) is not None:
                return found, frame, None
        made, wrong = self._new_form(mode.place, tensors, numbers, flags, handle)
        if wrong:
            return made, None, wrong
        if plain:
            keep_form(self._forms, key, made)
        return made, mode.frame(made, tensors), None

    def _new_form(
        self, place: _place.Place, tensors: Tensors, numbers: tuple[Any, ...], flags: tuple[Any, ...], handle: Any
    ) -> tuple[Form, str | None]:
        x, scales, topk_idx, topk_weights = tensors
        num_experts, most, alignment, num_sms, num_qps = numbers
        expand, zero_padding, column_major, copied, synced, deferred = flags
        routing = None
        if handle is None:
            routing = self._routing(topk_idx, num_experts, most, alignment, synced, bool(copied), deferred)
        topk = handle._routing.num_topk if routing is None else routing.topk
        used_sms = self._sms(num_sms, num_experts, topk, num_qps)
        wrong = checks.wrong_rows(x, scales, most)
        wrong = wrong or checks.wrong_routing(None if routing is None else topk_idx, topk_weights, x.shape[0], topk)
        if zero_padding and not expand:
            wrong = wrong or "do_zero_padding is set: expected do_expand with it"
        workers = self._workers(used_sms, place)
        return Form(num_experts, expand, zero_padding, column_major, routing, used_sms, workers), wrong

    def _dispatch(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        stats: Any,
        num_experts: int | None,
        num_max_tokens_per_rank: int | None,
        expert_alignment: int | None,
        num_sms: int,
        num_qps: int,
        previous_event: Any,
        before_epilogue: Any,
        beside: bool,
        allocate_on_comm_stream: bool,
        handle: EPHandle | None,
        copied: bool,
        do_cpu_sync: bool | None,
        layout: Layout,
        deferred: bool = False,
    ) -> Any:
        """Makes a dispatch. beside: it is asynchronous. before_epilogue: another event to wait for. copied: the handle
        has a copy of topk_idx. deferred: returns the event alone, whose first wait returns the results."""
        key: Any = None
        given_numbers: tuple[Any, ...]
        if handle is stats is previous_event is before_epilogue is None and (beside or not deferred):
            most = self.num_max_tokens_per_rank if num_max_tokens_per_rank is None else num_max_tokens_per_rank
            given_numbers = num_experts, most, expert_alignment, num_sms, num_qps
            options = copied, do_cpu_sync is not False, layout, beside, deferred
            key = fresh_key(x, topk_weights, given_numbers, *options)
        elif handle is not None and topk_idx is stats is previous_event is before_epilogue is None:
            if not (do_cpu_sync or deferred):
                given_numbers = num_experts, num_max_tokens_per_rank, expert_alignment, num_sms, num_qps
                key = dispatch_key(x, handle, given_numbers, topk_weights is None, layout, beside)
        known: Any = self._calls.get(key)
        if known is not None and deferred:
            launched = known.launch(x, topk_idx, topk_weights)
            if launched is not None:
                return self._deferred(known.place, launched[1], launched[0])
        elif known is not None:
            repeated = known.dispatch(x, topk_idx, topk_weights, handle)
            if repeated is not None:
                return (*repeated[:4], self._event(known.place, repeated[4]))
        scales = None
        if not isinstance(x, _Tensor):
            x, scales = checks.rows_and_scales(x)
        place = _place.of(x, "x")
        mode = self._at(place)
        if stats is not None or not (isinstance(topk_idx, _Tensor) and isinstance(topk_weights, _Tensor)):
            checks.check_tensors(topk_idx=topk_idx, topk_weights=topk_weights, cumulative_local_expert_recv_stats=stats)
        if handle is None:
            most = self._usual_most() if num_max_tokens_per_rank is None else num_max_tokens_per_rank
            given, alignment = topk_idx, 1 if expert_alignment is None else expert_alignment
        else:
            checks.check_handle(
                handle, topk_idx, num_experts, num_max_tokens_per_rank, expert_alignment, do_cpu_sync, layout[0]
            )
            num_experts, most = handle.num_experts, handle.num_max_tokens_per_rank
            given, alignment = handle.topk_idx, handle._routing.num_topk
        numbers = (num_experts, most, alignment, num_sms, num_qps)
        flags = (*layout, copied, do_cpu_sync is not False, deferred)
        tensors = (x, scales, given, topk_weights)
        form, frame, wrong = self._form(mode, tensors, numbers, flags, handle)
        if stats is not None:
            wrong = wrong or checks.wrong_stats(stats, handle, form.num_experts // self.num_ranks)
        if num_sms or previous_event is not None or place.on_comm():
            wrong = wrong or self._wrong_call(place, num_sms, previous_event, allocate_on_comm_stream)
        if deferred and not beside:
            wrong = wrong or "defer_epilogue is set: expected async_with_compute_stream with it"
        if wrong:
            mode.refuse_dispatch(wrong)
        if previous_event is None and before_epilogue is None:
            turn = place.turn(None, beside)
        else:
            turn = self._turn(place, previous_event, before_epilogue, beside)
        if deferred:
            pending, event = mode.launch(tensors, stats, handle, frame, form, turn)
            if key is not None:
                keep_form(self._calls, key, mode.fresh_form(tensors, form, beside))
            return self._deferred(place, event, PendingDispatch(mode, pending, form, scales is not None))
        if handle is None:
            found, made, event = mode.dispatch(tensors, stats, frame, form, turn, beside)
            if key is not None:
                keep_form(self._calls, key, mode.fresh_form(tensors, form, beside))
        else:
            found, made, event = mode.dispatch_again(tensors, handle, frame, form, turn, beside)
            if key is not None:
                keep_form(self._calls, key, mode.again_form(tensors, handle, form, beside))
        rows, row_scales, idx, weights = found
        over = self._event(place, event)
        return rows if scales is None else (rows, row_scales), idx, weights, made, over

    def _combine(
        self,
        x: Any,
        handle: EPHandle,
        topk_weights: Any,
        bias: Any,
        num_sms: int,
        num_qps: int,
        previous_event: Any,
        before_epilogue: Any,
        beside: bool,
        allocate_on_comm_stream: bool,
        deferred: bool = False,
    ) -> Any:
        """Makes a combine; the arguments are as in `_dispatch`."""
        key = None
        if not deferred and bias is previous_event is before_epilogue is None:
            key = combine_key(x, handle, topk_weights, num_sms, num_qps, beside)
            known: CombineForm | None = self._calls.get(key)
            made = None if known is None else known.combine(x, handle, topk_weights)
            if known is not None and made is not None:
                return made[0], made[1], self._event(known.place, made[2])
        elif deferred and beside and topk_weights is previous_event is before_epilogue is None:
            key = late_key(x, handle, bias, num_sms, num_qps)
            form: LateForm | None = self._calls.get(key)
            sums = None if form is None else form.combine(x, handle, bias if type(bias) is tuple else (bias,))
            if form is not None and sums is not None:
                return self._deferred(form.place, sums.event, sums)
        if not isinstance(handle, EPHandle):
            raise TypeError(f"handle is of type {type(handle).__name__}: expected the EPHandle that dispatch gave")
        if x is None:
            raise TypeError("x is None: expected a tensor")
        checks.check_tensors(x=x, topk_weights=topk_weights)
        place = _place.of(x, "x")
        mode = self._at(place)
        biases = checks.two_biases(bias)
        each_slot = handle.do_expand and not self.allow_multiple_reduction
        if each_slot and topk_weights is not None:
            raise AssertionError("topk_weights is given: expected allow_multiple_reduction with expanded rows")
        used_sms = self._sms(num_sms or handle.num_sms, handle.num_experts, handle._routing.num_topk, num_qps)
        wrong = checks.wrong_sums(x, handle, topk_weights, biases)
        wrong = wrong or self._wrong_call(place, num_sms, previous_event, allocate_on_comm_stream)
        if deferred and not beside:
            wrong = wrong or "defer_epilogue is set: expected async_with_compute_stream with it"
        if wrong:
            mode.refuse_combine(wrong)
        workers = self._workers(used_sms, place)
        if previous_event is None and before_epilogue is None:
            turn = place.turn(None, beside)
        else:
            turn = self._turn(place, previous_event, before_epilogue, beside)
        if deferred and biases:
            sums, form = send_back(mode, x, handle, topk_weights, biases, each_slot, self._one_order, workers, turn)
            if key is not None:
                keep_form(self._calls, key, form)
            return self._deferred(place, sums.event, sums)
        y, weights, event = mode.combine(
            x, handle, topk_weights, biases, each_slot, self._one_order, workers, turn, beside
        )
        if deferred:
            return self._deferred(place, event, PendingCombine(place, y, weights))
        if key is not None:
            known = mode.combine_form(x, handle, topk_weights, each_slot, self._one_order, workers, beside)
            keep_form(self._calls, key, known)
        return y, weights, self._event(place, event)


def comm_stream() -> Any:
    """Returns the stream for communication of this process and the current GPU; on a CPU one that does nothing."""
    global _comm_stream
    place = _place.usual()
    if isinstance(place, _place.Gpu):
        return place.comm()
    if _comm_stream is None:
        _comm_stream = torch.cpu.Stream()
    return _comm_stream
