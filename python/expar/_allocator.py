# SPDX-License-Identifier: Apache-2.0
"""Allocators in Python for outputs that a buffer's pool has no room for."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import time
import weakref
from typing import Any, Callable

from . import _abi
from ._abi import Dtype, EpPart
from ._device import CPU, current_stream, let_follow
from ._errors import Error
from ._library import lib
from ._tensor import ELEMENT_BYTES, contiguous, outputs_in_python, view_of

_ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_keys = itertools.count(1)
# By the context that the library gives back: an allocator stays as long as its buffer or memory of it is there.
_allocators: dict[int, Allocator] = {}
# How long the end of the interpreter waits for memory that a GPU still uses: longer than calls of a buffer that has been
# abandoned take to end there.
_EXIT_S = 5.0


class Allocator:
    """What the library asks, and a callable that answers: allocate(size) gives an array or a tensor of at least that many
    bytes on that device, contiguous and writable, which is let go when nothing uses it any more. On a GPU a thread of the
    library's lets go."""

    def __init__(self, allocate: Callable[[int], Any], device: tuple[int, int]) -> None:
        self._allocate = allocate
        self._device = device
        self._buffer: Callable[[], Any] = lambda: None
        self._held: dict[int, tuple[int, list[Any]]] = {}  # by address: how many bytes, and what keeps that memory
        self._failure: BaseException | None = None
        self._over = False
        self.key = next(_keys)
        _allocators[self.key] = self

    def fill(self, config: Any) -> None:
        config.alloc = ctypes.cast(_alloc, ctypes.c_void_p).value
        config.free = ctypes.cast(_free, ctypes.c_void_p).value
        config.alloc_context = self.key

    def serve(self, buffer: Any) -> None:
        """The buffer has been made."""
        self._buffer = weakref.ref(buffer)
        weakref.finalize(buffer, self.end).atexit = False

    def end(self) -> None:
        """Its buffer is gone; memory may still be used."""
        self._over = True
        if not self._held:
            _allocators.pop(self.key, None)

    def failure(self) -> BaseException | None:
        """What the callable has raised since this was asked last."""
        failure, self._failure = self._failure, None
        return failure

    def give(self, size: int, alignment: int, stream: int) -> int | None:
        try:
            address, kept = self._block(size + alignment - 1)
            if self._device != CPU:  # what the program's stream holds may still use that memory
                let_follow(stream, current_stream(self._device[1]))
        except BaseException as error:  # comes out of the call that has asked for memory
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
            where = "the CPU" if self._device == CPU else f"GPU {self._device[1]}"
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
        """The interpreter ends: afterwards nobody takes memory back. What results hold they hold for good; the rest comes
        back now that there are no calls any more."""
        if self._device == CPU:  # there it came back at once
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
    """Where tensors of outputs begin that somebody has."""
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


# For all allocators, since these must be there as long as memory of any is.
_alloc = _ALLOC(_answer)
_free = _FREE(_taken_back)
