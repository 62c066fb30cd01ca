# SPDX-License-Identifier: Apache-2.0
"""Memory of any size for `get_local_buffer_tensor`, which no call uses.

Engines set all of it to zero between their modes, which must take no memory. So one small chunk is mapped over and
over. What is written to a place can be read at the same place of each chunk, too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import torch

_CHUNK_BYTES = 2 << 20
_MOST_CHUNKS = 4096  # Linux allows a process some 65 000 mappings
MAP_NORESERVE = 0x4000  # Linux's; `mmap` has the name from Python 3.13 on
_SHARED_FIXED = 0x01 | 0x10  # MAP_SHARED, MAP_FIXED of Linux

_libc = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
)


def repeated(count: int) -> Any:
    """Returns uint8 [count] of zeros, of one chunk of memory. RuntimeError if the system has no more mappings."""
    chunk = _CHUNK_BYTES
    while count > chunk * _MOST_CHUNKS:
        chunk *= 2
    whole = -(-count // chunk) * chunk
    pages = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    with torch.inference_mode(False):  # the next caller may be outside of inference mode
        tensor = torch.frombuffer(pages, dtype=torch.uint8)  # the tensor keeps the mappings
    file = os.memfd_create("deep_ep", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, chunk)
        for offset in range(0, whole, chunk):
            wanted = tensor.data_ptr() + offset
            if _map(wanted, chunk, mmap.PROT_READ | mmap.PROT_WRITE, _SHARED_FIXED, file, 0) != wanted:
                raise RuntimeError(
                    f"{count} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}; expected a smaller size"
                )
    finally:
        os.close(file)
    return tensor[:count]
