# SPDX-License-Identifier: Apache-2.0
"""Symmetric memory: arrays at the same place on every rank, and operations on those of other ranks.

Every call names memory by an array of this rank: it means the same place on rank pe.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Callable, Sequence

from . import _abi, _values
from ._abi import Cmp, SignalOp, Status
from ._copies import Shared, SharedMemory
from ._dtypes import BY_NAME, typed
from ._library import give_types, lib

if TYPE_CHECKING:
    import numpy
    import torch

    from ._types import HostArray, Shape

# Element types by their names in NumPy and PyTorch. NumPy has no bfloat16 and gets its bits.
_TYPESTRS = {
    "bfloat16": "<u2",
    "bool": "|b1",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "|u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
}
# The names of word types in the library's calls.
_WORDS: dict[str, tuple[str, Any]] = {
    "<i4": ("i32", ctypes.c_int32),
    "<i8": ("i64", ctypes.c_int64),
    "<u4": ("u32", ctypes.c_uint32),
    "<u8": ("u64", ctypes.c_uint64),
    "<f4": ("f32", ctypes.c_float),
    "<f8": ("f64", ctypes.c_double),
}


def _name_of(dtype: Any) -> str:
    """Returns the name of an element type. The type may be NumPy's, PyTorch's or the name itself."""
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    name = str(name).replace("torch.", "")
    if name not in _TYPESTRS:
        known = ", ".join(_TYPESTRS)
        raise TypeError(f"dtype: symmetric memory has no element type {_values.shown(dtype)}: expected one of {known}")
    return name


class _Lease:
    """Keeps a block in use. NumPy arrays of the block refer to it, so it lives as long as any of them."""

    def __init__(self, block: Symmetric, interface: dict[str, Any], own: _Lease | None = None) -> None:
        self._block = block
        self._own = own  # the lease of this rank's memory, which a lease of another rank's memory keeps
        self.__array_interface__ = interface


class Symmetric(SharedMemory):
    """A block of the symmetric heap, made by `Group.empty` or `Group.zeros`. It has the same shape on every rank.

    Calls of a group name a place by the block, by an array of `numpy()`, or by a part of one. The block belongs to the
    group until `free` or the group's end.
    """

    _no_pickle = "pickle its numpy() or torch() instead"

    def __init__(self, group: Operations, address: int, shape: tuple[int, ...], dtype: str) -> None:
        self.group = group
        self.shape = shape
        self._address: int | None = address
        self.dtype = dtype
        self._lease: Callable[[], _Lease | None] = lambda: None

    @property
    def interface(self) -> dict[str, Any]:
        """The block as NumPy's array interface."""
        if self._address is None:
            raise ValueError("the symmetric memory has been freed: expected a block that is there")
        self.group.pointer  # raises an error if it is closed
        typestr = _TYPESTRS[self.dtype]
        return {"version": 3, "typestr": typestr, "shape": self.shape, "data": (self._address, False), "strides": None}

    @property
    def in_use(self) -> bool:
        """Says whether arrays of the block exist."""
        return self._lease() is not None

    def _bits(self, pe: int | None) -> numpy.ndarray[Any, Any]:
        import numpy

        lease = self._lease()
        if lease is None:
            lease = _Lease(self, self.interface)
            self._lease = weakref.ref(lease)
        if pe is None:
            return numpy.asarray(lease)
        address = lib.expar_ptr(self.group.pointer, self._address, _values.whole(pe, "pe"))
        if address is None:
            raise ValueError(f"pe {pe}: the memory of rank {pe} is out of reach: expected a rank of this node")
        return numpy.asarray(_Lease(self, {**self.interface, "data": (address, False)}, lease))

    def numpy(self, pe: int | None = None) -> numpy.ndarray[Any, Any]:
        """Returns this rank's memory as an array, or that of rank pe if this rank can load and store it: on its node.
        While the array or a part of it is alive, `free` and the group's `close` are not possible. ValueError if rank
        pe's memory is out of reach. bfloat16 is as in `Tensor.numpy`."""
        return typed(self._bits(pe), BY_NAME.get(self.dtype))  # type: ignore[no-any-return]

    def torch(self, pe: int | None = None) -> torch.Tensor:
        """Returns the same as a PyTorch tensor."""
        import torch

        return torch.from_numpy(self._bits(pe)).view(getattr(torch, self.dtype))

    def free(self) -> None:
        """Frees the block. Collective; it starts with a barrier. A second call has no effect. BufferError while arrays
        of it exist."""
        if self._address is None:
            return
        if self.in_use:
            raise BufferError("arrays of the symmetric memory are alive: delete them before it is freed")
        lib.expar_free(self.group.pointer, self._address)
        self._address = None


