# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that Python makes before the library does."""

from __future__ import annotations

import operator
from typing import Any


def whole(value: Any, name: str, wrong: type[Exception] = AssertionError) -> int:
    """Returns the value as an int. Raises `wrong` if it is no whole number."""
    if type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise wrong(f"{name} is {value!r}: expected a whole number") from None


def integer(value: Any, name: str) -> int:
    """Like `whole`, but raises TypeError, as calls of the second generation do for a wrong type."""
    return value if type(value) is int else whole(value, name, TypeError)


def real(value: Any, name: str) -> float:
    """Returns the value. TypeError if it is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}: expected a number")
    return value
