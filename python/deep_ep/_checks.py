# SPDX-License-Identifier: Apache-2.0
"""What Python sees of a wrong argument, before the library does."""

from __future__ import annotations

import operator
from typing import Any


def whole(value: Any, name: str) -> int:
    """AssertionError for what is no whole number."""
    if type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise AssertionError(f"{name} is {value!r}: expected a whole number") from None
