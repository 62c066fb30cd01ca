# SPDX-License-Identifier: Apache-2.0
"""Tensors: those of other libraries as arguments, and those of the library for other libraries.

This module imports NumPy or PyTorch only when a caller asks for their arrays.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Sequence

from . import _abi, _exchange, _values
from ._abi import DeviceType, Dtype
from ._copies import Shared, SharedMemory
from ._device import current_stream, LEGACY, let_follow
from ._dtypes import dtype_of, dtype_of_array, dtype_of_torch, ELEMENT_BYTES, torch_dtype, TYPESTR, typed
from ._library import _check, lib
from ._warning import warn

if TYPE_CHECKING:
    import numpy
    import torch

_DLPACK_NAMES = (b"dltensor_versioned", b"dltensor")
_DLPACK_1_1 = _exchange.VERSION
_is_valid, _pointer_in = _exchange.is_valid, _exchange.pointer_in
_CPU = (int(DeviceType.CPU), 0)

# Views without addresses, by the attributes of their tensors. The same few come again in every step.
_templates: dict[Any, bytes] = {}
_MOST_TEMPLATES = 4096


def _at(template: bytes, data: int | None) -> _abi.Tensor:
    """Returns that view with that address."""
    view = _abi.Tensor.from_buffer_copy(template)
    view.data = data or 0
    return view


def _keep_template(key: Any, template: bytes) -> None:
    if len(_templates) >= _MOST_TEMPLATES:
        _templates.clear()
    _templates[key] = template


def make_view(
    data: int | None, dtype: int, shape: Sequence[int], strides: Sequence[int], device: tuple[int, int]
) -> _abi.Tensor:
    """Makes a view. TypeError for more than four dimensions."""
    if len(shape) > 4:
        raise TypeError(f"a tensor has {len(shape)} dimensions: expected at most 4")
    view = _abi.Tensor(data=data or None, dtype=dtype, ndim=len(shape))
    view.shape[: len(shape)] = list(shape)
    view.strides[: len(shape)] = list(strides)
    view.device.type, view.device.index = device
    return view


def contiguous(shape: Sequence[int]) -> list[int]:
    """Returns contiguous strides, in elements."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return strides


def pool_view(data: int | None, dtype: int, shape: tuple[int, ...], device: tuple[int, int]) -> _abi.Tensor:
    """Returns a contiguous view of memory on that device. dtype: a number, since hashing a member of an enumeration
    takes longer."""
    key = (dtype, shape, device)
    template = _templates.get(key)
    if template is None:
        template = bytes(make_view(None, dtype, shape, contiguous(shape), device))
        _keep_template(key, template)
    return _at(template, data)


def _type_name(array: Any) -> str:
    return str(getattr(getattr(array, "dtype", None), "name", ""))


def _view_of_interface(
    value: Any, interface: dict[str, Any], dtype: Dtype | None, device: tuple[int, int], argument: str
) -> _abi.Tensor:
    """Returns a view by NumPy's array interface, or by CUDA's, which is the same for a GPU."""
    typestr, shape, in_bytes = interface["typestr"], tuple(interface["shape"]), interface.get("strides")
    # ml_dtypes' types have a name, and V in place of a kind.
    name = _type_name(value) if typestr[1] == "V" else ""
    key = (typestr, name, shape, in_bytes, dtype and dtype.value, device)
    template = _templates.get(key)
    if template is None:
        template = bytes(_new_view(value, interface, dtype, device, name, argument))
        _keep_template(key, template)
    return _at(template, interface["data"][0])


def _new_view(
    value: Any, interface: dict[str, Any], dtype: Dtype | None, device: tuple[int, int], name: str, argument: str
) -> _abi.Tensor:
    """Returns such a view without an address."""
    typestr, shape, in_bytes = interface["typestr"], tuple(interface["shape"]), interface.get("strides")
    found = dtype or dtype_of_array(typestr, name or _type_name(value), argument)
    size = ELEMENT_BYTES[found]
    if int(typestr[2:]) != size:
        raise TypeError(f"elements of {typestr} do not have the {size} bytes of {found.name}")
    if in_bytes is not None and any(stride % size for stride in in_bytes):
        raise TypeError(f"strides of {in_bytes} bytes are no multiples of an element's {size}")
    strides = contiguous(shape) if in_bytes is None else [stride // size for stride in in_bytes]
    return make_view(None, found, shape, strides, device)


def _view_of_torch(tensor: Any, dtype: Dtype | None, argument: str) -> _abi.Tensor:
    if tensor.requires_grad:
        warn_of_gradients(argument)
    key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.device, dtype and dtype.value)
    template = _templates.get(key)
    if template is None:
        template = bytes(_new_view_of_torch(tensor, dtype, argument))
        _keep_template(key, template)
    return _at(template, tensor.data_ptr())


