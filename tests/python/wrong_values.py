# SPDX-License-Identifier: Apache-2.0
"""Wrong values for an argument of a call of expar's."""

from __future__ import annotations

from typing import Any

import numpy

import expar
from expar import Error

NAN = float("nan")
SENTINEL = 77


class OnGpu:
    """An array that says it lies on a GPU."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3}


def filled(shape: Any, dtype: str) -> Any:
    return numpy.full(shape, SENTINEL, dtype)


def read_only(shape: Any, dtype: str) -> Any:
    array = filled(shape, dtype)
    array.flags.writeable = False
    return array


# ---- what can be wrong with an argument: value, exception, what the text says besides the argument's name ------------

Wrong = tuple[Any, type[BaseException], str]
NO_NUMBERS: list[Wrong] = [
    (None, TypeError, "is None: expected"),
    ("seven", TypeError, "is 'seven': expected"),
    (1.5, TypeError, "is 1.5: expected"),
    (NAN, TypeError, "is nan: expected"),
    (1 << 70, ValueError, f"is {1 << 70}: expected .* from "),
]


def whole(*wrong: int, error: type[BaseException] = Error, text: str = "{}.* expected") -> list[Wrong]:
    """No number, one that no C type holds, and these."""
    return NO_NUMBERS + [(value, error, text.format(value)) for value in wrong]


FLAG: list[Wrong] = [(value, TypeError, f"is {value!r}: expected True or False") for value in (None, "yes", 2, NAN)]
NO_TENSORS: list[Wrong] = [
    ([1], TypeError, r"list is no tensor: it is \[1\], expected"),
    (5, TypeError, "int is no tensor: it is 5, expected"),
    (NAN, TypeError, "float is no tensor: it is nan, expected"),
    (filled((6, 64), "complex64"), TypeError, "no element type complex64"),
    (filled((1, 1, 1, 1, 1), "float32"), TypeError, "5 dimensions: expected at most 4"),
    (expar.View("bits", "bf16"), TypeError, "str is no tensor: it is 'bits', expected"),
]
NONE_TENSOR: list[Wrong] = [(None, Error, "is not given")]


def tensor(shape: Any, dtype: str, *, written: bool = False, optional: bool = True) -> list[Wrong]:
    """No tensor, and tensors that differ from one of that shape and type in one thing."""
    wrong = list(NO_TENSORS) if optional else NO_TENSORS + NONE_TENSOR
    wrong.append((OnGpu(filled(shape, dtype)), Error, "CUDA.*; expected CPU"))
    wrong.append((filled((*shape, 1), dtype), Error, f"has {len(shape) + 1} dimensions; expected {len(shape)}"))
    if len(shape) > 1:
        apart = filled((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
        wrong.append((apart, Error, r"strides.* is 2; expected 1"))
    if written:
        wrong.append((read_only(shape, dtype), TypeError, "the array is read only"))
    return wrong


def array(shape: int, dtype: str, *, written: bool = False, symmetric: bool = False) -> list[Wrong]:
    """For the calls on symmetric memory: no array, and such as do not fit."""
    wrong: list[Wrong] = [
        (None, TypeError, "NoneType is no array: it is None, expected"),
        ([1], TypeError, r"list is no array: it is \[1\], expected"),
        (NAN, TypeError, "float is no array: it is nan, expected"),
        (OnGpu(filled(shape, dtype)), TypeError, "OnGpu is no array"),
        (filled(2 * shape, dtype)[::2], ValueError, "is not contiguous"),
    ]
    if written:
        wrong.append((read_only(shape, dtype), TypeError, "the array is read only"))
    if symmetric:
        wrong.append((filled(shape, dtype), Error, "is not within the symmetric heap"))
    return wrong


def word(dtype: str) -> list[Wrong]:
    """One word of symmetric memory."""
    return [
        (None, TypeError, "NoneType is no array: it is None, expected"),
        (5, TypeError, "int is no array: it is 5, expected"),
        (filled(3, dtype), TypeError, "3 of <.*expected one word"),
        (filled(1, "int16"), TypeError, "1 of <i2: expected one word"),
        (filled(1, dtype), Error, "is not within the symmetric heap"),
    ]


def words(dtype: str) -> list[Wrong]:
    return [
        (None, TypeError, "NoneType is no array: it is None, expected"),
        (filled(4, "int16"), TypeError, "elements of <i2: expected one of"),
        (filled(8, dtype)[::2], ValueError, "is not contiguous"),
        (filled(4, dtype), Error, "is not within the symmetric heap"),
    ]


def object_of(kind: str, *, optional: bool) -> list[Wrong]:
    wrong: list[Wrong] = [
        ("it", TypeError, f"is 'it': expected an expar.{kind}"),
        (5, TypeError, f"is 5: expected an expar.{kind}"),
    ]
    return wrong if optional else [*wrong, (None, TypeError, f"is None: expected an expar.{kind}")]


BYTES: list[Wrong] = [
    (None, TypeError, "is None: expected bytes"),
    ("text", TypeError, "is 'text': expected bytes"),
    (5, TypeError, "is 5: expected bytes"),
    (b"x" * (1 << 20 | 1), Error, "bytes 1048577, expected at most 1048576"),
]
INTERFACE: list[Wrong] = [
    (5, TypeError, "is 5: expected a text"),
    ("a\0b", ValueError, r"is 'a\\x00b': expected a text without"),
    ("nosuch0", Error, "nosuch0: no such interface"),
]


def shapes(least: int) -> list[Wrong]:
    return [
        (None, TypeError, "is None: expected extents"),
        ("four", TypeError, "is 'four': expected extents"),
        (1.5, TypeError, "is 1.5: expected extents"),
        ([2, None], TypeError, "is None: expected extents"),
        ((2, least - 1), ValueError, f"expected extents of {least} or more"),
        ((1 << 40, 1 << 40), ValueError, "expected no more bytes"),
        (1 << 70, ValueError, f"is {1 << 70}: expected"),
    ]


DTYPE: list[Wrong] = [
    (None, TypeError, "element type None: expected one of"),
    (5, TypeError, "element type 5: expected one of"),
    ("complex64", TypeError, "element type 'complex64': expected one of"),
]


def choice(kind: str) -> list[Wrong]:
    return [
        (None, TypeError, f"is None: expected one of expar.{kind}"),
        ("best", TypeError, f"is 'best': expected one of expar.{kind}"),
        (99, Error, "99.* expected"),
    ]


def sequence(entries: str) -> list[Wrong]:
    return [
        (5, TypeError, f"is 5: expected a list of {entries}"),
        ("ab", TypeError, f"is 'ab': expected a list of {entries}"),
        ([1] * 9, ValueError, "has 9 entries: expected"),
        ([None, None], TypeError, "is None: expected"),
    ]


DEVICE: list[Wrong] = [
    (1, TypeError, "is 1: expected"),
    ("gpu", ValueError, "is 'gpu': expected"),
    ((3, 0), ValueError, r"is \(3, 0\): expected type 1 .* or 2"),
]
STREAM: list[Wrong] = [
    ("main", TypeError, "is 'main': expected a stream of"),
    (1.5, TypeError, "is 1.5: expected a stream of"),
    (-1, ValueError, "is -1: expected a stream of"),
    (5, ValueError, "is 0x5: expected None, since the buffer lies on the CPU"),
]
