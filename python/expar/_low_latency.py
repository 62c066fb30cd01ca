# SPDX-License-Identifier: Apache-2.0
"""EP buffers for low latency: dispatch and combine of few tokens, for decoding.

Letters in shapes: B tokens a rank at most, T tokens of this rank in a call (0 to B), H hidden, K top-k, E experts, N
ranks, L = E/N local experts. Expert e lives on rank e // L and is local expert e % L there.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any, Callable, overload

from . import _abi, _values
from ._abi import Dtype, LlFormat, LlSum
from ._arguments import Arguments, keep_call, output_of, own_or_library
from ._device import CPU, device_of, keep_behind, stream_for
from ._event import Event, end_calls_with
from ._group import Group, Owned, fill
from ._library import lib
from ._symmetric import stats_of
from ._tensor import Counted, Tensor, dtype_of, make_view, view_of

_NOT_OPTIONS = ("struct_size", "max_tokens", "hidden", "max_topk", "num_experts", "device")
_ZEROS = (0,) * 4
_OPTION_NAMES = [name for name, *_ in _abi.LlConfig._fields_ if name not in _NOT_OPTIONS]


def _config(options: dict[str, int], device: Any, **shape: int) -> _abi.LlConfig:
    config = _abi.LlConfig()
    config.device.type, config.device.index = device_of(device)
    for name, value in shape.items():
        _values.set_number(config, name, value)
    fill(config, options, _OPTION_NAMES)
    return config


class LowLatencyHandle(Counted):
    """Where the rows of one dispatch came from: for its combines. It lives as long as somebody has it."""

    __slots__ = ("_known",)

    def __init__(self, pointer: int, stream: int | None = None) -> None:
        super().__init__(pointer, lib.expar_ll_handle_retain, lib.expar_ll_handle_release, stream)
        self._known: _abi.LlHandleInfo | None = None

    @property
    def _info(self) -> _abi.LlHandleInfo:
        """Asked for when it is needed: most programs only hand a handle on."""
        if self._known is None:
            info = _abi.LlHandleInfo(struct_size=ctypes.sizeof(_abi.LlHandleInfo))
            lib.expar_ll_handle_get_info(self.pointer, ctypes.byref(info))
            self._known = info
        return self._known

    @property
    def src_info(self) -> Tensor:
        """[L, N*B] i32: the row's token number at its source; -1 for a row that did not come. Filled when rows are."""
        return Tensor(self._info.src_info, self)

    @property
    def range(self) -> Tensor:
        """[L, N] i64: where the rows of each source begin << 32 | how many there are. Filled when rows are."""
        return Tensor(self._info.range, self)

    @property
    def num_tokens(self) -> int:
        """T of the dispatch."""
        return self._info.num_tokens


class Hook:
    """The second half of a call, which receives when this is called: once, in any order with others. What the call's
    result names is filled then. One that is never called holds one of the two places of its kind."""

    __slots__ = ("__weakref__", "_device", "_kept", "_pointer", "_process", "_release")

    def __init__(self, pointer: int, kept: list[Any], device: tuple[int, int]) -> None:
        self._kept = kept
        self._device = device
        self._pointer = pointer
        self._process = _values.this_process()
        self._release = lib.expar_ll_hook_release

    def __del__(self) -> None:
        self._release(self._pointer)

    def __call__(self, stream: Any = None) -> None:
        """stream: on a GPU, where it receives. Error: ERR_STATE when it has been called, or the buffer is gone; else those
        of the call."""
        _values.check_process(self._process, "hook")
        on = stream_for(stream, self._device)
        lib.expar_ll_hook_call(self._pointer, on)
        if on is not None:
            for each in self._kept:
                if isinstance(each, Counted) and each.stream is not None:
                    each.stream = on
            keep_behind(on, self._kept)


class LentTensor(Tensor):
    """Memory of a low-latency buffer, which stays where it is as long as the buffer does. Other libraries have it by
    `numpy()` and `torch()`; while such arrays are alive, or this is, the buffer cannot be closed."""

    def __init__(self, view: _abi.Tensor, buffer: LowLatencyBuffer) -> None:
        super().__init__(view, None)
        self._buffer = buffer

    @property
    def in_use(self) -> bool:
        return True


