# SPDX-License-Identifier: Apache-2.0
"""Statuses of the library as exceptions."""

from __future__ import annotations

from typing import Any

from ._abi import Status


class Error(RuntimeError):
    """A failed call of the library. `status` is its kind. The text names the call, the rank, the argument, its value
    and the expectation.
    """

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(f"{text} (EXPAR_{status.name})")
        self.status = status
        self._text = text

    def __reduce__(self) -> Any:
        """Copies and pickles keep class, text, status and attributes. The base would pass the text alone."""
        attributes = {name: value for name, value in vars(self).items() if name not in ("status", "_text")}
        return type(self), (self.status, self._text), attributes


class DroppedError(Error):
    """More rows came than `num_worst_tokens` allows (Status.ERR_DROPPED). `result` is the call's result, whose rows are
    valid; `result.num_dropped_tokens` is the number of missing ones.
    """

    result: object = None

    def __copy__(self) -> DroppedError:
        made = type(self)(self.status, self._text)
        vars(made).update(vars(self))
        return made

    def __deepcopy__(self, memo: Any) -> DroppedError:
        """The copy shares the result."""
        return self.__copy__()

    def __reduce__(self) -> Any:
        """A pickle leaves out the result, because its rows are memory of this process."""
        kind, arguments, attributes = super().__reduce__()
        attributes.pop("result", None)
        return kind, arguments, attributes
