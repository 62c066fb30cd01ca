# SPDX-License-Identifier: Apache-2.0
"""Dispatches and combines of `HybridEPBuffer` on a library buffer.

A routing map becomes one slot for each expert, and topk_idx becomes its slots sorted by expert. So slots ascend with
experts, and expert-major outputs of the library are the permuted rows. Their sums by slot are the sums by expert.

Letters in shapes are those of hybrid_ep_buffer.py.
"""

from __future__ import annotations

import contextlib
from ctypes import addressof, c_int32, c_void_p, memmove, sizeof
from typing import Any, NoReturn

import torch
from expar import _abi, Buffer as EpBuffer, EpWeightsOf, Group
from expar._abi import EpNodesSum, EpPart

from . import _handles, _place
from ._call import (
    check,
    CODES,
    ints_at,
    Output,
    Parts,
    parts_of,
    plain,
    pool_tensor,
    put,
    put_ints,
    put_view,
    strided_on_cpu,
)
from ._forms import Form as CallForm, Forms, FreshKind, keep_form
from ._hybrid_handle import Counts, Routing

_dispatch = plain("expar_ep_dispatch", c_void_p, c_void_p, c_void_p)
_combine = plain("expar_ep_combine", c_void_p, c_void_p, c_void_p)
_query = plain("expar_ep_query", c_void_p)

_Args, _Result, _RecvCounts = _abi.EpDispatchArgs, _abi.EpDispatchResult, _abi.EpRecvCounts
_Sums, _Summed = _abi.EpCombineArgs, _abi.EpCombineResult
_X, _SCALES, _IDX, _WEIGHTS = (
    getattr(_Args, name).offset for name in ("x", "x_scales", "topk_idx", "topk_weights")
)
_SUM_X, _SUM_WEIGHTS, _SUM_OUT_WEIGHTS, _SUM_Y = (
    getattr(_Sums, name).offset for name in ("x", "topk_weights", "out_topk_weights", "out_y")
)
_PARTS = (int(EpPart.X), int(EpPart.SCALES), int(EpPart.TOPK_IDX), int(EpPart.ROW_WEIGHTS))
_TENSORS = {"args.x": "hidden", "args.x_scales": "scaling_factor", "args.topk_idx": "topk_idx", "args.topk_weights": "probs"}
_PERMUTED = FreshKind(
    _TENSORS,
    (
        "args.stream",
        "args.num_worst_tokens",
        "args.num_expert_rows",
        "counts.tokens_per_expert",
        "counts.rank_prefix",
        "counts.expert_prefix",
        "counts.expert_ends",
        "reader",
    ),
)
_PLAIN = FreshKind(_TENSORS, ("args.stream", "reader"))
_OWN_FIRST, _OWNER = int(EpNodesSum.OWN_FIRST), int(EpWeightsOf.OWNER)
_ROW_BYTES = 16  # rows of the library are multiples of it
_F32 = torch.float32
_VECTOR = (1,)  # strides


