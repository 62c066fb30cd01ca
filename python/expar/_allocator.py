# SPDX-License-Identifier: Apache-2.0
"""Allocators in Python, for outputs that exceed the pool of a buffer."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import time
import weakref
from typing import Any, Callable

from . import _abi
from ._abi import Dtype, EpPart
from ._device import CPU, current_stream, let_follow, name_of_device
from ._dtypes import ELEMENT_BYTES
from ._errors import Error
from ._library import lib
from ._tensor import contiguous, outputs_in_python, view_of

_ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_keys = itertools.count(1)
# Allocators by the context that the library passes. An allocator stays while its buffer or memory from it exists.
_allocators: dict[int, Allocator] = {}
# The time that an exiting interpreter waits for memory that a GPU still uses. Calls of an abandoned buffer end sooner.
_EXIT_S = 5.0


class Allocator:
    """Serves the library's requests for memory by a Python callable.

    allocate(size) returns an array or a tensor of at least that many bytes on the device, contiguous and writable. It
    is released when nothing uses it any more, on a GPU by a thread of the library."""

    def __init__(self, allocate: Callable[[int], Any], device: tuple[int, int]) -> None:
        self._allocate = allocate
        self._device = device
        self._buffer: Callable[[], Any] = lambda: None
        self._held: dict[int, tuple[int, list[Any]]] = {}  # by address: bytes, and the objects that keep the memory
        self._failure: BaseException | None = None
        self._over = False
        self.key = next(_keys)
        _allocators[self.key] = self

    def fill(self, config: Any) -> None:
        config.alloc = ctypes.cast(_alloc, ctypes.c_void_p).value
        config.free = ctypes.cast(_free, ctypes.c_void_p).value
        config.alloc_context = self.key

    def serve(self, buffer: Any) -> None:
        """Tells the allocator its buffer, after the buffer was created."""
        self._buffer = weakref.ref(buffer)
        weakref.finalize(buffer, self.end).atexit = False

    def end(self) -> None:
        """Runs when the buffer is gone. Memory may still be in use."""
        self._over = True
        if not self._held:
            _allocators.pop(self.key, None)

    def failure(self) -> BaseException | None:
        """Returns the error that the callable raised since the last call of this."""
        failure, self._failure = self._failure, None
        return failure

    def give(self, size: int, alignment: int, stream: int) -> int | None:
        try:
            address, kept = self._block(size + alignment - 1)
            if self._device != CPU:  # work on the program's stream may still use that memory
                let_follow(stream, current_stream(self._device[1]))
        except BaseException as error:  # the call that asked for memory raises it
            self._failure = error
            return None
        aligned = (address + alignment - 1) & -alignment
        self._held[aligned] = size, kept
        return aligned

    def _block(self, size: int) -> tuple[int, list[Any]]:
        kept: list[Any] = []
        view = view_of(self._allocate(size), "the allocator's memory", kept, writable=True)
        shape = tuple(view.shape[: view.ndim])
        room = ELEMENT_BYTES[Dtype(view.dtype)]
        for extent in shape:
            room *= extent
        there = (view.device.type, view.device.index) == self._device
        if not there or list(view.strides[: view.ndim]) != list(contiguous(shape)):
            where = name_of_device(self._device)
            raise ValueError(f"the allocator's memory is not contiguous, or not on {where}")
        if room < size:
            raise ValueError(f"the allocator's memory has {room} bytes: expected {size}")
        return view.data or 0, kept

    def take_back(self, address: int) -> None:
        _, kept = self._held.pop(address)
        if self._over and not self._held:
            _allocators.pop(self.key, None)
        del kept

    def settle(self) -> None:
        """Runs when the interpreter exits; nothing can be released afterwards. Memory that results use stays allocated.
        The rest is released now, because no more calls come."""
        if self._device == CPU:  # there memory is released at once
            return
        buffer = self._buffer()
        if buffer is not None:
            buffer.abandon()
        deadline = time.monotonic() + _EXIT_S
        while not self._all_in_use() and time.monotonic() < deadline:
            time.sleep(0.001)

    def _all_in_use(self) -> bool:
        used = _addresses_in_use()
        return all(
            any(first <= address < first + size for address in used) for first, (size, _) in list(self._held.items())
        )


def _addresses_in_use() -> list[int]:
    """Returns the start addresses of all tensors of live outputs."""
    found = []
    for output in outputs_in_python():
        for part in EpPart:
            view = _abi.Tensor()
            try:
                lib.expar_ep_output_get_tensor(output.pointer, part, ctypes.byref(view))
            except Error:  # there is no such part
                continue
            found.append(view.data or 0)
    return found


@atexit.register
def _settle() -> None:
    for allocator in list(_allocators.values()):
        allocator.settle()


def _answer(context: int, size: int, alignment: int, stream: int | None) -> int | None:
    return _allocators[context].give(size, alignment, stream or 0)


def _taken_back(context: int, address: int, size: int, stream: int | None) -> None:
    _allocators[context].take_back(address)


# All allocators share these two, because they must exist while any memory exists.
_alloc = _ALLOC(_answer)
_free = _FREE(_taken_back)
