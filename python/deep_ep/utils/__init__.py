# SPDX-License-Identifier: Apache-2.0
"""Names that users of the package import in addition to `Buffer`."""

from __future__ import annotations

from typing import Any

from .event import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap", "check_nvlink_connections"]


def check_nvlink_connections(group: Any) -> None:
    """Checks nothing. Creating a buffer finds out which ranks reach each other, and reports what is missing."""