@dataclass(eq=False)
class LowLatencyDispatched:
    """What a rank has received: each tensor the caller's own where it was given (out_…), else the library's. With a
    hook it is filled when that has been called, with async_finish when the event has happened."""

    x: Any  # [L, N*B, H], dtype of x or of the format; rows of expert e from x[e, 0] on without gaps
    scales: Any  # [L, N*B, H/128] f32, UE8M0 [L, N*B, ceil(H/512)] i32; the token dimension contiguous. None without
    count: Any  # [L] i32: rows of each local expert
    handle: LowLatencyHandle
    hook: Hook | None
    event: Event | None


@dataclass(eq=False)
class LowLatencyCombined:
    """Sums, back in the order of the tokens. Filled as LowLatencyDispatched."""

    y: Any  # [T, H], dtype of x
    hook: Hook | None
    event: Event | None


class LowLatencyBuffer(Owned):
    """What low-latency calls of a group work in, for B, H, K and E, which it never outgrows.

    Collective; all arguments but `num_threads`, `num_sms` and the GPU's number are the same on all ranks. device, and
    `stream` of calls and hooks: as of Buffer; on a GPU a call only puts its work on the stream, and what goes wrong there
    is told by its event, or by the next call. Options: `max_row_bytes` (2 H, the default, or 4 H, for f32);
    `sums`, the combines that will be made (1 << LlSum.EXACT | …; 0: all); `num_threads`; `num_sms`, on a GPU; `masking` (1:
    a rank that is lost is masked, and the calls of the others go on); `late_limit_ms`, with masking: how long a rank that
    answers is waited for before it is masked (0: as the group says; may differ between ranks); `reserve_bytes`, with
    masking: memory for a shape that each rank names later by `set_shape`, and B, H, K, E are 0; `unmapped` (1: no
    rank's memory is mapped, all go through transports). ERR_UNSUPPORTED for what this version of the library has not.

    Calls are made in the same order on all ranks; one thread at a time is in a call (ERR_BUSY). At most two dispatches
    and two combines are open at once; a third is ERR_STATE.
    """

    _kind = "low-latency buffer"

    def __init__(
        self,
        group: Group,
        max_tokens: int,
        hidden: int,
        max_topk: int,
        num_experts: int,
        *,
        device: Any = None,
        **options: int,
    ) -> None:
        shape = dict(max_tokens=max_tokens, hidden=hidden, max_topk=max_topk, num_experts=num_experts)
        config = _config(options, device, **shape)
        _values.one_of(group, "group", Group)
        self.device: tuple[int, int] = (config.device.type, config.device.index)
        pointer = ctypes.c_void_p()
        lib.expar_ll_create(group.pointer, ctypes.byref(config), ctypes.byref(pointer))
        assert pointer.value is not None
        super().__init__(pointer.value, lib.expar_ll_destroy, lib.expar_ll_abandon)
        self.group = group
        self._lent: dict[int, Callable[[], LentTensor | None]] = {}

    @staticmethod
    def bytes_needed(
        num_ranks: int,
        max_tokens: int,
        hidden: int,
        max_topk: int,
        num_experts: int,
        *,
        device: Any = None,
        **options: int,
    ) -> int:
        """Bytes of symmetric heap, on a GPU of its memory, that such a buffer takes on each rank. Local."""
        shape = dict(max_tokens=max_tokens, hidden=hidden, max_topk=max_topk, num_experts=num_experts)
        config = _config(options, device, **shape)
        size = ctypes.c_size_t()
        ranks = _values.whole(num_ranks, "num_ranks", expected="a number of ranks")
        lib.expar_ll_get_buffer_size(ctypes.byref(config), ranks, ctypes.byref(size))
        return size.value

    def set_shape(
        self,
        max_tokens: int,
        hidden: int,
        max_topk: int,
        num_experts: int,
        *,
        max_row_bytes: int = 0,
        sums: int = 0,
    ) -> int:
        """Gives a buffer with `reserve_bytes` its shape, once; local, and the same on all ranks. K is the largest that
        fits, max_topk at least: it is returned. A rank that does not come to its first call is masked by the others as
        in any call. ERR_LIMIT: the shape does not fit; ERR_STATE: no reserve, or it has a shape."""
        shape = dict(max_tokens=max_tokens, hidden=hidden, max_topk=max_topk, num_experts=num_experts)
        config = _config(dict(max_row_bytes=max_row_bytes, sums=sums), None, **shape)
        topk = ctypes.c_int32()
        lib.expar_ll_set_shape(self.pointer, ctypes.byref(config), ctypes.byref(topk))
        return topk.value

    def close(self) -> None:
        """Collective: every rank ends it; hooks that were not called cannot be any more. Again: no effect. BufferError
        while memory of `combine_buffer` is in use, but by calls that are under way: those are waited for."""
        if not self.closed and self._is_lent():
            end_calls_with([lent() for lent in self._lent.values()])
        if not self.closed and self._is_lent():
            raise BufferError("memory of combine_buffer is alive: delete it before the buffer is closed")
        super().close()

    def _is_lent(self) -> bool:
        return any(lent() is not None for lent in self._lent.values())

    def dispatch(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any = None,
        *,
        format: LlFormat = LlFormat.PLAIN,
        out_x: Any = None,
        out_scales: Any = None,
        out_count: Any = None,
        expert_recv_stats: Any = None,
        wait_ns: Any = None,
        hook: bool = False,
        async_finish: bool = False,
        wait_event: Event | None = None,
        num_sms: int = 0,
        stream: Any = None,
    ) -> LowLatencyDispatched:
        """Carries each token to the ranks that hold its experts, and places it there once an expert.

        x: [T, H] bf16, f16 or f32, H contiguous, rows of whole 16 bytes. topk_idx: [T, K] int32 or int64, -1 for none,
            an expert at most once in a token. topk_weights: [T, K] f32, for a reduced combine.
        format: of rows on their way and in the result, the same on all ranks; quantised ones need H a multiple of 128.
        out_…: the caller's own results, as `LowLatencyDispatched` has them, with the same strides.
        expert_recv_stats: [L] i32, rows received are added; wait_ns: [N] i64, waiting for each source is added.
        hook: only sends; the result's hook receives. async_finish: returns once the results' places are known.
        num_sms, stream: on a GPU, as of Buffer.dispatch.

        Error: ERR_INDEX, ERR_SHAPE, ERR_DTYPE, ERR_LIMIT, ERR_STATE (two are open), ERR_REMOTE, ERR_MISMATCH, …
        """
        call = Arguments(_abi.LlDispatchArgs(), self.device, stream)
        call.sms(num_sms)
        if not _values.all_zero((format, hook, async_finish), _ZEROS[:3]):
            call.choices(format=format)
            call.flags(hook=hook, async_finish=async_finish)
        call.tensors(x=x, topk_idx=topk_idx, topk_weights=topk_weights)
        call.tensors(out_x=out_x, out_scales=out_scales, out_count=out_count)
        call.tensors(expert_recv_stats=expert_recv_stats, wait_ns=wait_ns)
        call.event(wait_event)
        result = _abi.LlDispatchResult(struct_size=ctypes.sizeof(_abi.LlDispatchResult))
        lib.expar_ll_dispatch(self.pointer, ctypes.byref(call.struct), ctypes.byref(result))
        output = output_of(result.output, call.stream)
        assert result.handle is not None
        handle = LowLatencyHandle(result.handle, call.stream)
        return LowLatencyDispatched(
            x=own_or_library(out_x, result.recv_x, output),
            scales=own_or_library(out_scales, result.recv_scales, output),
            count=own_or_library(out_count, result.recv_count, output),
            handle=handle,
            hook=Hook(result.hook, [*call.kept, output, handle], self.device) if result.hook else None,
            event=keep_call(result.event, call, output),
        )

    def combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: LowLatencyHandle,
        *,
        sum: LlSum = LlSum.EXACT,
        format: LlFormat = LlFormat.PLAIN,
        out_y: Any = None,
        wait_ns: Any = None,
        hook: bool = False,
        async_finish: bool = False,
        wait_event: Event | None = None,
        num_sms: int = 0,
        stream: Any = None,
    ) -> LowLatencyCombined:
        """Brings the experts' rows back, and sums them with their weights.

        x: [L, N*B, H] bf16, f16 or f32 in dispatch's layout, or memory of `combine_buffer`, which is sent without a
            copy. topk_idx: [T, K] int32 or int64, of the dispatch. topk_weights: [T, K] f32. handle: of the dispatch; serves several.
        sum: EXACT, a row a slot travels, and the token's rank sums in the order of slots; REDUCED, each rank sums its
            rows of a token first. format: PLAIN, or LOGFMT with EXACT. Both the same on all ranks.
        out_y: [T, H], dtype of x: the caller's own. Others as of dispatch; errors, too, and ERR_HANDLE,
            ERR_UNSUPPORTED.
        """
        call = Arguments(_abi.LlCombineArgs(), self.device, stream)
        call.sms(num_sms)
        if not _values.all_zero((sum, format, hook, async_finish), _ZEROS):
            call.choices(sum=sum, format=format)
            call.flags(hook=hook, async_finish=async_finish)
        call.tensors(x=x, topk_idx=topk_idx, topk_weights=topk_weights, out_y=out_y, wait_ns=wait_ns)
        call.handle(_values.one_of(handle, "handle", LowLatencyHandle))
        call.event(wait_event)
        result = _abi.LlCombineResult(struct_size=ctypes.sizeof(_abi.LlCombineResult))
        lib.expar_ll_combine(self.pointer, ctypes.byref(call.struct), ctypes.byref(result))
        output = output_of(result.output, call.stream)
        return LowLatencyCombined(
            y=own_or_library(out_y, result.y, output),
            hook=Hook(result.hook, [*call.kept, output], self.device) if result.hook else None,
            event=keep_call(result.event, call, output),
        )

    def combine_buffer(self, handle: LowLatencyHandle, dtype: Any) -> LentTensor:
        """Memory in dispatch's layout, [L, N*B, H] of the dtype, for a GEMM to write to: a combine sends from there
        without a copy. The same memory at each call; rows may lie further apart than H."""
        view = _abi.Tensor()
        element, owner = dtype_of(dtype), _values.one_of(handle, "handle", LowLatencyHandle)
        lib.expar_ll_get_combine_buffer(self.pointer, owner.pointer, element, ctypes.byref(view))
        held = self._lent.get(element, lambda: None)()
        if held is None:
            held = LentTensor(view, self)
            self._lent[element] = weakref.ref(held)
            self.group.lend(held)
        return held

    # ---- masks -------------------------------------------------------------------------------------------------------

    def mask_set(self, rank: int, masked: bool = True) -> None:
        """A masked rank is sent nothing and waited for by nobody here; its experts add nothing. Local. Error: ERR_STATE
        (the buffer was made without `masking`), ERR_ARGUMENT."""
        lib.expar_ll_mask_set(self.pointer, _values.whole(rank, "rank"), _values.flag(masked, "masked"))

    @overload
    def mask_query(self) -> list[bool]: ...

    @overload
    def mask_query(self, status: Any, *, stream: Any = None) -> None: ...

    def mask_query(self, status: Any = None, *, stream: Any = None) -> list[bool] | None:
        """[N]: who is masked here, as a list. Local. status: [N] i32 that is filled instead, 1 for masked ranks; on a GPU
        it is needed, lies there, and is filled in the stream (as of dispatch) behind this rank's calls. Error: ERR_STATE,
        ERR_DTYPE, ERR_SHAPE, ERR_STRIDE, ERR_DEVICE."""
        on = stream_for(stream, self.device)
        if status is not None:
            kept: list[Any] = []
            view = view_of(status, "status", kept, stream=on, writable=True)
            lib.expar_ll_mask_query(self.pointer, ctypes.byref(view), on)
            if on is not None:
                keep_behind(on, kept)
            return None
        if self.device != CPU:
            raise ValueError(f"status is None: expected [{self.group.size}] i32 on GPU {self.device[1]}")
        size = self.group.size
        found = (ctypes.c_int32 * size)()
        view = make_view(ctypes.addressof(found), Dtype.I32, (size,), (1,), CPU)
        lib.expar_ll_mask_query(self.pointer, ctypes.byref(view), None)
        return [value != 0 for value in found]

    def mask_clean(self) -> None:
        """Collective among the living: agrees on who is masked, and takes a rank that has come back in again."""
        lib.expar_ll_mask_clean(self.pointer)

    def query(self) -> None:
        """Raises what went wrong in calls and hooks on a GPU that have no event; does not wait."""
        lib.expar_ll_query(self.pointer)

    def stats(self) -> dict[str, int]:
        """What the buffer has done on this rank, by the names of expar_ll_stats."""
        return stats_of(_abi.LlStats(), lib.expar_ll_get_stats, self.pointer)
