# SPDX-License-Identifier: Apache-2.0
"""Low-latency mode: a buffer of the library's for each shape that comes.

Letters in shapes: B tokens a rank at most, T tokens of this rank in a call, H hidden, K top-k, E experts, N ranks,
L = E/N local experts.
"""

from __future__ import annotations

from ctypes import addressof, c_int, c_void_p, sizeof
from typing import Any, Callable, NamedTuple

import torch
from expar import _abi, _values, Group, LlFormat, LlSum, LowLatencyBuffer
from expar._abi import EpPart
from expar._library import lib

from . import _handles, _place
from ._call import CODES, FP8, Output, Parts, check, lent_tensor, look, parts_of, plain, put, put_address, put_memory
from .utils.event import EventHandle

_dispatch = plain("expar_ll_dispatch", c_void_p, c_void_p, c_void_p)
_combine = plain("expar_ll_combine", c_void_p, c_void_p, c_void_p)
_call_hook = plain("expar_ll_hook_call", c_void_p, c_void_p)
_combine_buffer = plain("expar_ll_combine_buffer", c_void_p, c_void_p, c_int, c_void_p)
_mask_query = plain("expar_ll_mask_query", c_void_p, c_void_p, c_void_p)

_Args, _Result = _abi.LlDispatchArgs, _abi.LlDispatchResult
_Sums, _Summed = _abi.LlCombineArgs, _abi.LlCombineResult
_X, _TOPK_IDX = _Args.x.offset, _Args.topk_idx.offset
_STATS, _WAIT = _Args.expert_recv_stats.offset, _Args.wait_ns.offset
_OUT_X, _OUT_SCALES, _OUT_COUNT = _Args.out_x.offset, _Args.out_scales.offset, _Args.out_count.offset
_RECV_PARTS = (int(EpPart.X), int(EpPart.SCALES), int(EpPart.COUNT))
_SUM_PARTS = (int(EpPart.X),)
_SUM_X, _SUM_IDX, _SUM_WEIGHTS = _Sums.x.offset, _Sums.topk_idx.offset, _Sums.topk_weights.offset
_SUM_OUT, _SUM_WAIT = _Sums.out.offset, _Sums.wait_ns.offset
_ARGS_BYTES, _RESULT_BYTES, _SUMS_BYTES, _SUMMED_BYTES = (sizeof(each) for each in (_Args, _Result, _Sums, _Summed))


class Shape(NamedTuple):
    """What a buffer is made for."""

    tokens: int  # B
    hidden: int  # H
    experts: int  # E
    element_bytes: int  # 2 or 4


class Hook:
    """The second half of a call: it receives when it is called, once; on a GPU on the stream that is current then."""

    __slots__ = ("_pointer", "_place", "_process", "_kept", "__weakref__")

    def __init__(self, pointer: int, place: _place.Place, kept: list[Any]) -> None:
        self._pointer = pointer
        self._place = place
        self._process = _values.this_process()
        self._kept = kept

    def __call__(self) -> None:
        _values.check_process(self._process, "hook")
        turn = self._place.turn(None, False)
        check(_call_hook(self._pointer, turn.stream or None))
        turn.end(None, self._kept, (), False)
        self._kept.clear()

    def __del__(self, destroy: Any = lib.expar_ll_hook_destroy) -> None:
        destroy(self._pointer)


def _scale_dtype(format: LlFormat) -> Any:
    return torch.int32 if format == LlFormat.FP8_UE8M0 else torch.float32


def _received(format: LlFormat, dtype: Any) -> Parts:
    """Rows, scales and counts of a dispatch, in the library's memory."""
    if format == LlFormat.PLAIN:
        return parts_of(_RECV_PARTS, dtype, None, torch.int32)
    return parts_of(_RECV_PARTS, FP8, _scale_dtype(format), torch.int32)


class _Made(NamedTuple):
    """A buffer, and what it was made with."""

    buffer: LowLatencyBuffer
    topk: int


class _Form(NamedTuple):
    """What dispatches have alike whose tensors are (`look`): their arguments differ in addresses alone. It has been
    looked at."""

    shape: Shape
    buffer: LowLatencyBuffer
    results: _Results | None
    arguments: bytes


_MOST_FORMS = 1024


