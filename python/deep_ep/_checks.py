# SPDX-License-Identifier: Apache-2.0
"""What Python sees of a wrong argument, before the library does."""

from __future__ import annotations

import operator
from typing import Any


def whole(value: Any, name: str, wrong: type[Exception] = AssertionError) -> int:
    """`wrong` for what is no whole number."""
    if type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise wrong(f"{name} is {value!r}: expected a whole number") from None


def integer(value: Any, name: str) -> int:
    """The same with TypeError, as calls of the second generation have it for what is of a wrong type."""
    return value if type(value) is int else whole(value, name, TypeError)


def real(value: Any, name: str) -> float:
    """TypeError for what is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}: expected a number")
    return value
