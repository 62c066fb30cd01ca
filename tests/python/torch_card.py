# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors for the bodies of gpu_calls, on a GPU or on the CPU."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import numpy
import torch

import expar


class TorchCard:
    """Calls are put on the stream that is current: one of each block's own."""

    def __init__(self, device: Any) -> None:
        self.device = torch.device(device)

    def put(self, values: Any, dtype: str | None = None) -> Any:
        if values is None:
            return None
        bf16 = dtype == "bf16"
        array = numpy.ascontiguousarray(values)
        tensor = torch.from_numpy(array.view("int16") if bf16 else array).to(self.device, copy=True)
        return tensor.view(torch.bfloat16) if bf16 else tensor

    def empty(self, shape: Any, dtype: str) -> Any:
        extents = shape if isinstance(shape, tuple) else (shape,)
        return torch.full(extents, 77, dtype=getattr(torch, dtype), device=self.device)

    def get(self, tensor: Any) -> Any:
        own = tensor.torch() if isinstance(tensor, expar.Tensor) else tensor
        kind = own.dtype
        if kind == torch.bfloat16:
            return own.view(torch.int16).cpu().numpy().view("uint16")
        if kind == torch.float8_e4m3fn:
            return own.view(torch.uint8).cpu().numpy()
        return own.cpu().numpy()

    @contextlib.contextmanager
    def lane(self) -> Iterator[dict[str, Any]]:
        if self.device.type == "cpu":
            yield {}
            return
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield {}
        torch.cuda.current_stream().wait_stream(stream)