def interface_of(value: Any, name: str) -> dict[str, Any]:
    """Returns the array interface of an argument. TypeError if it is no array in CPU memory; ValueError for a block
    that is freed."""
    try:
        interface = value.interface if isinstance(value, Symmetric) else getattr(value, "__array_interface__", None)
        if interface is None and hasattr(value, "data_ptr") and hasattr(value, "numpy"):
            interface = value.detach().numpy().__array_interface__  # PyTorch's; NumPy has no bfloat16
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    if interface is None:
        what = f"{type(value).__name__} is no array: it is {_values.shown(value)}"
        raise TypeError(f"{name}: {what}, expected one with an array interface")
    return dict(interface)


def span_of(value: Any, name: str, writable: bool = False) -> tuple[int, int]:
    """Returns address and bytes of a contiguous array."""
    interface = interface_of(value, name)
    size = int(interface["typestr"][2:])
    strides = interface.get("strides")
    address, read_only = interface["data"]
    if writable and read_only:
        raise TypeError(f"{name}: the array is read only")
    count = 1
    for i in range(len(interface["shape"]) - 1, -1, -1):
        extent = interface["shape"][i]
        if strides is not None and extent > 1 and strides[i] != count * size:
            raise ValueError(f"{name}: the array is not contiguous")
        count *= extent
    return address, count * size


def _word(value: Any, name: str) -> tuple[int, str, Any]:
    """Returns the address of an array of one word, the name of its type, and the type."""
    interface = interface_of(value, name)
    count = 1
    for extent in interface["shape"]:
        count *= extent
    if count != 1 or interface["typestr"] not in _WORDS:
        had = f"{count} of {interface['typestr']}"
        raise TypeError(f"{name}: {had}: expected one word of {', '.join(_WORDS)}, such as array[3:4]")
    return (interface["data"][0], *_WORDS[interface["typestr"]])