def _new_view_of_torch(tensor: Any, dtype: Dtype | None, argument: str) -> _abi.Tensor:
    """Returns such a view without an address."""
    device = tensor.device
    kinds = {"cpu": DeviceType.CPU, "cuda": DeviceType.CUDA}
    if device.type not in kinds:
        raise TypeError(f"a tensor lies on {device}: expected the CPU or a CUDA device")
    found = dtype or dtype_of_torch(tensor.dtype, argument)
    if tensor.element_size() != ELEMENT_BYTES[found]:
        raise TypeError(f"elements of {tensor.dtype} do not have the {ELEMENT_BYTES[found]} bytes of {found.name}")
    where = (kinds[device.type], device.index or 0)
    # Strides of a tensor without elements may be anything, such as 0 if it was made from an array.
    strides = tensor.stride() if tensor.numel() > 0 else contiguous(tensor.shape)
    return make_view(None, found, tensor.shape, strides, where)


_warned_of_gradients = False


def is_warned_of_gradients() -> bool:
    """Returns whether a call on a tensor that requires gradients would warn."""
    return not _warned_of_gradients and bool(sys.modules["torch"].is_grad_enabled())


def warn_of_gradients(argument: str) -> None:
    """Warns once if the caller expects gradients that the call does not have. A function of autograd calls without."""
    global _warned_of_gradients
    if is_warned_of_gradients():
        _warned_of_gradients = True
        warn(
            f"{argument} requires gradients, and this call has none: use expar.torch.dispatch and expar.torch.combine, "
            "or their low_latency forms; or call within torch.no_grad() or on x.detach()"
        )


def _capsule_of(value: Any, stream: int | None) -> Any:
    try:
        return value.__dlpack__(stream=stream, max_version=(1, 1))
    except TypeError:  # an object without versions
        return value.__dlpack__(stream=stream)


def _view_of_dlpack(value: Any, stream: int | None, writable: bool, keep: list[Any]) -> _abi.Tensor:
    """Returns a view by DLPack. The capsule is read but not consumed, so it frees its content when `keep` drops it."""
    on_gpu = int(value.__dlpack_device__()[0]) != DeviceType.CPU
    # DLPack's number of the default stream is 1.
    capsule = _capsule_of(value, (stream or 1) if on_gpu and stream is not None else None)
    keep.append(capsule)
    name = next(name for name in _DLPACK_NAMES if _is_valid(capsule, name))
    version = _DLPACK_1_1 if name == _DLPACK_NAMES[0] else 0
    view = _abi.Tensor()
    lib.expar_tensor_from_dlpack(_pointer_in(capsule, name), version, writable, ctypes.byref(view))
    return view


class View:
    """Memory of another library as an argument, with another element type of the same size.

    value: an array with DLPack, NumPy's array interface or CUDA's.
    dtype: expar.Dtype, its name, or a NumPy or PyTorch type. NumPy has no bfloat16, so pass `View(bits, "bf16")` with
        `bits` of uint16.
    """

    def __init__(self, value: Any, dtype: Any) -> None:
        self.value = value
        self.dtype = dtype_of(dtype)


