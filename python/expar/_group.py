# SPDX-License-Identifier: Apache-2.0
"""Groups: the ranks of one job."""

from __future__ import annotations

import ctypes
import weakref
from types import TracebackType
from typing import Any, Callable, TypeVar

from . import _abi, _interrupt, _values
from ._copies import Shared
from ._abi import HeapKind, HeapPages
from ._errors import Error
from ._library import lib
from ._symmetric import Operations
from ._team import Team

_Options = _abi.GroupOptions
# In the order of the arguments.
_OPTION_NAMES = (
    "ranks_per_node", "timeout_ms", "late_limit_ms", "bootstrap_timeout_ms", "heap_bytes", "heap_kind", "heap_pages",
)  # fmt: skip
_Own = TypeVar("_Own", bound="Owned")
# The largest array for groups of threads. The library rejects far smaller groups.
_MOST_THREADS = 1 << 20


def fill(struct: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    """Sets members of an option struct. TypeError or ValueError for a value that is no whole number that fits."""
    struct.struct_size = ctypes.sizeof(struct)
    for name, value in zip(names, values):
        _values.set_number(struct, name, value)


class Owned(Shared):
    """An object of the library that all ranks end together (`close`), or one rank alone (`abandon`).

    Leaving a `with` block closes it. If the block raises, the object is abandoned, because the others would wait for a
    rank that does not come. The garbage collector and an exiting interpreter abandon it, too.
    """

    _kind = ""

    def __init__(self, pointer: int, destroy: Any, abandon: Any) -> None:
        self._pointer: int | None = pointer
        self._process = _values.this_process()
        self._destroy = destroy
        self._finalizer = weakref.finalize(self, abandon, pointer)

    @property
    def pointer(self) -> int:
        """The library's object. ValueError after it is closed or abandoned; Error ERR_STATE in a forked child, which is
        no rank."""
        if self._pointer is None:
            raise ValueError(f"the {self._kind} is closed: expected one that is open")
        if self._process != _values._process:
            _values.check_process(self._process, self._kind)
        return self._pointer

    @property
    def closed(self) -> bool:
        """Says whether the object was closed or abandoned."""
        return self._pointer is None

    def close(self) -> None:
        """Destroys the object. Collective. A second call has no effect."""
        if self._pointer is None:
            return
        self._destroy(self._pointer)
        self._pointer = None
        self._finalizer.detach()

    def abandon(self) -> None:
        """Ends it on this rank alone, in any state, without waiting. Later calls of the other ranks that need this one
        end with Status.ERR_PEER. It has no effect the second time, or after `close`."""
        self._pointer = None
        self._finalizer()

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


class UniqueId:
    """The meeting point of a group: 128 bytes. The program sends them to the other ranks by a channel that strangers
    cannot read.

    The process that creates it serves it until `retire`. interface: "eth0", or one of its addresses. With None,
    EXPAR_BOOTSTRAP_INTERFACE names it, else it is 127.0.0.1, which other hosts cannot reach.
    """

    def __init__(self, interface: str | None = None) -> None:
        self._id = _abi.UniqueId()
        name = _values.text_or_none(interface, "interface")
        lib.expar_unique_id_create_on(name.encode(), ctypes.byref(self._id))

    def __bytes__(self) -> bytes:
        return bytes(self._id.bytes)

    def retire(self) -> None:
        """Stops serving it. Existing groups go on."""
        lib.expar_unique_id_retire(ctypes.byref(self._id))


class Group(Owned, Operations):
    """One rank's membership in a group.

    All constructors take these options. With 0 the environment or the library chooses.

    ranks_per_node: the number of ranks on each node.
    timeout_ms: how long a rank may be silent.
    bootstrap_timeout_ms: the time limit for forming the group.
    heap_bytes: the largest size of a rank's symmetric heap.
    heap_kind (HeapKind), heap_pages (HeapPages): the memory of the heap.
    late_limit_ms: how long to wait for a rank that answers.

    Any thread may use a group, one at a time for collective calls. Every call raises expar.Error: Status.ERR_PEER if a
    rank died, left or fell silent, ERR_ABORTED after `abort`.
    """

    _kind = "group"
    _no_pickle = "join the group in each process, by Group.from_env, or by Group.from_id with the bytes of a UniqueId"

    def __init__(self, pointer: int) -> None:
        """Takes ownership of an expar_group *. Programs create groups by `from_env` and similar methods."""
        super().__init__(pointer, lib.expar_group_destroy, lib.expar_group_abandon)
        self._blocks = weakref.WeakSet[Any]()

    # ---- making one --------------------------------------------------------------------------------------------------

    @classmethod
    def from_env(
        cls,
        *,
        ranks_per_node: int = 0,
        timeout_ms: int = 0,
        late_limit_ms: int = 0,
        bootstrap_timeout_ms: int = 0,
        heap_bytes: int = 0,
        heap_kind: HeapKind = HeapKind.DEFAULT,
        heap_pages: HeapPages = HeapPages.DEFAULT,
    ) -> Group:
        """Joins the group that the launcher set up: `expar run`, torchrun, PMIx (mpirun, srun) or Open MPI. Without a
        launcher the group has one rank. Collective. Error: ERR_BOOTSTRAP (names the ranks that came and those that did
        not) and others."""
        options = (
            ranks_per_node, timeout_ms, late_limit_ms, bootstrap_timeout_ms, heap_bytes, heap_kind, heap_pages,
        )  # fmt: skip
        return cls._create(_Options(), options)

    @classmethod
    def from_id(
        cls,
        unique_id: bytes | UniqueId,
        rank: int,
        size: int,
        *,
        ranks_per_node: int = 0,
        timeout_ms: int = 0,
        late_limit_ms: int = 0,
        bootstrap_timeout_ms: int = 0,
        heap_bytes: int = 0,
        heap_kind: HeapKind = HeapKind.DEFAULT,
        heap_pages: HeapPages = HeapPages.DEFAULT,
    ) -> Group:
        """Joins the group of `size` ranks that meets at that id, as number `rank`. Collective. ValueError if the id
        does not have 128 bytes."""
        options = (
            ranks_per_node, timeout_ms, late_limit_ms, bootstrap_timeout_ms, heap_bytes, heap_kind, heap_pages,
        )  # fmt: skip
        return cls._from_id(unique_id, rank, size, options)

    @classmethod
    def _from_id(cls, unique_id: bytes | UniqueId, rank: int, size: int, options: tuple[int, ...]) -> Group:
        plain = bytes(unique_id) if isinstance(unique_id, UniqueId) else _values.bytes_of(unique_id, "unique_id")
        if len(plain) != ctypes.sizeof(_abi.UniqueId):
            raise ValueError(f"unique_id has {len(plain)} bytes: expected {ctypes.sizeof(_abi.UniqueId)}")
        kept = _abi.UniqueId.from_buffer_copy(plain)
        struct = _Options(id=ctypes.addressof(kept))
        _values.set_number(struct, "rank", rank)
        _values.set_number(struct, "size", size, "a number of ranks")
        return cls._create(struct, options)

    @classmethod
    def from_mpi4py(
        cls,
        comm: Any,
        interface: str | None = None,
        *,
        ranks_per_node: int = 0,
        timeout_ms: int = 0,
        late_limit_ms: int = 0,
        bootstrap_timeout_ms: int = 0,
        heap_bytes: int = 0,
        heap_kind: HeapKind = HeapKind.DEFAULT,
        heap_pages: HeapPages = HeapPages.DEFAULT,
    ) -> Group:
        """Makes a group of the ranks of an mpi4py communicator, with their numbers. Collective on it. interface: as of
        UniqueId."""
        if not all(callable(getattr(comm, name, None)) for name in ("bcast", "Get_rank", "Get_size")):
            raise TypeError(f"comm is {_values.shown(comm)}: expected a communicator of mpi4py's")
        options = (
            ranks_per_node, timeout_ms, late_limit_ms, bootstrap_timeout_ms, heap_bytes, heap_kind, heap_pages,
        )  # fmt: skip
        return cls._from_broadcast(comm.bcast, comm.Get_rank(), comm.Get_size(), interface, options)

    @classmethod
    def from_torch(
        cls,
        process_group: Any = None,
        interface: str | None = None,
        *,
        ranks_per_node: int = 0,
        timeout_ms: int = 0,
        late_limit_ms: int = 0,
        bootstrap_timeout_ms: int = 0,
        heap_bytes: int = 0,
        heap_kind: HeapKind = HeapKind.DEFAULT,
        heap_pages: HeapPages = HeapPages.DEFAULT,
    ) -> Group:
        """Makes a group of the ranks of a torch.distributed process group (None: the default one), with their numbers
        in it. Collective on it. interface: as of UniqueId. ImportError without PyTorch."""
        import torch.distributed as dist

        if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
            what = _values.shown(process_group)
            raise TypeError(f"process_group is {what}: expected one of torch.distributed, or None")
        if not dist.is_initialized():
            raise ValueError("process_group is None: expected torch.distributed to be initialised")
        source = dist.get_global_rank(process_group, 0) if process_group is not None else 0

        def broadcast(value: Any) -> Any:
            box = [value]
            dist.broadcast_object_list(box, src=source, group=process_group)
            return box[0]

        options = (
            ranks_per_node, timeout_ms, late_limit_ms, bootstrap_timeout_ms, heap_bytes, heap_kind, heap_pages,
        )  # fmt: skip
        rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
        return cls._from_broadcast(broadcast, rank, size, interface, options)

    @classmethod
    def threads(
        cls,
        size: int,
        *,
        ranks_per_node: int = 0,
        timeout_ms: int = 0,
        late_limit_ms: int = 0,
        bootstrap_timeout_ms: int = 0,
        heap_bytes: int = 0,
        heap_kind: HeapKind = HeapKind.DEFAULT,
        heap_pages: HeapPages = HeapPages.DEFAULT,
    ) -> list[Group]:
        """Makes all ranks of a group at once, for `size` threads of this process. Each thread uses and closes its own.
        It is not collective. Calls let other Python threads run."""
        count = _values.whole(size, "size", expected="a number of ranks")
        made = (ctypes.c_void_p * min(max(count, 1), _MOST_THREADS))()
        struct = _Options()
        options = (
            ranks_per_node, timeout_ms, late_limit_ms, bootstrap_timeout_ms, heap_bytes, heap_kind, heap_pages,
        )  # fmt: skip
        fill(struct, _OPTION_NAMES, options)
        _interrupt.watch(lib)
        lib.expar_group_create_threads(count, ctypes.byref(struct), made)
        return [cls(pointer) for pointer in made if pointer is not None]

    @classmethod
    def _create(cls, struct: _abi.GroupOptions, options: tuple[int, ...]) -> Group:
        fill(struct, _OPTION_NAMES, options)
        pointer = ctypes.c_void_p()
        _interrupt.watch(lib)
        lib.expar_group_create(ctypes.byref(struct), ctypes.byref(pointer))
        assert pointer.value is not None
        return cls(pointer.value)

    @classmethod
    def _from_broadcast(
        cls, broadcast: Callable[[Any], Any], rank: int, size: int, interface: str | None, options: tuple[int, ...]
    ) -> Group:
        """Makes a group by a broadcast. broadcast: returns the value that rank 0 passed. If rank 0 fails to make an id,
        all ranks raise its error."""
        unique_id = None
        word: bytes | tuple[int, str] = b""
        if rank == 0:
            try:
                unique_id = UniqueId(interface)
                word = bytes(unique_id)
            except Error as error:
                word = (int(error.status), str(error))
        word = broadcast(word)
        if isinstance(word, tuple):
            raise Error(_abi.Status(word[0]), f"rank 0 has no unique id: {word[1]}")
        try:
            return cls._from_id(word, rank, size, options)
        finally:
            if unique_id is not None:
                unique_id.retire()

    # ---- facts -------------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This rank's number, from 0 on."""
        return int(lib.expar_group_rank(self.pointer))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(lib.expar_group_size(self.pointer))

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return int(lib.expar_group_num_nodes(self.pointer))

    @property
    def ranks_per_node(self) -> int:
        """The number of ranks on each node."""
        return int(lib.expar_group_ranks_per_node(self.pointer))

    @property
    def node(self) -> int:
        """The number of this rank's node."""
        return int(lib.expar_group_node(self.pointer))

    @property
    def local_rank(self) -> int:
        """This rank's number within its node."""
        return int(lib.expar_group_local_rank(self.pointer))

    def __repr__(self) -> str:
        return "expar.Group(closed)" if self.closed else f"expar.Group(rank={self.rank}, size={self.size})"

    # ---- ends --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the group. Collective. A second call has no effect. BufferError while arrays of its symmetric memory
        exist. Error: ERR_STATE while buffers of the group are open, ERR_BUSY while another thread is in a call."""
        if self.in_use():
            raise BufferError("arrays of the group's symmetric memory are alive: delete them before it is closed")
        super().close()

    def abandon(self) -> None:
        """Leaves without the others, in any state, without waiting. Their calls that need this rank end with
        Status.ERR_PEER. It has no effect the second time, or after `close`.

        While arrays of its symmetric memory exist, this rank's calls end with ERR_ABORTED. The others learn of it when
        those arrays and this object are gone."""
        if self._pointer is not None and self.in_use():
            lib.expar_group_abort(self._pointer)
            self._pointer = None
        elif self._pointer is not None:
            super().abandon()

    # ---- teams -------------------------------------------------------------------------------------------------------

    def world(self) -> Team:
        """Returns the team of all ranks. On a group, the first call of world, shared, rail or team is collective,
        because it allocates the teams' memory from the symmetric heap. Later ones are local. Error: ERR_MEMORY."""
        return self._standing(lib.expar_team_get_world)

    def shared(self) -> Team:
        """Returns the team of this node's ranks."""
        return self._standing(lib.expar_team_get_shared)

    def rail(self) -> Team:
        """Returns the team of the ranks with this rank's local number on all nodes."""
        return self._standing(lib.expar_team_get_rail)

    def team(self, start: int, stride: int, size: int) -> Team | None:
        """Returns the team of `size` ranks: start, start + stride, …; None on other ranks. It is local. All ranks must
        make the collective calls of all such teams in one order; teams from `Team.split` have no such limit. Error:
        ERR_RANGE."""
        made = ctypes.c_void_p()
        numbers = [_values.whole(v, n) for v, n in ((start, "start"), (stride, "stride"), (size, "size"))]
        lib.expar_team_form(self.pointer, *numbers, ctypes.byref(made))
        return None if made.value is None else Team(self, made.value)

    def _standing(self, call: Any) -> Team:
        made = ctypes.c_void_p()
        call(self.pointer, ctypes.byref(made))
        assert made.value is not None
        return Team(self, made.value, standing=True)

    # ---- calls -------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Ends every pending and later call of this rank with Status.ERR_ABORTED. Any thread may call it, also while
        another one waits."""
        lib.expar_group_abort(self.pointer)

    def barrier(self) -> None:
        """Waits until all ranks have come, and this rank's operations on symmetric memory are complete. Collective."""
        lib.expar_barrier_all(self.pointer)

    def allgather(self, mine: bytes) -> list[bytes]:
        """Returns the bytes that every rank passed, by rank. All pass the same number, at most 1 MiB. Collective; it is
        for set-up, not for speed. Error: ERR_MISMATCH, ERR_ARGUMENT."""
        own = _values.bytes_of(mine, "mine")
        gathered = (ctypes.c_char * max(len(own) * self.size, 1))()
        lib.expar_group_allgather(self.pointer, own, gathered, len(own))
        return [gathered.raw[r * len(own) : (r + 1) * len(own)] for r in range(self.size)]

    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        """Returns the bytes that rank `root` passed. All pass the same number, at most 1 MiB. Collective; it is for
        set-up, not for speed."""
        own = _values.bytes_of(data, "data")
        box = ctypes.create_string_buffer(own, max(len(own), 1))
        lib.expar_group_broadcast(self.pointer, box, len(own), _values.whole(root, "root"))
        return box.raw[: len(own)]


