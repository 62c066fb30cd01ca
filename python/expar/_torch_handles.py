# SPDX-License-Identifier: Apache-2.0
"""Handles as PyTorch tensors, which operators and autograd carry.

The tensor is uint8 [T + NUMBER_BYTES] on the CPU. Its memory owns the handle, so the handle lives as long as the tensor
and its views. It holds a number, because tools that look at graphs give copies to operators.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

NUMBER_BYTES = 8


class _Memory(bytearray):
    """The memory of a handle's tensor."""

    __slots__ = ("handle", "__weakref__")
    handle: Any


# Memories by their address, which is unique while an entry exists, and by the number that they hold.
_by_address: weakref.WeakValueDictionary[int, _Memory] = weakref.WeakValueDictionary()
_by_number: weakref.WeakValueDictionary[int, _Memory] = weakref.WeakValueDictionary()
_next = itertools.count(1)


def wrap(handle: Any, num_tokens: int) -> Any:
    """Returns the tensor of a handle of that number of tokens."""
    number = next(_next)
    memory = _Memory(number.to_bytes(NUMBER_BYTES, "little") + bytes(num_tokens))
    memory.handle = handle
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    _by_address[tensor.data_ptr()] = _by_number[number] = memory
    return tensor


def find(tensor: Any) -> Any:
    """Returns the handle of that tensor, or of a copy while the tensor is alive. None if it has none."""
    memory = _by_address.get(tensor.data_ptr())
    if memory is None:
        memory = _by_number.get(int.from_bytes(tensor[:NUMBER_BYTES].tolist(), "little"))
    return memory.handle if memory is not None else None
