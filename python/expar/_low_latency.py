# SPDX-License-Identifier: Apache-2.0
"""EP buffers for low latency: dispatch and combine of few tokens, for decoding.

Letters in shapes: B maximum of tokens a rank, T tokens of this rank in a call (0 to B), H hidden, K top-k, E experts.
N ranks, L = E/N local experts. Expert e is local expert e % L of rank e // L.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, overload

from . import _abi, _numbered, _values
from ._abi import Dtype, LlFormat, LlSum
from ._arguments import Arguments, keep_call, keep_unordered, Members, output_of
from ._called import create
from ._copies import Shared
from ._device import CPU, device_of, stream_for
from ._dtypes import dtype_of
from ._event import Event, end_calls_with
from ._group import Group, Owned, fill
from ._library import lib
from ._low_latency_forms import COMBINE_TENSORS, CombineForm, DISPATCH_TENSORS, DispatchForm, Received, Summed
from ._quick import Forms
from ._results import same_object
from ._symmetric import stats_of
from ._tensor import Counted, Tensor, make_view, view_of

if TYPE_CHECKING:
    from ._types import Array, Device, Stream

# In the order of the arguments.
_SHAPE = ("max_tokens", "hidden", "max_topk", "num_experts")
_OPTIONS = ("max_row_bytes", "sums", "num_threads", "num_sms", "unmapped", "reserve_bytes", "masking", "late_limit_ms")
_RECEIVED = Members(_abi.LlDispatchResult, "recv_x recv_scales recv_count")
_ZEROS, _MORE_ZEROS = (0,) * 4, (0,) * 5


def _config(shape: tuple[int, ...], options: tuple[int, ...], device: Device | None) -> _abi.LlConfig:
    """Returns the struct of a shape and of options, which may be fewer than there are."""
    config = _abi.LlConfig()
    config.device.type, config.device.index = device_of(device)
    fill(config, _SHAPE + _OPTIONS[: len(options)], shape + options)
    return config


class LowLatencyHandle(Counted):
    """The sources of the rows of one dispatch, for its combines. It lives as long as its references."""

    __slots__ = ("_known",)
    _no_pickle = "each rank gets its own handle from its dispatch"
    _retain = lib.expar_ll_handle_retain
    _release = lib.expar_ll_handle_release

    def __init__(self, pointer: int, stream: int | None = None) -> None:
        super().__init__(pointer, stream)
        self._known: _abi.LlHandleInfo | None = None

    @property
    def _info(self) -> _abi.LlHandleInfo:
        """Reads the facts when they are first needed; most programs only pass a handle on."""
        if self._known is None:
            info = _abi.LlHandleInfo(struct_size=ctypes.sizeof(_abi.LlHandleInfo))
            lib.expar_ll_handle_get_info(self.pointer, ctypes.byref(info))
            self._known = info
        return self._known

    @property
    def src_info(self) -> Tensor:
        """[L, N*B] i32: the row's token number at its source, -1 for a row that did not come. It is filled together
        with the rows."""
        return Tensor(self._info.src_info, self)

    @property
    def range(self) -> Tensor:
        """[L, N] i64: the first row of each source << 32 | its number of rows. It is filled together with the rows."""
        return Tensor(self._info.range, self)

    @property
    def num_tokens(self) -> int:
        """T of the dispatch."""
        return self._info.num_tokens


class Hook(Shared):
    """The second part of a call. Calling it receives, once, in any order with others, and fills the call's results. A
    hook that is never called keeps one of the two slots of its kind."""

    __slots__ = ("__weakref__", "_device", "_kept", "_pointer", "_process", "_release")
    _no_pickle = "call it in the process whose dispatch or combine returned it"

    def __init__(self, pointer: int, kept: list[Any], device: tuple[int, int]) -> None:
        self._kept = kept
        self._device = device
        self._pointer = pointer
        self._process = _values.this_process()
        self._release = lib.expar_ll_hook_release

    def __del__(self) -> None:
        self._release(self._pointer)

    def __call__(self, stream: Stream | None = None) -> None:
        """Receives. stream: the stream on a GPU. Error: ERR_STATE if it was called before, or the buffer is gone; else
        those of the call."""
        _values.check_process(self._process, "hook")
        on = stream_for(stream, self._device)
        lib.expar_ll_hook_call(self._pointer, on)
        if on is not None:
            for each in self._kept:
                if isinstance(each, Counted) and each.stream is not None:
                    each.fill_on(on)
            keep_unordered(on, self._device, self._kept)


class LentTensor(Tensor):
    """Memory of a low-latency buffer; it stays in place as long as the buffer exists. Other libraries get it by
    `numpy()` and `torch()`. While this object or such an array is alive, the buffer cannot be closed."""

    def __init__(self, view: _abi.Tensor, buffer: LowLatencyBuffer) -> None:
        super().__init__(view, None)
        self._buffer = buffer

    @property
    def in_use(self) -> bool:
        return True


@same_object
class LowLatencyDispatched(NamedTuple):
    """The rows that a rank has received. Each tensor is the caller's if it was given (out_…), else the library's. They
    are filled after the hook was called, or with async_finish after the event.

    x: [L, N*B, H], dtype of x or of the format; NVFP4 [L, N*B, H/2] u8. Rows of expert e start at x[e, 0], without
        gaps.
    scales: [L, N*B, H/128] f32, UE8M0 [L, N*B, ceil(H/512)] i32. The token dimension is contiguous. None without. NVFP4
        [L, ceil(N*B/128), H/64, 512] e4m3.
    count: [L] i32: rows of each local expert.
    """

    x: Any
    scales: Any
    count: Any
    handle: LowLatencyHandle
    hook: Hook | None
    event: Event | None

    @property
    def recv_x(self) -> Any:
        """`x`, as C names it."""
        return self.x

    @property
    def recv_scales(self) -> Any:
        """`scales`, as C names it."""
        return self.scales

    @property
    def recv_count(self) -> Any:
        """`count`, as C names it."""
        return self.count


@same_object
class LowLatencyCombined(NamedTuple):
    """The sums in the order of the tokens. They are filled as LowLatencyDispatched is.

    y: [T, H], dtype of x.
    """

    y: Any
    hook: Hook | None
    event: Event | None


class LowLatencyBuffer(Owned):
    """A buffer for low-latency calls of a group, with fixed B, H, K and E. Creating it is collective.

    All arguments are the same on all ranks, except `num_threads`, `num_sms`, `late_limit_ms` and the GPU's number.
    device, and `stream` of calls and hooks: as of Buffer. On a GPU a call only enqueues its work on the stream; its
    event or the next call reports errors. Options:

    max_row_bytes: 2 H, the default, or 4 H for f32.
    sums: the combines that will be made (1 << LlSum.EXACT | …; 0: all).
    num_threads: worker threads. num_sms: SMs on a GPU.
    masking: with 1, a lost rank is masked, and the calls of the others go on.
    late_limit_ms: with masking, how long to wait for a rank that answers before it is masked (0: the group's limit).
    reserve_bytes: with masking, memory for a shape that each rank sets later by `set_shape`. B, H, K and E are then 0.
    unmapped: with 1, no rank's memory is mapped, and all data goes through transports.

    ERR_UNSUPPORTED for an option that this version of the library does not have. Calls are made in the same order on
    all ranks; one thread at a time is in a call (ERR_BUSY). At most two dispatches and two combines are open at once; a
    third is ERR_STATE.
    """

    _kind = "low-latency buffer"
    _no_pickle = "create a low-latency buffer in each process, from that process's group"

    def __init__(
        self,
        group: Group,
        max_tokens: int,
        hidden: int,
        max_topk: int,
        num_experts: int,
        *,
        device: Device | None = None,
        max_row_bytes: int = 0,
        sums: int = 0,
        num_threads: int = 0,
        num_sms: int = 0,
        unmapped: int = 0,
        reserve_bytes: int = 0,
        masking: int = 0,
        late_limit_ms: int = 0,
    ) -> None:
        shape = (max_tokens, hidden, max_topk, num_experts)
        options = (max_row_bytes, sums, num_threads, num_sms, unmapped, reserve_bytes, masking, late_limit_ms)
        config = _config(shape, options, device)
        _values.one_of(group, "group", Group)
        self.device: tuple[int, int] = (config.device.type, config.device.index)
        pointer = ctypes.c_void_p()
        made = (group.pointer, ctypes.byref(config), ctypes.byref(pointer))
        create("LowLatencyBuffer", device, lib.expar_ll_create, *made)
        assert pointer.value is not None
        super().__init__(pointer.value, lib.expar_ll_destroy, lib.expar_ll_abandon)
        self.group = group
        # Operators of PyTorch get these (torch.py). A compiler can read attributes, but not call the library.
        self._number, self._num_ranks, self._max_tokens = _numbered.add(self), group.size, max_tokens
        self._forms = Forms()
        self._lent: dict[int, Callable[[], LentTensor | None]] = {}

    @staticmethod
    def bytes_needed(
        num_ranks: int,
        max_tokens: int,
        hidden: int,
        max_topk: int,
        num_experts: int,
        *,
        device: Device | None = None,
        max_row_bytes: int = 0,
        sums: int = 0,
        num_threads: int = 0,
        num_sms: int = 0,
        unmapped: int = 0,
        reserve_bytes: int = 0,
        masking: int = 0,
        late_limit_ms: int = 0,
    ) -> int:
        """Returns the bytes that such a buffer takes on each rank. They come from the symmetric heap, on a GPU from its
        memory. Local."""
        shape = (max_tokens, hidden, max_topk, num_experts)
        options = (max_row_bytes, sums, num_threads, num_sms, unmapped, reserve_bytes, masking, late_limit_ms)
        config = _config(shape, options, device)
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
        """Sets the shape of a buffer with `reserve_bytes`, once. It is local; all ranks set the same shape. It returns
        K, the largest that fits, at least max_topk. A rank that never makes its first call is masked by the others as
        in any call. ERR_LIMIT: the shape does not fit; ERR_STATE: there is no reserve, or it has a shape."""
        config = _config((max_tokens, hidden, max_topk, num_experts), (max_row_bytes, sums), None)
        topk = ctypes.c_int32()
        lib.expar_ll_set_shape(self.pointer, ctypes.byref(config), ctypes.byref(topk))
        self._max_tokens = max_tokens
        return topk.value

    def close(self) -> None:
        """Destroys the buffer. Collective. Hooks that were not called can no longer be called. A second call has no
        effect. It waits for pending calls that use memory of `combine_buffer`. BufferError while something else uses
        such memory."""
        if not self.closed and self._is_lent():
            end_calls_with([lent() for lent in self._lent.values()])
        if not self.closed and self._is_lent():
            raise BufferError("memory of combine_buffer is alive: delete it before the buffer is closed")
        super().close()

    def _is_lent(self) -> bool:
        return any(lent() is not None for lent in self._lent.values())

    def dispatch(
        self,
        x: Array,
        topk_idx: Array,
        topk_weights: Array | None = None,
        *,
        format: LlFormat = LlFormat.PLAIN,
        out_x: Array | None = None,
        out_scales: Array | None = None,
        out_count: Array | None = None,
        expert_recv_stats: Array | None = None,
        wait_ns: Array | None = None,
        hook: bool = False,
        async_finish: bool = False,
        wait_event: Event | None = None,
        num_sms: int = 0,
        stream: Stream | None = None,
        global_scale: Array | None = None,
    ) -> LowLatencyDispatched:
        """Carries each token to the ranks that hold its experts, and places it there once for each expert.

        x: [T, H] bf16, f16 or f32; H is contiguous, and rows are multiples of 16 bytes.
        topk_idx: [T, K] int32 or int64, -1 for none; a token has an expert at most once.
        topk_weights: [T, K] f32, for a reduced combine.
        format: the format of rows in transit and in the result, the same on all ranks. Quantised formats need H to be a
            multiple of 128.
        out_…: the caller's memory for results, as in `LowLatencyDispatched`, with the same strides.
        expert_recv_stats: [L] i32, to which the numbers of received rows are added.
        wait_ns: [N] i64, to which the time of waiting for each source is added.
        hook: the call only sends; the result's hook receives.
        async_finish: returns once the results' addresses are known.
        num_sms, stream: on a GPU, as of Buffer.dispatch.
        global_scale: [1] f32, with NVFP4: the number by which scales are multiplied.

        Error: ERR_INDEX, ERR_SHAPE, ERR_DTYPE, ERR_LIMIT, ERR_STATE (two are open), ERR_REMOTE, ERR_MISMATCH, …
        """
        options = (format, hook, async_finish, num_sms)
        tensors = (x, topk_idx, topk_weights, global_scale, out_x, out_scales, out_count, expert_recv_stats, wait_ns)
        form = self._forms.find("dispatch", options, _ZEROS) if self._pointer is not None else None
        if form is not None:
            made: Received | None = form.dispatch(tensors, wait_event, stream)
            if made is not None:
                rows, scales, count, pointer, waits, event, on, memory = made
                handle = LowLatencyHandle(pointer, on)
                kept = (*tensors, wait_event, memory, handle)
                received = Hook(waits, [each for each in kept if each is not None], self.device) if waits else None
                end = form.end(event, on, tensors, kept[-3:], stream is not None)
                return LowLatencyDispatched(rows, scales, count, handle, received, end)
        call = Arguments(_abi.LlDispatchArgs(), self.device, stream)
        call.sms(num_sms)
        if not _values.all_zero(options[:3], _ZEROS[:3]):
            call.choices(format=format)
            call.flags(hook=hook, async_finish=async_finish)
        plain = bytes(call.struct) if form is None and self._forms.wants(x) else None
        call.tensors(DISPATCH_TENSORS, tensors)
        call.event(wait_event)
        result = _abi.LlDispatchResult(struct_size=ctypes.sizeof(_abi.LlDispatchResult))
        lib.expar_ll_dispatch(self.pointer, ctypes.byref(call.struct), ctypes.byref(result))
        if plain is not None:
            self._forms.keep("dispatch", options, _ZEROS, DispatchForm(self.pointer, self.device, plain))
        output = output_of(result.output, call.stream)
        assert result.handle is not None
        handle = LowLatencyHandle(result.handle, call.stream)
        rows, scales, count = _RECEIVED.taken(result, tensors[4:7], output)
        return LowLatencyDispatched(
            rows,
            scales,
            count,
            handle,
            Hook(result.hook, [*call.kept, output, handle], self.device) if result.hook else None,
            keep_call(result.event, call, output),
        )

    def combine(
        self,
        x: Array,
        topk_idx: Array,
        topk_weights: Array,
        handle: LowLatencyHandle,
        *,
        sum: LlSum = LlSum.EXACT,
        format: LlFormat = LlFormat.PLAIN,
        out_y: Array | None = None,
        wait_ns: Array | None = None,
        hook: bool = False,
        async_finish: bool = False,
        wait_event: Event | None = None,
        num_sms: int = 0,
        stream: Stream | None = None,
    ) -> LowLatencyCombined:
        """Brings the experts' rows back and sums them with their weights.

        x: [L, N*B, H] bf16, f16 or f32 in the dispatch's layout. Memory of `combine_buffer` is sent without a copy.
        topk_idx: [T, K] int32 or int64, the dispatch's. topk_weights: [T, K] f32.
        handle: the dispatch's; it serves several combines.
        sum: with EXACT a row travels for each slot, and the token's rank sums in the order of slots. With REDUCED each
            rank first sums its rows of a token. It is the same on all ranks.
        format: PLAIN, or LOGFMT with EXACT; the same on all ranks.
        out_y: [T, H], dtype of x, the caller's memory. Other arguments are as of dispatch.

        Errors are as of dispatch, and ERR_HANDLE, ERR_UNSUPPORTED.
        """
        options = (sum, format, hook, async_finish, num_sms)
        tensors = (x, topk_idx, topk_weights, out_y, wait_ns)
        form = self._forms.find("combine", options, _MORE_ZEROS) if self._pointer is not None else None
        if form is not None and type(handle) is LowLatencyHandle:
            made: Summed | None = form.combine(tensors, handle.pointer, wait_event, stream)
            if made is not None:
                y, waits, event, on, memory = made
                kept = (*tensors, handle, wait_event, memory)
                received = Hook(waits, [each for each in kept if each is not None], self.device) if waits else None
                return LowLatencyCombined(y, received, form.end(event, on, tensors, kept[-3:], stream is not None))
        call = Arguments(_abi.LlCombineArgs(), self.device, stream)
        call.sms(num_sms)
        if not _values.all_zero(options[:4], _ZEROS):
            call.choices(sum=sum, format=format)
            call.flags(hook=hook, async_finish=async_finish)
        plain = bytes(call.struct) if form is None and self._forms.wants(x) else None
        call.tensors(COMBINE_TENSORS, tensors)
        call.handle(_values.one_of(handle, "handle", LowLatencyHandle))
        call.event(wait_event)
        result = _abi.LlCombineResult(struct_size=ctypes.sizeof(_abi.LlCombineResult))
        lib.expar_ll_combine(self.pointer, ctypes.byref(call.struct), ctypes.byref(result))
        if plain is not None:
            self._forms.keep("combine", options, _MORE_ZEROS, CombineForm(self.pointer, self.device, plain))
        output = output_of(result.output, call.stream)
        return LowLatencyCombined(
            out_y if out_y is not None or output is None else Tensor(result.y, output),
            Hook(result.hook, [*call.kept, output], self.device) if result.hook else None,
            keep_call(result.event, call, output),
        )

    def combine_buffer(self, handle: LowLatencyHandle, dtype: Any) -> LentTensor:
        """Returns memory in the dispatch's layout, [L, N*B, H] of the dtype, to which a GEMM can write. A combine sends
        it without a copy. It is the same memory at each call; rows may lie further apart than H."""
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
        """Masks a rank, or ends its mask. Local. This rank sends nothing to a masked rank, does not wait for it, and
        adds nothing of its experts. Error: ERR_STATE (the buffer was made without `masking`), ERR_ARGUMENT."""
        lib.expar_ll_mask_set(self.pointer, _values.whole(rank, "rank"), _values.flag(masked, "masked"))

    @overload
    def mask_query(self) -> list[bool]: ...

    @overload
    def mask_query(self, status: Array, *, stream: Stream | None = None) -> None: ...

    def mask_query(self, status: Array | None = None, *, stream: Stream | None = None) -> list[bool] | None:
        """Returns the masks of this rank as a list of [N]. Local.

        status: [N] i32, filled in place of the list with 1 for masked ranks. On a GPU it is needed, and lies there. The
        stream (as of dispatch) fills it after this rank's calls. Error: ERR_STATE, ERR_DTYPE, ERR_SHAPE, ERR_STRIDE,
        ERR_DEVICE."""
        on = stream_for(stream, self.device)
        if status is not None:
            kept: list[Any] = []
            view = view_of(status, "status", kept, stream=on, writable=True)
            lib.expar_ll_mask_query(self.pointer, ctypes.byref(view), on)
            if on is not None:
                keep_unordered(on, self.device, kept)
            return None
        if self.device != CPU:
            raise ValueError(f"status is None: expected [{self.group.size}] i32 on GPU {self.device[1]}")
        size = self.group.size
        found = (ctypes.c_int32 * size)()
        view = make_view(ctypes.addressof(found), Dtype.I32, (size,), (1,), CPU)
        lib.expar_ll_mask_query(self.pointer, ctypes.byref(view), None)
        return [value != 0 for value in found]

    def mask_clean(self) -> None:
        """Agrees on the masks with all living ranks, and readmits a rank that has come back. Collective among the
        living."""
        lib.expar_ll_mask_clean(self.pointer)

    def query(self) -> None:
        """Raises errors of calls and hooks on a GPU that have no event. It does not wait."""
        lib.expar_ll_query(self.pointer)

    def stats(self) -> dict[str, int]:
        """Returns the buffer's counters on this rank, by the names of expar_ll_stats."""
        return stats_of(_abi.LlStats(), lib.expar_ll_get_stats, self.pointer)
