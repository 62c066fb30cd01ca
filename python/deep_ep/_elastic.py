# SPDX-License-Identifier: Apache-2.0
"""Dispatches and combines of `ElasticBuffer` on a library buffer.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts.
R rows received, X rows expanded, M maximum of tokens on a rank, A expert_alignment.
"""

from __future__ import annotations

import contextlib
from ctypes import addressof, c_void_p, memmove, sizeof
from typing import Any, NoReturn, Sequence

import torch
from expar import _abi, Buffer as EpBuffer, Group, EpSumOrder, EpWeightsOf
from expar._abi import EpPart
from expar._library import lib

from . import _handles, _place
from ._call import CODES, Output, Parts, check, parts_of, plain, pool_tensor, put, put_memory, put_view
from ._forms import Form as CallForm
from ._frame import (
    ARGS_BYTES,
    COUNTS_AT,
    COUNTS_BYTES,
    fill,
    Frame,
    places_of_dispatch,
    RESULT_AT,
    RESULT_BYTES,
    W_ASYNC,
    W_EVENT,
    W_EXPERT_ENDS,
    W_EXPERT_PREFIX,
    W_HANDLE,
    W_MADE,
    W_NUM_RECV,
    W_OUTPUT,
    W_PER_EXPERT,
    W_RANK_PREFIX,
    W_RECV_COUNTS,
    W_ROUNDED,
    W_STREAM,
    W_TOPK_IDX_COPY,
    W_WAIT_EVENT,
    Words,
)
from ._elastic_forms import AGAIN, AgainForm, COMBINE, CombineForm, FRESH, FRESH_EXPANDED, FreshForm, Tensors
from ._deferred import Launched
from ._elastic_handle import EPHandle, Routing
from .utils.event import EventHandle
from .utils.math import align

_dispatch = plain("expar_ep_dispatch", c_void_p, c_void_p, c_void_p)
_combine = plain("expar_ep_combine", c_void_p, c_void_p, c_void_p)
_query = plain("expar_ep_query", c_void_p)
_release_handle = lib.expar_ep_handle_release

_Args = _abi.EpDispatchArgs
_Result = _abi.EpDispatchResult
_Sums = _abi.EpCombineArgs
_SUMS_BYTES = sizeof(_Sums)
_VIEW_BYTES = sizeof(_abi.Tensor)
_BIAS = getattr(_Sums, "bias").offset
_BY_SLOT, _EACH_SLOT, _OWNER = int(EpSumOrder.BY_SLOT), int(EpSumOrder.EACH_SLOT), int(EpWeightsOf.OWNER)
_ONE_ORDER = int(_abi.EpNodesSum.ONE_ORDER)

# The results of a dispatch: the arguments for memory that the caller provides, and the library's parts.
_OUT = {
    "x": _Args.out_x.offset,
    "scales": _Args.out_scales.offset,
    "topk_idx": _Args.out_topk_idx.offset,
    "topk_weights": _Args.out_topk_weights.offset,
    "row_weights": _Args.out_row_weights.offset,
    "metadata": _Args.out_src_metadata.offset,
}
_PARTS = (int(EpPart.X), int(EpPart.SCALES), int(EpPart.TOPK_IDX), int(EpPart.TOPK_WEIGHTS))
_EXPANDED_PARTS = (*_PARTS[:3], int(EpPart.ROW_WEIGHTS))
_TOPK_IDX_COPY = _Args.topk_idx_copy.offset
_TENSORS = places_of_dispatch(x="x", x_scales="x[1]", topk_idx="topk_idx", topk_weights="topk_weights")
_ONE_BY_ONE = (1,)  # strides
# The results with one row for each row of recv_x. The others have one for each token.
_OF_ROWS = ("x", "scales", "row_weights")  #


class Form:
    """The options of dispatches, without their tensors.

    A kept form serves all calls whose tensors look alike (`ElasticMode.frame`): their arguments differ only in
    addresses. routing: set for fresh dispatches. num_sms: the number that handles show. workers: the number that calls
    use."""

    __slots__ = (
        "num_experts",
        "expand",
        "zero_padding",
        "column_major",
        "routing",
        "num_sms",
        "workers",
        "frame",
        "parts",
    )

    def __init__(
        self,
        num_experts: int,
        expand: bool = False,
        zero_padding: bool = False,
        column_major: bool = False,
        routing: Routing | None = None,
        num_sms: int = 0,
        workers: int = 0,
    ) -> None:
        self.num_experts = num_experts
        self.expand = expand
        self.zero_padding = zero_padding
        self.column_major = column_major
        self.routing = routing
        self.num_sms = num_sms
        self.workers = workers
        self.frame = b""  # of its calls, after the first one
        self.parts: Parts | None = None


