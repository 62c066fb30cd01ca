# SPDX-License-Identifier: Apache-2.0
"""`BufferAllocator`: a plan of tensors that later share one block of memory."""

from __future__ import annotations

import math
import weakref
from typing import Any, Sequence

import torch

from ..utils.math import align

ALIGNMENT = 2 << 20  # bytes: a page of a GPU's memory


class BufferAllocator:
    """Plans tensors before there is memory for them. `materialize` gives them the memory.

    alignment: of each tensor, in bytes. allocations: [(tensor, offset)]. num_bytes: how much memory they take.
    materialized: they have it."""

    def __init__(self) -> None:
        self.alignment = ALIGNMENT
        self.allocations: list[tuple[Any, int]] = []
        self.num_bytes = 0
        self.materialized = False

    def allocate(self, shape: Sequence[int], dtype: Any) -> Any:
        """Plans a tensor, and returns one on the meta device. AssertionError after `materialize`."""
        if self.materialized:
            raise AssertionError("the plan has been materialized: expected all tensors before")
        tensor = torch.empty(tuple(shape), dtype=dtype, device="meta")
        self.allocations.append((tensor, self.num_bytes))
        size = math.prod(tensor.shape) * tensor.element_size()
        self.num_bytes = align(self.num_bytes + size, self.alignment)
        return tensor

    def materialize(self, storage: Any) -> None:
        """Makes each planned tensor object a view of the storage, which keeps its content. References to the object see
        the memory; views that were made of it before stay on the meta device. AssertionError for a second call, and for
        other storage than contiguous uint8 [num_bytes]. RuntimeError if somebody has weak references to a tensor.

        storage: the memory lives as long as tensors on it."""
        if self.materialized:
            raise AssertionError("the plan has been materialized before: expected it once")
        if not isinstance(storage, torch.Tensor) or storage.dtype is not torch.uint8 or storage.dim() != 1:
            raise AssertionError(f"storage is {_shown(storage)}: expected a tensor, torch.uint8 {(self.num_bytes,)}")
        if storage.numel() != self.num_bytes or not storage.is_contiguous() or storage.is_meta:
            raise AssertionError(
                f"storage is {_shown(storage)}: expected contiguous torch.uint8 {(self.num_bytes,)} in memory"
            )
        self.materialized = True
        for tensor, offset in self.allocations:
            size = tensor.numel() * tensor.element_size()
            view = storage[offset : offset + size].view(tensor.dtype).view(tensor.shape)
            _become(tensor, view)


def _become(tensor: Any, view: Any) -> None:
    """Makes the object `tensor` the other tensor. RuntimeError if there are weak references to it."""
    swap = getattr(torch._C, "_swap_tensor_impl", None)
    if swap is None or not weakref.getweakrefs(tensor) and tensor._use_count() == 1:
        torch.utils.swap_tensors(tensor, view)
        return
    if weakref.getweakrefs(tensor):
        raise RuntimeError("a planned tensor has weak references, which cannot follow it: expected none")
    swap(tensor, view)  # PyTorch's public function rejects tensors with views


def _shown(storage: Any) -> str:
    if not isinstance(storage, torch.Tensor):
        return f"of type {type(storage).__name__}"
    return f"{storage.dtype} {tuple(storage.shape)} with strides {storage.stride()} on {storage.device}"
