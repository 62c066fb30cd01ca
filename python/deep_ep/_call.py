# SPDX-License-Identifier: Apache-2.0
"""Calls of the library with PyTorch tensors, in as few interpreter steps as possible.

expar's own bindings take tensors of any library, and return results that own their memory. Here both sides are
PyTorch's, and a call should cost microseconds. So views of tensors are packed into the argument structs as bytes, and
results go to PyTorch by DLPack, with deleters in C.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from ctypes import addressof
from typing import Any, Callable, Sequence

import torch
import torch.utils.dlpack as dlpack
from expar import _abi, _exchange, _interrupt, _tensor
from expar._abi import Dtype
from expar._buffer_forms import ints_at as ints_at
from expar._copies import Shared
from expar._library import _check, lib

_raised = _interrupt._raised

# expar_tensor: data, dtype, ndim, shape, strides, device.
_VIEW = struct.Struct("@Pii4q4qii")
_MATRIX = struct.Struct("@Pii2q16x2q16xii")  # of two dimensions
assert _VIEW.size == _MATRIX.size == ctypes.sizeof(_abi.Tensor)
# Replaces the address in a tensor view. It is the view's first member.
put_address = struct.Struct("@P").pack_into
_CPU, _CUDA = int(_abi.DeviceType.CPU), int(_abi.DeviceType.CUDA)
# The library's device for tensors in host memory.
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


def _foreign(dtype: Any) -> int:
    """Returns a code for a dtype that the library does not know. It holds DLPack's code and the bits. The library
    rejects it in the call, so that the other ranks learn of the error."""
    kind = 2 if dtype.is_floating_point else 5 if dtype.is_complex else 0 if dtype.is_signed else 1
    return -int(kind << 8 | 8 * dtype.itemsize)


def plain(name: str, *arguments: Any) -> Callable[..., int]:
    """Returns a call of the library whose result is the status as a number. `check` raises errors from it."""
    function: Any = lib[name]
    function.argtypes = arguments
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def check(status: int) -> None:
    """Raises the error of a status, or that of a signal that came during the call."""
    if status or _raised:
        _check(status, None, ())


def _device_of(tensor: Any, name: str) -> tuple[int, int]:
    """Returns (device type, index). AssertionError if it is no tensor; RuntimeError if buffers have no backend for its
    device."""
    if not isinstance(tensor, torch.Tensor):
        raise AssertionError(f"{name} is of type {type(tensor).__name__}: expected a tensor")
    if not tensor.is_cuda:
        raise RuntimeError(f"{name} lies on {tensor.device}: expected a tensor on the CPU or on a GPU of CUDA's")
    return _CUDA, tensor.device.index


def strides_of(tensor: Any) -> Sequence[int]:
    """Returns the tensor's strides in a view. Those of a contiguous tensor are those of its shape, as for
    expar_python_run, although PyTorch may have others along extents of 1."""
    found: Sequence[int] = _tensor.contiguous(tensor.shape) if tensor.is_contiguous() else tensor.stride()
    return found


def put(args: Any, offset: int, tensor: Any, name: str) -> None:
    """Writes the view of a tensor into args at that offset. name: the argument's name, for errors."""
    try:
        if tensor.is_cpu:
            kind, index = host
        elif tensor.is_cuda:
            kind, index = _CUDA, tensor.get_device()
        else:
            kind, index = _device_of(tensor, name)
        code, shape = CODES.get(tensor.dtype), tensor.shape
        if code is None:
            code = _foreign(tensor.dtype)
        if len(shape) == 2:
            rows, columns = shape
            apart, step = (columns, 1) if tensor.is_contiguous() else tensor.stride()
            _MATRIX.pack_into(args, offset, tensor.data_ptr(), code, 2, rows, columns, apart, step, kind, index)
            return
    except AttributeError:
        _device_of(tensor, name)
        raise
    dims = len(shape)
    if dims > 4:
        raise AssertionError(f"{name} has {dims} dimensions: expected at most 4")
    fill, strides = (0,) * (4 - dims), strides_of(tensor)
    _VIEW.pack_into(args, offset, tensor.data_ptr(), code, dims, *shape, *fill, *strides, *fill, kind, index)


