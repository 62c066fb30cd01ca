# SPDX-License-Identifier: Apache-2.0
"""Signals end waits: the waiting call raises what a Python handler raises, such as KeyboardInterrupt.

Python runs signal handlers in its main thread only, between two instructions, so not while a call of the library waits.
So the library calls back into this module every 50 ms if the main thread waits. It does not do so in other threads.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Generator

_ASKED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
# The errors that handlers raised while a call waited, until that call's end raises them again.
_raised: list[BaseException] = []
# The callback that the library has. It must live as long as the library may call it.
_asked: Any = None


def _answers() -> Generator[int, None, None]:
    """Answers each question of the library: 0, and 1 after a handler raised an error.

    It is a generator because handlers run when a frame is entered. A generator that resumes inside of `try` catches
    their errors. A function would not have reached its `try` yet, and ctypes can only print an error that leaves a
    callback.
    """
    try:
        while True:
            yield 0
    except GeneratorExit:
        return
    except BaseException as error:
        _raised.append(error)
    while True:
        yield 1


def watch(lib: ctypes.CDLL) -> None:
    """Lets the library ask this thread, if handlers run in it. A second call has no effect."""
    global _asked
    if _asked is None and threading.current_thread() is threading.main_thread():
        answers = _answers()
        next(answers)
        _asked = _ASKED(answers.send)
        lib.expar_interrupt_set_thread(_asked, None)


def has_raised() -> bool:
    """Returns whether a handler has raised an error that the call has still to raise."""
    return bool(_raised) and threading.current_thread() is threading.main_thread()


def take(lib: ctypes.CDLL) -> BaseException:
    """Returns the handler's error, and lets the library ask again."""
    global _asked
    error = _raised.pop()
    _asked = None
    watch(lib)
    return error