def view_of(
    value: Any, name: str, keep: list[Any], *, stream: int | None = None, writable: bool = False
) -> _abi.Tensor:
    """Returns the view of an argument; an empty one for None.

    `keep` receives the objects that must live as long as the view. stream: the call's stream on a GPU. Pending work on
    the tensor comes before the call there, if its library uses DLPack. PyTorch's tensors are taken as they are.

    TypeError, with the argument's name, if it is no tensor.
    """
    if value is None:
        return _abi.Tensor()
    keep.append(value)
    dtype = None
    if isinstance(value, View):
        value, dtype = value.value, value.dtype
    try:
        if isinstance(value, Tensor):
            return value._view
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return _view_of_torch(value, dtype, name)
        interface = getattr(value, "__array_interface__", None)
        if interface is not None:
            return _view_of_interface(value, _writable(interface, writable), dtype, _CPU, name)
        if hasattr(value, "__dlpack__") and dtype is None:
            return _view_of_dlpack(value, stream, writable, keep)
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is not None:
            device = int(getattr(getattr(value, "device", None), "id", 0))
            on = (int(DeviceType.CUDA), device)
            return _view_of_interface(value, _writable(interface, writable), dtype, on, name)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    what = f"{type(value).__name__} is no tensor: it is {_values.shown(value)}"
    hint = ", such as numpy.asarray gives" if isinstance(value, (list, tuple)) else ""
    raise TypeError(f"{name}: {what}, expected one with __dlpack__ or an array interface{hint}")


def _writable(interface: dict[str, Any], wanted: bool) -> dict[str, Any]:
    if wanted and interface["data"][1]:
        raise TypeError("the array is read only, and is to be written to")
    return interface


# ---- what the library gives ------------------------------------------------------------------------------------------


class Counted(Shared):
    """A counted object of the library. This holds one reference to it, and releases it at its end."""

    __slots__ = ("__weakref__", "in_python", "pointer", "served", "stream")

    # Calls of the library for objects of a class. read_on tells it that a stream reads the object, if it must know.
    _retain: Any
    _release: Any
    read_on: Any = None

    def __init__(self, pointer: int, stream: int | None = None) -> None:
        self.pointer = pointer
        self.in_python = False  # whether its end calls Python: `hold_at_exit`
        self.stream = stream  # on a GPU: the stream that fills it
        self.served: int | None = None  # a stream that the library knows to read it; None: it may know of others

    def __del__(self) -> None:
        # It may run on any thread, and while the interpreter exits, because it only calls C code.
        self._release(self.pointer)

    def fill_on(self, stream: int) -> None:
        """Says that another stream fills it from now on: readers have to follow that one."""
        self.stream, self.served = stream, None

    def hold_at_exit(self) -> None:
        """Marks memory from an allocator in Python, which cannot be called after the interpreter has ended. So only
        Python objects have references to it, and those that are alive at exit keep it for good."""
        self.in_python = True
        _held_at_exit.add(self)

    def keep_for_good(self) -> None:
        """Takes a reference that is never released."""
        self._retain(self.pointer)

    def serve(self, stream: int) -> None:
        """Makes later work on that stream see the content. The stream may read it until the last reference is gone."""
        if self.stream is not None:
            if stream != self.stream:
                let_follow(stream, self.stream)
            if self.read_on is not None:
                self.read_on(self.pointer, stream or LEGACY)

    def export(self, view: _abi.Tensor, version: int) -> int:
        """Returns a managed DLPack tensor with its own reference. Its deleter, which is C code, releases the
        reference."""
        managed = ctypes.c_void_p()
        self._retain(self.pointer)
        try:
            release = ctypes.cast(self._release, ctypes.c_void_p)
            lib.expar_tensor_to_dlpack(ctypes.byref(view), version, release, self.pointer, ctypes.byref(managed))
        except BaseException:
            self._release(self.pointer)
            raise
        assert managed.value is not None
        return managed.value


# These never wait, and releasing the interpreter's lock would take longer than the calls.
_part_of = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
    ("expar_ep_output_get_tensor", lib)
)
_read_on = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(("expar_ep_output_read_on", lib))


class Output(Counted):
    """The memory of a call's results."""

    __slots__ = ()
    _retain = lib.expar_ep_output_retain
    _release = lib.expar_ep_output_release
    read_on = lib.expar_ep_output_read_on

    def part(self, number: int) -> _abi.Tensor:
        """Returns the view of a part (EpPart)."""
        view = _abi.Tensor()
        status = _part_of(self.pointer, number, ctypes.addressof(view))
        if status:
            _check(status, lib.expar_ep_output_get_tensor, ())
        return view

    def serve(self, stream: int) -> None:
        if self.stream is None or stream == self.served:
            return
        if stream != self.stream:
            let_follow(stream, self.stream)
        status = _read_on(self.pointer, stream or LEGACY)
        if status:
            _check(status, self.read_on, ())
        if stream == self.stream:
            self.served = stream  # another stream would have to follow later work of its stream once more


