# SPDX-License-Identifier: Apache-2.0
"""Where tensors of calls lie, and how a call stands among the streams there.

A call on a GPU is put on the current stream. Where it is to run beside that (`async_finish`), or waits for less than all
that is there (`previous_event`), it is put on a stream for communication, of which each GPU has one: that waits for the
current stream, or for the event, and the current stream waits for it, now or by the call's event.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any, Sequence

import torch
from expar._abi import DeviceType
from expar._event import Event, keep_until
from expar._library import lib

from .utils.event import EventHandle, event_of

# Of CUDA's interfaces: the default stream by a name of its own.
_LEGACY = 1
_cuda: Any = torch.cuda
# 1: events keep what calls beside the current stream use, which the allocator is not told of then.
_AVOID_RECORDING = "EP_AVOID_RECORD_STREAM"


class Place:
    """The CPU: a call begins when it is made."""

    on_gpu = False

    def __init__(self) -> None:
        self.pair = (int(DeviceType.CPU), 0)
        self.device: Any = torch.device("cpu")

    def turn(self, previous: EventHandle | None, aside: bool) -> Turn:
        """previous: what the call waits for; aside: it runs beside what comes on the current stream."""
        return Turn(self, previous)

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def borrow(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, owner: Any) -> Any:
        """A tensor of memory of the library's, which keeps the owner."""
        size = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides)) if all(shape) else 0
        if size == 0:
            return self.zeros(shape, dtype)
        memory: Any = _array_type(size * dtype.itemsize).from_address(address)
        memory.owner = owner
        return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)

    def num_sms(self) -> int:
        return 0

    def settle(self) -> None:
        """Waits for what the current stream holds."""


_array_types: dict[int, Any] = {}


def _array_type(size: int) -> Any:
    """Its objects may have attributes."""
    kind = _array_types.get(size)
    if kind is None:
        kind = _array_types[size] = type("Memory", (ctypes.c_char * size,), {"owner": None})
    return kind


class Turn:
    """A call's, on the CPU."""

    stream = 0
    captured = False

    def __init__(self, place: Place, previous: EventHandle | None) -> None:
        self.place = place
        self.previous: Event | None = None
        if previous is not None:
            self.follow(previous)

    def follow(self, other: EventHandle) -> None:
        """The call waits for that one, too. Of several the host waits, and where something is left to be done."""
        if self.previous is None and other.finished:
            self.previous = other.work
        else:
            other.current_stream_wait()

    def work(self) -> Any:
        """For what PyTorch does as a part of the call."""
        return contextlib.nullcontext()

    def begin(self, args: Any) -> None:
        if self.previous is not None:
            args.wait_event = self.previous.pointer

    def asynchronous(self, asked: bool, counted: bool = False) -> bool:
        """Whether the library returns before the call is through. counted: the call waits for counts."""
        return asked

    def give(self, output: int) -> None:
        """The results of the library's that the caller is about to get."""

    def made(self, tensor: Any) -> None:
        """PyTorch has its memory, and it goes to the caller."""

    def end(self, event: int | None, kept: list[Any], own: Sequence[Any], asked: bool) -> EventHandle | None:
        """The call has been made. event: of the library's; kept: what it uses, own: what PyTorch has the memory of among
        the results; asked: for an event."""
        if not event:
            return None
        work = Event(event)
        keep_until(work, [*kept, self.previous])
        return event_of(work)


# ---- GPUs ------------------------------------------------------------------------------------------------------------


