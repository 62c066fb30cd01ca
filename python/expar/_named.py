# SPDX-License-Identifier: Apache-2.0
"""Enumerations that print by name in every version of Python."""

from __future__ import annotations

from enum import IntEnum


# The last letters of formats for numbers.
_NUMBERS = frozenset("bcdoxXn")


class Named(IntEnum):
    """Members are ints, and print as `Dtype.BF16`."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        """Returns the name; with a format for numbers, such as "d", the number."""
        return int.__format__(self, spec) if spec[-1:] in _NUMBERS else str.__format__(str(self), spec)