class _Results:
    """The results of a dispatch in memory of PyTorch's: all that calls of one shape and format have alike."""

    __slots__ = ("_parts", "_arguments", "_maker")

    def __init__(self, shape: Shape, ranks: int, format: LlFormat, dtype: Any, place: _place.Place) -> None:
        local, rows = shape.experts // ranks, ranks * shape.tokens
        self._maker = place.maker
        # Of each: the argument, its shape and strides, and its dtype.
        self._parts = [
            (_OUT_X, (local, rows, shape.hidden), (rows * shape.hidden, shape.hidden, 1), dtype),
            (_OUT_COUNT, (local,), (1,), torch.int32),
        ]
        if format != LlFormat.PLAIN:
            columns = -(-shape.hidden // 512) if format == LlFormat.FP8_UE8M0 else shape.hidden // 128
            kind = _scale_dtype(format)
            self._parts[0] = (*self._parts[0][:3], FP8)
            self._parts.append((_OUT_SCALES, (local, rows, columns), (rows * columns, 1, rows), kind))
        args = _Args(_ARGS_BYTES)
        args.format = format
        for offset, sizes, strides, kind in self._parts:
            put_memory(args, offset, torch.empty(0, dtype=kind, device="cpu"), sizes, strides, place.pair)
        self._arguments = bytes(args)

    def arguments(self) -> Any:
        """Those of a dispatch, whose results are still to be made."""
        return _Args.from_buffer_copy(self._arguments)

    def make(self, args: Any) -> tuple[Any, Any, Any]:
        """(x, scales, count), where these arguments have the results written."""
        made, strided = [], self._maker()
        for offset, sizes, strides, kind in self._parts:
            tensor = strided(sizes, strides, kind)
            put_address(args, offset, tensor.data_ptr())
            made.append(tensor)
        return made[0], made[2] if len(made) > 2 else None, made[1]


class LowLatencyMode:
    """Low-latency calls of a group, of any shape: the first one of a shape makes its buffer, on all ranks together."""

    def __init__(
        self,
        group: Group,
        place: _place.Place,
        masked: set[int] | None,
        unmapped: bool,
        sums: LlSum,
        outputs_of_torch: bool,
    ) -> None:
        """masked: ranks that the caller has masked, for buffers that are still to be made; None: there are no masks."""
        self._group = group
        self._place = place
        self._size = group.size
        self._masked, self._unmapped = masked, unmapped
        self._sums = sums
        self._of_torch = outputs_of_torch or place.on_gpu  # there PyTorch's memory is as good as the library's
        self._made: dict[Shape, _Made] = {}
        self._regions: dict[Shape, Any] = {}  # of zero copy
        self._results: dict[tuple[Any, ...], _Results] = {}
        self._forms: dict[tuple[Any, ...], _Form] = {}  # of the buffers that there are
        self._sum_forms: dict[tuple[Any, ...], bytes] = {}  # arguments of combines, but for addresses

    def buffers(self) -> list[LowLatencyBuffer]:
        """All there are, in the order in which they were made, which is that of all ranks."""
        return [made.buffer for made in self._made.values()]

    def _buffer(self, shape: Shape, topk: int, turn: _place.Turn) -> LowLatencyBuffer:
        made = self._made.get(shape)
        if made is None or made.topk < topk:
            if turn.captured:
                raise RuntimeError(
                    f"a low-latency call of {shape.tokens} tokens, hidden {shape.hidden}, {shape.experts} experts and "
                    f"top-{topk} is captured: expected one such call before, outside of any capture"
                )
            self._forms.clear()
            if made is not None:
                made.buffer.close()
            buffer = LowLatencyBuffer(
                self._group,
                shape.tokens,
                shape.hidden,
                topk,
                shape.experts,
                device=self._place.pair,
                max_element_bytes=shape.element_bytes,
                masking=int(self._masked is not None),
                unmapped=int(self._unmapped),
            )
            made = self._made[shape] = _Made(buffer, topk)
            if self._place.on_gpu:
                self._regions.pop(shape, None)  # it was the buffer's before
            for rank in self._masked or ():
                buffer.mask_set(rank)
        return made.buffer

    # ---- dispatch ----------------------------------------------------------------------------------------------------

    def dispatch(
        self,
        x: Any,
        topk_idx: Any,
        tokens: int,
        experts: int,
        stats: Any,
        wait_ns: Any,
        format: LlFormat,
        async_finish: bool,
        hook: bool,
    ) -> tuple[Any, Any, Any, tuple[Any, ...], EventHandle | None, Hook | None]:
        """(x, scales, count, handle, event, hook)"""
        try:
            key = (look(x), look(topk_idx), tokens, experts, int(format))
        except AttributeError:
            _place.of(topk_idx, "topk_idx")
            raise
        turn = self._place.turn(None, async_finish)
        form = self._forms.get(key) or self._new_form(key, x, topk_idx, format, turn)
        shape, ll, results, arguments = form
        args, result = _Args.from_buffer_copy(arguments), _Result(_RESULT_BYTES)
        turn.begin(args)
        put_address(args, _X, x.data_ptr())
        put_address(args, _TOPK_IDX, topk_idx.data_ptr())
        if stats is not None:
            put(args, _STATS, stats, "cumulative_local_expert_recv_stats")
        if wait_ns is not None:
            put(args, _WAIT, wait_ns, "dispatch_wait_recv_cost_stats")
        args.hook, args.async_finish = hook, self._asynchronous(async_finish)
        outs: Any = None if results is None else turn.run(results.make, args)
        check(_dispatch(ll.pointer, addressof(args), addressof(result)))
        if outs is None:
            rows, scales, count = Output(result.output or 0).tensors(_received(format, x.dtype))
        else:
            rows, scales, count = outs
        handle = _handles.wrap_low_latency(result.handle or 0, shape, x.shape[0])
        kept = [x, topk_idx, stats, wait_ns, rows, scales, count, ll]
        waiting = Hook(result.hook, self._place, kept) if result.hook else None
        event = turn.end(result.event, kept, outs or (), async_finish)
        return rows, scales, count, handle, event, waiting

    def _new_form(self, key: tuple[Any, ...], x: Any, topk_idx: Any, format: LlFormat, turn: _place.Turn) -> _Form:
        _place.of(topk_idx, "topk_idx")
        if x.dim() != 2 or topk_idx.dim() != 2:
            name, tensor = ("x", x) if x.dim() != 2 else ("topk_idx", topk_idx)
            raise AssertionError(f"{name} has {tensor.dim()} dimensions: expected 2")
        _, _, tokens, experts, _ = key
        shape = Shape(tokens, x.shape[1], experts, 4 if x.element_size() == 4 else 2)
        ll = self._buffer(shape, topk_idx.shape[1], turn)
        results = self._results_of(shape, format, x.dtype) if self._of_torch else None
        args = _Args(_ARGS_BYTES, format=format) if results is None else results.arguments()
        put(args, _X, x, "x")
        put(args, _TOPK_IDX, topk_idx, "topk_idx")
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        form = self._forms[key] = _Form(shape, ll, results, bytes(args))
        return form

    def _asynchronous(self, asked: bool) -> bool:
        """Whether the library returns before the call is through, with an event: on a GPU it always does, without."""
        return asked and not self._place.on_gpu

    def _results_of(self, shape: Shape, format: LlFormat, dtype: Any) -> _Results | None:
        """None: of a dtype that the library refuses."""
        key = (shape, format, dtype)
        found = self._results.get(key)
        if found is None and dtype in CODES:
            found = self._results[key] = _Results(shape, self._size, format, dtype, self._place)
        return found

    # ---- combine -----------------------------------------------------------------------------------------------------

    def combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: _handles.LowLatencyHandle,
        logfmt: bool,
        zero_copy: bool,
        async_finish: bool,
        hook: bool,
        out: Any,
        wait_ns: Any,
    ) -> tuple[Any, EventHandle | None, Hook | None]:
        """(y, event, hook)"""
        _place.of(x, "x")
        made = self._made.get(handle.buffer)
        if made is None:
            raise AssertionError("handle is of a low-latency dispatch of another buffer")
        if zero_copy:
            x = self._regions.get(handle.buffer)
            if x is None:
                raise AssertionError("zero_copy: there are no rows from get_next_low_latency_combine_buffer")
        turn = self._place.turn(None, async_finish)
        own = out is None and self._of_torch
        if own:
            out = turn.run(self._place.matrix, topk_idx.shape[0], x.shape[-1], x.dtype)
        args = self._sum_arguments(x, topk_idx, topk_weights, out, hook, logfmt)
        result = _Summed(_SUMMED_BYTES)
        turn.begin(args)
        if wait_ns is not None:
            put(args, _SUM_WAIT, wait_ns, "combine_wait_recv_cost_stats")
        args.handle, args.async_finish = handle.pointer, self._asynchronous(async_finish)
        check(_combine(made.buffer.pointer, addressof(args), addressof(result)))
        y = out if out is not None else Output(result.output or 0).tensors(parts_of(_SUM_PARTS, x.dtype))[0]
        kept = [x, topk_idx, topk_weights, handle, y, wait_ns, made]
        waiting = Hook(result.hook, self._place, kept) if result.hook else None
        return y, turn.end(result.event, kept, (y,) if own else (), async_finish), waiting

    def _sum_arguments(self, x: Any, topk_idx: Any, topk_weights: Any, out: Any, hook: bool, logfmt: bool) -> Any:
        """The arguments of a combine that its tensors and flags say. Calls that are alike differ in addresses alone."""
        tensors = ((_SUM_X, x, "x"), (_SUM_IDX, topk_idx, "topk_idx"), (_SUM_WEIGHTS, topk_weights, "topk_weights"))
        try:
            key = (look(x), look(topk_idx), look(topk_weights), None if out is None else look(out), hook, logfmt)
        except AttributeError:
            for _, tensor, name in (*tensors, *(() if out is None else ((_SUM_OUT, out, "out"),))):
                _place.of(tensor, name)
            raise
        known = self._sum_forms.get(key)
        if known is not None:
            args = _Sums.from_buffer_copy(known)
            put_address(args, _SUM_X, x.data_ptr())
            put_address(args, _SUM_IDX, topk_idx.data_ptr())
            put_address(args, _SUM_WEIGHTS, topk_weights.data_ptr())
            if out is not None:
                put_address(args, _SUM_OUT, out.data_ptr())
            return args
        args = _Sums(_SUMS_BYTES, hook=hook)
        for offset, tensor, name in tensors:
            put(args, offset, tensor, name)
        if out is not None:
            put(args, _SUM_OUT, out, "out")
        # A hook's call has no time to wait for weights, which this surface's dispatch does not carry.
        args.sum = LlSum.EXACT if hook or logfmt else self._sums
        args.format = LlFormat.LOGFMT if logfmt else LlFormat.PLAIN
        if len(self._sum_forms) >= _MOST_FORMS:
            self._sum_forms.clear()
        self._sum_forms[key] = bytes(args)
        return args

    def region(self, handle: _handles.LowLatencyHandle, dtype: Any) -> Any:
        """[L, N*B, H] that combines with zero_copy send from, always the same. On a CPU they send from any memory, so
        it is PyTorch's, and stays as long as somebody has it. On a GPU it is the library's, and its rows may lie further
        apart than H; it is there as long as this buffer."""
        shape: Shape = handle.buffer
        found = self._regions.get(shape)
        if found is None:
            local = shape.experts // self._size
            rows = self._size * shape.tokens
            if self._place.on_gpu:
                found = self._lent(shape, handle, dtype)
            else:
                found = self._place.matrix(local * rows, shape.hidden, dtype).view(local, rows, shape.hidden)
            self._regions[shape] = found
        return found

    def _lent(self, shape: Shape, handle: _handles.LowLatencyHandle, dtype: Any) -> Any:
        made = self._made.get(shape)
        if made is None:
            raise AssertionError("handle is of a low-latency dispatch of another buffer")
        view = _abi.Tensor()
        check(_combine_buffer(made.buffer.pointer, handle.pointer, CODES[dtype], addressof(view)))
        return lent_tensor(addressof(view), dtype)

    def meet(self, tokens: int, hidden: int, experts: int) -> None:
        """A dispatch of nothing by the buffers of that shape, so that this rank comes to all that are not masked, and
        they to it, or are masked. Where no call has made such a buffer there is nobody to come to."""
        for shape, made in list(self._made.items()):
            if (shape.tokens, shape.hidden, shape.experts) == (tokens, hidden, experts):
                kind = torch.float32 if shape.element_bytes == 4 else torch.bfloat16
                nothing = self._place.matrix(0, hidden, kind)
                nowhere = self._place.matrix(0, made.topk, torch.int64)
                self.dispatch(nothing, nowhere, tokens, experts, None, None, LlFormat.PLAIN, False, False)

    # ---- masks -------------------------------------------------------------------------------------------------------

    def mask(self, rank: int, masked: bool) -> None:
        for buffer in self.buffers():
            buffer.mask_set(rank, masked)

    def add_masked(self, status: Any) -> None:
        """status: int32 [N], anywhere; what is masked on one buffer or more becomes 1, on a GPU in the current stream."""
        for buffer in self.buffers():
            view, found = _abi.Tensor(), self._place.vector(self._size, torch.int32)
            put(view, 0, found, "mask_status")
            check(_mask_query(buffer.pointer, addressof(view), self._place.turn(None, False).stream or None))
            status |= found.to(status.device)

    def clean_masks(self) -> None:
        for buffer in self.buffers():
            buffer.mask_clean()

    def end(self, how: Callable[[LowLatencyBuffer], None]) -> None:
        for buffer in self.buffers():
            how(buffer)
        self._made.clear()
        self._forms.clear()
        self._regions.clear()
