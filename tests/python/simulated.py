# SPDX-License-Identifier: Apache-2.0
"""A simulated GPU (tests/cuda/simt), for Python: arrays of NumPy's that other libraries see on GPU 0, and streams.

Run with the driver in LD_LIBRARY_PATH and FAKE_ANYWHERE=1. Streams run by themselves, as a real GPU's do: what a test
reads it has waited for on a stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import time
from typing import Any, Callable, Iterator

import numpy

from expar import _abi, _dtypes, _tensor
from expar._abi import DeviceType, Dtype
from expar._library import lib

# Each process asks the simulated compiler: nothing of it lies on disk.
os.environ.update(HOME="", XDG_CACHE_HOME="")
GPU = (int(DeviceType.CUDA), 0)
_driver: Any = None
REST_S = 0.03
HELD_S = 300  # at most, should a test wait for the stream that it holds
_NOT_READY = 600
_THREAD_LOCAL = 1  # of captures: other threads are not looked at
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_slow: list[Any] = []  # for good: the driver has them


def driver() -> Any:
    """The simulated driver, with its GPU current in this thread."""
    global _driver
    if _driver is None:
        _driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert _driver.cuInit(0) == 0
    assert _driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
    if not context.value:
        assert _driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert _driver.cuCtxPushCurrent_v2(context) == 0
    return _driver


class Stream:
    """A stream of its own, as PyTorch's objects look."""

    def __init__(self) -> None:
        pointer = ctypes.c_void_p()
        assert driver().cuStreamCreate(ctypes.byref(pointer), 1) == 0
        self.cuda_stream: int = pointer.value or 0

    def synchronize(self) -> None:
        """Until all is done that it holds now."""
        assert driver().cuStreamSynchronize(ctypes.c_void_p(self.cuda_stream)) == 0

    def query(self) -> bool:
        """Whether all is done that it holds now."""
        code = driver().cuStreamQuery(ctypes.c_void_p(self.cuda_stream))
        assert code in (0, _NOT_READY), code
        return bool(code == 0)

    def slowly(self, work: Callable[[], object]) -> None:
        """Puts it on the stream, after a rest."""

        def run(_: Any) -> None:
            time.sleep(REST_S)
            work()

        function = _HOST_FUNCTION(run)  # not _slow[-1]: other threads append, too
        _slow.append(function)
        assert driver().cuLaunchHostFunc(ctypes.c_void_p(self.cuda_stream), function, None) == 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Work that the stream gets in the block runs after the block has ended, however long that takes."""
        opened = threading.Event()
        self.slowly(functools.partial(opened.wait, HELD_S))
        try:
            yield
        finally:
            opened.set()


class Graph:
    """The work that a stream got while it was captured."""

    def __init__(self) -> None:
        self._made = ctypes.c_void_p()

    def fill(self, graph: ctypes.c_void_p) -> None:
        assert driver().cuGraphInstantiateWithFlags(ctypes.byref(self._made), graph, ctypes.c_ulonglong(0)) == 0

    def launch(self, stream: Stream) -> None:
        assert driver().cuGraphLaunch(self._made, ctypes.c_void_p(stream.cuda_stream)) == 0


@contextlib.contextmanager
def captured(stream: Stream) -> Iterator[Graph]:
    """Work that is put on the stream meanwhile goes to the graph, for good."""
    of, graph, found = ctypes.c_void_p(stream.cuda_stream), Graph(), ctypes.c_void_p()
    assert driver().cuStreamBeginCapture_v2(of, _THREAD_LOCAL) == 0
    try:
        yield graph
    finally:
        assert driver().cuStreamEndCapture(of, ctypes.byref(found)) == 0
    if found.value:
        graph.fill(found)


def is_captured(stream: Stream) -> bool:
    found = ctypes.c_int()
    assert driver().cuStreamIsCapturing(ctypes.c_void_p(stream.cuda_stream), ctypes.byref(found)) == 0
    return bool(found.value)


class _Controls(ctypes.Structure):
    """As far as the counts of launches: tests/cuda/fake/controls.h."""

    _fields_ = [
        ("running", ctypes.c_int * 8),  # FAKE_MOST_GPUS
        *((name, ctypes.c_int) for name in ("loads", "waiting", "modules", "refusals")),
        ("streams", ctypes.c_void_p * 4096),
        ("blocks", ctypes.c_uint * 4096),
        *((name, ctypes.c_int) for name in ("launches", "host_functions", "dispatches", "combines")),
    ]


def launches() -> tuple[int, int]:
    """The numbers of kernels with `dispatch`, and with `combine`, in their names, so far in this process."""
    driver().fake_controls_of.restype = ctypes.POINTER(_Controls)
    controls = driver().fake_controls_of().contents
    return controls.dispatches, controls.combines


class Array:
    """An array of NumPy's on GPU 0, by DLPack. `streams`: those that consumers have named."""

    def __init__(self, array: Any, dtype: str | None = None) -> None:
        self.array = numpy.ascontiguousarray(array)
        self.dtype = _dtypes.dtype_of(dtype or self.array.dtype)
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return GPU

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        self.streams.append(stream)
        array = self.array
        strides = _tensor.contiguous(array.shape)
        view = _tensor.make_view(array.ctypes.data, self.dtype, array.shape, strides, GPU)
        managed = ctypes.c_void_p()
        lib.expar_tensor_to_dlpack(ctypes.byref(view), 1 << 16 | 1, None, None, ctypes.byref(managed))
        return _tensor._new_capsule(managed.value or 0, b"dltensor_versioned")


def on_gpu(values: Any, dtype: str | None = None) -> Any:
    """None stays None."""
    return None if values is None else Array(values, dtype)


def empty(shape: Any, dtype: str) -> Array:
    return Array(numpy.full(shape, 77, dtype))


def values_of(tensor: Any, stream: Stream) -> Any:
    """The content of a result, or of an array that a call on that stream fills, read by a consumer on the stream."""
    if isinstance(tensor, Array):
        stream.synchronize()
        return tensor.array.copy()
    assert tensor.__dlpack_device__() == GPU, tensor
    if tensor._owner.in_python:  # is no other library's, but by PyTorch's way, which is told like this
        tensor._owner.serve(stream.cuda_stream)
        stream.synchronize()
        return array_at(tensor.data_ptr, tensor.dtype, tensor.shape, tensor.strides).copy()
    capsule = tensor.__dlpack__(stream=stream.cuda_stream, max_version=(1, 1))
    stream.synchronize()
    managed = _abi.DlVersioned.from_address(_tensor._pointer_in(capsule, b"dltensor_versioned"))
    own = managed.tensor
    assert own.device.device_type == DeviceType.CUDA and own.device.device_id == 0
    return array_at(own.data, tensor.dtype, tensor.shape, tensor.strides).copy()


def array_at(address: int | None, dtype: Dtype, shape: Any, strides: Any) -> Any:
    """Memory that NumPy can read, since this GPU's is the host's."""
    size = _dtypes.ELEMENT_BYTES[dtype]
    typestr = _dtypes.TYPESTR[dtype]
    if not address or 0 in shape:
        return numpy.zeros(shape, typestr)
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides))
    memory = (ctypes.c_char * (extent * size)).from_address(address)
    flat = numpy.frombuffer(memory, typestr)
    return numpy.lib.stride_tricks.as_strided(flat, shape, [stride * size for stride in strides])


def pointer_in(capsule: Any) -> int:
    """The tensor of a capsule from before versions."""
    return int(_tensor._pointer_in(capsule, b"dltensor") or 0)
