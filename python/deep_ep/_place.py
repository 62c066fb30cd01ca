# SPDX-License-Identifier: Apache-2.0
"""The device where a call's tensors lie, and the streams that the call uses there.

A call on a GPU runs on the current stream by default. With `async_finish` or `previous_event` it runs on a stream for
communication, one for each GPU. That stream waits for the current stream, or for the event only. The current stream
waits for it at once, or by the call's event.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from typing import Any, Callable, Sequence

import torch
from expar._abi import DeviceType
from expar._event import Event, keep_until
from expar._library import lib

from ._call import check, held, strided_on_cpu, strided_on_gpu
from ._scratch import MAP_NORESERVE, repeated
from ._scratch_gpu import repeated_on_gpu
from .utils.event import EventHandle, event_of

# CUDA's name for the legacy default stream.
_LEGACY = 1
_cuda: Any = torch.cuda
# With 1, events keep the tensors of calls beside the current stream, and the allocator is not told about them.
_AVOID_RECORDING = "EP_AVOID_RECORD_STREAM"
_read_on = held("expar_ep_output_read_on", ctypes.c_void_p, ctypes.c_void_p)
_forget = lib.expar_event_release
_ASKS = 50  # queries before the host sleeps: some 100 us
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 1e-3


# PyTorch's compiled programs call this: one call instead of the ten that make a stream object. Some builds lack it.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
# Returns the current GPU. `torch.cuda.current_device` also checks first that there is one.
_current_gpu: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
# Returns whether the current stream is in a capture. PyTorch's public function calls this one.
_is_capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)


class Place:
    """The CPU. A call begins when it is made."""

    on_gpu = False
    ends_alone = False  # whether nothing is left to do after a call on the current stream

    def __init__(self) -> None:
        self.pair = (int(DeviceType.CPU), 0)
        self.device: Any = torch.device("cpu")
        self._opaque: tuple[Any, ...] = ()

    def opaque(self) -> tuple[Any, ...]:
        """Returns eight tensors for opaque items of tuples. They are always the same. Each has its own memory, as
        PyTorch requires for results of operators."""
        if not self._opaque:
            with torch.inference_mode(False):  # they may stay for a backward
                self._opaque = tuple(self.zeros((1,), torch.int32) for _ in range(8))
        return self._opaque

    def turn(self, previous: EventHandle | None, aside: bool) -> Turn:
        """Returns the streams of one call. previous: the event that the call waits for. aside: the call runs beside
        later work on the current stream."""
        return Turn(self, previous)

    def turn_unless_on_comm(self, aside: bool) -> Turn | None:
        """Returns the streams of a call that waits for no event. None if a stream for communication is current."""
        return Turn(self, None)

    def maker(self) -> Callable[..., Any]:
        """Returns a function that allocates uninitialized PyTorch memory by sizes, strides and dtype, for the results
        of one call."""
        return strided_on_cpu

    def strided(self, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        """Allocates such memory."""
        return self.maker()(sizes, strides, dtype)

    def vector(self, count: int, dtype: Any) -> Any:
        """Allocates such memory with shape [count]."""
        return self.strided((count,), (1,), dtype)

    def matrix(self, rows: int, columns: int, dtype: Any) -> Any:
        """Allocates such memory with shape [rows, columns]."""
        return self.strided((rows, columns), (columns or 1, 1), dtype)

    def zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        return torch.zeros(*shape, dtype=dtype, device=self.device)  # separate arguments: a tuple takes twice as long

    def zero_bytes(self, count: int) -> Any:
        """Returns uint8 [count] of zeros. Pages are allocated only when they are written, since a caller may never use
        most of them."""
        if count == 0:
            return self.zeros((0,), torch.uint8)
        pages = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        with torch.inference_mode(False):  # the next caller may be outside of inference mode
            return torch.frombuffer(pages, dtype=torch.uint8)  # the tensor keeps the pages

    def scratch_bytes(self, count: int) -> Any:
        """Returns uint8 [count] of zeros, which takes little memory even after all of it was written. Places in it may
        have the same content."""
        return repeated(count) if count else self.zeros((0,), torch.uint8)

    def num_sms(self) -> int:
        return 0

    def on_comm(self) -> bool:
        """Returns whether a stream for communication is the current one."""
        return False

    def settle(self) -> None:
        """Waits for all work on the current stream."""

    def claim(self, tensors: Sequence[Any]) -> None:
        """Prepares results in PyTorch's memory for the stream that is current now."""


