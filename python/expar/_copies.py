# SPDX-License-Identifier: Apache-2.0
"""Copies and pickling of objects that stand for one of the library.

A second Python object with the same address would release the library's object twice. So a copy is the object itself,
and no such object can be pickled, because another process has no such address.
"""

from __future__ import annotations

from typing import Any, TypeVar

_Self = TypeVar("_Self")


class Shared:
    """Base of classes whose copies, also deep ones and those within other objects, are the object itself."""

    __slots__ = ()

    # The text of a rejected pickling: what a program should do.
    _no_pickle = "make one in each process"

    def __copy__(self: _Self) -> _Self:
        return self

    def __deepcopy__(self: _Self, memo: Any) -> _Self:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"cannot pickle {name_of(self)}, which belongs to this process: {self._no_pickle}")


class SharedMemory(Shared):
    """Base of memory of the library. A deep copy is rejected, because its owner would expect other memory."""

    __slots__ = ()

    def __deepcopy__(self: _Self, memo: Any) -> _Self:
        raise TypeError(f"cannot copy {name_of(self)} deeply: copy its content by numpy().copy() or torch().clone()")


def name_of(value: object) -> str:
    """Returns the name of the value's class with its package: expar.Handle."""
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
