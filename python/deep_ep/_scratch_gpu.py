# SPDX-License-Identifier: Apache-2.0
"""The same on a GPU as _scratch.py on a CPU: memory of any size that no call uses, of one chunk that is mapped over and
over. The driver's functions for virtual memory make it; NVIDIA's reference of the driver API describes them.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch

_LEAST_CHUNK = 2 << 20
_MOST_CHUNKS = 4096
_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3  # allocation type, location type, access flags
_GRANULARITY_MINIMUM = 0


class _Location(ctypes.Structure):
    """CUmemLocation"""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Allocation(ctypes.Structure):
    """CUmemAllocationProp"""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    ]


class _Access(ctypes.Structure):
    """CUmemAccessDesc"""

    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class _Repeated:
    """Addresses with CUDA's array interface. They are unmapped when no tensor uses them."""

    def __init__(self, driver: Any, index: int, chunk: int, chunks: int) -> None:
        self._driver, self._index = driver, index
        self._chunk, self._bytes = chunk, chunk * chunks
        self._at = ctypes.c_uint64()
        size, anywhere = ctypes.c_size_t(self._bytes), map(ctypes.c_uint64, (0, 0, 0))
        self._call("cuMemAddressReserve", ctypes.byref(self._at), size, *anywhere)
        weakref.finalize(self, _end, driver, index, self._at.value, self._bytes).atexit = False
        self._map()
        self.__cuda_array_interface__ = {
            "version": 2,
            "typestr": "|u1",
            "shape": (self._bytes,),
            "strides": None,
            "data": (self._at.value, False),
        }

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} gave CUDA error {code} for memory of {self._bytes} bytes on GPU {self._index}")

    def _map(self) -> None:
        given = _Allocation(type=_PINNED, location=_Location(_DEVICE, self._index))
        memory, size = ctypes.c_uint64(), ctypes.c_size_t(self._chunk)
        self._call("cuMemCreate", ctypes.byref(memory), size, ctypes.byref(given), ctypes.c_uint64(0))
        try:
            for offset in range(0, self._bytes, self._chunk):
                at = ctypes.c_uint64(self._at.value + offset)
                self._call("cuMemMap", at, size, ctypes.c_size_t(0), memory, ctypes.c_uint64(0))
        finally:
            self._driver.cuMemRelease(memory)  # it lives while it is mapped
        access = _Access(_Location(_DEVICE, self._index), _READ_WRITE)
        self._call("cuMemSetAccess", self._at, ctypes.c_size_t(self._bytes), ctypes.byref(access), ctypes.c_size_t(1))


def _end(driver: Any, index: int, at: int, count: int) -> None:
    """Unmaps and frees addresses after all work of the GPU, which may still use them."""
    torch.cuda.synchronize(index)
    driver.cuMemUnmap(ctypes.c_uint64(at), ctypes.c_size_t(count))
    driver.cuMemAddressFree(ctypes.c_uint64(at), ctypes.c_size_t(count))


def _chunk_bytes(driver: Any, index: int, count: int) -> int:
    given, least = _Allocation(type=_PINNED, location=_Location(_DEVICE, index)), ctypes.c_size_t()
    code = driver.cuMemGetAllocationGranularity(ctypes.byref(least), ctypes.byref(given), _GRANULARITY_MINIMUM)
    if code:
        raise RuntimeError(f"cuMemGetAllocationGranularity gave CUDA error {code} on GPU {index}")
    chunk = max(_LEAST_CHUNK, least.value)
    while count > chunk * _MOST_CHUNKS:
        chunk *= 2
    return chunk


def repeated_on_gpu(count: int, index: int) -> Any:
    """Returns uint8 [count] of zeros on that GPU, of one chunk of memory. OSError without a driver; RuntimeError if it
    has no more addresses, or does not map memory."""
    driver = ctypes.CDLL("libcuda.so.1")
    torch.cuda.init()
    with torch.cuda.device(index), torch.inference_mode(False):
        torch.cuda.current_stream(index).synchronize()  # the context is current after it
        chunk = _chunk_bytes(driver, index, count)
        memory = _Repeated(driver, index, chunk, -(-count // chunk))
        whole = torch.as_tensor(memory, device=f"cuda:{index}")
        whole[:chunk].zero_()
        return whole[:count]