def _words(value: Any, name: str) -> tuple[int, int, str, Any]:
    """Returns the address of a contiguous array of words, their number, the name of their type, and the type."""
    address, size = span_of(value, name)
    typestr = interface_of(value, name)["typestr"]
    if typestr not in _WORDS:
        raise TypeError(f"{name}: elements of {typestr}: expected one of {', '.join(_WORDS)}")
    return (address, size // int(typestr[2:]), *_WORDS[typestr])


def _typed(call: str, suffix: str, arguments: list[Any]) -> Any:
    """Returns a call that the library has for each type of words. TypeError if it has none for this type."""
    function = getattr(lib, f"expar_{call}_{suffix}", None)
    if function is None:
        raise TypeError(f"{call}: there is none for {suffix}")
    return give_types(function, Status, arguments) if function.argtypes is None else function


def _compared(cmp: Any, value: Any, kind: Any) -> tuple[int, Any]:
    """Returns the comparison, and the value to compare with."""
    return _values.whole(cmp, "cmp", expected="one of expar.Cmp"), _values.whole(value, "value", kind)


class Operations:
    """Operations of a group on symmetric memory.

    Arrays that name places are `Symmetric` or parts of its `numpy()`. All calls raise Status.ERR_ADDRESS for an array
    that is no symmetric memory, ERR_RANGE (pe), ERR_PEER and ERR_ABORTED. An unusable array is a TypeError or
    ValueError.
    """

    _blocks: weakref.WeakSet[Any]

    @property
    def pointer(self) -> int:
        """The library's object."""
        raise NotImplementedError

    def empty(self, shape: Shape, dtype: Any = "float32") -> Symmetric:
        """Allocates uninitialized memory of that shape on every rank. Collective; it ends with a barrier. All ranks
        pass the same shape and dtype (a NumPy or PyTorch type, or its name). Error: ERR_MEMORY, ERR_MISMATCH."""
        return self._allocate(shape, dtype, lib.expar_malloc)

    def zeros(self, shape: Shape, dtype: Any = "float32") -> Symmetric:
        """Allocates memory as `empty` does, filled with zeros."""

        def allocate(group: int, count: int, out: Any) -> None:
            lib.expar_calloc(group, count, 1, out)

        return self._allocate(shape, dtype, allocate)

    def _allocate(self, shape: Shape, dtype: Any, allocate: Any) -> Symmetric:
        extents = _values.extents_of(shape, 1)
        name = _name_of(dtype)
        count = _values.bytes_for(extents, int(_TYPESTRS[name][2:]))
        address = ctypes.c_void_p()
        allocate(self.pointer, count, ctypes.byref(address))
        assert address.value is not None
        block = Symmetric(self, address.value, extents, name)
        self.lend(block)
        return block

    def lend(self, block: Any) -> None:
        """Registers a block. The group's memory is in use while the block exists and its `in_use` is true."""
        self._blocks.add(block)

    def in_use(self) -> bool:
        """Returns whether arrays of this group's symmetric memory exist."""
        return any(block.in_use for block in self._blocks)

    # ---- put and get -------------------------------------------------------------------------------------------------

    def put(self, dest: HostArray, source: HostArray, pe: int) -> None:
        """Copies source to rank pe's memory at dest, which has as many bytes. source may be reused at once; the data
        has arrived after `quiet` or `barrier`. Both are contiguous, of any shape and dtype."""
        address, size = self._pair(dest, source, "dest", "source")
        lib.expar_put(self.pointer, address, span_of(source, "source")[0], size, _values.whole(pe, "pe"))

    def get(self, dest: HostArray, source: HostArray, pe: int) -> None:
        """Copies rank pe's memory at source to dest, which has as many bytes, before it returns. Both are contiguous,
        of any shape and dtype."""
        address, size = self._pair(source, dest, "source", "dest")
        own = span_of(dest, "dest", writable=True)[0]
        lib.expar_get(self.pointer, own, address, size, _values.whole(pe, "pe"))

    def put_nbi(self, dest: HostArray, source: HostArray, pe: int) -> None:
        """As put, but source must not be changed until `quiet` or `barrier`."""
        address, size = self._pair(dest, source, "dest", "source")
        lib.expar_put_nbi(self.pointer, address, span_of(source, "source")[0], size, _values.whole(pe, "pe"))

    def get_nbi(self, dest: HostArray, source: HostArray, pe: int) -> None:
        """As get, but dest is filled only after `quiet` or `barrier`, and must not be touched until then."""
        address, size = self._pair(source, dest, "source", "dest")
        own = span_of(dest, "dest", writable=True)[0]
        lib.expar_get_nbi(self.pointer, own, address, size, _values.whole(pe, "pe"))

    def put_signal(
        self, dest: HostArray, source: HostArray, signal: HostArray, value: int, pe: int, op: SignalOp = SignalOp.SET
    ) -> None:
        """As put; then rank pe's word at signal (one uint64) becomes value, or with SignalOp.ADD grows by it. A rank
        that has seen the new signal sees the data."""
        address, size = self._pair(dest, source, "dest", "source")
        own, word = span_of(source, "source")[0], self._signal(signal)
        number = _values.whole(value, "value", ctypes.c_uint64)
        how, rank = _values.whole(op, "op", expected="one of expar.SignalOp"), _values.whole(pe, "pe")
        lib.expar_put_signal(self.pointer, address, own, size, word, number, how, rank)

    def signal_fetch(self, signal: HostArray) -> int:
        """Returns this rank's own signal (one uint64). The caller sees what was written before it."""
        value = ctypes.c_uint64()
        lib.expar_signal_fetch(self.pointer, self._signal(signal), ctypes.byref(value))
        return value.value

    def fence(self) -> None:
        """Orders this rank's puts, signals and atomics to each rank: earlier ones arrive before later ones."""
        lib.expar_fence(self.pointer)

    def quiet(self) -> None:
        """Waits until all of this rank's puts, signals and atomics are complete at their targets."""
        lib.expar_quiet(self.pointer)

    def _pair(self, symmetric: HostArray, other: HostArray, symmetric_name: str, other_name: str) -> tuple[int, int]:
        address, size = span_of(symmetric, symmetric_name)
        other_size = span_of(other, other_name)[1]
        if size != other_size:
            raise ValueError(f"{symmetric_name} has {size} bytes, {other_name} {other_size}: expected as many")
        return address, size

    def _signal(self, signal: HostArray, name: str = "signal") -> int:
        address, suffix, _ = _word(signal, name)
        if suffix != "u64":
            raise TypeError(f"{name}: a word of {suffix}: expected u64")
        return address

    # ---- words -------------------------------------------------------------------------------------------------------

    def wait_until(self, word: HostArray, cmp: Cmp, value: int) -> int:
        """Waits until the comparison of this rank's own word (int32, int64, uint32 or uint64) with value is true. The
        caller then sees what was written before the word. Returns the value that ended the wait."""
        address, suffix, kind = _word(word, "word")
        seen = kind()
        arguments = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, kind, ctypes.c_void_p]
        call = _typed("wait_until", suffix, arguments)
        call(self.pointer, address, *_compared(cmp, value, kind), ctypes.byref(seen))
        return int(seen.value)

    def wait_until_all(self, words: HostArray, cmp: Cmp, value: int) -> None:
        """Waits until the comparison with value is true for each of this rank's own words. words: a contiguous array of
        int32, int64, uint32 or uint64."""
        address, count, suffix, kind = _words(words, "words")
        arguments = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, kind]
        call = _typed("wait_until_all", suffix, arguments)
        call(self.pointer, address, count, None, *_compared(cmp, value, kind))

    def wait_until_any(self, words: HostArray, cmp: Cmp, value: int, skip: Sequence[bool] | None = None) -> int:
        """Waits as of wait_until_all, but for one of the words, and returns its index. Words with skip are ignored. All
        words get their turn: the search starts after the last one found. ValueError if there is no word to wait for."""
        address, count, suffix, kind = _words(words, "words")
        left_out = None
        if skip is not None:
            entries = _values.sequence_of(skip, "skip", count, "one a word")
            left_out = [_values.flag(each, "skip") for each in entries]
        if count == 0 or (left_out is not None and all(left_out)):
            raise ValueError("words: there is none to wait for")
        skipped = None if left_out is None else (ctypes.c_int * count)(*left_out)
        index = ctypes.c_size_t()
        last = [ctypes.c_void_p, ctypes.c_int, kind, ctypes.c_void_p]
        call = _typed("wait_until_any", suffix, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *last])
        call(self.pointer, address, count, skipped, *_compared(cmp, value, kind), ctypes.byref(index))
        return index.value

    def test(self, word: HostArray, cmp: Cmp, value: int) -> bool:
        """Returns whether the comparison of this rank's own word, as of wait_until, with value is true now. If so, the
        caller sees what was written before the word."""
        address, suffix, kind = _word(word, "word")
        holds = ctypes.c_int()
        arguments = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, kind, ctypes.c_void_p]
        call = _typed("test", suffix, arguments)
        call(self.pointer, address, *_compared(cmp, value, kind), ctypes.byref(holds))
        return holds.value != 0

    def _atomic(self, call: str, word: HostArray, pe: int, fetches: bool, **values: float) -> Any:
        address, suffix, kind = _word(word, "word")
        old = kind()
        arguments: list[Any] = [ctypes.c_void_p, ctypes.c_void_p, *[kind] * len(values), ctypes.c_int32]
        numbers = [_values.number_for(value, name, kind) for name, value in values.items()]
        given: list[Any] = [self.pointer, address, *numbers, _values.whole(pe, "pe")]
        if fetches:
            arguments.append(ctypes.c_void_p)
            given.append(ctypes.byref(old))
        _typed(f"atomic_{call}", suffix, arguments)(*given)
        return old.value if fetches else None

    def atomic_fetch(self, word: HostArray, pe: int) -> Any:
        """Returns rank pe's word (int32, int64, uint32, uint64, float32 or float64). Each of these calls is
        sequentially consistent with all others on the same word."""
        return self._atomic("fetch", word, pe, True)

    def atomic_set(self, word: HostArray, value: float, pe: int) -> None:
        """Sets the word, as of atomic_fetch."""
        self._atomic("set", word, pe, False, value=value)

    def atomic_swap(self, word: HostArray, value: float, pe: int) -> Any:
        """Sets the word, as of atomic_fetch, and returns the value before."""
        return self._atomic("swap", word, pe, True, value=value)

    def atomic_compare_swap(self, word: HostArray, expected: int, desired: int, pe: int) -> int:
        """Sets the word (int32, int64, uint32 or uint64) to desired if it is expected; returns the value before."""
        return int(self._atomic("compare_swap", word, pe, True, expected=expected, desired=desired))

    def atomic_add(self, word: HostArray, value: int, pe: int) -> None:
        """Adds to the word (int32, int64, uint32 or uint64)."""
        self._atomic("add", word, pe, False, value=value)

    def atomic_fetch_add(self, word: HostArray, value: int, pe: int) -> int:
        """Adds to the word, as of atomic_add; returns the value before."""
        return int(self._atomic("fetch_add", word, pe, True, value=value))

    def atomic_fetch_and(self, word: HostArray, value: int, pe: int) -> int:
        """Bitwise and with the word, as of atomic_add; returns the value before."""
        return int(self._atomic("fetch_and", word, pe, True, value=value))

    def atomic_fetch_or(self, word: HostArray, value: int, pe: int) -> int:
        """Bitwise or with the word, as of atomic_add; returns the value before."""
        return int(self._atomic("fetch_or", word, pe, True, value=value))

    def atomic_fetch_xor(self, word: HostArray, value: int, pe: int) -> int:
        """Bitwise exclusive or with the word, as of atomic_add; returns the value before."""
        return int(self._atomic("fetch_xor", word, pe, True, value=value))

    # ---- locks -------------------------------------------------------------------------------------------------------

    def lock(self, word: HostArray) -> Lock:
        """Returns a lock that all ranks share. word: a symmetric uint64 word, zero on all ranks at first, that nothing
        else uses."""
        return Lock(self, word, self._signal(word, "word"))

    # ---- numbers -----------------------------------------------------------------------------------------------------

    def heap_stats(self) -> dict[str, int]:
        """Returns the use of this rank's symmetric heap, by the names of expar_heap_stats. Local."""
        return stats_of(_abi.HeapStats(), lib.expar_heap_get_stats, self.pointer)

    def network_stats(self) -> dict[str, int]:
        """Returns what this rank has passed to a network, by the names of expar_network_stats; zeros without one.
        Local."""
        return stats_of(_abi.NetworkStats(), lib.expar_network_get_stats, self.pointer)