class _Array:
    """Memory on a GPU, and what keeps it, for CUDA's array interface."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int, owner: Any) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "version": 2,
            "typestr": {1: "|u1", 2: "<i2", 4: "<i4", 8: "<i8"}[size],
            "shape": shape,
            "strides": tuple(stride * size for stride in strides),
            "data": (address, False),
        }


class Gpu(Place):
    """A GPU of PyTorch's."""

    on_gpu = True

    def __init__(self, index: int) -> None:
        self.index = index
        self.pair = (int(DeviceType.CUDA), index)
        self.device = torch.device("cuda", index)
        self._comm: Any = None

    def turn(self, previous: EventHandle | None, aside: bool) -> Turn:
        return GpuTurn(self, previous, aside)

    def borrow(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, owner: Any) -> Any:
        if not all(shape):
            return self.zeros(shape, dtype)
        array = _Array(address, shape, strides, dtype.itemsize, owner)
        tensor = torch.as_tensor(array, device=self.device)
        return tensor if tensor.dtype is dtype else tensor.view(dtype)

    def num_sms(self) -> int:
        return int(torch.cuda.get_device_properties(self.index).multi_processor_count)

    def settle(self) -> None:
        self.current().synchronize()

    def current(self) -> Any:
        return torch.cuda.current_stream(self.index)

    def comm(self) -> Any:
        """The stream for communication, one a GPU and process. What it holds goes before others' work."""
        if self._comm is None:
            self._comm = _cuda.Stream(self.index, priority=-1)
        return self._comm

    def on_comm(self) -> bool:
        """Whether that is the current one."""
        return self._comm is not None and bool(self._comm == self.current())

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)

    def capturing(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    def on(self, stream: Any) -> Any:
        return torch.cuda.stream(stream)

    def record(self, stream: Any) -> Any:
        """All that the stream holds now."""
        point = _cuda.Event()
        point.record(stream)
        return point

    def used_on(self, tensor: Any, stream: Any) -> None:
        """Its memory is not given to others before the stream has come past what it holds when the tensor goes."""
        tensor.record_stream(stream)


def _tensors_of(values: Any) -> list[Any]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += _tensors_of(value)
    return found


class GpuTurn(Turn):
    """A call's, on a GPU. own: the stream that it is put on."""

    def __init__(self, place: Gpu, previous: EventHandle | None, aside: bool) -> None:
        self.place: Gpu = place
        self.previous = None  # the stream waits
        self.current = place.current()
        self.captured = place.capturing()
        self.aside = aside or previous is not None
        self.own = place.comm() if self.aside else self.current
        if self.aside and (previous is None or previous.point is None):
            self.own.wait_stream(self.current)
        if previous is not None:
            self.follow(previous)
        self.stream: int = self.own.cuda_stream

    def work(self) -> Any:
        return self.place.on(self.own) if self.aside else contextlib.nullcontext()

    def follow(self, other: EventHandle) -> None:
        """Its stream waits."""
        if other.point is not None:
            self.own.wait_event(other.point)
        elif other.work is not None:
            other.work.wait()  # of a call on the CPU

    def begin(self, args: Any) -> None:
        args.stream = self.stream or None

    def asynchronous(self, asked: bool, counted: bool = False) -> bool:
        """The host waits for counts only. That is so by itself in calls that have some, whose memory grows then; others
        have an event, but not in a graph."""
        return not counted and not self.captured

    def give(self, output: int) -> None:
        if output:
            lib.expar_ep_output_read_on(output, self.current.cuda_stream or _LEGACY)

    def made(self, tensor: Any) -> None:
        if self.aside:
            self.place.used_on(tensor, self.current)

    def end(self, event: int | None, kept: list[Any], own: Sequence[Any], asked: bool) -> EventHandle | None:
        for tensor in own:
            if tensor is not None:
                self.made(tensor)
        if not asked:
            if event:
                lib.expar_event_destroy(event)  # how it ended is told by the next call
            if self.aside:
                self.current.wait_stream(self.own)
            return None
        made = event_of(Event(event) if event else None)
        if os.environ.get(_AVOID_RECORDING) == "1":
            made.kept = _tensors_of(kept)
        else:
            for tensor in _tensors_of(kept):
                self.place.used_on(tensor, self.own)
        made.point = self.place.record(self.own)
        return made


CPU = Place()
_gpus: dict[int, Gpu] = {}


def of(tensor: Any, name: str) -> Place:
    """Where it lies. AssertionError: it is no tensor. RuntimeError: it lies where the library has no backend."""
    if not isinstance(tensor, torch.Tensor):
        raise AssertionError(f"{name} is of type {type(tensor).__name__}: expected a tensor")
    if tensor.is_cpu:
        return CPU
    if not tensor.is_cuda:
        raise RuntimeError(f"{name} lies on {tensor.device}: expected a tensor on the CPU or on a GPU of CUDA's")
    return gpu(tensor.device.index)


def gpu(index: int) -> Gpu:
    found = _gpus.get(index)
    if found is None:
        found = _gpus[index] = Gpu(index)
    return found


def usual() -> Place:
    """Where tensors lie that nothing is said of: on the current GPU, if there is one."""
    return gpu(torch.cuda.current_device()) if torch.cuda.is_available() else CPU