def _mine(own: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Returns what the caller gets of results that lie in memory from `_own`."""
    weights = own.get("topk_weights", own.get("row_weights"))
    return own["x"], own.get("scales"), own.get("topk_idx"), weights


class ElasticMode:
    """Calls on one library buffer.

    On a GPU the library's calls return before their outcome is known. A later call raises the error. That call has been
    submitted by then, so no rank waits for it."""

    def __init__(self, group: Group, place: _place.Place) -> None:
        self.ep = EpBuffer(group, device=place.pair)
        self.place, self.group = place, group
        self.ranks = group.size
        self._on_gpu = place.on_gpu
        self._across = group.num_nodes > 1
        self._meeting: Any = None  # the handle of a dispatch in which all ranks take part

    def ask(self) -> None:
        """Raises errors of earlier calls on a GPU."""
        if self._on_gpu:
            check(_query(self.ep.pointer))

    # ---- refusals ----------------------------------------------------------------------------------------------------

    def refuse_dispatch(self, text: str) -> NoReturn:
        """Raises RuntimeError for an error that the library does not check. It first makes a call that the library
        rejects, so that the other ranks, which are in their calls, learn of the error."""
        args, result = _Args(ARGS_BYTES), _Result(RESULT_BYTES)
        self.place.turn(None, False).begin(args)
        put_view(args, _Args.x.offset, 0, -1, (0, 0))
        with contextlib.suppress(RuntimeError):
            check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        raise RuntimeError(text)

    def refuse_combine(self, text: str) -> NoReturn:
        """Does the same for a combine."""
        args = _Sums(_SUMS_BYTES)
        self.place.turn(None, False).begin(args)
        put_view(args, _Sums.x.offset, 0, -1, (0, 0))
        with contextlib.suppress(RuntimeError):
            check(_combine(self.ep.pointer, addressof(args), None))
        raise RuntimeError(text)

    # ---- dispatch ----------------------------------------------------------------------------------------------------

    def dispatch(
        self, tensors: Tensors, stats: Any, frame: Any, form: Form, turn: _place.Turn, asynchronous: bool
    ) -> tuple[Sequence[Any], EPHandle, EventHandle | None]:
        """Makes a fresh dispatch: returns the received tensors, a handle, and an event if one is asked for.

        stats: int32 [L] or None; the counts of received rows are added to it. frame: the one that `frame` returned for
        these tensors."""
        made = self._begin(tensors, frame, form, turn, asynchronous)
        if made.own is None:
            found = self._results(made.output, made.handle, form, turn)
        else:
            made.handle.let_output_go()
            found, made.handle.recv_src_metadata = _mine(made.own), made.own["metadata"]
        event = self._end(made, tensors, found, stats, frame, turn, asynchronous)
        return found, made.handle, event

    def _begin(self, tensors: Tensors, frame: Any, form: Form, turn: _place.Turn, asynchronous: bool) -> Launched:
        """Makes the library's call of a fresh dispatch."""
        topk_idx, routing, pointer = tensors[2], form.routing, self.ep.pointer
        assert routing is not None
        frame[W_STREAM] = turn.stream
        if turn.previous is not None:
            frame[W_WAIT_EVENT] = turn.previous.pointer
        at, words = addressof(frame), routing.count_words
        kept_words = topk_idx.numel() if routing.copied else 0
        memory = turn.run(self.place.maker(), (words + kept_words,), _ONE_BY_ONE, torch.int64)
        counts = memory.data_ptr()
        if kept_words:
            frame[W_TOPK_IDX_COPY] = counts + 8 * words
        frame[W_RECV_COUNTS] = at + COUNTS_AT
        frame[W_RANK_PREFIX] = counts
        frame[W_PER_EXPERT] = counts = counts + 4 * routing.ranks
        if form.expand:
            frame[W_EXPERT_ENDS] = counts + 4 * routing.local + 4
        else:
            frame[W_EXPERT_PREFIX] = counts + 4 * routing.local
        own = None
        if not (routing.synced or routing.deferred or self._on_gpu):
            shapes = self._shapes(tensors, form.expand)
            own = self._own(frame, {**shapes, "metadata": (2 + routing.topk, torch.int32)}, routing, form)
        if turn.asynchronous(asynchronous):
            frame[W_ASYNC] = 1
        check(_dispatch(pointer, at, at + RESULT_AT))
        output = Output(frame[W_OUTPUT])
        numbers = frame[W_NUM_RECV], frame[W_ROUNDED]
        return Launched(self.handle(frame[W_MADE], output, *numbers, topk_idx, memory, form), output, own, memory)

    def _end(
        self,
        made: Launched,
        tensors: Tensors,
        found: Sequence[Any],
        stats: Any,
        frame: Any,
        turn: _place.Turn,
        asynchronous: bool,
    ) -> EventHandle | None:
        """Does what is left of a fresh dispatch after the library's call, and returns its event."""
        handle = made.handle
        later = stats is not None and asynchronous and not self._on_gpu
        if stats is not None and not later:
            with turn.work():
                stats.add_(handle.num_unaligned_recv_tokens_per_expert)
        kept = [*tensors, stats, frame, *found, handle, made.memory]
        event = turn.end(frame[W_EVENT], kept, (made.memory,), asynchronous)
        if later and event is not None:
            event.finish_by(lambda: stats.add_(handle.num_unaligned_recv_tokens_per_expert))
        self.ask()
        return event

    def dispatch_again(
        self, tensors: Tensors, handle: EPHandle, frame: Any, form: Form, turn: _place.Turn, asynchronous: bool
    ) -> tuple[Sequence[Any], EPHandle, EventHandle | None]:
        """Makes a dispatch with a handle, and returns the same as `dispatch`. The topk_idx among the tensors is the
        handle's; it is carried to the receivers again."""
        made = self._begin_again(tensors, handle, frame, form, turn, asynchronous)
        found = self._results(made.output, handle, form, turn) if made.own is None else _mine(made.own)
        event = turn.end(frame[W_EVENT], [*tensors, *found, handle], (), asynchronous)
        self.ask()
        return found, handle, event

    def _begin_again(
        self, tensors: Tensors, handle: EPHandle, frame: Any, form: Form, turn: _place.Turn, asynchronous: bool
    ) -> Launched:
        """Makes the library's call of a dispatch with a handle."""
        frame[W_STREAM] = turn.stream
        if turn.previous is not None:
            frame[W_WAIT_EVENT] = turn.previous.pointer
        frame[W_HANDLE] = handle._routing.pointer
        own = None
        if handle._counted and not handle._synced:
            own = self._own(frame, self._shapes(tensors, form.expand), handle, form)
        if turn.asynchronous(asynchronous):
            frame[W_ASYNC] = 1
        at = addressof(frame)
        check(_dispatch(self.ep.pointer, at, at + RESULT_AT))
        return Launched(handle, Output(frame[W_OUTPUT]), own, None)

    # ---- deferred epilogues ------------------------------------------------------------------------------------------

    def launch(
        self, tensors: Tensors, stats: Any, handle: EPHandle | None, frame: Any, form: Form, turn: _place.Turn
    ) -> tuple[Launched, EventHandle | None]:
        """Makes a dispatch, with that handle or a fresh one, and returns its event. `results` makes its tensors."""
        if handle is None:
            made = self._begin(tensors, frame, form, turn, True)
            return made, self._end(made, tensors, (), stats, frame, turn, True)
        made = self._begin_again(tensors, handle, frame, form, turn, True)
        own = () if made.own is None else _mine(made.own)
        event = turn.end(frame[W_EVENT], [*tensors, *own, handle], (), True)
        self.ask()
        return made, event

    def results(self, made: Launched, form: Form) -> Sequence[Any]:
        """Returns the received tensors of a dispatch that the current stream has waited for. The host waits for counts
        if the caller gets only the rows that came."""
        turn, handle = self.place.turn(None, False), made.handle
        if form.routing is not None and form.routing.synced:
            self.place.settle()
            self.ask()
            handle._learn()
        if made.memory is not None:
            self.place.claim((made.memory,))
        if made.found:
            turn.give(made.output.pointer)
            return self.only_rows(made.found, handle, form, turn)
        return self._results(made.output, handle, form, turn) if made.own is None else _mine(made.own)

    # ---- forms that repeat -------------------------------------------------------------------------------------------

    def fresh_form(self, tensors: Tensors, form: Form, asked: bool) -> FreshForm | None:
        """Returns the form of fresh dispatches like the one just made. None if their results lie in memory from
        `_own`."""
        routing = form.routing
        assert routing is not None
        if not (routing.synced or routing.deferred or self._on_gpu):
            return None
        args = _abi.PythonFresh()
        memmove(addressof(args), form.frame, ARGS_BYTES)
        args.counts.struct_size = COUNTS_BYTES
        alone, kind = self.place.ends_alone and not asked, FRESH_EXPANDED if form.expand else FRESH
        call = CallForm(kind, self.ep, args, form.parts, alone, alone)
        return FreshForm(self, form, call, asked, tensors[2].numel() if routing.copied else 0)

    def again_form(self, tensors: Tensors, handle: EPHandle, form: Form, asked: bool) -> AgainForm | None:
        """Returns the form of dispatches like the one just made. None if their results lie in memory from `_own`."""
        if handle._counted and not handle._synced:
            return None
        args = _Args.from_buffer_copy(form.frame)
        alone = self.place.ends_alone and not asked
        return AgainForm(self, form, CallForm(AGAIN, self.ep, args, form.parts, alone, alone), asked)

    def meet(self, turn: _place.Turn) -> None:
        """Orders streams: work after it in this call's stream starts after all work that the ranks enqueued before
        it."""
        with turn.work():
            x = self.place.zeros((self.ranks, 8), torch.bfloat16)
            if self._meeting is None:
                everybody = torch.arange(self.ranks, dtype=torch.int64, device=self.place.device).view(-1, 1)
                form = Form(self.ranks, routing=Routing(1, self.ranks, self.ranks, 1, self.ranks))
                first = x, None, everybody, None
                self._meeting = self.dispatch(first, None, self.frame(form, first), form, turn, False)[1]
            self.again((x, None, None), self._meeting, Form(self.ranks), turn)

    def again(self, given: tuple[Any, Any, Any], handle: EPHandle, form: Form, turn: _place.Turn) -> Any:
        """Returns the received x of a dispatch with a handle, without keeping its form. given: x, scales,
        topk_weights."""
        x, scales, topk_weights = given
        tensors = x, scales, handle.topk_idx, topk_weights
        return self.dispatch_again(tensors, handle, self.frame(form, tensors), form, turn, False)[0][0]

    def frame(self, form: Form, tensors: Tensors) -> Any:
        """Returns the frame of a call of that form. None if these tensors do not look like those of its first call."""
        if not form.frame:
            form.frame, form.parts = self._first_frame(tensors, form), self._parts(tensors, form.expand)
        frame = Words.from_buffer_copy(form.frame)
        return frame if fill(frame, addressof(frame), _TENSORS, tensors) else None

    def _first_frame(self, tensors: Tensors, form: Form) -> bytes:
        """Returns the content that all frames of a form share."""
        _, scales, topk_idx, topk_weights = tensors
        frame, routing = Frame(), form.routing
        args = frame.args
        args.struct_size, args.num_sms = ARGS_BYTES, form.workers
        frame.counts.struct_size, frame.result.struct_size = COUNTS_BYTES, RESULT_BYTES
        fill(Words.from_buffer(frame), addressof(frame), _TENSORS, tensors)
        args.column_scales = scales is not None and form.column_major
        args.row_weights = topk_weights is not None and form.expand
        if form.expand:
            args.expert_major, args.zero_padding = 1, form.zero_padding
        if routing is not None:
            args.num_experts, args.expert_alignment = routing.num_experts, routing.alignment
            args.keep_slots, args.src_stride = 1, max(routing.num_max_tokens_per_rank, 1)  # 0: numbers of no tokens
            if routing.copied:
                put(args, _TOPK_IDX_COPY, topk_idx, "topk_idx")  # it is contiguous
            if self._uncounted(routing):
                args.num_worst_tokens = routing.worst_tokens(form.expand)
        return bytes(frame)

    @staticmethod
    def _parts(tensors: Tensors, expand: bool) -> Parts:
        """Returns the library's parts (x, scales, topk_idx, topk_weights) of a dispatch of these tensors."""
        x, scales, topk_idx, topk_weights = tensors
        return parts_of(
            _EXPANDED_PARTS if expand else _PARTS,
            x.dtype,
            None if scales is None else scales.dtype,
            None if topk_idx is None or expand else topk_idx.dtype,
            None if topk_weights is None else torch.float32,
        )

    @staticmethod
    def _shapes(tensors: Tensors, expand: bool) -> dict[str, tuple[int, Any]]:
        """Returns columns and dtype of each result that the caller gets. A result with 0 columns has one dimension."""
        x, scales, topk_idx, topk_weights = tensors
        shapes: dict[str, tuple[int, Any]] = {"x": (x.shape[1], x.dtype)}
        if scales is not None:
            shapes["scales"] = (scales.shape[1], scales.dtype)
        if topk_idx is not None and not expand:
            shapes["topk_idx"] = (topk_idx.shape[1], topk_idx.dtype)
        if topk_weights is not None:
            shapes["row_weights" if expand else "topk_weights"] = (0 if expand else topk_weights.shape[1], torch.float32)
        return shapes

    def _own(self, frame: Any, shapes: dict[str, tuple[int, Any]], of: Any, form: Form) -> dict[str, Any]:
        """On a CPU, allocates results from the pool for the largest possible number of rows. Indices of rows that do
        not come are -1. of: the routing, or a handle."""
        found = {}
        for name, (columns, dtype) in shapes.items():
            many = of.num_expanded_tokens if form.expand and name in _OF_ROWS else of.num_recv_tokens
            if name == "scales" and form.column_major:
                apart = align(many, 4)
                memory = pool_tensor(self.ep.pointer, columns, apart, dtype).as_strided((many, columns), (1, apart))
            else:
                memory = pool_tensor(self.ep.pointer, many, columns or 1, dtype)
            if name in ("topk_idx", "metadata"):
                memory.fill_(-1)
            made = found[name] = memory if columns else memory.view(-1)
            # Pass its strides even if it has no rows. PyTorch would accept any strides then.
            put_memory(frame, _OUT[name], made, made.shape, made.stride(), self.place.pair)
        return found

    def _results(self, output: Output, handle: EPHandle, form: Form, turn: _place.Turn) -> Sequence[Any]:
        """Returns the library's (x, scales, topk_idx, topk_weights)."""
        turn.give(output.pointer)
        assert form.parts is not None
        return self.only_rows(output.tensors(form.parts), handle, form, turn)

    def only_rows(self, found: Sequence[Any], handle: EPHandle, form: Form, turn: _place.Turn) -> Sequence[Any]:
        """Cuts these results to the rows that the caller gets."""
        if not (handle._synced and handle._counted):
            recv_x, recv_scales, idx, weights = found
            rows = handle.num_expanded_tokens if form.expand else handle.num_recv_tokens
            recv_x, idx, weights = (self._first(each, rows, turn, False) for each in (recv_x, idx, weights))
            found = [recv_x, self._first(recv_scales, rows, turn, form.column_major), idx, weights]
        return found

    @staticmethod
    def _first(tensor: Any, rows: int, turn: _place.Turn, columns: bool) -> Any:
        """Returns the first rows of a tensor. The library reserves more, since it also accepts experts that are not
        distinct. columns: the tensor is column-major, and extra space between columns is removed."""
        if tensor is None or tensor.shape[0] == rows:
            return tensor
        if not columns or tensor.stride(1) == align(rows, 4):
            return tensor[:rows]
        if rows == 0:  # PyTorch would choose other strides for new memory
            return tensor.as_strided((0, tensor.shape[1]), (1, 0))
        with turn.work():
            memory = tensor.new_empty((tensor.shape[1], align(rows, 4)))
            memory.t()[:rows].copy_(tensor[:rows])
            turn.made(memory)
        return memory.t()[:rows]

    def handle(
        self, pointer: int, output: Output, rows: int, aligned: int, topk_idx: Any, memory: Any, form: Form
    ) -> EPHandle:
        """Wraps the results of a fresh dispatch. rows: the number of rows. aligned: where the host has the counts of
        experts, rounded up. It has neither if it has not waited."""
        routing = form.routing
        assert routing is not None
        if not aligned or self._uncounted(routing):
            rows, aligned = routing.worst_tokens(form.expand), 0
        made = _handles.Handle(pointer, topk_idx.shape[0], routing.topk, rows)
        handle = EPHandle(made, routing, memory, form.expand, form.num_sms, output, aligned)
        if routing.watched:
            handle._keep(topk_idx)
        elif not routing.copied:
            handle.topk_idx = topk_idx
        if self._across:
            handle.token_metadata_at_forward, handle.channel_linked_list, *_ = self.place.opaque()
        return handle

    def _uncounted(self, routing: Routing) -> bool:
        """Returns whether calls of this routing return before the host knows their counts."""
        return routing.deferred or (self._on_gpu and not routing.synced)

    # ---- combine -----------------------------------------------------------------------------------------------------

    def combine(
        self,
        x: Any,
        handle: EPHandle,
        topk_weights: Any,
        biases: tuple[Any, ...],
        each_slot: bool,
        one_order: bool,
        workers: int,
        turn: _place.Turn,
        asynchronous: bool,
    ) -> tuple[Any, Any, EventHandle | None]:
        """Returns (y, topk_weights, event). each_slot: expanded rows are not summed first on the ranks that they come
        from. one_order: rows are not summed first on their nodes. workers: SMs of a GPU or threads of a CPU; with 0 the
        library chooses."""
        expand, routing = handle.do_expand, handle._routing
        args = self._sums(expand, each_slot, one_order, workers)
        turn.begin(args)
        rows = handle._rows_of_library if expand else routing.num_rows
        copies = handle._counted and not self._on_gpu  # a CPU reads only named rows, too, of calls that were launched
        used = [self._put_rows(args, _Sums.x.offset, x, rows, turn, copies)]
        weights = None
        if topk_weights is not None:
            given = topk_weights.view(-1, 1) if expand else topk_weights
            used.append(self._put_rows(args, _Sums.topk_weights.offset, given, rows, turn, copies))
            with turn.work():
                weights = self.place.matrix(routing.num_tokens, routing.num_topk, torch.float32)
            COMBINE.put(args, "out_topk_weights", weights)
            args.weights_of = _OWNER
        for index, bias in enumerate(biases):
            put(args, _BIAS + index * _VIEW_BYTES, bias, f"bias[{index}]")
        if self.place.on_gpu:
            y = turn.run(self.place.matrix, routing.num_tokens, x.shape[1], x.dtype)
        else:
            y = pool_tensor(self.ep.pointer, routing.num_tokens, x.shape[1], x.dtype)
        COMBINE.put(args, "out_y", y)
        args.handle = routing.pointer
        args.async_finish = turn.asynchronous(asynchronous)
        result = _abi.EpCombineResult(sizeof(_abi.EpCombineResult))
        check(_combine(self.ep.pointer, addressof(args), addressof(result)))
        made = turn.end(result.event, [*used, biases, y, weights, handle], [y, weights], asynchronous)
        self.ask()
        return y, weights, made

    @staticmethod
    def _sums(expand: bool, each_slot: bool, one_order: bool, workers: int) -> Any:
        """Returns the arguments of a combine without its tensors."""
        args = _Sums(_SUMS_BYTES, num_sms=workers, expert_major=expand)
        args.sum_order = _EACH_SLOT if each_slot else _BY_SLOT
        args.nodes_sum = _ONE_ORDER if one_order else 0
        return args

    def combine_form(
        self, x: Any, handle: EPHandle, topk_weights: Any, each_slot: bool, one_order: bool, workers: int, asked: bool
    ) -> CombineForm:
        """Returns the form of combines like the one just made."""
        routing, weights, matrix = handle._routing, None, self.place.matrix
        args = self._sums(handle.do_expand, each_slot, one_order, workers)
        COMBINE.put(args, "x", x)
        if topk_weights is not None:
            COMBINE.put(args, "topk_weights", topk_weights)
            weights = (routing.num_tokens, routing.num_topk, torch.float32)
            COMBINE.put(args, "out_topk_weights", matrix(*weights))
            args.weights_of = _OWNER
        y = (routing.num_tokens, x.shape[1], x.dtype)
        COMBINE.put(args, "out_y", matrix(*y))
        alone = self.place.ends_alone and not asked
        return CombineForm(self, CallForm(COMBINE, self.ep, args, None, alone, alone), asked, y, weights)

    def _put_rows(self, args: Any, offset: int, tensor: Any, rows: int, turn: _place.Turn, copies: bool) -> Any:
        """Writes the tensor as an argument with the number of rows that the library knows. Only named rows are read.
        Returns the tensor that must stay alive during the call. copies: a tensor with fewer rows is copied."""
        many, columns = tensor.shape
        if many < rows and (many == 0 or copies):
            with turn.work():
                whole = self.place.zeros((rows, columns), tensor.dtype)
                whole[:many] = tensor
            tensor = whole
        put_view(args, offset, tensor.data_ptr(), CODES[tensor.dtype], (rows, columns), self.place.pair)
        return tensor
