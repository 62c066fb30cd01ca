# SPDX-License-Identifier: Apache-2.0
"""`deep_ep` on a GPU that is played: tensors of the CPU's stand for tensors on GPU 0, whose memory is the host's.

Streams are done at once there, so that what PyTorch does behind a call finds its results. What is PyTorch's alone
(streams, events, its allocator, captures) is not played.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch

import played
from deep_ep import _call, _groups, _place
from expar import _abi

_streams = threading.local()


class _Stream(played.Stream):
    def wait_stream(self, other: Any) -> None:
        assert isinstance(other, _Stream)

    def wait_event(self, point: Any) -> None:
        assert isinstance(point, _Point)


class _Point:
    def wait(self, stream: Any = None) -> None:
        """It has happened."""


class PlayedGpu(_place.Gpu):
    """Of ranks that are threads, each with streams of its own. `used`: (tensor's address, whether on the stream for
    communication) of what was said to the allocator."""

    def __init__(self) -> None:
        super().__init__(0)
        self.device = torch.device("cpu")
        self.used: list[tuple[int, bool]] = []

    def _stream(self, name: str) -> Any:
        if not hasattr(_streams, name):
            setattr(_streams, name, _Stream())
        return getattr(_streams, name)

    def current(self) -> Any:
        return self._stream("main")

    def comm(self) -> Any:
        return self._stream("side")

    def capturing(self) -> bool:
        return False

    def on(self, stream: Any) -> Any:
        assert stream is self.comm()
        return contextlib.nullcontext()

    def record(self, stream: Any) -> Any:
        assert stream is self.comm()
        return _Point()

    def used_on(self, tensor: Any, stream: Any) -> None:
        self.used.append((tensor.data_ptr(), stream is self.comm()))

    def borrow(self, address: int, shape: Any, strides: Any, dtype: Any, owner: Any) -> Any:
        return _place.CPU.borrow(address, shape, strides, dtype, owner)

    def num_sms(self) -> int:
        return 2


GPU = PlayedGpu()


def _of(tensor: Any, name: str) -> Any:
    if not isinstance(tensor, torch.Tensor):
        raise AssertionError(f"{name} is no tensor")
    return GPU


def _from_capsule(capsule: Any) -> Any:
    """A tensor of the GPU's, which has to be one, as PyTorch's own of the CPU."""
    device = _abi.DlManaged.from_address(played.pointer_in(capsule)).tensor.device
    assert (device.device_type, device.device_id) == played.GPU
    device.device_type = _place.CPU.pair[0]
    return torch.utils.dlpack.from_dlpack(capsule)


class _Key:
    """What stands for a process group."""

    def __init__(self, group: Any) -> None:
        self._rank, self._size = group.rank, group.size

    def rank(self) -> int:
        return int(self._rank)

    def size(self) -> int:
        return int(self._size)


def play() -> None:
    """From now on in this process."""
    _place.of, _place.usual = _of, lambda: GPU
    _call.host, _call._from_capsule = played.GPU, _from_capsule


def group_of(group: Any) -> Any:
    """Something to make a buffer with, of that group of expar's."""
    played.driver()
    key = _Key(group)
    _groups._by_group[key] = group
    return key