_held_at_exit: weakref.WeakSet[Counted] = weakref.WeakSet()


def outputs_in_python() -> list[Counted]:
    """Returns the live outputs whose memory may come from an allocator in Python."""
    return list(_held_at_exit)


@atexit.register
def _hold() -> None:
    for counted in list(_held_at_exit):
        counted.keep_for_good()


class Tensor(SharedMemory):
    """A tensor in the library's memory, part of an output or of a handle. The memory lives as long as this object and
    all arrays made from it, also after its buffer and group are gone.

    Other libraries take it by DLPack (`torch.from_dlpack(t)`, `numpy.from_dlpack(t)`), without a copy. `numpy()` and
    `torch()` are shortcuts. Memory is shared and may be written to.
    """

    __slots__ = ("__weakref__", "_owner", "_part", "_ready", "_seen")
    _no_pickle = "pickle its numpy() or torch() instead"

    def __init__(self, view: _abi.Tensor | None, owner: Counted | None, part: int = 0, ready: Any = None) -> None:
        """view: None for a part of the owner, which is an output then. ready: a PyTorch tensor of the same memory that
        nobody has."""
        self._seen = view
        self._owner = owner
        self._part = part
        self._ready = ready

    @property
    def _view(self) -> _abi.Tensor:
        if self._seen is None:
            assert isinstance(self._owner, Output)
            self._seen = self._owner.part(self._part)
        return self._seen

    @property
    def dtype(self) -> Dtype:
        """The type of the elements."""
        return Dtype(self._view.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, of one to four dimensions."""
        return tuple(self._view.shape[: self._view.ndim])

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides, in elements."""
        return tuple(self._view.strides[: self._view.ndim])

    @property
    def data_ptr(self) -> int:
        """The address; 0 for a tensor without elements."""
        return self._view.data or 0

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"expar.Tensor({self.dtype.name.lower()}, shape={self.shape})"

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self._view.device.type != DeviceType.CPU:
            raise AttributeError(f"the tensor lies on GPU {self._view.device.index}")
        return {
            "version": 3,
            "typestr": TYPESTR[self.dtype],
            "shape": self.shape,
            "strides": tuple(stride * ELEMENT_BYTES[self.dtype] for stride in self.strides),
            "data": (self.data_ptr, False),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._view.device.type, self._view.device.index

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Returns a DLPack capsule. stream: the consumer's stream on a GPU. None or 1 is the default one, 2 the
        thread's default one, and -1 needs no order.

        BufferError if a copy or a tensor on another device is asked for. BufferError also for memory of a low-latency
        buffer, or of an allocator in Python: it goes to other libraries by numpy() and torch()."""
        if self._owner is None or self._owner.in_python:
            raise BufferError("this memory goes to other libraries by numpy() or torch()")
        if copy:
            raise BufferError("expar.Tensor makes no copies")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"expar.Tensor lies on {self.__dlpack_device__()}, not on {dl_device}")
        if self._view.device.type != DeviceType.CPU and stream != -1:
            self._owner.serve(stream or 0)
        major, minor = max_version or (0, 0)
        if major == 0:
            return _new_capsule(self._owner.export(self._view, 0), _DLPACK_NAMES[1])
        version = major << 16 | minor if major == 1 else _DLPACK_1_1
        return _new_capsule(self._owner.export(self._view, version), _DLPACK_NAMES[0])

    def _bits(self) -> numpy.ndarray[Any, Any]:
        import numpy

        if self._view.device.type != DeviceType.CPU:
            raise BufferError(f"the tensor lies on GPU {self._view.device.index}: expected the CPU, or torch()")
        return numpy.asarray(self)

    def numpy(self) -> numpy.ndarray[Any, Any]:
        """Returns the same memory as a NumPy array. bf16 and f8e4m3 become ml_dtypes' bfloat16 and float8_e4m3fn. If
        ml_dtypes is not installed they become uint16 and uint8, which are their bits, with one warning. BufferError on
        a GPU."""
        return typed(self._bits(), self.dtype)  # type: ignore[no-any-return]

    def torch(self) -> torch.Tensor:
        """Returns the same memory as a PyTorch tensor. On a GPU PyTorch's current stream sees the content."""
        ready = self._ready
        if ready is not None:
            self._ready = None
            # The call may have been made in inference mode, and this caller is not in it.
            if ready.is_inference() == sys.modules["torch"].is_inference_mode_enabled():
                if self._owner is not None and self._owner.stream is not None:
                    self._owner.serve(current_stream(ready.get_device()))
                made: torch.Tensor = ready
                return made
        if self._owner is None or self._owner.in_python:
            import torch

            if self._view.device.type != DeviceType.CPU:
                lent: torch.Tensor = self._lent_torch(torch)
                return lent

            array = self._bits()
            # Not every PyTorch version has an unsigned type of 16 bits.
            return torch.from_numpy(array.view("int16") if array.dtype == "uint16" else array).view(
                torch_dtype(self.dtype)
            )
        if self._view.device.type != DeviceType.CPU:
            self._owner.serve(current_stream(self._view.device.index))
        whole: torch.Tensor = self._made_torch()
        return whole

    def _made_torch(self) -> Any:
        """Returns a PyTorch tensor with a reference to the owner of the memory. The caller orders streams."""
        assert self._owner is not None
        make = _exchange.maker()
        if make is not None:
            return make(self._owner.export(self._view, _DLPACK_1_1))
        from torch.utils.dlpack import from_dlpack

        # A capsule takes half the time of an object with __dlpack__, which PyTorch would ask for device and stream.
        return from_dlpack(self.__dlpack__(stream=-1)).view(torch_dtype(self.dtype))

    def _as_argument(self) -> Any:
        """Returns a PyTorch tensor of the same memory, for one call of the library. None if there is none. On a GPU it
        is only made together with the result, since PyTorch may have no GPUs."""
        if self._ready is None and self._owner is not None and not self._owner.in_python:
            if self._view.device.type == DeviceType.CPU and _exchange.maker():
                self._ready = self._made_torch()
        return self._ready

    def _lent_torch(self, torch: Any) -> Any:
        """Returns a PyTorch tensor made from the address. It keeps this object."""
        index = self._view.device.index
        if self._owner is not None:
            self._owner.serve(current_stream(index))
        bits: Any = torch.as_tensor(_CudaArray(self), device=f"cuda:{index}")
        return bits.view(torch_dtype(self.dtype))


class _CudaArray:
    """GPU memory with CUDA's array interface, and the object that keeps it."""

    def __init__(self, tensor: Tensor) -> None:
        self.kept = tensor
        bits = {1: "|u1", 2: "<i2", 4: "<i4", 8: "<i8"}[ELEMENT_BYTES[tensor.dtype]]
        self.__cuda_array_interface__ = {
            "version": 2,
            "typestr": bits,
            "shape": tensor.shape,
            "strides": tuple(stride * ELEMENT_BYTES[tensor.dtype] for stride in tensor.strides),
            "data": (tensor.data_ptr, False),
        }


# ---- capsules --------------------------------------------------------------------------------------------------------

_make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# Capsules without a destructor. A destructor in Python could not run everywhere that capsules are freed, for example
# while an exception is raised. So a capsule that nobody has taken stays here, and is freed when the next one is made.
_capsules: list[Any] = []
_capsules_lock = threading.Lock()


def _references(items: list[Any], index: int) -> int:
    return sys.getrefcount(items[index])


_ONLY_OURS = _references([object()], 0)


def _give_back(capsule: Any, name: bytes) -> None:
    managed = _pointer_in(capsule, name)
    kind = _abi.DlVersioned if name == _DLPACK_NAMES[0] else _abi.DlManaged
    _DELETER(kind.from_address(managed).deleter or 0)(managed)


def _sweep() -> None:
    """Drops capsules that were taken, and frees those that can no longer be taken."""
    for index in range(len(_capsules) - 1, -1, -1):
        name = next((name for name in _DLPACK_NAMES if _is_valid(_capsules[index], name)), None)
        if name is not None and _references(_capsules, index) > _ONLY_OURS:
            continue
        capsule = _capsules.pop(index)
        if name is not None:
            _give_back(capsule, name)


def _new_capsule(managed: int, name: bytes) -> Any:
    capsule = _make(managed, name, None)
    with _capsules_lock:
        _sweep()
        _capsules.append(capsule)
    return capsule
