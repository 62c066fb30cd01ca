# SPDX-License-Identifier: Apache-2.0
"""`Buffer`: dispatch and combine with the interface of DeepEP V1, in normal and in low-latency mode.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, M nodes, L = E/N local experts. R is
the number of rows that this rank receives. In low-latency mode B is the largest number of tokens of a rank. Expert e is
local expert e % L of rank e // L.

Wrong use that is found here raises AssertionError. Errors that the library reports raise RuntimeError with its text.
"""

from __future__ import annotations

import os
from ctypes import addressof, byref, c_size_t, sizeof
from typing import Any

import torch
from expar import Group, LlSum, LowLatencyBuffer, _abi
from expar._library import lib

from .. import _place
from .._checks import whole
from .._config import Config, HINT_TOPK
from .._forms import Forms
from .._groups import group_of
from .._low_latency import LowLatencyMode
from .._normal import NormalMode
from .._shrink import Shrink, mask_ms, reserve_of
from ..utils.event import EventHandle, EventOverlap
from .low_latency import LowLatencyCalls
from .normal import NormalCalls

topk_idx_t = torch.int64


class Runtime:
    """Facts about the group of a buffer, for engines that ask for them."""

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


class Buffer(NormalCalls, LowLatencyCalls):
    """The buffer with which the ranks of a group dispatch and combine. Its constructor is collective.

    group: a process group of torch.distributed. comm: an mpi4py communicator, in place of group.
    num_nvl_bytes, num_rdma_bytes: bytes of memory for results; on a CPU they are hints. On a GPU the buffer allocates
        them when it is made for a device. They are no limit: calls allocate more. In low-latency mode num_rdma_bytes is
        not allocated, except with enable_shrink; the first call of a shape allocates its memory.
    num_qps_per_rank, allow_mnnvl, use_fabric, num_nvl_peers: stored and shown. The library finds the ranks of a node.
    allow_nvlink_for_low_latency_mode: False forbids low-latency calls to use mapped memory. On a GPU their data then
        goes by host threads. With enable_shrink that raises RuntimeError there.
    explicitly_destroy: the caller will call `destroy()`. Without it the garbage collector releases the buffer.
    enable_shrink: low-latency calls mask ranks that are lost or do not come in time (`mask_ms`), and go on. In
        low-latency mode twice num_rdma_bytes are allocated for the first shape. Calls of that shape then work even if a
        rank never makes its first call.
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
        num_nvl_peers: int | None = None,
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
        self.num_nvl_peers = num_nvl_peers
        self.explicitly_destroy = explicitly_destroy
        self.enable_shrink = enable_shrink
        self._of_torch = _choice("EXPAR_DEEP_EP_OUTPUTS", "pool", ("torch",)) == "torch"
        reduced = _choice("EXPAR_DEEP_EP_SUM", "exact", ("reduced",)) == "reduced"
        self._sums = LlSum.REDUCED if reduced else LlSum.EXACT
        self._masked: set[int] = set()  # the ranks that the caller has masked
        reserved = reserve_of(num_rdma_bytes) if low_latency_mode else 0
        self._shrink = Shrink(self._masked, mask_ms(), reserved) if enable_shrink else None
        self._forms: Forms = {}  # forms of low-latency calls whose arguments have been checked
        self._normal_forms: Forms = {}  # the same for normal calls
        # One pair of modes for each device with tensors. On a host with GPUs the tensors of the first call choose the
        # device.
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

    def destroy(self) -> None:
        """Destroys the buffer. Collective. Results and handles stay valid. A second call has no effect. Raises
        AssertionError without explicitly_destroy."""
        if not self.explicitly_destroy:
            raise AssertionError(
                "destroy() is for buffers with explicitly_destroy=True; the garbage collector releases other buffers"
            )
        if self._modes is None:
            return
        modes, self._modes = self._modes, None
        self.runtime = None
        self._local.clear()
        self._forms.clear()
        self._normal_forms.clear()
        for normal, low_latency in modes.values():  # in the order of the first calls, which all ranks share
            low_latency.end(LowLatencyBuffer.close)
            normal.ep.close()

    # ---- settings ----------------------------------------------------------------------------------------------------

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Returns whether FP8 and low-latency calls are supported: always True."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Sets the number of SMs of later normal calls. On a CPU it is the number of threads, if it is less than the
        rank's share of the cores. Otherwise the library chooses the number."""
        if whole(new_num_sms, "new_num_sms") % 2 != 0:
            raise AssertionError(f"new_num_sms is {new_num_sms}: expected an even number")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """Returns the default settings, which are the same for every number of ranks."""
        return Buffer._config(num_ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """Returns the default settings, which are the same for every number of ranks."""
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
        """Returns the bytes that low-latency calls of that shape need on each rank, in BF16 and for any supported
        top-k. The hint is without masks."""
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

    # ---- streams and memory ------------------------------------------------------------------------------------------

    @staticmethod
    def capture() -> EventOverlap:
        """Returns an event after all work that the current stream holds now."""
        return EventOverlap(EventHandle())

    def get_comm_stream(self) -> Any:
        """Returns the stream on which calls with async_finish or previous_event run. Other calls run on the current
        stream. On a CPU it is a stream that does nothing."""
        place = _place.usual()
        return place.comm() if isinstance(place, _place.Gpu) else torch.cpu.Stream()

    def get_local_buffer_tensor(
        self, dtype: Any, size: Any = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> Any:
        """Returns separate memory of num_nvl_bytes, or with use_rdma_buffer of num_rdma_bytes, from byte offset on. No
        call uses it, so the caller may write anything to it. It is one chunk of at least 2 MiB that is mapped over and
        over, so that clearing all of it takes no memory. A GPU that cannot do that has memory of the whole size."""
        self._check_open()
        memory = self._local.get(use_rdma_buffer)
        if memory is None:
            count = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
            memory = self._local[use_rdma_buffer] = _place.usual().scratch_bytes(count)
        item_bytes = torch.empty(0, dtype=dtype, device="cpu").element_size()
        if offset < 0 or offset > memory.numel() or offset % item_bytes:
            raise AssertionError(f"offset is {offset}: expected a multiple of {item_bytes}, at most {memory.numel()}")
        items = (memory.numel() - offset) // item_bytes
        if size is not None:
            if not isinstance(size, (tuple, list)):
                raise AssertionError(f"size is {size!r}: expected a torch.Size")
            wanted = torch.Size(size).numel()
            if wanted > items:
                raise AssertionError(f"size is {tuple(size)}: expected at most {items} elements after offset {offset}")
            items = wanted
        whole = memory[offset : offset + items * item_bytes].view(dtype)
        return whole if size is None else whole.view(size)