def put_view(
    args: Any, offset: int, data: int, code: int, shape: tuple[int, ...], device: tuple[int, int] = (_CPU, 0)
) -> None:
    """Writes a view of contiguous memory with two dimensions into args at that offset."""
    rows, columns = shape
    _MATRIX.pack_into(args, offset, data, code, 2, rows, columns, columns, 1, *device)


def put_memory(
    args: Any, offset: int, tensor: Any, shape: tuple[int, ...], strides: tuple[int, ...], device: tuple[int, int]
) -> None:
    """Writes a view with the tensor's address and dtype, and with this shape, these strides and this device."""
    fill = (0,) * (4 - len(shape))
    _VIEW.pack_into(
        args, offset, tensor.data_ptr(), CODES[tensor.dtype], len(shape), *shape, *fill, *strides, *fill, *device
    )


def put_ints(address: int, numbers: list[int], size: int) -> None:
    """Writes numbers of 4 or 8 bytes to memory of the host."""
    struct.pack_into(f"={len(numbers)}{'i' if size == 4 else 'q'}", _bytes_at(address, size * len(numbers)), 0, *numbers)


def _bytes_at(address: int, count: int) -> Any:
    kind = _byte_arrays.get(count)
    if kind is None:
        kind = _byte_arrays[count] = ctypes.c_char * count
    return kind.from_address(address)


_byte_arrays: dict[int, Any] = {}


# ---- results ---------------------------------------------------------------------------------------------------------

def held(name: str, *arguments: Any) -> Callable[..., int]:
    """Returns a call that never waits and keeps the interpreter's lock. Releasing the lock would take longer than the
    call."""
    made: Callable[..., int] = ctypes.PYFUNCTYPE(ctypes.c_int, *arguments)((name, lib))
    return made


