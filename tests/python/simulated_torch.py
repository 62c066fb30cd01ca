# SPDX-License-Identifier: Apache-2.0
"""`deep_ep` on a simulated GPU: tensors of the CPU's stand for tensors on GPU 0, whose memory is the host's.

Streams run by themselves. PyTorch computes at once, after all that its current stream holds by then; a real GPU does so
later. So data that no stream waits for is used too early. PyTorch's own parts (its streams, allocator, graphs) are not
simulated, but for a promise of the allocator. Memory is given to others after the stream that it was taken on, and
after those that it was told of.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Iterator, Sequence

import torch
from deep_ep_threads import Key
from torch.utils._python_dispatch import _get_current_dispatch_mode, TorchDispatchMode

import expar
import simulated
from deep_ep import _call, _forms, _frame, _place
from expar import _abi, _device

_streams = threading.local()


class _Stream(simulated.Stream):
    def wait_stream(self, other: Any) -> None:
        assert isinstance(other, _Stream)
        _device.let_follow(self.cuda_stream, other.cuda_stream)

    def wait_event(self, point: Any) -> None:
        assert isinstance(point, _Point)
        point.wait(self)


class _Point:
    def __init__(self, stream: _Stream) -> None:
        self._event = expar.Event.record(stream)

    def wait(self, stream: Any = None) -> None:
        self._event.stream_wait(stream or GPU.current())


class _Turn(_place.GpuTurn):
    ends = True

    def end(self, event: int | None, kept: list[Any], own: Sequence[Any], asked: bool) -> Any:
        made = super().end(event, kept, own, asked)
        # PyTorch's allocator has to be told of memory that a call beside the current stream uses, unless that waits.
        mine = _place._tensors_of(own if asked else [*kept, *own])
        _device.keep_after(self.stream if asked else self.reader, mine)
        if _get_current_dispatch_mode() is None:  # in an operator, whose work `Behind` does not see
            self.own().synchronize()
        return made


class _AsideTurn(_Turn, _place.AsideTurn):
    pass


class PlayedGpu(_place.Gpu):
    """For ranks that are threads, each with streams of its own. `used`: pairs of a tensor's address, and whether it was
    on the stream for communication, as told to the allocator."""

    ends_alone = False  # memory is kept after each call

    def __init__(self) -> None:
        super().__init__(0)
        self.device = torch.device("cpu")
        self.used: list[tuple[int, bool]] = []

    def turn(self, previous: Any, aside: bool) -> Any:
        return _AsideTurn(self, previous) if aside or previous is not None else _Turn(self, self.address())

    def turn_unless_on_comm(self, aside: bool) -> Any:
        return None if self.on_comm() else self.turn(None, aside)

    def maker(self) -> Callable[..., Any]:
        return _call.strided_on_cpu

    def _stream(self, name: str) -> Any:
        if not hasattr(_streams, name):
            setattr(_streams, name, _Stream())
        return getattr(_streams, name)

    def current(self) -> Any:
        inner = getattr(_streams, "inner", [])
        return inner[-1] if inner else self._stream("main")

    def address(self) -> int:
        return int(self.current().cuda_stream)

    def comm(self) -> Any:
        return self._stream("side")

    def on_comm(self) -> bool:
        return self.comm() is self.current()

    def synchronize(self) -> None:
        for stream in (self.comm(), self.current()):
            stream.synchronize()

    def capturing(self) -> bool:
        return simulated.is_captured(self.current())

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        _streams.inner = [*getattr(_streams, "inner", []), stream]
        try:
            yield
        finally:
            _streams.inner = _streams.inner[:-1]

    def record(self, stream: Any) -> Any:
        return _Point(stream)

    def used_on(self, tensor: Any, stream: Any) -> None:
        self.used.append((tensor.data_ptr(), stream is self.comm()))
        _device.keep_after(stream.cuda_stream, [tensor])

    def num_sms(self) -> int:
        return 2


class Behind(TorchDispatchMode):
    """PyTorch's reads and writes in this thread come after the current stream."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        everything = (*arguments, *(options or {}).values())
        if not function.is_view and _place._tensors_of(everything):
            GPU.current().synchronize()
        return function(*arguments, **(options or {}))


GPU = PlayedGpu()


def _of(tensor: Any, name: str) -> Any:
    if not isinstance(tensor, torch.Tensor):
        raise AssertionError(f"{name} is no tensor")
    return GPU


def _from_capsule(capsule: Any) -> Any:
    """A tensor of the GPU's, which has to be one, as PyTorch's own of the CPU."""
    device = _abi.DlManaged.from_address(simulated.pointer_in(capsule)).tensor.device
    assert (device.device_type, device.device_id) == simulated.GPU
    device.device_type = _place.CPU.pair[0]
    return torch.utils.dlpack.from_dlpack(capsule)


def _look_up_operators() -> None:
    """PyTorch caches the name by which Python calls an operator, when a mode first sees it. Two threads that come to
    that at once break it: an assertion of its PyHandleCache, or a crash. A later look-up is one step."""
    for name in torch._C._dispatch_get_all_op_names():
        space, _, operator = name.partition("::")
        operator, _, overload = operator.partition(".")
        if space == "aten":
            with contextlib.suppress(AttributeError, RuntimeError):  # some have no form in Python
                getattr(getattr(torch.ops.aten, operator), overload or "default")
    with Behind():
        torch.empty(1)  # and loads what modes need


def play() -> None:
    """From now on in this process."""
    _look_up_operators()
    _place.of, _place.usual = _of, lambda: GPU
    _call.host, _call._from_capsule = simulated.GPU, _from_capsule
    # PyTorch would say that its tensors are the CPU's, and would look for a GPU.
    _frame._view = _call._python.tensor_new = None
    _forms.shown = False


def group_of(group: Any) -> Any:
    """Something to make a buffer with, of that group of expar's."""
    simulated.driver()
    return Key(group)
