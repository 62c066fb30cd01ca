# SPDX-License-Identifier: Apache-2.0
"""Numbers of buffers, for PyTorch's operators, which take no other objects of Python."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

_things: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_next = itertools.count(1)


def add(thing: Any) -> int:
    """Returns a new number, by which `find` returns the object while it is alive."""
    number = next(_next)
    _things[number] = thing
    return number


def find(number: int) -> Any:
    """Returns the object, or None if it was freed."""
    return _things.get(number)
