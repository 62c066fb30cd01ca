# SPDX-License-Identifier: Apache-2.0
"""EP buffers: dispatch and combine in normal mode.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts.
R rows that this rank receives, S scales a row. Expert e is local expert e % L of rank e // L.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, Sequence

from . import _abi, _numbered, _values
from ._abi import DeviceType, Dtype, EpPart, EpPath, EpSumOrder, EpWeightsOf
from ._arguments import Arguments, keep_call, Members, output_of
from ._buffer_forms import CombineForm, DISPATCH_TENSORS, DispatchForm, ints_at, PATHS
from ._called import create
from ._device import CPU, device_of, name_of_device, stream_for
from ._dtypes import dtype_of, ELEMENT_BYTES
from ._errors import DroppedError, Error
from ._event import Event
from ._group import Group, Owned, fill
from ._library import lib
from ._quick import Forms
from ._results import Combined, Dispatched, Handle, Layout, RecvCounts, Route
from ._symmetric import stats_of
from ._tensor import Output, Tensor, pool_view, view_of

if TYPE_CHECKING:
    from ._types import Array, Device, Shape, Stream

# In the order of the arguments. The last one is an argument of bytes_needed alone.
_OPTIONS = (
    "max_tokens", "max_row_bytes", "max_topk", "max_experts", "max_scales", "num_channels", "ring_slots", "num_threads",
    "num_sms", "pool_bytes", "pool_limit_bytes", "ranks_per_node",
)  # fmt: skip

_ZEROS = (0,) * 7
_ALIGNMENT = 128  # for tensors in one allocation

# Members of enumerations, and the size of a struct, looked up once. Looking them up takes longer than some calls.
_ELEMENT_BYTES = {dtype.value: size for dtype, size in ELEMENT_BYTES.items()}
_F32, _X = Dtype.F32.value, EpPart.X.value
_RECEIVED = Members(
    _abi.EpDispatchResult,
    "recv_x recv_scales recv_topk_idx recv_topk_weights recv_row_map recv_src_token recv_src_metadata recv_row_weights",
)
_DISPATCHED_BYTES = ctypes.sizeof(_abi.EpDispatchResult)


# Options of most calls: in the order of `options` there.
_USUAL_DISPATCH = (0,) * 16
_USUAL_COMBINE = (0,) * 6


def _ints(pointer: int | None, count: int) -> list[int] | None:
    return ints_at(pointer, count) if pointer else None


class Buffer(Owned):
    """A buffer for dispatch and combine of a group. Creating it is collective.

    device: "cpu", or the GPU of all tensors of all calls ("cuda", "cuda:1", PyTorch's device). Ranks may share a GPU.
    Options are the same on all ranks except num_threads and num_sms. With 0 there is no limit, or the library chooses.

    max_tokens: the largest T of any rank. max_row_bytes: H times an element's bytes. max_topk, max_experts, max_scales:
        the largest K, E and S. Memory for given limits is reserved now, and a call beyond one is ERR_LIMIT.
    num_channels, ring_slots: the shape of the rings.
    num_threads: worker threads of this rank. num_sms: on a GPU, SMs of kernels that wait for others.
    pool_bytes: memory for outputs that is allocated now.
    pool_limit_bytes: the limit of outputs in memory that peers reach.

    allocator: allocates memory for outputs beyond that limit. allocator(size) returns an array or a tensor of that many
    bytes, such as `lambda size: torch.empty(size, dtype=torch.uint8)`, on a GPU with device="cuda". Any thread may
    release it when the output's last tensor is gone, on a GPU after the calls that may use it. Its error is the cause
    of the call's ERR_MEMORY; the other ranks get ERR_REMOTE. Outputs of such a buffer go to other libraries by
    `numpy()` and `torch()`. With None the library allocates.

    On a GPU calls run on a stream (`stream`: None for the current one of PyTorch or CuPy, an object of theirs, or an
    address). Later work on that stream sees the results; `Tensor.torch()` and DLPack make them visible to the
    consumer's stream. Errors there are reported by the result's event, by `query`, or by the next call. The calls of a
    graph are captured as others are; the program that launches the graph keeps what they use. docs/reference/gpu.md
    says what a call waits for. PyTorch's tensors are taken as they are: the work that fills them must come before the
    call in its stream.

    Calls are collective, in the same order on all ranks. One thread at a time is in a call (ERR_BUSY). Tensors are
    objects with DLPack or an array interface: PyTorch's, NumPy's, `Tensor`, `View`. A wrong argument is an Error on
    this rank, and ERR_REMOTE with rank and reason on the others; the buffer stays usable. After ERR_PEER, ERR_ABORTED,
    or a signal that ended a call, it is poisoned: later calls fail at once with the same report.
    """

    _kind = "buffer"
    _no_pickle = "create a buffer in each process, from that process's group"

    def __init__(
        self,
        group: Group,
        *,
        device: Device | None = None,
        allocator: Callable[[int], Any] | None = None,
        max_tokens: int = 0,
        max_row_bytes: int = 0,
        max_topk: int = 0,
        max_experts: int = 0,
        max_scales: int = 0,
        num_channels: int = 0,
        ring_slots: int = 0,
        num_threads: int = 0,
        num_sms: int = 0,
        pool_bytes: int = 0,
        pool_limit_bytes: int = 0,
    ) -> None:
        numbers = (
            max_tokens, max_row_bytes, max_topk, max_experts, max_scales, num_channels, ring_slots, num_threads, num_sms,
            pool_bytes, pool_limit_bytes,
        )  # fmt: skip
        config = _abi.EpConfig()
        fill(config, _OPTIONS, numbers)
        _values.one_of(group, "group", Group)
        self.device = device_of(device)
        config.device.type, config.device.index = self.device
        self._allocator = None
        if allocator is not None:
            if not callable(allocator):
                raise TypeError(f"allocator is {_values.shown(allocator)}: expected a callable, or None")
            from ._allocator import Allocator

            self._allocator = Allocator(allocator, self.device)
            self._allocator.serve(self)
            self._allocator.fill(config)
        pointer = ctypes.c_void_p()
        create("Buffer", device, lib.expar_ep_create, group.pointer, ctypes.byref(config), ctypes.byref(pointer))
        assert pointer.value is not None
        super().__init__(pointer.value, lib.expar_ep_destroy, lib.expar_ep_abandon)
        self.group = group
        # Operators of PyTorch get these (torch.py). A compiler can read attributes, but not call the library.
        self._number, self._num_ranks = _numbered.add(self), group.size
        self._forms = Forms()

    @staticmethod
    def bytes_needed(
        num_ranks: int,
        device: Device | None = None,
        *,
        max_tokens: int = 0,
        max_row_bytes: int = 0,
        max_topk: int = 0,
        max_experts: int = 0,
        max_scales: int = 0,
        num_channels: int = 0,
        ring_slots: int = 0,
        num_threads: int = 0,
        num_sms: int = 0,
        pool_bytes: int = 0,
        pool_limit_bytes: int = 0,
        ranks_per_node: int = 0,
    ) -> int:
        """Returns the bytes that a buffer with these options takes on each rank when it is created. They come from the
        symmetric heap, on a GPU from its memory. Local.

        ranks_per_node: the number of ranks on each node; with 0 all are on one."""
        numbers = (
            max_tokens, max_row_bytes, max_topk, max_experts, max_scales, num_channels, ring_slots, num_threads, num_sms,
            pool_bytes, pool_limit_bytes, ranks_per_node,
        )  # fmt: skip
        config, size = _abi.EpConfig(), ctypes.c_size_t()
        fill(config, _OPTIONS, numbers)
        config.device.type, config.device.index = device_of(device)
        ranks = _values.whole(num_ranks, "num_ranks", expected="a number of ranks")
        lib.expar_ep_get_buffer_size(ctypes.byref(config), ranks, ctypes.byref(size))
        return size.value

    def _call(self, function: Any, *arguments: Any) -> None:
        """Makes a call of the library that may use the allocator. An error of the allocator becomes the cause of the
        call's error."""
        if self._allocator is None:
            function(self.pointer, *arguments)
            return
        try:
            function(self.pointer, *arguments)
        except Error as error:
            failure = self._allocator.failure()
            if failure is None:
                raise
            raise error from failure

    def _repeats(self) -> bool:
        """Returns whether calls may go by forms: not of a closed buffer, and not with memory from Python."""
        return self._pointer is not None and self._allocator is None

    def _output(self, pointer: int | None, stream: int | None) -> Output | None:
        return output_of(pointer, stream, self._allocator is not None)

    # ---- routing -----------------------------------------------------------------------------------------------------

    def layout(self, topk_idx: Array, num_experts: int, *, stream: Stream | None = None) -> Layout:
        """Counts this rank's tokens. topk_idx: [T, K] int32 or int64, -1 for none. Local.

        On the CPU the result has lists and a NumPy array, so NumPy is needed. On a GPU it has tensors that the stream
        fills, and an index out of range counts as none. Error: ERR_INDEX (token and slot of an index outside of [-1,
        E)) and others."""
        kept: list[Any] = []
        experts = _values.whole(num_experts, "num_experts")
        if self.device != CPU:
            return self._gpu_layout(topk_idx, experts, stream)
        stream_for(stream, self.device)
        import numpy

        view = view_of(topk_idx, "topk_idx", kept)
        if view.data and view.device.type != DeviceType.CPU:
            where = name_of_device((view.device.type, view.device.index))
            text = f"expar.Buffer.layout: topk_idx lies on {where}: expected {name_of_device(CPU)}"
            raise Error(_abi.Status.ERR_DEVICE, text)
        counts = [numpy.zeros(n, "int32") for n in (self.group.size, self.group.num_nodes, max(experts, 0))]
        in_rank = numpy.zeros((view.shape[0], self.group.size), "bool")
        struct = _abi.EpLayout(
            struct_size=ctypes.sizeof(_abi.EpLayout),
            tokens_per_rank=counts[0].ctypes.data,
            tokens_per_node=counts[1].ctypes.data,
            tokens_per_expert=counts[2].ctypes.data,
            token_in_rank=in_rank.ctypes.data,
        )
        lib.expar_ep_get_layout(self.group.pointer, ctypes.byref(view), experts, ctypes.byref(struct))
        return Layout(counts[0].tolist(), counts[1].tolist(), counts[2].tolist(), in_rank)

    def _gpu_layout(self, topk_idx: Array, experts: int, stream: Stream | None) -> Layout:
        call = Arguments(_abi.EpLayout(), self.device, stream)
        view = view_of(topk_idx, "topk_idx", call.kept, stream=call.stream)
        sizes = (self.group.size, self.group.num_nodes, max(experts, 0))
        of_tokens = ((view.shape[0], self.group.size), Dtype.U8)
        ranks, nodes, most, in_rank = self._alloc(call.stream, *(((n,), Dtype.I32) for n in sizes), of_tokens)
        names = ("tokens_per_rank", "tokens_per_node", "tokens_per_expert", "token_in_rank")
        for name, tensor in zip(names, (ranks, nodes, most, in_rank)):
            setattr(call.struct, name, tensor.data_ptr or None)
        lib.expar_ep_get_layout(self.group.pointer, ctypes.byref(view), experts, ctypes.byref(call.struct))
        call.issued()
        return Layout(ranks, nodes, most, in_rank)

    def route(
        self,
        topk_idx: Array | None = None,
        num_experts: int = 0,
        *,
        token_in_rank: Array | None = None,
        tokens_per_expert: Sequence[int] | None = None,
        expert_alignment: int = 0,
        num_worst_tokens: int = 0,
        num_expert_rows: int = 0,
        keep_slots: bool = False,
        recv_counts: RecvCounts | None = None,
        wait_event: Event | None = None,
        stream: Stream | None = None,
    ) -> Route:
        """Computes the routing without rows, so that their number is known before memory for them is allocated.
        Dispatches with the handle carry topk_idx, topk_weights and scales as fresh ones do. Arguments and errors are as
        of dispatch."""
        call = Arguments(_abi.EpRouteArgs(), self.device, stream)
        call.numbers(num_experts=num_experts, expert_alignment=expert_alignment, num_worst_tokens=num_worst_tokens)
        call.numbers(num_expert_rows=num_expert_rows)
        call.flags(keep_slots=keep_slots)
        call.tensors(("topk_idx", "token_in_rank"), (topk_idx, token_in_rank))
        call.event(wait_event)
        call.struct.tokens_per_expert = self._counts(tokens_per_expert, num_experts, call.kept)
        if recv_counts is not None:
            call.struct.recv_counts = self._where(recv_counts, num_experts, call)
        result = _abi.EpRouteResult(struct_size=ctypes.sizeof(_abi.EpRouteResult))
        self._call(lib.expar_ep_route, ctypes.byref(call.struct), ctypes.byref(result))
        assert result.handle is not None
        call.issued()
        return Route(
            handle=Handle(result.handle),
            num_recv_tokens=result.num_recv_tokens,
            num_rows=result.num_rows,
            num_expert_rows=result.num_expert_rows,
            num_dropped_tokens=result.num_dropped_tokens,
            tokens_per_expert=_ints(result.recv_tokens_per_expert, result.num_local_experts),
        )

    @staticmethod
    def _counts(counts: Sequence[int] | None, num_experts: int, kept: list[Any]) -> int | None:
        """Returns the address of an [E] array on the host."""
        if counts is None:
            return None
        entries = _values.sequence_of(counts, "tokens_per_expert", num_experts, "num_experts")
        array = (ctypes.c_int32 * len(entries))(*[_values.whole(count, "tokens_per_expert") for count in entries])
        kept.append(array)
        return ctypes.addressof(array)

    def _where(self, counts: RecvCounts, num_experts: int, call: Arguments) -> int:
        size, given = self.group.size, _values.one_of(counts, "recv_counts", RecvCounts)
        return given.struct(num_experts // size, size, self.device, call)

    # ---- dispatch ----------------------------------------------------------------------------------------------------

    def dispatch(
        self,
        x: Array,
        topk_idx: Array | None = None,
        topk_weights: Array | None = None,
        num_experts: int = 0,
        *,
        handle: Handle | None = None,
        x_scales: Array | None = None,
        token_in_rank: Array | None = None,
        tokens_per_expert: Sequence[int] | None = None,
        expert_alignment: int = 0,
        num_worst_tokens: int = 0,
        num_expert_rows: int = 0,
        expert_major: bool = False,
        zero_padding: bool = False,
        keep_slots: bool = False,
        src_tokens: bool = False,
        global_experts: bool = False,
        row_weights: bool = False,
        src_stride: int = 0,
        column_scales: bool = False,
        path: EpPath = EpPath.AUTO,
        out_x: Array | None = None,
        out_scales: Array | None = None,
        out_topk_idx: Array | None = None,
        out_topk_weights: Array | None = None,
        out_row_map: Array | None = None,
        out_src_token: Array | None = None,
        out_row_weights: Array | None = None,
        out_src_metadata: Array | None = None,
        topk_idx_copy: Array | None = None,
        recv_counts: RecvCounts | None = None,
        wait_event: Event | None = None,
        async_finish: bool = False,
        num_threads: int = 0,
        num_sms: int = 0,
        stream: Stream | None = None,
    ) -> Dispatched:
        """Carries each token to the ranks that hold its experts. Collective. It returns when the rows are there, on a
        GPU when their counts are.

        x: [T, H] bf16, f16, f32, f8e4m3 or i8; H is contiguous, and rows are multiples of 16 bytes.
        topk_idx: [T, K] int32 or int64, -1 for none. topk_weights: [T, K] f32. num_experts: E.
        handle: the routing of an earlier dispatch or route. topk_idx is then only carried.
        x_scales: [T, S] f32 or i32, for f8e4m3 and i8.
        token_in_rank: [T, N] bool, the routing in place of topk_idx. tokens_per_expert: [E], this rank's counts,
            without topk_idx.
        expert_alignment: counts of experts are rounded up to multiples of it.
        num_worst_tokens: outputs have this number of rows, whatever comes.
        num_expert_rows: an expert-major x has this number of rows; rows whose place is beyond it are dropped.
        expert_major: one row for each (token, local expert), sorted by expert. zero_padding: padding rows are zero.
        keep_slots: for combines with a sum_order by slots, or with weights_of the owner.
        src_tokens: see Dispatched. src_stride: M of Dispatched.src_metadata, at least T, the same on all ranks.
        global_experts: topk_idx has the senders' expert numbers, not local ones.
        row_weights: a weight for each row of an expert-major x.
        column_scales: scales with strides (1, rows rounded up to a multiple of 4).
        out_…: the caller's memory for results, as in `Dispatched`, contiguous, with at least as many rows.
        topk_idx_copy: [T, K], dtype of topk_idx, contiguous. It receives a copy of topk_idx, which may then be
            overwritten.
        recv_counts: counts that are also written (`RecvCounts`), before the return or the event.
        wait_event: the call reads nothing before this event.
        async_finish: returns once the results' addresses are known. No tensor may be touched until the result's event.
        num_threads: worker threads of this call. num_sms: SMs of its kernels on a GPU. stream: see Buffer.

        Rows are ordered by source rank, then by the source's token. DroppedError if more rows come than
        num_worst_tokens. Error: ERR_INDEX, ERR_SHAPE, ERR_DTYPE, ERR_LIMIT, ERR_MISMATCH and others.
        """
        options = (
            num_experts, expert_alignment, num_worst_tokens, num_expert_rows, src_stride, num_threads, num_sms, path,
            expert_major, zero_padding, keep_slots, src_tokens, global_experts, row_weights, column_scales,
            handle is None,
        )  # fmt: skip
        tensors = (
            x, topk_idx, topk_weights, x_scales, token_in_rank, out_x, out_topk_idx, out_topk_weights, out_scales,
            out_row_map, out_src_token, out_src_metadata, out_row_weights, topk_idx_copy,
        )  # fmt: skip
        repeats = tokens_per_expert is None and recv_counts is None and type(num_experts) is int and self._repeats()
        form = self._forms.find("dispatch", options, _USUAL_DISPATCH) if repeats else None
        if form is not None:
            made: Dispatched | None = form.dispatch(tensors, handle, wait_event, async_finish, stream)
            if made is not None:
                return made
        call = Arguments(_abi.EpDispatchArgs(), self.device, stream)
        call.numbers(num_experts=num_experts)
        numbers = options[1:8]
        if not _values.all_zero(numbers, _ZEROS):
            call.numbers(expert_alignment=expert_alignment, num_worst_tokens=num_worst_tokens, src_stride=src_stride)
            call.numbers(num_expert_rows=num_expert_rows)
            call.struct.num_sms = self._workers(num_threads, num_sms)
            call.choices(path=path)
        if not _values.all_zero(options[8:15], _ZEROS):
            call.flags(expert_major=expert_major, zero_padding=zero_padding, keep_slots=keep_slots)
            call.flags(src_tokens=src_tokens, global_experts=global_experts, row_weights=row_weights)
            call.flags(column_scales=column_scales)
        repeats = repeats and form is None and self._forms.wants(x)
        plain = bytes(call.struct) if repeats else None
        if async_finish is not False:
            call.flags(async_finish=async_finish)
        call.tensors(DISPATCH_TENSORS, tensors)
        call.event(wait_event)
        if handle is not None:
            call.handle(_values.one_of(handle, "handle", Handle))
        args = call.struct
        args.tokens_per_expert = self._counts(tokens_per_expert, num_experts, call.kept)
        if recv_counts is not None:
            args.recv_counts = self._where(recv_counts, handle.num_experts if handle else num_experts, call)
        result = _abi.EpDispatchResult(_DISPATCHED_BYTES)
        dropped = None
        try:
            self._call(lib.expar_ep_dispatch, ctypes.byref(args), ctypes.byref(result))
        except DroppedError as error:
            dropped = error
        output = self._output(result.output, call.stream)
        if handle is None:
            assert result.handle is not None
            handle = Handle(result.handle)
        rows, scales, idx, weights, row_map, src_token, metadata, of_rows = _RECEIVED.taken(
            result, (out_x, out_scales, out_topk_idx, out_topk_weights, *tensors[9:13]), output
        )
        done = Dispatched(  # by position, which takes half the time
            rows,
            idx,
            weights,
            scales,
            row_map,
            src_token,
            metadata,
            of_rows,
            _ints(result.recv_tokens_per_expert, result.num_local_experts),
            result.num_recv_tokens,
            result.num_dropped_tokens,
            handle,
            PATHS[result.path],
            keep_call(result.event, call, output),
        )
        if dropped is not None:
            dropped.result = done
            raise dropped
        if plain is not None and not (num_worst_tokens or num_expert_rows):  # such calls may drop rows
            made_form = DispatchForm(self.pointer, self.device, plain, options[15])
            self._forms.keep("dispatch", options, _USUAL_DISPATCH, made_form)
        return done

    # ---- combine -----------------------------------------------------------------------------------------------------

    def combine(
        self,
        x: Array,
        handle: Handle,
        topk_weights: Array | None = None,
        *,
        out_y: Array | None = None,
        out_topk_weights: Array | None = None,
        bias: Array | Sequence[Array] | None = None,
        expert_major: bool = False,
        expert_weights: Array | None = None,
        sum_order: EpSumOrder = EpSumOrder.BY_RANK,
        weights_of: EpWeightsOf = EpWeightsOf.ALL,
        path: EpPath = EpPath.AUTO,
        wait_event: Event | None = None,
        async_finish: bool = False,
        num_threads: int = 0,
        num_sms: int = 0,
        stream: Stream | None = None,
    ) -> Combined:
        """Brings the experts' rows back and sums them. Collective. It returns when the sums are there, on a GPU when it
        is known that all ranks go on.

        x: [R, H] bf16, f16 or f32, weighted and summed over local experts. expert_major: x has one row for each (token,
            expert), as that dispatch returned them.
        handle: the dispatch's. A dispatch with a handle makes none: then give the handle that it had (TypeError).
        topk_weights: [R, K] f32, or none.
        out_y: [T, H], dtype of x, the caller's memory. out_topk_weights: [T, K] f32, the caller's memory. With None,
            memory comes from the pool.
        bias: [T, H], dtype of x, or a pair of such, added before all rows.
        expert_weights: [R, K] f32, the weight of each slot's row with expert_major; none stands for 1.
        sum_order, weights_of, path: as in C.
        wait_event, async_finish, num_threads, num_sms, stream: as of dispatch.

        y[t] is the sum over the ranks that had token t, ascending, in FP32, biases first, rounded once.
        """
        options = (path, sum_order, weights_of, num_threads, num_sms, expert_major)
        biases = bias if isinstance(bias, (tuple, list)) else (bias,)
        form, repeats = None, len(biases) <= 2 and self._repeats()
        if repeats:
            form = self._forms.find("combine", options, _USUAL_COMBINE)
            if form is not None:
                first, second = (*biases, None, None)[:2]
                tensors = (x, topk_weights, expert_weights, first, second, out_y, out_topk_weights)
                made: Combined | None = form.combine(tensors, handle, wait_event, async_finish, stream)
                if made is not None:
                    return made
        call = Arguments(_abi.EpCombineArgs(), self.device, stream)
        args = call.struct
        if not _values.all_zero(options, _ZEROS[:6]):
            call.choices(path=path, sum_order=sum_order, weights_of=weights_of)
            call.flags(expert_major=expert_major)
            args.num_sms = self._workers(num_threads, num_sms)
        plain = bytes(args) if repeats and form is None and self._forms.wants(x) else None
        if async_finish is not False:
            call.flags(async_finish=async_finish)
        call.tensors(("x", "topk_weights", "expert_weights"), (x, topk_weights, expert_weights))
        if bias is not None:
            if len(biases) > len(args.bias):
                raise ValueError(f"bias has {len(biases)} tensors: expected one, or a pair")
            for index, each in enumerate(biases):
                args.bias[index] = view_of(each, f"bias[{index}]", call.kept, stream=call.stream)
        handle = _values.one_of(handle, "handle", Handle)
        call.handle(handle)
        call.event(wait_event)
        call.tensors(("out_y", "out_topk_weights"), (out_y, out_topk_weights))
        wanted: list[tuple[tuple[int, ...], int]] = []
        if out_y is None and x is not None:  # the library rejects a call without x
            rows = args.x
            wanted.append(((handle.num_tokens, rows.shape[1]), rows.dtype))
        if topk_weights is not None and out_topk_weights is None:
            wanted.append(((handle.num_tokens, handle.num_topk), _F32))
        if wanted:
            sums = self._alloc(call.stream, *wanted)
            call.kept += sums
            if out_y is None and x is not None:
                out_y = sums[0]
                args.out_y = sums[0]._view
            if topk_weights is not None and out_topk_weights is None:
                out_topk_weights = sums[-1]
                args.out_topk_weights = sums[-1]._view
        result = _abi.EpCombineResult(struct_size=ctypes.sizeof(_abi.EpCombineResult))
        self._call(lib.expar_ep_combine, ctypes.byref(args), ctypes.byref(result))
        if plain is not None:
            self._forms.keep("combine", options, _USUAL_COMBINE, CombineForm(self.pointer, self.device, plain))
        return Combined(out_y, out_topk_weights, keep_call(result.event, call))

    # ---- memory and numbers ------------------------------------------------------------------------------------------

    def _workers(self, num_threads: int, num_sms: int) -> int:
        """Returns the number of threads on the CPU, or of SMs on a GPU."""
        threads, sms = _values.whole(num_threads, "num_threads"), _values.whole(num_sms, "num_sms")
        if self.device == CPU:
            if sms:
                raise ValueError(f"num_sms is {sms}: expected 0, since the buffer lies on the CPU")
            return threads
        if threads:
            raise ValueError(f"num_threads is {threads}: expected 0, since the buffer lies on a GPU")
        return sms

    def alloc(self, shape: Shape, dtype: Any, *, stream: Stream | None = None) -> Tensor:
        """Allocates contiguous uninitialized memory from the pool, for rows of a combine, which reads them in place.
        Local. stream: on a GPU, the stream that fills it, ordered after this rank's calls so far. Error: ERR_MEMORY,
        ERR_BUSY."""
        wanted = (_values.extents_of(shape, 0), dtype_of(dtype).value)
        return self._alloc(stream_for(stream, self.device), wanted)[0]

    def _alloc(self, stream: int | None, *wanted: tuple[tuple[int, ...], int]) -> list[Tensor]:
        """Returns tensors of these extents and dtypes in one allocation, because an allocation takes longer than some
        calls."""
        total, begins = 0, []
        for extents, element in wanted:
            begins.append(total)
            total += _values.bytes_for(extents, _ELEMENT_BYTES[element]) + _ALIGNMENT - 1 & -_ALIGNMENT
        pointer = ctypes.c_void_p()
        self._call(lib.expar_ep_alloc, max(total, 1), ctypes.byref(pointer))
        output = self._output(pointer.value, stream)
        assert output is not None
        start = output.part(_X).data or 0
        return [
            Tensor(pool_view(start + begin, element, extents, self.device), output)
            for begin, (extents, element) in zip(begins, wanted)
        ]

    def stats(self) -> dict[str, int]:
        """Returns counters of memory and calls of the buffer on this rank, by the names of expar_ep_stats."""
        return stats_of(_abi.EpStats(), lib.expar_ep_get_stats, self.pointer)

    def trim(self) -> None:
        """Returns memory that no output uses to the system. Local. Error: ERR_BUSY."""
        lib.expar_ep_trim(self.pointer)

    def query(self) -> None:
        """Raises unreported errors of earlier calls. It does not wait."""
        lib.expar_ep_query(self.pointer)
