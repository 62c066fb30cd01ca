# SPDX-License-Identifier: Apache-2.0
"""Statuses of the library as exceptions."""

from __future__ import annotations

from ._abi import Status


class Error(RuntimeError):
    """A failed call of the library. `status` is its kind. The text names the call, the rank, the argument, its value
    and the expectation.
    """

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(f"{text} (EXPAR_{status.name})")
        self.status = status


class DroppedError(Error):
    """More rows came than `num_worst_tokens` allows (Status.ERR_DROPPED). `result` is the call's result, whose rows are
    valid; `result.num_dropped_tokens` is the number of missing ones.
    """

    result: object = None
