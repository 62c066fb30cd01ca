# SPDX-License-Identifier: Apache-2.0
"""Arguments of calls on EP buffers as the library's structs, and the memory of results."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Sequence

from . import _abi, _values
from ._device import CPU, keep_after, stream_for, torch_stream
from ._event import Event, keep_until
from ._tensor import Counted, Output, Tensor, View, view_of

# Tensors that calls write to.
_WRITTEN = {
    "expert_recv_stats",
    "out_count",
    "out_row_map",
    "out_row_weights",
    "out_scales",
    "out_src_metadata",
    "out_src_token",
    "out_topk_idx",
    "out_topk_weights",
    "out_x",
    "out_y",
    "topk_idx_copy",
    "wait_ns",
}


# The enumeration of each such argument, for errors.
_CHOICES = {
    "format": "one of expar.LlFormat",
    "path": "one of expar.EpPath",
    "sum": "one of expar.LlSum",
    "sum_order": "one of expar.EpSumOrder",
    "weights_of": "one of expar.EpWeightsOf",
}


class Arguments:
    """The tensors of a call, and the objects that must live as long."""

    __slots__ = ("device", "kept", "stream", "struct")

    def __init__(self, struct: Any, device: tuple[int, int] = CPU, stream: Any = None) -> None:
        """device: the buffer's. stream: the stream of a call on a GPU."""
        self.struct = struct
        self.device = device
        self.kept: list[Any] = []
        self.stream: int | None = None
        struct.struct_size = ctypes.sizeof(struct)
        if device != CPU or stream is not None:
            self.stream = struct.stream = stream_for(stream, device)

    def tensors(self, names: Sequence[str], values: Sequence[Any]) -> None:
        for name, value in zip(names, values):
            if value is not None:
                view = view_of(value, name, self.kept, stream=self.stream, writable=name in _WRITTEN)
                setattr(self.struct, name, view)

    def numbers(self, **values: Any) -> None:
        for name, value in values.items():
            _values.set_number(self.struct, name, value)

    def sms(self, num_sms: int) -> None:
        """Sets the number of SMs of a call on a GPU. ValueError on the CPU."""
        if _values.all_zero((num_sms,), (0,)):
            return
        if self.device == CPU:
            sms = _values.whole(num_sms, "num_sms")
            raise ValueError(f"num_sms is {sms}: expected 0, since the buffer lies on the CPU")
        self.numbers(num_sms=num_sms)

    def choices(self, **values: Any) -> None:
        for name, value in values.items():
            _values.set_number(self.struct, name, value, _CHOICES[name])

    def flags(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.struct, name, _values.flag(value, name))

    def event(self, event: Event | None) -> None:
        if event is not None:
            self.kept.append(_values.one_of(event, "wait_event", Event))
            self.struct.wait_event = event.pointer

    def issued(self) -> None:
        """Keeps the call's objects until its stream has passed the call, if it has no event."""
        if self.stream is not None:
            keep_unordered(self.stream, self.device, self.kept)

    def handle(self, handle: Counted) -> None:
        self.kept.append(handle)
        self.struct.handle = handle.pointer


def output_of(pointer: int | None, stream: int | None, in_python: bool = False) -> Output | None:
    """Returns the memory of a call's results; None if the caller provided all of it. stream: the stream of a call on a
    GPU. in_python: it may come from an allocator."""
    if pointer is None:
        return None
    output = Output(pointer, stream)
    if in_python:
        output.hold_at_exit()
    return output


class Members:
    """Members of a result struct that are tensors, one after the other."""

    def __init__(self, kind: Any, names: str) -> None:
        self._names = names.split()
        self._begin = getattr(kind, self._names[0]).offset
        size = ctypes.sizeof(_abi.Tensor)
        for place, name in enumerate(self._names):
            assert getattr(kind, name).offset == self._begin + place * size
        assert [getattr(_abi.Tensor, name).offset for name in ("data", "ndim")] == [0, 12]
        self._heads = struct.Struct("@" + f"P4xi{size - 16}x" * len(self._names))  # data and ndim of each

    def taken(self, result: Any, given: Sequence[Any], output: Counted | None) -> list[Any]:
        """Returns the tensors: the caller's if it was given, else the library's, or None. Looking at all members at
        once takes less time than making an object of each."""
        heads = self._heads.unpack_from(result, self._begin)
        found = list(given)
        if output is not None:
            for place, name in enumerate(self._names):
                if found[place] is None and (heads[2 * place + 1] > 0 or heads[2 * place]):
                    found[place] = Tensor(getattr(result, name), output)
        return found


def unordered(stream: int, device: tuple[int, int], kept: list[Any]) -> list[Any]:
    """Returns the objects of a GPU's call on that stream which this program must keep until the call has ended.

    All others may go at once, so that a host that runs ahead takes no more memory than the stream uses. Objects of the
    library serve later calls in the order of calls. PyTorch's allocator is told which stream uses its tensors."""
    left, reader = [], None
    for each in kept:
        value = each.value if isinstance(each, View) else each
        if isinstance(value, (Counted, Event)) or (isinstance(value, Tensor) and value._owner is not None):
            continue
        if getattr(value, "is_cuda", False) and hasattr(value, "record_stream"):
            reader = reader or torch_stream(stream, device[1])
            value.record_stream(reader)
        else:
            left.append(each)
    return left


def keep_unordered(stream: int, device: tuple[int, int], kept: list[Any]) -> None:
    """Keeps such objects until the stream has passed its present work."""
    left = unordered(stream, device, kept)
    if left:
        keep_after(stream, left)


def keep_call(pointer: int | None, arguments: Arguments, *results: Any) -> Event | None:
    """Returns the event of a call, or None. The call's objects are kept until the event, as far as that is needed."""
    if pointer is None:
        arguments.issued()
        return None
    event, kept = Event(pointer), [*arguments.kept, *results]
    if arguments.stream is not None:
        kept = unordered(arguments.stream, arguments.device, kept)
    if kept:
        keep_until(event, kept)
    return event
