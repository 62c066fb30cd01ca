# SPDX-License-Identifier: Apache-2.0
"""Statuses of the library as exceptions."""

from __future__ import annotations

from ._abi import Status


class Error(RuntimeError):
    """A call of the library failed. `status` says how, the text where: the call, the rank, the argument, its value and
    what was expected.
    """

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(f"{text} (EXPAR_{status.name})")
        self.status = status


class DroppedError(Error):
    """More rows came than `num_worst_tokens` has room for (Status.ERR_DROPPED). `result` is the call's result, whose
    rows are good; `result.num_dropped_tokens` says how many are missing.
    """

    result: object = None
