# SPDX-License-Identifier: Apache-2.0
"""`Buffer`: dispatch and combine with the interface that engines know, in normal and in low-latency mode.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, M nodes, L = E/N local experts.
R rows that this rank receives; low latency: B maximum of tokens a rank. Expert e is local expert e % L of rank e // L.

Wrong use that is found here raises AssertionError. Errors that the library reports raise RuntimeError with its text.
"""

from __future__ import annotations

import os
from ctypes import addressof, byref, c_size_t, sizeof
from typing import Any

import torch
from expar import Group, LlSum, LowLatencyBuffer, _abi
from expar._library import lib

from .. import _handles, _place
from .._checks import whole
from .._config import Config, HINT_TOPK
from .._forms import Forms, keep_form
from .._groups import group_of
from .._low_latency import LowLatencyMode
from .._normal import Again, AgainForm, CombineForm, layout, NormalMode
from .._shrink import Shrink, mask_ms, reserve_of
from ..utils.event import EventHandle, EventOverlap, before
from .low_latency import DESTROYED, LowLatencyCalls

topk_idx_t = torch.int64


class Runtime:
    """The place of a buffer in its group, for engines that ask."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def is_available(self) -> bool:
        """Returns whether the group still exists."""
        return not self._group.closed

    def get_num_rdma_ranks(self) -> int:
        """Returns M."""
        return self._group.num_nodes

    def get_rdma_rank(self) -> int:
        """Returns the number of this rank's node."""
        return self._group.node


def _choice(name: str, fallback: str, others: tuple[str, ...]) -> str:
    """Returns the value of an environment variable with fixed choices."""
    value = os.environ.get(name) or fallback
    if value not in (fallback, *others):
        raise RuntimeError(f"{name} is {value!r}: expected {' or '.join((fallback, *others))}")
    return value


