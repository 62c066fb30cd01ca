# SPDX-License-Identifier: Apache-2.0
"""Calls of `EPBuffer` with defer_epilogue: they are launched, and their first wait makes the results.

Rows of a deferred dispatch come to memory of the pool that has space for the largest possible number of rows, so the
host need not know how many come. The first wait cuts the results to the rows that came; it copies none. So any number
of calls may be pending, and they may be waited for in any order.

A combine without biases is carried out at once, and the first wait returns its sums. `_late_sums` has those with
biases.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence, TYPE_CHECKING

from ._call import Output
from ._elastic_handle import EPHandle
from ._place import Place

if TYPE_CHECKING:
    from ._elastic import ElasticMode, Form


class Launched(NamedTuple):
    """A dispatch after the library's call.

    - own: its results in memory that this package has allocated, or None.
    - memory: the counts of a fresh one.
    - found: its results, with space for the largest possible number of rows. Empty if they are no tensors yet."""

    handle: EPHandle
    output: Output
    own: dict[str, Any] | None
    memory: Any
    found: Sequence[Any] = ()


class PendingDispatch:
    """The results of a deferred dispatch. A call makes them, once."""

    __slots__ = ("_mode", "_launched", "_form", "_paired")

    def __init__(self, mode: ElasticMode, launched: Launched, form: Form, paired: bool) -> None:
        """paired: x was a tuple of rows and scales."""
        self._mode, self._launched, self._form, self._paired = mode, launched, form, paired

    def __call__(self) -> tuple[Any, Any, Any, EPHandle]:
        rows, scales, idx, weights = self._mode.results(self._launched, self._form)
        return (rows, scales) if self._paired else rows, idx, weights, self._launched.handle


class PendingCombine:
    """The sums of a deferred combine without biases."""

    __slots__ = ("_place", "_y", "_weights")

    def __init__(self, place: Place, y: Any, weights: Any) -> None:
        self._place, self._y, self._weights = place, y, weights

    def __call__(self) -> tuple[Any, Any]:
        self._place.claim([each for each in (self._y, self._weights) if each is not None])
        return self._y, self._weights
