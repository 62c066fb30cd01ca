# SPDX-License-Identifier: Apache-2.0
"""Low-latency mode: one library buffer for each shape of calls.

Letters in shapes: B maximum of tokens a rank, T tokens of this rank in a call, H hidden, K top-k, E experts, N ranks, L
= E/N local experts.
"""

from __future__ import annotations

import os
from ctypes import addressof, c_int, c_void_p, sizeof
from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from expar import _abi, _values, Error, Group, LlFormat, LlSum, LowLatencyBuffer, Status
from expar._abi import EpPart, PythonKind
from expar._copies import Shared
from expar._library import lib

from . import _handles, _place
from ._call import CODES, FP8, Parts, check, lent_tensor, parts_of, plain, put, put_memory, strides_of
from ._forms import Form, Forms, Kind
from ._shrink import Shrink
from ._signals import Signals, empty_signals
from .utils.event import EventOverlap

_call_hook = plain("expar_ll_hook_call", c_void_p, c_void_p)
_combine_buffer = plain("expar_ll_get_combine_buffer", c_void_p, c_void_p, c_int, c_void_p)
_mask_query = plain("expar_ll_mask_query", c_void_p, c_void_p, c_void_p)

_Args, _Sums = _abi.LlDispatchArgs, _abi.LlCombineArgs
_OUT_X, _OUT_SCALES, _OUT_COUNT = _Args.out_x.offset, _Args.out_scales.offset, _Args.out_count.offset
_RECV_PARTS = (int(EpPart.X), int(EpPart.SCALES), int(EpPart.COUNT))
_SUM_PARTS = (int(EpPart.X),)
_ARGS_BYTES, _SUMS_BYTES = sizeof(_Args), sizeof(_Sums)

_GIVEN = dict(
    x="x",
    topk_idx="topk_idx",
    expert_recv_stats="cumulative_local_expert_recv_stats",
    wait_ns="dispatch_wait_recv_cost_stats",
)
_FILLED = dict(out_x="recv_x", out_count="recv_count", out_scales="recv_scales")


def _dispatch_kind(**more: str) -> Kind:
    """Returns the kind of dispatches with these further tensors after the given ones."""
    number, result = PythonKind.LL_DISPATCH, _abi.LlDispatchResult
    return Kind(number, "expar_ll_dispatch", _Args, result, {**_GIVEN, **more, **_FILLED}, ("stream",))


_DISPATCH, _DISPATCH_NVFP4 = _dispatch_kind(), _dispatch_kind(global_scale="x_global_scale")
_COMBINE = Kind(
    PythonKind.LL_COMBINE,
    "expar_ll_combine",
    _Sums,
    _abi.LlCombineResult,
    dict(
        x="x",
        topk_idx="topk_idx",
        topk_weights="topk_weights",
        out_y="out",
        wait_ns="combine_wait_recv_cost_stats",
    ),
    ("handle", "stream"),
)


class Shape(NamedTuple):
    """The shape for which a buffer is made."""

    tokens: int  # B
    hidden: int  # H
    experts: int  # E
    element_bytes: int  # 2 or 4


class Hook(Shared):
    """The second part of a call. Calling it receives, once. On a GPU it runs on the stream that is current then."""

    __slots__ = ("_pointer", "_place", "_process", "_kept", "__weakref__")
    _no_pickle = "call it in the process whose dispatch or combine returned it"

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

    def __del__(self, destroy: Any = lib.expar_ll_hook_release) -> None:
        destroy(self._pointer)


def _dtypes(format: LlFormat, dtype: Any) -> tuple[Any, Any]:
    """Returns the dtypes of received rows and scales. The latter is None without scales."""
    if format == LlFormat.PLAIN:
        return dtype, None
    if format == LlFormat.NVFP4:
        return torch.uint8, FP8
    return FP8, torch.int32 if format == LlFormat.FP8_UE8M0 else torch.float32


def _received(format: LlFormat, dtype: Any) -> Parts:
    """Returns the parts of a dispatch's results in the library's memory: rows, scales and counts."""
    return parts_of(_RECV_PARTS, *_dtypes(format, dtype), torch.int32)


Options = Tuple[LlFormat, bool, bool]  # format, async_finish, hook


class _Made(NamedTuple):
    """A buffer, and the top-k for which it was made."""

    buffer: LowLatencyBuffer
    topk: int