_HERE = contextlib.nullcontext()


class Turn:
    """The streams of one call; on the CPU there are none."""

    stream = 0
    reader = 0  # the stream that reads the library's results
    ends = False  # whether `end` has work to do without an event

    @property
    def captured(self) -> bool:
        return False

    def __init__(self, place: Place, previous: EventHandle | None) -> None:
        self.place = place
        self.previous: Event | None = None
        if previous is not None:
            self.follow(previous)

    def follow(self, other: EventHandle) -> None:
        """Makes the call wait for that event, too. The library takes one event. The host waits for further ones, and
        for an event whose results are not finished."""
        if self.previous is None and other.finished:
            self.previous = other.work
        else:
            other.current_stream_wait()

    def work(self) -> Any:
        """Returns a context for PyTorch's work that is part of the call."""
        return _HERE

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a function in that context. It is faster than a context that does nothing."""
        return function(*arguments)

    def begin(self, args: Any) -> None:
        if self.previous is not None:
            args.wait_event = self.previous.pointer

    def asynchronous(self, asked: bool) -> bool:
        """Returns whether the library shall return before the call is complete. It waits for counts in any case."""
        return asked

    def give(self, output: int) -> None:
        """Prepares the library's results for the stream that reads them."""

    def made(self, tensor: Any) -> None:
        """Prepares a result in PyTorch's memory for the caller's stream."""

    def end(self, event: int | None, kept: list[Any], own: Sequence[Any], asked: bool) -> EventHandle | None:
        """Ends the call's use of the streams, after the call was made.

        event: the library's event. kept: the tensors that the call uses. own: the results in PyTorch's memory. asked:
        the caller wants an event."""
        if not event:
            return None
        work = Event(event)
        keep_until(work, [*kept, self.previous])
        return event_of(work)


# ---- GPUs ------------------------------------------------------------------------------------------------------------


