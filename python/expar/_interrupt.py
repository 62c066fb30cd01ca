# SPDX-License-Identifier: Apache-2.0
"""Signals end waits: what a Python handler raises, such as KeyboardInterrupt, comes out of the call that waits.

Python runs handlers of signals in its main thread only, and there between two instructions: not while a call of the
library waits. So the library asks this thread every 50 ms, here, and asks nobody in any other thread.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Generator

_ASKED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
# What a handler has raised while a call waited, until that call's end raises it again.
_raised: list[BaseException] = []
# What the library has, which must live as long as it has it.
_asked: Any = None


def _answers() -> Generator[int, None, None]:
    """One answer a question: 0, and from the moment on that a handler raised something 1.

    A generator, since handlers run when a frame is entered. One that goes on inside of `try` catches what they raise
    then; a function would not have come to its `try` yet, and ctypes can only print what leaves a callback.
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
    """Lets the library ask this thread, if it is the one that handlers run in. Again: no effect."""
    global _asked
    if _asked is None and threading.current_thread() is threading.main_thread():
        answers = _answers()
        next(answers)
        _asked = _ASKED(answers.send)
        lib.expar_interrupt_set_thread(_asked, None)


def has_raised() -> bool:
    """Whether a handler has raised something that its call has still to raise."""
    return bool(_raised) and threading.current_thread() is threading.main_thread()


def take(lib: ctypes.CDLL) -> BaseException:
    """What the handler raised; from now on the library asks anew."""
    global _asked
    error = _raised.pop()
    _asked = None
    watch(lib)
    return error