class _Results:
    """The layout of dispatch results in PyTorch's memory. Calls of one shape and format share it."""

    __slots__ = ("parts", "_places")

    def __init__(self, shape: Shape, ranks: int, format: LlFormat, dtype: Any) -> None:
        local, rows = shape.experts // ranks, ranks * shape.tokens
        codes, scales = _dtypes(format, dtype)
        columns = shape.hidden // 2 if format == LlFormat.NVFP4 else shape.hidden
        # Each item has a shape, strides and a dtype.
        self.parts: list[tuple[tuple[int, ...], tuple[int, ...], Any]] = [
            ((local, rows, columns), (rows * columns, columns, 1), codes),
            ((local,), (1,), torch.int32),
        ]
        self._places = (_OUT_X, _OUT_COUNT, _OUT_SCALES)
        if format == LlFormat.NVFP4:
            tiles, words = -(-rows // 128), shape.hidden // 64
            self.parts.append(((local, tiles, words, 512), (tiles * words * 512, words * 512, 512, 1), scales))
        elif format != LlFormat.PLAIN:
            words = -(-shape.hidden // 512) if format == LlFormat.FP8_UE8M0 else shape.hidden // 128
            self.parts.append(((local, rows, words), (rows * words, 1, rows), scales))

    def put(self, args: Any, device: tuple[int, int]) -> None:
        """Writes views of such results, which have no memory yet."""
        for offset, (sizes, strides, dtype) in zip(self._places, self.parts):
            like = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
            named = tuple(strides_of(like))
            put_memory(args, offset, torch.empty(0, dtype=dtype, device="cpu"), sizes, named, device)

    def make(self, strided: Callable[..., Any]) -> tuple[Any, ...]:
        """Allocates and returns (x, count, scales)."""
        made = tuple([strided(*part) for part in self.parts])
        return made if len(made) == 3 else (*made, None)


Dispatched = Tuple[Any, Any, Tuple[Any, ...], EventOverlap, Optional[Hook]]
Combined = Tuple[Any, EventOverlap, Optional[Hook]]


class DispatchForm:
    """Dispatches whose tensors look alike, with the same options."""

    __slots__ = ("_place", "_form", "_shape", "_buffer", "_results", "_has_scales", "_aside")

    def __init__(
        self,
        place: _place.Place,
        form: Form,
        shape: Shape,
        buffer: LowLatencyBuffer,
        results: _Results | None,
        has_scales: bool,
        aside: bool,
    ) -> None:
        self._place, self._form, self._shape, self._buffer = place, form, shape, buffer
        self._results, self._has_scales = results, has_scales
        self._aside = aside  # async_finish

    def dispatch(
        self, x: Any, topk_idx: Any, stats: Any, wait_ns: Any, alike: bool = True, more: tuple[Any, ...] = ()
    ) -> Dispatched | None:
        """Does what Buffer's dispatch does. Returns None if alike is set and the tensors do not look alike. more: with
        NVFP4, the global scale."""
        place = self._place
        turn = place.turn(None, self._aside)
        outs: tuple[Any, ...] = _NO_OUTS
        if self._results is not None:
            outs = turn.run(self._results.make, place.maker())
        call = self._form.call if alike else self._form.steps
        made = call(x, topk_idx, stats, wait_ns, *more, *outs, turn.stream)
        if type(made) is not list:
            if made is None:
                return None
            check(made)
        if outs is not _NO_OUTS:
            rows, count, scales = outs
            src_info, ranges, pointer, hook, event = made
        elif self._has_scales:
            rows, scales, count, src_info, ranges, pointer, hook, event = made
        else:
            rows, count, src_info, ranges, pointer, hook, event = made
            scales = None
        handle = _handles.wrap_low_latency(pointer, self._shape, src_info, ranges)
        waiting = None
        if hook or event or turn.ends:
            kept = [x, topk_idx, stats, wait_ns, more, rows, scales, count, self._buffer]
            waiting = Hook(hook, place, kept) if hook else None
            event = turn.end(event, kept, outs, self._aside)
        check(0)
        return (rows, scales) if self._has_scales else rows, count, handle, EventOverlap(event or None), waiting


class CombineForm:
    """Combines whose tensors look alike, with the same options."""

    __slots__ = ("_place", "_form", "_buffer", "_y", "_region", "_aside", "_signals")

    def __init__(
        self, place: _place.Place, form: Form, buffer: LowLatencyBuffer, y: Any, region: Any, aside: bool, signals: Any
    ) -> None:
        """y: its sizes, strides and dtype if it lies in PyTorch's memory. region: the tensor to send in place of x.
        signals: the struct to which the form's arguments point. Each is None if there is none."""
        self._place, self._form, self._buffer, self._y, self._region = place, form, buffer, y, region
        self._aside, self._signals = aside, signals

    def combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: _handles.LowLatencyHandle,
        out: Any,
        wait_ns: Any,
        signals: Signals | None = None,
        alike: bool = True,
    ) -> Combined | None:
        """Does what Buffer's combine does. Returns None if alike is set and the tensors do not look alike. signals: for
        forms that have them."""
        if signals is not None:
            signals.fill(self._signals)
        place = self._place
        turn = place.turn(None, self._aside)
        if self._region is not None:
            x = self._region
        own: tuple[Any, ...] = ()
        if self._y is not None:
            out = turn.run(place.maker(), *self._y)
            own = (out,)
        call = self._form.call if alike else self._form.steps
        made = call(x, topk_idx, topk_weights, out, wait_ns, handle.pointer, turn.stream)
        if type(made) is not list:
            if made is None:
                return None
            check(made)
        if out is None:
            y, hook, event = made
        else:
            y = out
            hook, event = made
        waiting = None
        if hook or event or turn.ends:
            kept = [x, topk_idx, topk_weights, handle, y, wait_ns, signals, self._buffer]
            waiting = Hook(hook, place, kept) if hook else None
            event = turn.end(event, kept, own, self._aside)
        check(0)
        return y, EventOverlap(event or None), waiting


_NO_OUTS = (None, None, None)


_LEAST_RESERVE = 1 << 16  # bytes; a smaller reserve holds no shape
# The reserves of all ranks of a CPU host take at most 1/8 of its memory, because they are allocated at once.
_RESERVED_PART = 8


class LowLatencyMode:
    """Low-latency calls of a group, of any shape.

    The first call of a shape makes its buffer; all ranks do so together. With a reserve, each rank places the first
    shape there on its own, if it fits."""

    def __init__(
        self,
        group: Group,
        place: _place.Place,
        shrink: Shrink | None,
        unmapped: bool,
        sums: LlSum,
        outputs_of_torch: bool,
        forms: Forms,
    ) -> None:
        """forms: the forms of existing buffers; they may be dropped. shrink: None without masks."""
        self._group = group
        self.place = place
        self._size = group.size
        self._shrink, self._unmapped = shrink, unmapped
        self._sums = sums
        self._of_torch = outputs_of_torch or place.on_gpu  # on a GPU PyTorch's memory is as good as the library's
        self._made: dict[Shape, _Made] = {}
        self._regions: dict[Shape, Any] = {}  # memory for zero copy
        self._forms = forms
        self._reserve = self._make_reserve()
        self._laid_out = False  # whether the reserve has a shape

    def _options(self) -> dict[str, Any]:
        """Returns the options that all buffers share."""
        options: dict[str, Any] = dict(device=self.place.pair, unmapped=int(self._unmapped))
        if self._shrink is not None:
            options.update(masking=1, late_limit_ms=self._shrink.late_limit_ms)
        return options

    def _make_reserve(self) -> LowLatencyBuffer | None:
        """Makes the reserve. Returns None if none is wanted, or if the library does not support one for these ranks;
        all ranks agree on that.

        The caller's size is a hint. If the memory of some rank does not hold it, all ranks try half the size, and so
        on.
        """
        if self._shrink is None or self._unmapped:
            return None
        size = self._shrink.reserve_bytes
        if not self.place.on_gpu:
            size = min(size, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _RESERVED_PART // self._size)
        while size >= _LEAST_RESERVE:
            try:
                return LowLatencyBuffer(self._group, 0, 0, 0, 0, reserve_bytes=size, **self._options())
            except Error as error:
                if error.status == Status.ERR_UNSUPPORTED:
                    return None
                if error.status not in (Status.ERR_MEMORY, Status.ERR_REMOTE):
                    raise
                size //= 2
        return None

    def _lay_out(self, shape: Shape, topk: int) -> _Made | None:
        """Gives the reserve this shape, if it has no shape yet and the shape fits. It is local."""
        if self._reserve is None or self._laid_out:
            return None
        sizes = (shape.tokens, shape.hidden, topk, shape.experts)
        try:
            most = self._reserve.set_shape(*sizes, max_row_bytes=shape.hidden * shape.element_bytes)
        except Error as error:
            if error.status != Status.ERR_LIMIT:
                raise
            return None
        self._laid_out = True
        made = self._made[shape] = _Made(self._reserve, most)
        return made

    def buffers(self) -> list[LowLatencyBuffer]:
        """Returns all buffers in the order in which they were made. All ranks have the same order."""
        reserve = [] if self._reserve is None else [self._reserve]
        return reserve + [made.buffer for made in self._made.values() if made.buffer is not self._reserve]

    def _buffer(self, shape: Shape, topk: int, aside: bool) -> LowLatencyBuffer:
        made = self._made.get(shape)
        if made is None or made.topk < topk:
            if self.place.turn(None, aside).captured:
                raise RuntimeError(
                    f"a low-latency call of {shape.tokens} tokens, hidden {shape.hidden}, {shape.experts} experts and "
                    f"top-{topk} is captured: expected one such call before, outside of any capture"
                )
            self._forms.clear()
            laid_out = self._lay_out(shape, topk) if made is None else None
            if laid_out is not None:
                return laid_out.buffer
            if made is not None and made.buffer is not self._reserve:
                made.buffer.close()
            buffer = LowLatencyBuffer(
                self._group,
                shape.tokens,
                shape.hidden,
                topk,
                shape.experts,
                max_row_bytes=shape.hidden * shape.element_bytes,
                **self._options(),
            )
            made = self._made[shape] = _Made(buffer, topk)
            if self.place.on_gpu:
                self._regions.pop(shape, None)  # it belonged to the former buffer
            for rank in self._shrink.masked if self._shrink is not None else ():
                buffer.mask_set(rank)
        return made.buffer

    # ---- dispatch ----------------------------------------------------------------------------------------------------

    def dispatch_form(
        self,
        x: Any,
        topk_idx: Any,
        tokens: int,
        experts: int,
        stats: Any,
        wait_ns: Any,
        options: Options,
        global_scale: Any = None,
    ) -> DispatchForm:
        """Returns the form of dispatches with such tensors, after checking them."""
        format, async_finish, hook = options
        _place.of(topk_idx, "topk_idx")
        if x.dim() != 2 or topk_idx.dim() != 2:
            name, tensor = ("x", x) if x.dim() != 2 else ("topk_idx", topk_idx)
            raise AssertionError(f"{name} has {tensor.dim()} dimensions: expected 2")
        shape = Shape(tokens, x.shape[1], experts, 4 if x.element_size() == 4 else 2)
        ll = self._buffer(shape, topk_idx.shape[1], async_finish)
        args = _Args(_ARGS_BYTES, format=format, hook=hook, async_finish=self._asynchronous(async_finish))
        results = None
        if self._of_torch and x.dtype in CODES:  # the library rejects any other dtype
            results = _Results(shape, self._size, format, x.dtype)
            results.put(args, self.place.pair)
        kind = _DISPATCH_NVFP4 if format == LlFormat.NVFP4 else _DISPATCH
        given = dict(x=x, topk_idx=topk_idx, expert_recv_stats=stats, wait_ns=wait_ns, global_scale=global_scale)
        for member, tensor in given.items():
            if tensor is not None:
                kind.put(args, member, tensor)
        parts = _received(format, x.dtype) if results is None else None
        form = Form(kind, ll, args, parts)
        return DispatchForm(self.place, form, shape, ll, results, format != LlFormat.PLAIN, async_finish)

    def _asynchronous(self, asked: bool) -> bool:
        """Returns whether to ask for an event. On a GPU the library always returns before the call is complete, without
        one."""
        return asked and not self.place.on_gpu

    # ---- combine -----------------------------------------------------------------------------------------------------

    def combine_form(
        self,
        tensors: tuple[Any, Any, Any, Any, Any],
        handle: _handles.LowLatencyHandle,
        zero_copy: bool,
        options: Options,
        with_signals: bool,
    ) -> CombineForm:
        """Returns the form of combines with such tensors, after checking them. tensors: x, topk_idx, topk_weights, out,
        wait_ns."""
        x, topk_idx, topk_weights, out, wait_ns = tensors
        format, async_finish, hook = options
        made = self._made.get(handle.buffer)
        if made is None:
            raise AssertionError("handle is of a low-latency dispatch of another buffer")
        region = None
        if zero_copy:
            x = region = self._regions.get(handle.buffer)
            if region is None:
                raise AssertionError("zero_copy: there are no rows from get_next_low_latency_combine_buffer")
        args, y = _Sums(_SUMS_BYTES), None
        given = [("x", x), ("topk_idx", topk_idx), ("topk_weights", topk_weights), ("out_y", out), ("wait_ns", wait_ns)]
        for member, tensor in given:
            if tensor is not None or member.startswith(("x", "topk")):
                _COMBINE.put(args, member, tensor)
        if out is None and self._of_torch:
            tokens, hidden = topk_idx.shape[0], x.shape[-1]
            y = ((tokens, hidden), (hidden or 1, 1), x.dtype)
            _COMBINE.put(args, "out_y", self.place.matrix(tokens, hidden, x.dtype))
        args.hook, args.async_finish = hook, self._asynchronous(async_finish)
        # A call with a hook cannot wait for weights, because dispatches of this interface do not carry them.
        args.sum = LlSum.EXACT if hook or format == LlFormat.LOGFMT else self._sums
        args.format = format
        signals = empty_signals() if with_signals else None
        args.signals = None if signals is None else addressof(signals)
        parts = parts_of(_SUM_PARTS, x.dtype) if out is None and y is None else None
        form = Form(_COMBINE, made.buffer, args, parts)
        return CombineForm(self.place, form, made.buffer, y, region, async_finish, signals)

    def region(self, handle: _handles.LowLatencyHandle, dtype: Any) -> Any:
        """Returns [L, N*B, H], from which combines with zero_copy send. It is always the same tensor.

        On a CPU combines send from any memory, so it is PyTorch's and lives as long as its references. On a GPU it is
        the library's, and lives as long as this buffer; its rows may lie further apart than H."""
        shape: Shape = handle.buffer
        found = self._regions.get(shape)
        if found is None:
            local = shape.experts // self._size
            rows = self._size * shape.tokens
            if self.place.on_gpu:
                found = self._lent(shape, handle, dtype)
            else:
                found = self.place.matrix(local * rows, shape.hidden, dtype).view(local, rows, shape.hidden)
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
        """Makes an empty dispatch on the buffers of that shape. So this rank meets all ranks that are not masked, and
        late ranks are masked. If no call has made such a buffer and no reserve takes the shape, it does nothing."""
        usual = Shape(tokens, hidden, experts, 2)
        if usual not in self._made:
            self._lay_out(usual, 1)
        for shape, made in list(self._made.items()):
            if (shape.tokens, shape.hidden, shape.experts) == (tokens, hidden, experts):
                kind = torch.float32 if shape.element_bytes == 4 else torch.bfloat16
                nothing = self.place.matrix(0, hidden, kind)
                nowhere = self.place.matrix(0, made.topk, torch.int64)
                options = (LlFormat.PLAIN, False, False)
                form = self.dispatch_form(nothing, nowhere, tokens, experts, None, None, options)
                form.dispatch(nothing, nowhere, None, None, alike=False)

    # ---- masks -------------------------------------------------------------------------------------------------------

    def mask(self, rank: int, masked: bool) -> None:
        for buffer in self.buffers():
            buffer.mask_set(rank, masked)

    def add_masked(self, status: Any) -> None:
        """Sets status to 1 for each rank that is masked on some buffer; on a GPU the current stream does. status: int32
        [N], on any device."""
        for buffer in self.buffers():
            view, found = _abi.Tensor(), self.place.vector(self._size, torch.int32)
            put(view, 0, found, "mask_status")
            check(_mask_query(buffer.pointer, addressof(view), self.place.turn(None, False).stream or None))
            status |= found.to(status.device)

    def clean_masks(self) -> None:
        for buffer in self.buffers():
            buffer.mask_clean()

    def end(self, how: Callable[[LowLatencyBuffer], None]) -> None:
        for buffer in self.buffers():
            how(buffer)
        self._reserve = None
        self._made.clear()
        self._forms.clear()
        self._regions.clear()
