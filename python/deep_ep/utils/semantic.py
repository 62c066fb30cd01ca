# SPDX-License-Identifier: Apache-2.0
"""Small functions of Python programs."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable


def value_or(v: Any, default: Any) -> Any:
    """Returns v, or the default for None."""
    return default if v is None else v


def weak_lru(maxsize: int | None = 128, typed: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator for methods that caches their results, as functools.lru_cache does. The cache does not keep
    the method's object alive."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.lru_cache(maxsize, typed)
        def cached(of: Any, *arguments: Any, **options: Any) -> Any:
            return method(of(), *arguments, **options)

        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            return cached(weakref.ref(self), *arguments, **options)

        return call

    return decorate
