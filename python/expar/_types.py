# SPDX-License-Identifier: Apache-2.0
"""Types of arguments, for type checkers.

They describe arrays, streams and devices by what the package reads of them, so that it needs neither NumPy nor PyTorch.
A number, a text or a list is none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Protocol, Sequence, Tuple, Union

if TYPE_CHECKING:
    from ._symmetric import Symmetric
    from ._tensor import View


class WithDLPack(Protocol):
    """An array with DLPack: PyTorch's, NumPy's, CuPy's, JAX's, `Tensor`."""

    @property
    def __dlpack__(self) -> Callable[..., Any]: ...

    @property
    def __dlpack_device__(self) -> Callable[..., Any]: ...


class WithArrayInterface(Protocol):
    """An array with NumPy's array interface."""

    @property
    def __array_interface__(self) -> Any: ...


class WithCudaArrayInterface(Protocol):
    """An array with CUDA's array interface."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


class WithCudaStream(Protocol):
    """A stream of PyTorch."""

    @property
    def cuda_stream(self) -> Any: ...


class WithPointer(Protocol):
    """A stream of CuPy."""

    @property
    def ptr(self) -> Any: ...


class WithCudaStreamCall(Protocol):
    """A stream of another library."""

    @property
    def __cuda_stream__(self) -> Callable[[], Any]: ...


class WithType(Protocol):
    """A device of PyTorch."""

    @property
    def type(self) -> str: ...


Array = Union[WithDLPack, WithArrayInterface, WithCudaArrayInterface, "View"]
"""A tensor argument of a buffer's call. The docstring of the call has its shape and element type."""

HostArray = Union["Symmetric", WithArrayInterface, WithDLPack]
"""An array in CPU memory, or a block of symmetric memory."""

Stream = Union[int, WithCudaStream, WithPointer, WithCudaStreamCall]
"""A stream on a GPU: its address, or an object of PyTorch's, CuPy's or of another library."""

Device = Union[str, Tuple[int, int], WithType]
"""A device: "cpu", "cuda", "cuda:1", PyTorch's object, or DLPack's pair."""

Shape = Union[int, Sequence[int]]
"""A shape, or the extent of the only dimension."""