class Buffer(LowLatencyCalls):
    """The buffer with which the ranks of a group dispatch and combine. Creating it is collective.

    group: a process group of torch.distributed. comm: an mpi4py communicator, in place of group.
    num_nvl_bytes, num_rdma_bytes: memory for results that is allocated now; on a CPU they are hints. They are no limit:
        calls allocate more. In low-latency mode num_rdma_bytes is not allocated; the first call of a shape allocates
        its memory.
    num_qps_per_rank, allow_mnnvl, use_fabric: stored and shown.
    allow_nvlink_for_low_latency_mode: False forbids mapped memory there. On a GPU such calls then raise RuntimeError.
    explicitly_destroy: the caller will call `destroy()`. Without it the garbage collector releases the buffer.
    enable_shrink: low-latency calls mask ranks that are lost or do not come in time (`mask_ms`), and go on. Twice
        num_rdma_bytes are allocated for the first shape, so that they work even if a rank never makes its first call.
    """

    num_sms: int = 20

    def __init__(
        self,
        group: Any = None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        use_fabric: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
    ) -> None:
        for name, count in (("num_nvl_bytes", num_nvl_bytes), ("num_rdma_bytes", num_rdma_bytes)):
            if whole(count, name) < 0:
                raise AssertionError(f"{name} is {count}: expected 0 or more")
        try:
            self._group = group_of(group, comm)
        except TypeError as error:
            raise AssertionError(str(error)) from None
        self.rank = self._group.rank
        self.group_size = self._group.size
        self.group = group if group is not None else comm
        self.num_nvl_bytes = num_nvl_bytes
        self.num_rdma_bytes = num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.num_qps_per_rank = num_qps_per_rank
        self.allow_nvlink_for_low_latency_mode = allow_nvlink_for_low_latency_mode
        self.allow_mnnvl = allow_mnnvl
        self.use_fabric = use_fabric
        self.explicitly_destroy = explicitly_destroy
        self.enable_shrink = enable_shrink
        self._of_torch = _choice("EXPAR_DEEP_EP_OUTPUTS", "pool", ("torch",)) == "torch"
        reduced = _choice("EXPAR_DEEP_EP_SUM", "exact", ("reduced",)) == "reduced"
        self._sums = LlSum.REDUCED if reduced else LlSum.EXACT
        self._masked: set[int] = set()  # the ranks that the caller has masked
        reserved = reserve_of(num_rdma_bytes) if low_latency_mode else 0
        self._shrink = Shrink(self._masked, mask_ms(), reserved) if enable_shrink else None
        self._forms: Forms = {}  # forms of low-latency calls that have been checked
        self._normal_forms: Forms = {}  # forms of normal calls
        # One pair of modes for each place of tensors. Where there is a choice, the tensors of the first call decide.
        self._modes: dict[_place.Place, tuple[NormalMode, LowLatencyMode]] | None = {}
        usual = _place.usual()
        if not usual.on_gpu or (enable_shrink and low_latency_mode and num_rdma_bytes):
            self._make(usual)
        self.runtime: Runtime | None = Runtime(self._group)
        self._local: dict[bool, Any] = {}
        # More threads than cores for each rank slow each other down.
        self._max_threads = max((os.cpu_count() or 1) // self._group.ranks_per_node, 1)

    def _make(self, place: _place.Place) -> tuple[NormalMode, LowLatencyMode]:
        assert self._modes is not None
        pool_bytes = self.num_nvl_bytes + (0 if self.low_latency_mode else self.num_rdma_bytes)
        unmapped = not self.allow_nvlink_for_low_latency_mode
        made = self._modes[place] = (
            NormalMode(self._group, place, pool_bytes, self._of_torch),
            LowLatencyMode(self._group, place, self._shrink, unmapped, self._sums, self._of_torch, self._forms),
        )
        return made

    def _at(self, place: _place.Place) -> tuple[NormalMode, LowLatencyMode]:
        """Returns the modes for tensors in that place. Collective if they must be created, as calls are."""
        if self._modes is None:
            raise AssertionError(DESTROYED)
        return self._modes.get(place) or self._make(place)

    def destroy(self) -> None:
        """Destroys the buffer. Collective. Results and handles stay valid. A second call has no effect. AssertionError
        for a buffer without explicitly_destroy."""
        if not self.explicitly_destroy:
            raise AssertionError("destroy() is for buffers with explicitly_destroy=True; others end by themselves")
        if self._modes is None:
            return
        modes, self._modes = self._modes, None
        self.runtime = None
        self._local.clear()
        self._forms.clear()
        self._normal_forms.clear()
        for normal, low_latency in modes.values():  # in the order of the first calls, which is that of all ranks
            low_latency.end(LowLatencyBuffer.close)
            normal.ep.close()

    # ---- settings ----------------------------------------------------------------------------------------------------

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Returns whether FP8 and low-latency calls are supported: always True."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Sets the number of SMs of later normal calls. On a CPU it is the number of threads, if there are enough
        cores."""
        if whole(new_num_sms, "new_num_sms") % 2 != 0:
            raise AssertionError(f"new_num_sms is {new_num_sms}: expected an even number")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """The default for so many ranks, any number of them."""
        return Buffer._config(num_ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """The default for so many ranks, any number of them."""
        return Buffer._config(num_ranks)

    @staticmethod
    def _config(num_ranks: int) -> Config:
        if not isinstance(num_ranks, int) or num_ranks < 1:
            raise AssertionError(f"num_ranks is {num_ranks!r}: expected 1 or more")
        return Config(Buffer.num_sms)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Returns the bytes that low-latency calls of that shape take on each rank, in BF16 and for any supported
        top-k."""
        config = _abi.LlConfig(
            struct_size=sizeof(_abi.LlConfig),
            max_tokens=whole(num_max_dispatch_tokens_per_rank, "num_max_dispatch_tokens_per_rank"),
            hidden=whole(hidden, "hidden"),
            max_topk=min(HINT_TOPK, whole(num_experts, "num_experts")),
            num_experts=num_experts,
        )
        size = c_size_t()
        lib.expar_ll_get_buffer_size(addressof(config), whole(num_ranks, "num_ranks"), byref(size))
        return size.value

    def _workers(self, config: Config | None, place: _place.Place) -> int:
        """Returns the number of SMs or CPU threads that a call uses. With 0 the library chooses."""
        try:
            wanted = whole(self.num_sms if config is None else config.num_sms, "num_sms")
        except AttributeError:
            raise AssertionError(f"config is {config!r}: expected a Config") from None
        most = place.num_sms() if place.on_gpu else self._max_threads - 1
        return wanted if 0 < wanted <= most else 0

    # ---- streams and memory ------------------------------------------------------------------------------------------

    @staticmethod
    def capture() -> EventOverlap:
        """Returns an event after all work that the current stream holds now."""
        return EventOverlap(EventHandle())

    def get_comm_stream(self) -> Any:
        """Returns the stream of calls with async_finish or previous_event; other calls run on the current stream. On a
        CPU it is a stream that does nothing."""
        place = _place.usual()
        return place.comm() if isinstance(place, _place.Gpu) else torch.cpu.Stream()

    def get_local_buffer_tensor(
        self, dtype: Any, size: Any = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> Any:
        """Returns memory of num_nvl_bytes or num_rdma_bytes, from byte offset on. It belongs to the caller: no call
        uses it, so anything may be written to it. On a CPU pages are allocated when they are written."""
        self._check_open()
        memory = self._local.get(use_rdma_buffer)
        if memory is None:
            count = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
            memory = self._local[use_rdma_buffer] = _place.usual().zero_bytes(count)
        item_bytes = torch.empty(0, dtype=dtype, device="cpu").element_size()
        if offset < 0 or offset > memory.numel() or offset % item_bytes:
            raise AssertionError(f"offset is {offset}: expected a multiple of {item_bytes}, at most {memory.numel()}")
        items = (memory.numel() - offset) // item_bytes
        if size is not None:
            if not isinstance(size, (tuple, list)):
                raise AssertionError(f"size is {size!r}: expected a torch.Size")
            wanted = torch.Size(size).numel()
            if wanted > items:
                raise AssertionError(f"size is {tuple(size)}: expected at most {items} elements behind offset {offset}")
            items = wanted
        whole = memory[offset : offset + items * item_bytes].view(dtype)
        return whole if size is None else whole.view(size)

    # ---- normal mode -------------------------------------------------------------------------------------------------

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
        self._check_open()
        per_rank, per_node, per_expert, in_rank, event = layout(
            self._group, topk_idx, whole(num_experts, "num_experts"), self._group.num_nodes, before(previous_event), async_finish
        )
        return per_rank, per_node, per_expert, in_rank, EventOverlap(event)

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
    ) -> tuple[Any, Any, Any, list[int] | None, tuple[Any, ...] | None, EventOverlap]:
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
        paired = isinstance(x, tuple)
        if paired:
            if len(x) != 2:
                raise AssertionError(f"x is a tuple of {len(x)}: expected rows and scales")
            x, scales = x
            if scales is None:
                raise AssertionError("x[1] is None: expected scales")
        key = None
        if handle is not None and topk_idx is None and topk_weights is None:
            key = self._key(x, config, scales is None, async_finish or previous is not None)
            form: AgainForm | None = self._normal_forms.get(key)
            if form is not None:
                again = form.dispatch(x, scales, _handles.find(handle), previous, async_finish)
                if again is not None:
                    return again
        place = _place.of(x, "x")
        mode = self._at(place)[0]
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise AssertionError("topk_idx and topk_weights do not go with a handle, which has its routing")
            return self._first_again(key, mode, x, scales, handle, self._workers(config, place), previous, async_finish)
        self._check_routing(
            place, num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights
        )
        if num_worst_tokens and topk_idx is None:
            raise AssertionError("num_worst_tokens needs topk_idx")
        recv_x, recv_scales, recv_idx, recv_weights, counts, made, event = mode.dispatch(
            x,
            scales,
            topk_idx,
            topk_weights,
            is_token_in_rank,
            num_tokens_per_expert,
            whole(expert_alignment, "expert_alignment"),
            whole(num_worst_tokens, "num_worst_tokens"),
            self._workers(config, place),
            previous,
            async_finish,
        )
        return (
            (recv_x, recv_scales) if paired else recv_x,
            recv_idx,
            recv_weights,
            counts,
            made,
            EventOverlap(event),
        )

    def _key(self, x: Any, config: Config | None, *more: Any) -> tuple[Any, ...] | None:
        """Returns the key of a call's form. None if the call has none, because an argument is wrong."""
        sms = self.num_sms if config is None else getattr(config, "num_sms", None)
        return (getattr(x, "shape", None), sms, *more) if type(sms) is int else None

    def _first_again(
        self,
        key: tuple[Any, ...] | None,
        mode: NormalMode,
        x: Any,
        scales: Any,
        handle: tuple[Any, ...],
        workers: int,
        previous: EventHandle | None,
        async_finish: bool,
    ) -> Again:
        """Makes the first dispatch with a handle of its form."""
        found = _handles.find(handle)
        if self._of_torch:
            rows, row_scales, event = mode.dispatch_again(x, scales, found, workers, previous, async_finish)
            return rows if scales is None else (rows, row_scales), None, None, None, None, EventOverlap(event)
        form = mode.again_form(x, scales, workers, bool(async_finish or previous is not None))
        if key is not None:
            keep_form(self._normal_forms, key, form)
        made = form.dispatch(x, scales, found, previous, async_finish, alike=False)
        assert made is not None
        return made

    @staticmethod
    def _check_routing(
        place: _place.Place, per_rank: Any, in_rank: Any, per_expert: Any, topk_idx: Any, topk_weights: Any
    ) -> None:
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
        handle: tuple[Any, ...],
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
    ) -> tuple[Any, Any, Any, list[int] | None, tuple[Any, ...] | None, EventOverlap]:
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
        handle: tuple[Any, ...],
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