_to_dlpack = held(
    "expar_tensor_to_dlpack", ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
# These make all capsules of a call at once. One by one, most of the time would go into the calls through ctypes.
_output_capsules = held(
    "expar_python_put_output", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.py_object
)
_handle_capsules = held("expar_python_put_ll_handle", ctypes.c_void_p, ctypes.c_void_p, ctypes.py_object)


exchange = _exchange.table()  # None: tensors go by capsules
_python = _exchange.objects
_python_at = addressof(_python)
_release = lib.expar_ep_output_release
# The function that torch.utils.dlpack calls for a capsule, without its check that it is a capsule.
_from_capsule: Callable[[Any], Any] = getattr(torch._C, "_from_dlpack", torch.utils.dlpack.from_dlpack)
_NAME = b"dltensor"
# DLPack may carry these dtypes as bytes.
_BYTES = (FP8, torch.bool)


def _taken(made: list[Any], wanted: Sequence[tuple[int, Any]]) -> list[Any]:
    """Returns the same list, with PyTorch tensors in place of the wanted capsules. wanted: places, and the dtypes that
    DLPack may not have carried."""
    capsules = not _python.tensor_new
    for place, dtype in wanted:
        tensor = made[place]
        if capsules:
            tensor = made[place] = _from_capsule(tensor)
        if dtype is not None and tensor.dtype is not dtype:
            made[place] = tensor.view(dtype)
    return made


def _give_back(made: list[Any]) -> None:
    """Frees the capsules that are left in the list after an error."""
    for each in made:
        if _tensor._is_valid(each, _NAME):
            _tensor._give_back(each, _NAME)


def lent_tensor(view: int, dtype: Any) -> Any:
    """Returns a tensor of the view at that address. It keeps no reference to the memory."""
    managed = ctypes.c_void_p()
    check(_to_dlpack(view, 0, None, None, addressof(managed)))
    capsule = _tensor._make(managed.value, _NAME, None)
    try:
        tensor = _from_capsule(capsule)
    except BaseException:
        _give_back([capsule])
        raise
    return tensor if tensor.dtype is dtype else tensor.view(dtype)


_HANDLE_TENSORS = ((0, None), (1, None))


def handle_tensors(handle: int) -> list[Any]:
    """Returns src_info and range of a low-latency handle. Both tensors have references to it."""
    made: list[Any] = [None, None]
    try:
        check(_handle_capsules(handle, _python_at, made))
        return _taken(made, _HANDLE_TENSORS)
    except BaseException:
        _give_back(made)
        raise


class Parts:
    """The tensors of an output that a call wants, with their dtypes."""

    __slots__ = ("numbers", "at", "wanted", "none")

    def __init__(self, numbers: Sequence[int], dtypes: Sequence[Any]) -> None:
        given = [-1 if dtype is None else number for number, dtype in zip(numbers, dtypes)]
        self.numbers = (ctypes.c_int32 * len(given))(*given)
        self.at = addressof(self.numbers)
        wanted = [(place, dtype) for place, dtype in enumerate(dtypes) if dtype is not None]
        self.wanted = tuple((place, dtype if dtype in _BYTES else None) for place, dtype in wanted)
        self.none = [None] * len(given)


@functools.lru_cache(maxsize=1024)
def parts_of(numbers: tuple[int, ...], *dtypes: Any) -> Parts:
    """Returns the cached `Parts` of these numbers and dtypes. A dtype of None means that the part is not wanted."""
    return Parts(numbers, dtypes)


class Output(Shared):
    """The memory of a call's results, kept while tensors are still made from it. Copies share it."""

    __slots__ = ("pointer",)
    _no_pickle = "pickle the tensors of the result instead"

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def tensors(self, parts: Parts) -> list[Any]:
        """Returns tensors of the library's memory, each with its own reference. A part that is not wanted is None."""
        made: list[Any] = parts.none[:]
        try:
            check(_output_capsules(self.pointer, parts.at, len(made), _python_at, made))
            return _taken(made, parts.wanted)
        except BaseException:
            _give_back(made)
            raise

    def __del__(self, release: Any = _release) -> None:
        release(self.pointer)


_alloc = plain("expar_ep_alloc", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_MEMORY = Parts((int(_abi.EpPart.X),), (torch.uint8,))
# From this size on PyTorch's CPU allocator asks the system for each block of memory; the pool does not.
_LARGE_BYTES = 1 << 16


def _strided_on_cpu(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
    return torch.empty_strided(sizes, strides, dtype=dtype, device="cpu")


# PyTorch's compiled programs allocate by these functions. They skip the dispatcher, use the same allocator, and take
# half the time. They check nothing: sizes and strides must be tuples of numbers. Some builds lack them. The one for
# GPUs allocates on the current GPU.
_compiled: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
strided_on_cpu: Callable[..., Any] = getattr(_compiled, "_empty_strided_cpu", _strided_on_cpu)
strided_on_gpu: Callable[..., Any] | None = getattr(_compiled, "_empty_strided_cuda", None)


def pool_tensor(buffer: int, rows: int, columns: int, dtype: Any) -> Any:
    """Returns uninitialized memory from the pool of a CPU buffer. Small tensors come from PyTorch's allocator."""
    size = rows * columns * dtype.itemsize
    if size < _LARGE_BYTES:
        return strided_on_cpu((rows, columns), (columns or 1, 1), dtype)
    pointer = ctypes.c_void_p()
    check(_alloc(buffer, size, addressof(pointer)))
    assert pointer.value is not None
    memory = Output(pointer.value).tensors(_MEMORY)[0]
    return memory.view(dtype).view(rows, columns)


# ---- who keeps what --------------------------------------------------------------------------------------------------


def give_owner(tensor: Any, owner: Any) -> None:
    """Makes the tensor's memory keep a reference to the owner. It lasts as long as views, autograd or operators keep
    the memory."""
    tensor.untyped_storage().expar_owner = owner


def owner_of(tensor: Any) -> Any:
    """Returns the owner that `give_owner` attached to the tensor's memory, or None."""
    try:
        return getattr(tensor.untyped_storage(), "expar_owner", None)
    except (AttributeError, NotImplementedError):  # it is no tensor, or it has no memory of its own
        return None
