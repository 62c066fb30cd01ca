# SPDX-License-Identifier: Apache-2.0
"""What users of the package import beside `Buffer`."""

from __future__ import annotations

from typing import Any

from .event import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap", "check_nvlink_connections"]


def check_nvlink_connections(group: Any) -> None:
    """Whether the GPUs of a node reach each other. There is nothing to check where there are none: what ranks reach is
    found out when a buffer is made, which says what is missing."""
