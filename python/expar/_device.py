# SPDX-License-Identifier: Apache-2.0
"""Devices and streams as programs name them. A GPU is named by "cuda:1" or PyTorch's device, a stream by its object or
address.

This module does not import PyTorch or CuPy: a program that uses one has imported it.
"""

from __future__ import annotations

import ctypes
import re
import sys
from typing import Any, Callable

from . import _values
from ._abi import DeviceType
from ._event import Event, keep_until
from ._errors import Error
from ._library import lib

CPU = (int(DeviceType.CPU), 0)

# CUDA's name for the default stream. In the library, 0 may also mean that no stream is given.
LEGACY = 1


def device_of(value: Any) -> tuple[int, int]:
    """Returns (type, index) of a device: None or "cpu"; "cuda", which is PyTorch's current GPU or else number 0;
    "cuda:1"; PyTorch's device; a DLPack pair. TypeError or ValueError for anything else."""
    if value is None:
        return CPU
    if isinstance(value, tuple) and len(value) == 2:
        kind, index = (_values.whole(each, "device") for each in value)
        if kind not in (DeviceType.CPU, DeviceType.CUDA) or index < 0:
            raise ValueError(f"device is {_values.shown(value)}: expected type 1 (CPU) or 2 (CUDA), and an index")
        return int(kind), index
    named = str(value) if isinstance(value, str) or hasattr(value, "type") else None
    if named is None:
        raise TypeError(f'device is {_values.shown(value)}: expected "cpu", "cuda", "cuda:1" or a device of PyTorch\'s')
    found = re.fullmatch(r"cpu(?::0)?|cuda(?::(\d+))?", named)
    if found is None:
        raise ValueError(f'device is {_values.shown(value)}: expected "cpu", "cuda" or "cuda:" and a number')
    if named.startswith("cpu"):
        return CPU
    return int(DeviceType.CUDA), _current_gpu() if found[1] is None else int(found[1])


def name_of_device(device: tuple[int, int]) -> str:
    """Returns the name of a device for errors."""
    return "the CPU" if device == CPU else f"GPU {device[1]}"


_usable: Any = None  # PyTorch's module for GPUs once it has said that there are some; asking takes microseconds


# Returns the address of PyTorch's current stream without an object for it. Some builds lack it.
_raw_stream: Callable[[int], int] | None = None


def _cuda_of_torch() -> Any:
    """Returns PyTorch's module for GPUs, if the program uses it."""
    global _usable
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or cuda is _usable:
        return cuda
    if not cuda.is_available():
        return None
    _usable = cuda
    return cuda


def _current_gpu() -> int:
    cuda = _cuda_of_torch()
    return int(cuda.current_device()) if cuda is not None else 0


def current_stream(index: int) -> int:
    """Returns the address of PyTorch's or CuPy's current stream. Without them it is 0, the default stream. index: the
    GPU; -1 stands for the current one."""
    global _raw_stream
    if _raw_stream is not None and index >= 0:
        return _raw_stream(index)
    cuda = _cuda_of_torch()
    if cuda is not None:
        _raw_stream = getattr(sys.modules["torch"]._C, "_cuda_getCurrentRawStream", None)
        return int(cuda.current_stream(index if index >= 0 else None).cuda_stream)
    cupy = sys.modules.get("cupy")
    return int(cupy.cuda.get_current_stream().ptr) if cupy is not None else 0


_streams: dict[tuple[int, int], Any] = {}  # PyTorch's objects of streams; the same few come again in every step
_MOST_STREAMS = 64


def torch_stream(address: int, index: int) -> Any:
    """Returns PyTorch's object of the stream at that address on that GPU."""
    address = 0 if address == LEGACY else address
    known = _streams.get((address, index))
    if known is None:
        cuda = _cuda_of_torch()
        current = cuda.current_stream(index)
        known = current if current.cuda_stream == address else cuda.ExternalStream(address, device=index)
        if len(_streams) >= _MOST_STREAMS:
            _streams.clear()
        _streams[address, index] = known
    return known


def stream_of(stream: Any, index: int) -> int:
    """Returns the address of a stream. The stream is None for the current one, a number, PyTorch's or CuPy's object, or
    one with __cuda_stream__. TypeError for anything else."""
    if stream is None:
        return current_stream(index)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    return _values.whole(stream, "stream", ctypes.c_uint64, "a stream of PyTorch's or CuPy's, or its address")


def stream_for(stream: Any, device: tuple[int, int]) -> int | None:
    """Returns the address of the stream of a call on that device; None on the CPU. There a given stream is a
    ValueError, because the call cannot keep the order that the caller expects."""
    if device != CPU:
        return stream_of(stream, device[1])
    if stream is not None:
        address = stream_of(stream, 0)
        raise ValueError(f"stream is {address:#x}: expected None, since the buffer lies on the CPU")
    return None


def let_follow(stream: int, other: int) -> None:
    """Makes later work on the stream wait for all work that the other stream holds now. The host does not wait."""
    if (stream or LEGACY) == (other or LEGACY):
        return
    pointer = ctypes.c_void_p()
    lib.expar_event_record(other or LEGACY, ctypes.byref(pointer))
    try:
        lib.expar_event_stream_wait(pointer, stream or LEGACY)
    finally:
        lib.expar_event_release(pointer)


def keep_after(stream: int, kept: list[Any]) -> None:
    """Keeps these objects until the stream has passed its present work. A capture has no such moment: there the program
    that launches the graph keeps them."""
    pointer = ctypes.c_void_p()
    lib.expar_event_record(stream or LEGACY, ctypes.byref(pointer))
    assert pointer.value is not None
    event = Event(pointer.value)
    try:
        happened = event.done
    except Error:  # a place in a graph
        return
    if not happened:
        keep_until(event, kept)
