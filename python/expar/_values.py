# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments before the library sees them: numbers that fit their C type, objects of the right class.

ctypes would truncate a number that is too large. Its errors do not name the argument or its value.
"""

from __future__ import annotations

import ctypes
import operator
import os
import reprlib
from typing import Any, Iterable, TypeVar

from ._abi import Status
from ._errors import Error

_Kind = TypeVar("_Kind")

# The ranges are set by type names, because some names are the same type.
_RANGES: dict[Any, tuple[int, int]] = {}
for _bytes in (1, 2, 4, 8):
    _RANGES[getattr(ctypes, f"c_int{8 * _bytes}")] = (-(1 << (8 * _bytes - 1)), (1 << (8 * _bytes - 1)) - 1)
    _RANGES[getattr(ctypes, f"c_uint{8 * _bytes}")] = (0, (1 << (8 * _bytes)) - 1)
_MOST_TEXT = 80
_MOST_ITEMS = 8
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxlong = _repr.maxother = 2 * _MOST_TEXT

# The process id, cached because asking the system takes longer than some calls. A forked child updates it.
_process = os.getpid()


def _look_again() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_look_again)


def this_process() -> int:
    return _process


def check_process(made_by: int, what: str) -> None:
    """Error ERR_STATE in a forked child of the process that made the object: a child is no rank."""
    if made_by != _process:
        raise Error(
            Status.ERR_STATE,
            f"the {what} is of process {made_by}; this one, {_process}, was forked from it: expected the process that "
            "is the rank",
        )


def shown(value: Any) -> str:
    """Returns the value as Python writes it, cut if it is long. Long containers are not written whole first."""
    if isinstance(value, (list, tuple, dict, set)) and len(value) > _MOST_ITEMS:
        return f"a {type(value).__name__} of {len(value)} items"
    text = _repr.repr(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


def whole(value: Any, name: str, kind: Any = ctypes.c_int32, expected: str = "a whole number") -> int:
    """Returns the value as an int, for any type that is an index. TypeError for anything else; ValueError if it does
    not fit the C type."""
    if type(value) is int:
        number = value
    else:
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"{name} is {shown(value)}: expected {expected}") from None
    least, most = _RANGES[kind]
    if not least <= number <= most:
        raise ValueError(f"{name} is {shown(number)}: expected {expected} from {least} to {most}")
    return number


def number_for(value: Any, name: str, kind: Any) -> Any:
    """Returns a value for a word of that type, which may be a floating-point type."""
    if kind not in (ctypes.c_float, ctypes.c_double):
        return whole(value, name, kind)
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} is {shown(value)}: expected a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {shown(value)}: expected a number") from None


def flag(value: Any, name: str) -> bool:
    """Returns a flag from True or False, of Python or NumPy, or from 1 or 0."""
    if type(value) is bool:
        return value
    if type(value).__name__ in ("bool", "bool_", "int") and value in (0, 1):
        return bool(value)
    raise TypeError(f"{name} is {shown(value)}: expected True or False")


def all_zero(values: tuple[Any, ...], zeros: tuple[int, ...]) -> bool:
    """Returns whether all values have their defaults, which a new struct has, too. It is faster than checking each."""
    try:
        return values == zeros
    except ValueError:  # an array is neither true nor false
        return False


def one_of(value: Any, name: str, kind: type[_Kind]) -> _Kind:
    """Returns the value if it is an object of that class. TypeError otherwise."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {shown(value)}: expected an expar.{kind.__name__}")
    return value


def text_or_none(value: Any, name: str) -> str:
    """"" for None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is {shown(value)}: expected a text, or None")
    if value is not None and "\0" in value:
        raise ValueError(f"{name} is {shown(value)}: expected a text without zero bytes")
    return value or ""


def bytes_of(value: Any, name: str) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} is {shown(value)}: expected bytes")
    return bytes(value)


def extents_of(shape: Any, least: int) -> tuple[int, ...]:
    """Returns the extents of a shape, which is one number or several."""
    try:
        several: Iterable[Any] = (operator.index(shape),)
    except TypeError:
        several = shape
    if isinstance(shape, (str, bytes)) or not hasattr(several, "__iter__"):
        raise TypeError(f"shape is {shown(shape)}: expected extents")
    extents = tuple(whole(extent, "shape", ctypes.c_int64, "extents that are whole numbers") for extent in several)
    if any(extent < least for extent in extents):
        raise ValueError(f"shape is {shown(extents)}: expected extents of {least} or more")
    return extents


def bytes_for(extents: tuple[int, ...], element_bytes: int) -> int:
    """Returns the size of a tensor in bytes. ValueError if it exceeds 64 bits."""
    size = element_bytes
    for extent in extents:
        size *= extent
    if size > _RANGES[ctypes.c_int64][1]:
        raise ValueError(f"shape is {shown(extents)}: expected no more bytes than a computer can have")
    return size


def sequence_of(value: Any, name: str, length: int, what: str) -> list[Any]:
    """Returns a list of that length. TypeError or ValueError otherwise."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} is {shown(value)}: expected a list of {what}")
    if len(value) != length:
        raise ValueError(f"{name} has {len(value)} entries: expected {what}, {length}")
    return list(value)


# Types of the members of each struct, collected once.
_kinds: dict[type[Any], dict[str, Any]] = {}


def set_number(struct: Any, name: str, value: Any, expected: str = "a whole number") -> None:
    """Sets a member that is a whole number or an enumeration."""
    kinds = _kinds.get(type(struct))
    if kinds is None:
        kinds = _kinds.setdefault(type(struct), {field[0]: field[1] for field in struct._fields_})
    setattr(struct, name, whole(value, name, kinds[name], expected))
