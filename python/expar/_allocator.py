# SPDX-License-Identifier: Apache-2.0
"""Allocators in Python for outputs that a buffer's pool has no room for."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Callable

from ._abi import DeviceType, Dtype
from ._tensor import ELEMENT_BYTES, contiguous, view_of

_ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_keys = itertools.count(1)
# By the context that the library gives back: an allocator stays as long as its buffer or memory of it is there.
_allocators: dict[int, Allocator] = {}


class Allocator:
    """What the library asks, and a callable that answers: allocate(size) gives an array or a tensor of at least that many
    bytes on the CPU, contiguous and writable, which is let go when nothing uses it any more."""

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate = allocate
        self._held: dict[int, list[Any]] = {}  # by address: what keeps that memory
        self._failure: BaseException | None = None
        self._over = False
        self.key = next(_keys)
        _allocators[self.key] = self

    def fill(self, config: Any) -> None:
        config.alloc = ctypes.cast(_alloc, ctypes.c_void_p).value
        config.free = ctypes.cast(_free, ctypes.c_void_p).value
        config.alloc_context = self.key

    def end(self) -> None:
        """Its buffer is gone; memory may still be used."""
        self._over = True
        if not self._held:
            _allocators.pop(self.key, None)

    def failure(self) -> BaseException | None:
        """What the callable has raised since this was asked last."""
        failure, self._failure = self._failure, None
        return failure

    def give(self, size: int, alignment: int) -> int | None:
        try:
            address, kept = self._block(size + alignment - 1)
        except BaseException as error:  # comes out of the call that has asked for memory
            self._failure = error
            return None
        aligned = (address + alignment - 1) & -alignment
        self._held[aligned] = kept
        return aligned

    def _block(self, size: int) -> tuple[int, list[Any]]:
        kept: list[Any] = []
        view = view_of(self._allocate(size), "the allocator's memory", kept, writable=True)
        shape = tuple(view.shape[: view.ndim])
        room = ELEMENT_BYTES[Dtype(view.dtype)]
        for extent in shape:
            room *= extent
        if view.device.type != DeviceType.CPU or list(view.strides[: view.ndim]) != list(contiguous(shape)):
            raise ValueError("the allocator's memory is not contiguous, or not on the CPU")
        if room < size:
            raise ValueError(f"the allocator's memory has {room} bytes: expected {size}")
        return view.data or 0, kept

    def take_back(self, address: int) -> None:
        kept = self._held.pop(address)
        if self._over and not self._held:
            _allocators.pop(self.key, None)
        del kept


def _answer(context: int, size: int, alignment: int, stream: int | None) -> int | None:
    return _allocators[context].give(size, alignment)


def _taken_back(context: int, address: int, size: int, stream: int | None) -> None:
    _allocators[context].take_back(address)


# For all allocators, since these must be there as long as memory of any is.
_alloc = _ALLOC(_answer)
_free = _FREE(_taken_back)