class Lock(Shared):
    """A lock. Ranks get it in the order in which they ask. The holder sees what the holder before put. Two threads of
    one rank must not use it at once. `with lock:` holds it.

    Error: ERR_PEER (a rank was lost or too late, so its turn did not come), ERR_UNSUPPORTED, and others.
    """

    _no_pickle = "make the lock in each process, by Group.lock"

    def __init__(self, group: Operations, word: HostArray, address: int) -> None:
        self._group = group
        self._word = word  # an array; it keeps the memory
        self._address = address

    def acquire(self, blocking: bool = True) -> bool:
        """Waits until this rank holds the lock. Without blocking it returns whether this rank got the lock."""
        if _values.flag(blocking, "blocking"):
            lib.expar_lock_set(self._group.pointer, self._address)
            return True
        taken = ctypes.c_int()
        lib.expar_lock_test(self._group.pointer, self._address, ctypes.byref(taken))
        return taken.value != 0

    def release(self) -> None:
        """Releases the lock. Error: ERR_STATE if no rank holds it."""
        lib.expar_lock_clear(self._group.pointer, self._address)

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()


def stats_of(stats: Any, call: Any, pointer: int) -> dict[str, int]:
    """Returns the counters that such a call writes, by name."""
    stats.struct_size = ctypes.sizeof(stats)
    call(pointer, ctypes.byref(stats))
    return {name: getattr(stats, name) for name, *_ in stats._fields_ if name != "struct_size"}
