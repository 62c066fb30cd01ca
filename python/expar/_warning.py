# SPDX-License-Identifier: Apache-2.0
"""Warnings at the line of the program that made the call."""

from __future__ import annotations

import os
import sys
import warnings

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def warn(text: str) -> None:
    """Issues a UserWarning at the innermost frame outside of this package."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(_HERE):
        frame = frame.f_back
        level += 1
    warnings.warn(text, UserWarning, stacklevel=level)