def _await(done: Callable[[], bool]) -> None:
    """Polls until done, so that a signal can interrupt it. PyTorch's own waits cannot be interrupted."""
    for _ in range(_ASKS):
        if done():
            return
    pause = _FIRST_PAUSE_S
    while not done():
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class Gpu(Place):
    """A GPU, used through PyTorch."""

    on_gpu = True
    ends_alone = True

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.pair = (int(DeviceType.CUDA), index)
        self.device = torch.device("cuda", index)
        self._comm: Any = None
        self._comm_address = -1  # of the stream for communication, if it exists
        self._num_sms = 0
        self._last_turn: GpuTurn | None = None  # the turn on the current stream, which holds nothing else

    def turn(self, previous: EventHandle | None, aside: bool) -> Turn:
        if aside or previous is not None:
            return AsideTurn(self, previous)
        return self._turn_on(self.address())

    def _turn_on(self, stream: int) -> GpuTurn:
        """Returns the turn of a call on the current stream, which has that address."""
        last = self._last_turn
        if last is None or last.stream != stream:
            last = self._last_turn = GpuTurn(self, stream)
        return last

    def turn_unless_on_comm(self, aside: bool) -> Turn | None:
        stream = self.address()
        if stream == self._comm_address:
            return None
        return AsideTurn(self, None) if aside else self._turn_on(stream)

    def maker(self) -> Callable[..., Any]:
        if strided_on_gpu is not None and _current_gpu() == self.index:
            return strided_on_gpu
        return self._elsewhere

    def _elsewhere(self, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=self.device)

    def zero_bytes(self, count: int) -> Any:
        return self.zeros((count,), torch.uint8)

    def scratch_bytes(self, count: int) -> Any:
        if count == 0:
            return self.zero_bytes(0)
        try:
            return repeated_on_gpu(count, self.index)
        except (AssertionError, OSError, RuntimeError):  # then the memory takes as much as it has
            return self.zero_bytes(count)

    def num_sms(self) -> int:
        if not self._num_sms:
            self._num_sms = int(torch.cuda.get_device_properties(self.index).multi_processor_count)
        return self._num_sms

    def settle(self) -> None:
        _await(self.current().query)

    def claim(self, tensors: Sequence[Any]) -> None:
        current = self.current()
        for tensor in tensors:
            self.used_on(tensor, current)

    def current(self) -> Any:
        return torch.cuda.current_stream(self.index)

    def address(self) -> int:
        """Returns the address of the current stream, without making an object for it."""
        found: int = self.current().cuda_stream if _raw_stream is None else _raw_stream(self.index)
        return found

    def comm(self) -> Any:
        """Returns the stream for communication, one for each GPU and process. It has a higher priority than others."""
        if self._comm is None:
            self._comm = _cuda.Stream(self.index, priority=-1)
            self._comm_address = self._comm.cuda_stream
        return self._comm

    def on_comm(self) -> bool:
        return self._comm_address == self.address()

    def synchronize(self) -> None:
        """Waits for all work that is queued on the GPU now."""
        _await(self.current().query)
        if self._comm is not None:
            _await(self._comm.query)
        torch.cuda.synchronize(self.index)  # the caller's streams

    capturing = staticmethod(_is_capturing)

    def on(self, stream: Any) -> Any:
        return torch.cuda.stream(stream)

    def record(self, stream: Any) -> Any:
        """Records an event after all work that the stream holds now."""
        point = _cuda.Event()
        point.record(stream)
        return point

    def used_on(self, tensor: Any, stream: Any) -> None:
        """Tells the allocator that the stream uses the tensor. Its memory is reused only after the work that the stream
        holds when the tensor is freed."""
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
    """A call on a GPU, on the current stream. The next call reports its errors."""

    def __init__(self, place: Gpu, stream: int) -> None:
        self.place: Gpu = place
        self.previous = None  # the stream waits
        self.stream = stream
        self.reader = stream or _LEGACY  # of results

    @property
    def captured(self) -> bool:
        return self.place.capturing()

    def own(self) -> Any:
        """Returns the stream that the call runs on."""
        return self.place.current()

    def follow(self, other: EventHandle) -> None:
        """Makes the call's stream wait for that event."""
        if other.point is not None:
            self.own().wait_event(other.point)
        elif other.work is not None:
            other.work.wait()  # a call on the CPU

    def begin(self, args: Any) -> None:
        args.stream = self.stream or None

    def asynchronous(self, asked: bool) -> bool:
        """Returns whether the library shall return an event, which calls in a graph do not have. So the host waits for
        counts, and not for what other ranks say of the rows."""
        return not self.place.capturing()

    def give(self, output: int) -> None:
        if output:
            check(_read_on(output, self.reader))

    def end(self, event: int | None, kept: list[Any], own: Sequence[Any], asked: bool) -> EventHandle | None:
        if event:
            _forget(event)
        return None


class AsideTurn(GpuTurn):
    """A call on the stream for communication."""

    ends = True

    def __init__(self, place: Gpu, previous: EventHandle | None) -> None:
        self.place = place
        self.previous = None
        self._current, self._own = place.current(), place.comm()
        self.stream, self.reader = self._own.cuda_stream, self._current.cuda_stream or _LEGACY
        if previous is None or previous.point is None:
            self._own.wait_stream(self._current)
        if previous is not None:
            self.follow(previous)

    def own(self) -> Any:
        return self._own

    def work(self) -> Any:
        return self.place.on(self._own)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self.work():
            return function(*arguments)

    def made(self, tensor: Any) -> None:
        self.place.used_on(tensor, self._current)

    def end(self, event: int | None, kept: list[Any], own: Sequence[Any], asked: bool) -> EventHandle | None:
        for tensor in own:
            if tensor is not None:
                self.made(tensor)
        if not asked:
            self._current.wait_stream(self._own)
            return super().end(event, kept, own, asked)
        made = event_of(Event(event) if event else None)
        if os.environ.get(_AVOID_RECORDING) == "1":
            made.kept = _tensors_of(kept)
        else:
            for tensor in _tensors_of(kept):
                self.place.used_on(tensor, self._own)
        made.point = self.place.record(self._own)
        return made


CPU = Place()
_gpus: dict[int, Gpu] = {}


def of(tensor: Any, name: str) -> Place:
    """Returns the place where the tensor lies. AssertionError if it is no tensor; RuntimeError if the library has no
    backend there."""
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
    """Returns the default place: the current GPU if there is one, else the CPU."""
    return gpu(torch.cuda.current_device()) if torch.cuda.is_available() else CPU
