# SPDX-License-Identifier: Apache-2.0
"""The library's log as records of Python's logging."""

from __future__ import annotations

import atexit
import ctypes
import logging
from typing import Any

from ._abi import LogLevel
from . import _values
from ._library import lib

_SINK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int32, ctypes.c_char_p, ctypes.c_char_p)
_LEVELS = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARN: logging.WARNING,
    LogLevel.INFO: logging.INFO,
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.TRACE: logging.DEBUG - 5,
}
_sink: Any = None


def log_to(logger: logging.Logger | None) -> None:
    """Sends all lines of the library's log to the logger from now on. None sends them to EXPAR_LOG_FILE or stderr, the
    default.

    The variable EXPAR_LOG sets the highest level (`warn`). Records have the attributes `rank` (-1 if unknown) and
    `place` ("src/boot/meet/mesh.c:81"). Handlers run in the thread that logs, which may be one of the library. They
    must not wait for another rank.
    """
    global _sink
    if logger is not None and not callable(getattr(logger, "log", None)):
        raise TypeError(f"logger is {_values.shown(logger)}: expected a logging.Logger, or None")

    def emit(_: Any, level: int, rank: int, place: bytes, text: bytes) -> None:
        assert logger is not None
        message = (f"rank {rank}: " if rank >= 0 else "") + text.decode(errors="replace")
        extra = {"rank": rank, "place": place.decode(errors="replace")}
        logger.log(_LEVELS[LogLevel(level)], "%s", message, extra=extra)

    sink = _SINK(emit) if logger is not None else None
    lib.expar_log_set(sink, None)
    _sink = sink


atexit.register(log_to, None)