def padded_columns(tensor: Any) -> int:
    """Returns the number of columns that the library's rows of such a tensor have."""
    each = _ROW_BYTES // tensor.dtype.itemsize
    return int(-(-max(tensor.shape[1], 1) // each) * each)


def as_rows(tensor: Any) -> Any:
    """Returns contiguous rows that the library can carry. Columns of zeros are appended where rows are too short."""
    columns = padded_columns(tensor)
    if columns == tensor.shape[1]:
        return tensor if tensor.is_contiguous() else tensor.contiguous()
    wide = tensor.new_zeros((tensor.shape[0], columns))
    wide[:, : tensor.shape[1]] = tensor
    return wide


def without_padding(rows: Any, columns: int) -> Any:
    """Returns these columns of rows, contiguous."""
    return rows if rows.shape[1] == columns else rows[:, :columns].contiguous()


class Slots:
    """The slots of this rank's tokens: int32 or int64 [T, K], ascending experts or -1.

    dense: slot e stands for expert e, so K = E. weights: float32 [T, K] or None."""

    __slots__ = ("idx", "dense", "experts", "weights")

    def __init__(self, idx: Any, dense: bool, experts: int, weights: Any) -> None:
        self.idx, self.dense, self.experts, self.weights = idx, dense, experts, weights


class HybridMode:
    """Calls on one library buffer.

    On a GPU the library's calls return before their outcome is known. A later call raises the error. That call has been
    submitted by then, so no rank waits for it."""

    def __init__(self, group: Group, place: _place.Place) -> None:
        self.ep = EpBuffer(group, device=place.pair)
        self.place = place
        self.ranks = group.size
        place.opaque()  # makes the opaque tensors now, since they must not be made in a capture
        self._experts: dict[int, Any] = {}  # numbers of experts
        self._calls: Forms = {}  # of fresh dispatches
        # Tensors of one number: operations with those take less time than with numbers.
        self._none = torch.full((), -1, dtype=torch.int32, device=place.device)
        self.nothing = torch.zeros((), dtype=_F32, device=place.device)

    def ask(self) -> None:
        """Raises errors of earlier calls on a GPU."""
        if self.place.on_gpu:
            check(_query(self.ep.pointer))

    # ---- rejections --------------------------------------------------------------------------------------------------

    def reject_dispatch(self, text: str) -> NoReturn:
        """Raises AssertionError. It first makes a call that the library rejects, so that the other ranks, which are in
        their calls, learn of the error."""
        args, result = _Args(sizeof(_Args)), _Result(sizeof(_Result))
        self.place.turn(None, False).begin(args)
        put_view(args, _X, 0, -1, (0, 0))
        with contextlib.suppress(RuntimeError):
            check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        raise AssertionError(text)

    def reject_combine(self, text: str) -> NoReturn:
        """Does the same for a combine."""
        args = _Sums(sizeof(_Sums))
        self.place.turn(None, False).begin(args)
        put_view(args, _SUM_X, 0, -1, (0, 0))
        with contextlib.suppress(RuntimeError):
            check(_combine(self.ep.pointer, addressof(args), None))
        raise AssertionError(text)

    # ---- slots -------------------------------------------------------------------------------------------------------

    def slots_of_map(self, routing_map: Any, probs: Any) -> Slots:
        """Returns one slot for each expert. probs: float32 [T, E] or None."""
        experts = routing_map.shape[1]
        known = self._experts.get(experts)
        if known is None:
            device = self.place.device
            known = self._experts[experts] = torch.arange(experts, dtype=torch.int32, device=device)
        return Slots(torch.where(routing_map, known, self._none), True, experts, contiguous(probs))

    def slots_of_topk(self, topk_idx: Any, topk_weights: Any, experts: int) -> Slots:
        """Returns the slots of topk_idx, ascending. An expert that a token names twice gets one slot."""
        idx, order = topk_idx.sort(stable=True)
        tokens, topk = idx.shape
        if topk > 1:
            idx = idx.contiguous()
            pairs = (tokens, topk - 1), (topk, 1)  # such views take less time than slices
            later = idx.as_strided(*pairs, 1)
            later.masked_fill_(later == idx.as_strided(*pairs, 0), self._none)
        return Slots(idx, False, experts, None if topk_weights is None else topk_weights.gather(1, order))

    def named(self, slots: Any) -> Any:
        """Returns bool, of the shape of slots: whether they name an expert."""
        return slots > self._none

    @staticmethod
    def slots_again(routing: Routing, probs: Any) -> Slots:
        """Returns the slots of an earlier dispatch. probs: float32 [T, E] or None."""
        weights = probs
        if probs is not None and not routing.dense:
            weights = probs.gather(1, routing.slots.clamp(min=0).long())
        return Slots(routing.slots, routing.dense, routing.experts, contiguous(weights))

    @staticmethod
    def by_expert(routing: Routing, weights: Any) -> Any:
        """Returns weights of slots as float32 [T, E], 0 for experts without a slot."""
        if weights is None or routing.dense:
            return weights
        experts, idx = routing.experts, routing.slots
        found = weights.new_zeros((weights.shape[0], experts + 1))
        found.scatter_(1, torch.where(idx < 0, experts, idx).long(), weights)
        return found[:, :experts].contiguous()

    # ---- dispatch ----------------------------------------------------------------------------------------------------

    def _call(
        self, kind: FreshKind, x: Any, scales: Any, slots: Slots, alignment: int, turn: _place.Turn, *words: int
    ) -> tuple[list[Any], _handles.Handle, Output, int]:
        """Makes a fresh dispatch. Returns the parts of its output that exist, the handle, the output, and the address
        of the rounded counts. That lasts as long as the output.

        words: those of the kind after the stream."""
        idx, weights = slots.idx, slots.weights
        key = kind, x.shape, idx.shape, scales is None, weights is None, slots.experts, alignment
        form = self._calls.get(key)
        made = None if form is None else form.call(x, scales, idx, weights, turn.stream, *words, turn.reader)
        if made is None:
            form = self._form(kind, x, scales, slots, alignment)
            keep_form(self._calls, key, form)
            made = form.steps(x, scales, idx, weights, turn.stream, *words, turn.reader)
        if type(made) is not list:
            check(made)
        pointer, output, event, tokens, rounded = made[-5:]
        held, handle = Output(output), _handles.Handle(pointer, x.shape[0], idx.shape[1], tokens)
        del made[-5:]
        if event or turn.ends:
            turn.end(event, [x, scales, idx, weights, *made], (), False)
        self.ask()
        check(0)
        return made, handle, held, rounded

    def _form(self, kind: FreshKind, x: Any, scales: Any, slots: Slots, alignment: int) -> CallForm:
        """Returns the form of fresh dispatches with such tensors."""
        whole = _abi.PythonFresh()
        args, permuted = whole.args, kind is _PERMUTED
        args.struct_size = sizeof(_Args)
        put(args, _X, x, "hidden")
        if scales is not None:
            put(args, _SCALES, scales, "scaling_factor")
        put(args, _IDX, slots.idx, "topk_idx")
        if slots.weights is not None:
            put(args, _WEIGHTS, slots.weights, "probs")
        args.num_experts, args.expert_alignment = slots.experts, alignment
        if permuted:
            whole.counts.struct_size = sizeof(_RecvCounts)
            args.expert_major = args.zero_padding = args.keep_slots = 1
            args.row_weights = slots.weights is not None
        weighed = _F32 if permuted and slots.weights is not None else None
        of_slots = None if permuted else slots.idx.dtype
        return CallForm(kind, self.ep, whole, parts_of(_PARTS, x.dtype, None if scales is None else _F32, of_slots, weighed))

    def dispatch(
        self, x: Any, scales: Any, slots: Slots, alignment: int, capacity: int | None, worst: int | None
    ) -> tuple[list[Any], Routing, Any, Any]:
        """Makes a fresh dispatch with permutation. Returns [rows, scales, probs], the routing, R as int32 [1], and a
        tensor of its own memory.

        capacity: the number of rows of the results; None: as many as come. worst: the most tokens that can come. It is
        given if the host shall not wait; then rows beyond the capacity are dropped. On a CPU the host waits all the
        same."""
        turn, local, ranks, on_gpu = self.place.turn(None, False), slots.experts // self.ranks, self.ranks, self.place.on_gpu
        maker = self.place.maker()
        memory, real = maker((ranks + 2 * local + 1,), _VECTOR, torch.int32), maker((local,), _VECTOR, torch.int32)
        at = memory.data_ptr()
        first = at + 4 * ranks
        most = worst if worst and on_gpu else 0
        rows_given = 0 if capacity is None else max(capacity, 1)
        places = real.data_ptr(), at, first, first + 4 * (local + 1)
        results, handle, held, rounded = self._call(
            _PERMUTED, x, scales, slots, alignment, turn, most, rows_given, *places
        )
        many, limit = results[0].shape[0], None if worst is None else capacity
        if scales is None:
            results.insert(1, None)
        if slots.weights is None:
            results.append(None)
        if on_gpu:
            told = self._counts_on_gpu(memory, real, rounded, local, limit)
        else:
            told = self._counts_on_cpu(memory, real, rounded, local, alignment, limit)
        if worst is None or not on_gpu:
            dispatched = self._one_on_host(handle.num_rows)
        else:
            dispatched = memory[ranks - 1 : ranks].clone()
        del held  # the rounded counts have been read
        kept = many if capacity is None else capacity
        routing = Routing(handle, slots.idx, slots.dense, slots.experts, alignment, told, kept, many)
        return results, routing, dispatched, memory

    def _one_on_host(self, number: int) -> Any:
        """Returns int32 [1] as `_on_host` does."""
        if self.place.on_gpu:
            return self._on_host([number], torch.int32)
        made = strided_on_cpu(_VECTOR, _VECTOR, torch.int32)
        c_int32.from_address(made.data_ptr()).value = number
        return made

    def _on_host(self, numbers: list[int], dtype: Any) -> Any:
        """Returns a tensor on the CPU, of int32 or int64. A GPU can copy from it asynchronously."""
        if self.place.on_gpu and torch.cuda.is_available():
            return torch.tensor(numbers, dtype=dtype, device="cpu", pin_memory=True)
        made = strided_on_cpu((len(numbers),), _VECTOR, dtype)
        put_ints(made.data_ptr(), numbers, dtype.itemsize)  # torch.tensor takes three times as long
        return made

    def _counts_on_cpu(
        self, memory: Any, real: Any, rounded: int, local: int, alignment: int, limit: int | None
    ) -> Counts:
        """Returns the counts of a dispatch.

        The library has written the memory: places of rows, by rank and by expert. It has also written `real`, int32
        [L], the counts of experts. rounded: where these are, rounded up. limit: the capacity, if rows beyond it are
        dropped without an error."""
        at = memory.data_ptr() + 4 * (self.ranks + local)
        rows = c_int32.from_address(at).value
        if limit is not None and c_int32.from_address(at + 4 * local).value > limit:
            return self._cut_counts(ints_at(memory.data_ptr(), self.ranks + 2 * local + 1), local, limit)
        if alignment == 1:
            return Counts(real, real.long(), self._one_on_host(0), rows)
        padded = strided_on_cpu((local,), _VECTOR, torch.int32)
        memmove(padded.data_ptr(), rounded, 4 * local)
        return Counts(real, padded.long(), self._one_on_host(0), rows)

    def _cut_counts(self, numbers: list[int], local: int, limit: int) -> Counts:
        """Does the same for a dispatch that has dropped rows. numbers: the places."""
        prefix, ends = numbers[self.ranks : -local], numbers[-local:]
        begins = [min(begin, limit) for begin in prefix]
        real = [min(end, limit) - begin for begin, end in zip(begins, ends)]
        padded = [end - begin for begin, end in zip(begins, begins[1:])]
        experts, counts = self._on_host(real, torch.int32), self._on_host(padded, torch.int64)
        return Counts(experts, counts, self._one_on_host(1), begins[-1])

    def _counts_on_gpu(self, memory: Any, real: Any, rounded: int, local: int, limit: int | None) -> Counts:
        """Does the same with tensors. The capacity is a multiple of the alignment. So rows are dropped exactly if the
        last row that belongs to an expert has no place."""
        if limit is None:
            counts = ints_at(rounded, local)
            return Counts(real, self._on_host(counts, torch.int64), self.place.zeros((1,), torch.int32), sum(counts))
        prefix = memory[self.ranks : -local].clamp(max=limit)
        begins = prefix[:-1]
        overflow = (memory[-1:] > limit).to(torch.int32)
        return Counts(memory[-local:].clamp(max=limit).sub_(begins), (prefix[1:] - begins).long(), overflow, -1)

    def _carry_out(self, args: Any, result: Any, parts: Parts, turn: _place.Turn) -> list[Any]:
        """Calls the library, and returns the parts of the output as tensors."""
        check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        output = Output(result.output or 0)
        turn.give(output.pointer)
        return output.tensors(parts)

    def dispatch_again(self, x: Any, scales: Any, slots: Slots, routing: Routing, permuted: bool) -> list[Any]:
        """Makes a dispatch with a routing: returns [rows, scales, probs]."""
        args, result, turn = _Args(sizeof(_Args)), _Result(sizeof(_Result)), self.place.turn(None, False)
        turn.begin(args)
        put(args, _X, x, "hidden")
        if scales is not None:
            put(args, _SCALES, scales, "scaling_factor")
        weighed = None
        if slots.weights is not None:
            put(args, _IDX, slots.idx, "topk_idx")
            put(args, _WEIGHTS, slots.weights, "probs")
            weighed = _F32
        args.handle = routing.made.pointer
        if permuted:
            args.expert_major = args.zero_padding = 1
            args.row_weights = weighed is not None
        args.async_finish = turn.asynchronous(False)
        parts = parts_of(_PARTS, x.dtype, None if scales is None else _F32, None, weighed)
        found = self._carry_out(args, result, parts, turn)
        turn.end(result.event, [x, scales, slots.idx, slots.weights, *found, routing.made], (), False)
        self.ask()
        return [found[0], found[1], found[3]]

    def dispatch_plain(self, x: Any, scales: Any, slots: Slots) -> tuple[list[Any], Routing]:
        """Makes a fresh dispatch without permutation: returns [rows, scales, topk_idx], and the routing."""
        turn = self.place.turn(None, False)
        of_rows = Slots(slots.idx, slots.dense, slots.experts, None)
        found, handle, _, _ = self._call(_PLAIN, x, scales, of_rows, 1, turn)
        if scales is None:
            found.insert(1, None)
        rows = handle.num_rows
        return found, Routing(handle, slots.idx, slots.dense, slots.experts, 1, None, rows, rows)

    # ---- combine -----------------------------------------------------------------------------------------------------

    def combine(self, hidden: Any, probs: Any, routing: Routing, permuted: bool) -> tuple[Any, Any]:
        """Returns (y, weights of slots or None). probs: with permutation float32 [rows], else [rows, K]."""
        args, result, turn = _Sums(sizeof(_Sums)), _Summed(sizeof(_Summed)), self.place.turn(None, False)
        tokens, topk, weights = routing.tokens, routing.made.num_topk, None
        turn.begin(args)
        used = [self._put_answers(args, _SUM_X, hidden, routing.rows)]
        if probs is not None:
            used.append(self._put_answers(args, _SUM_WEIGHTS, probs.view(-1, 1) if permuted else probs, routing.rows))
            weights = self.place.matrix(tokens, topk, _F32)
            put(args, _SUM_OUT_WEIGHTS, weights, "combined probs")
        if permuted:
            args.expert_major, args.weights_of = 1, _OWNER
        args.nodes_sum = _OWN_FIRST
        if self.place.on_gpu:
            y = self.place.matrix(tokens, hidden.shape[1], hidden.dtype)
        else:
            y = pool_tensor(self.ep.pointer, tokens, hidden.shape[1], hidden.dtype)
        put(args, _SUM_Y, y, "y")
        args.handle = routing.made.pointer
        args.async_finish = turn.asynchronous(False)
        check(_combine(self.ep.pointer, addressof(args), addressof(result)))
        turn.end(result.event, [*used, y, weights, routing.made], (), False)
        self.ask()
        return y, weights

    def _put_answers(self, args: Any, offset: int, tensor: Any, rows: int) -> Any:
        """Writes the tensor as an argument with the number of rows that the library knows. It reads only named rows.
        Returns the tensor that must stay alive during the call."""
        many, columns = tensor.shape
        if many < rows and (many == 0 or not self.place.on_gpu):
            whole = self.place.zeros((rows, columns), tensor.dtype)
            whole[:many] = tensor
            tensor = whole
        put_view(args, offset, tensor.data_ptr(), CODES[tensor.dtype], (rows, columns), self.place.pair)
        return tensor


def contiguous(tensor: Any) -> Any:
    return tensor if tensor is None or tensor.is_contiguous() else tensor.contiguous()
