# SPDX-License-Identifier: Apache-2.0
"""`expar` with PyTorch's tensors on a simulated GPU: tensors of the CPU stand for tensors on GPU 0, whose memory is the
host's. PyTorch's streams and its allocator are not simulated."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any, Iterator
from unittest import mock

import simulated
from torch_card import TorchCard

from expar import _abi, _exchange, _tensor

_CALL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_lanes = threading.local()


class Card:
    """Tensors of one rank. Calls get the stream of the present lane, on which results are read, too."""

    device = "cuda:0"

    def __init__(self) -> None:
        self._own = TorchCard("cpu")
        self.put, self.empty = self._own.put, self._own.empty

    def get(self, tensor: Any) -> Any:
        own = tensor.torch() if not hasattr(tensor, "is_cpu") else tensor
        _lanes.stream.synchronize()
        return self._own.get(own).copy()

    @contextlib.contextmanager
    def lane(self) -> Iterator[dict[str, Any]]:
        _lanes.stream = simulated.Stream()
        yield {"stream": _lanes.stream}


def _view(table: Any) -> Any:
    look = _CALL(table.view_of)

    def view(value: int, to: int) -> int:
        try:
            code = look(value, to)
        except Exception:  # it is no tensor
            return -1
        _put_device(_abi.DlTensor.from_address(to), simulated.GPU)
        return code

    return _CALL(view)


def _put_device(tensor: _abi.DlTensor, device: tuple[int, int]) -> None:
    tensor.device.device_type, tensor.device.device_id = device


def _at_home(managed: int) -> None:
    """Lets PyTorch take a tensor of the GPU as one of the CPU."""
    tensor = _abi.DlVersioned.from_address(managed).tensor
    assert (tensor.device.device_type, tensor.device.device_id) == simulated.GPU
    _put_device(tensor, (1, 0))


def _tensor_new(table: Any) -> Any:
    make = _CALL(table.object_of)

    def tensor_new(managed: int, to: int) -> int:
        _at_home(managed)
        return make(managed, to)

    return _CALL(tensor_new)


@contextlib.contextmanager
def played() -> Iterator[None]:
    """Both ways of calls see PyTorch's tensors on the GPU within this block."""
    table, make, new_view = _exchange.table(), _exchange.maker(), _tensor._new_view_of_torch
    assert make is not None
    functions = dict(view=_view(table), tensor_new=_tensor_new(table))

    def of_managed(managed: int) -> Any:
        _at_home(managed)
        return make(managed)

    def view_of_torch(*arguments: Any) -> _abi.Tensor:
        view = new_view(*arguments)
        view.device.type, view.device.index = simulated.GPU
        return view

    at = {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in functions.items()}
    with contextlib.ExitStack() as patches:
        for struct, name in ((_exchange.functions, "view"), (_exchange.objects, "tensor_new")):
            patches.callback(setattr, struct, name, getattr(struct, name))
            setattr(struct, name, at[name])
        patches.callback(_tensor._templates.clear)
        _tensor._templates.clear()
        patches.enter_context(mock.patch.object(_exchange, "maker", lambda: of_managed))
        patches.enter_context(mock.patch.object(_tensor, "_new_view_of_torch", view_of_torch))
        patches.enter_context(mock.patch.object(_tensor, "current_stream", lambda _: _lanes.stream.cuda_stream))
        yield
