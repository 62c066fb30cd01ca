# SPDX-License-Identifier: Apache-2.0
"""Calls of the library with tensors of PyTorch's, in as few steps of the interpreter as there can be.

expar's own bindings take tensors of any library, and give results that live by themselves; here both sides are
PyTorch's, and a call should cost microseconds. So views of tensors are packed into the structs of arguments as bytes,
and results go to PyTorch by DLPack, with deleters in C.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Callable

import torch
from expar import _abi, _interrupt
from expar._abi import Dtype
from expar._library import _check, lib

_raised = _interrupt._raised

# expar_tensor: data, dtype, ndim, shape, strides, device.
_VIEW = struct.Struct("@Pii4q4qii")
assert _VIEW.size == ctypes.sizeof(_abi.Tensor)
_CPU, _CUDA = int(_abi.DeviceType.CPU), int(_abi.DeviceType.CUDA)
# What tensors of the host's memory are to the library.
host = (_CPU, 0)

CODES: dict[Any, int] = {
    torch.bfloat16: Dtype.BF16,
    torch.float16: Dtype.F16,
    torch.float32: Dtype.F32,
    torch.int32: Dtype.I32,
    torch.int64: Dtype.I64,
    torch.uint8: Dtype.U8,
    torch.bool: Dtype.U8,
    torch.int8: Dtype.I8,
}
CODES = {dtype: int(code) for dtype, code in CODES.items()}
FP8: Any = getattr(torch, "float8_e4m3fn", None)
if FP8 is not None:
    CODES[FP8] = int(Dtype.F8E4M3)
# What the library refuses by its number, so that the other ranks learn of it.
_NO_CODE = -1


def plain(name: str, *arguments: Any) -> Callable[..., int]:
    """A call of the library's with its status as a number; `check` is for that."""
    function: Any = lib[name]
    function.argtypes = arguments
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def check(status: int) -> None:
    """Raises what a status, or a signal during the call, stands for."""
    if status or _raised:
        _check(status, None, ())


def _device_of(tensor: Any, name: str) -> tuple[int, int]:
    """AssertionError: it is no tensor. RuntimeError: one that lies where buffers have no backend."""
    if not isinstance(tensor, torch.Tensor):
        raise AssertionError(f"{name} is of type {type(tensor).__name__}: expected a tensor")
    if not tensor.is_cuda:
        raise RuntimeError(f"{name} lies on {tensor.device}: expected a tensor on the CPU or on a GPU of CUDA's")
    return _CUDA, tensor.device.index


def put(args: Any, offset: int, tensor: Any, name: str) -> None:
    """The view of a tensor, as that argument."""
    try:
        kind, index = host if tensor.is_cpu else _device_of(tensor, name)
        shape = tensor.shape
    except AttributeError:
        _device_of(tensor, name)
        raise
    strides, dims, code = tensor.stride(), len(shape), CODES.get(tensor.dtype, _NO_CODE)
    data = tensor.data_ptr()
    if dims == 2:
        _VIEW.pack_into(
            args, offset, data, code, 2, shape[0], shape[1], 0, 0, strides[0], strides[1], 0, 0, kind, index
        )
        return
    if dims > 4:
        raise AssertionError(f"{name} has {dims} dimensions: expected at most 4")
    fill = (0,) * (4 - dims)
    _VIEW.pack_into(args, offset, data, code, dims, *shape, *fill, *strides, *fill, kind, index)


def put_view(
    args: Any, offset: int, data: int, code: int, shape: tuple[int, ...], device: tuple[int, int] = (_CPU, 0)
) -> None:
    """Contiguous memory of two dimensions, as that argument."""
    rows, columns = shape
    _VIEW.pack_into(args, offset, data, code, 2, rows, columns, 0, 0, columns, 1, 0, 0, *device)


_int_arrays: dict[int, Any] = {}


def ints_at(address: int | None, count: int) -> list[int]:
    """int32 [count] of the library's. Types of arrays are kept: to make one takes longer than a call, and leaves
    garbage for the collector."""
    kind = _int_arrays.get(count)
    if kind is None:
        kind = _int_arrays[count] = ctypes.c_int32 * count
    found: list[int] = kind.from_address(address or 0)[:]
    return found


def address_of(function: Any) -> int:
    value = ctypes.cast(function, ctypes.c_void_p).value
    assert value is not None
    return value


# ---- results ---------------------------------------------------------------------------------------------------------

_to_dlpack = plain(
    "expar_tensor_to_dlpack", ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
_retain = plain("expar_ep_output_retain", ctypes.c_void_p)
_release = lib.expar_ep_output_release
_release_address = address_of(_release)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_from_capsule: Callable[[Any], Any] = torch.utils.dlpack.from_dlpack
_NAME = b"dltensor"  # stays, since capsules point to it
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _tensor(view: int, dtype: Any, context: int) -> Any:
    """PyTorch's tensor of the view at that address; it takes a reference of the output's over."""
    managed = ctypes.c_void_p()
    check(_to_dlpack(view, 0, _release_address, context, ctypes.addressof(managed)))
    try:
        tensor = _from_capsule(_new_capsule(managed.value, _NAME, None))
    except BaseException:
        _DELETER(_abi.DlManaged.from_address(managed.value or 0).deleter or 0)(managed)
        raise
    return tensor if tensor.dtype is dtype else tensor.view(dtype)


class Output:
    """The memory of a call's results, until all that is wanted of it has gone to tensors."""

    __slots__ = ("_pointer",)

    def __init__(self, pointer: int) -> None:
        self._pointer: int = pointer

    def tensor(self, struct_: Any, offset: int, dtype: Any) -> Any:
        """The tensor that the library has put there."""
        check(_retain(self._pointer))
        try:
            return _tensor(ctypes.addressof(struct_) + offset, dtype, self._pointer)
        except BaseException:
            _release(self._pointer)
            raise

    def last(self, struct_: Any, offset: int, dtype: Any) -> Any:
        """Likewise; there will be no other one."""
        tensor = _tensor(ctypes.addressof(struct_) + offset, dtype, self._pointer)
        self._pointer = 0
        return tensor

    def __del__(self, release: Any = _release) -> None:
        if self._pointer:
            release(self._pointer)


_alloc = plain("expar_ep_alloc", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_output_tensor = plain("expar_ep_output_tensor", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def pool_tensor(buffer: int, rows: int, columns: int, dtype: Any, item_bytes: int) -> Any:
    """Memory of the pool of a buffer on the CPU, not set to anything."""
    pointer = ctypes.c_void_p()
    check(_alloc(buffer, max(rows * columns * item_bytes, 1), ctypes.addressof(pointer)))
    assert pointer.value is not None
    output = Output(pointer.value)
    view = _abi.Tensor()
    check(_output_tensor(pointer.value, _abi.EpPart.X, ctypes.addressof(view)))
    put_view(view, 0, view.data or 0, CODES[dtype], (rows, columns))
    return output.last(view, 0, dtype)
