# SPDX-License-Identifier: Apache-2.0
"""Events: the end of asynchronous work, and its error."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import threading
from typing import TYPE_CHECKING, Any

from . import _values
from ._copies import Shared
from ._errors import Error
from ._library import lib

if TYPE_CHECKING:
    from ._types import Stream


class Event(Shared):
    """An event, which happens once. Calls with async_finish return one. `Event()` makes one for a call to wait for,
    which `signal` sets. Any thread may use it."""

    __slots__ = ("__weakref__", "_pointer", "_process")
    _release = lib.expar_event_release
    _no_pickle = "wait for it in this process"

    def __init__(self, pointer: int | None = None) -> None:
        if pointer is None:
            made = ctypes.c_void_p()
            lib.expar_event_create(ctypes.byref(made))
            assert made.value is not None
            pointer = made.value
        self._pointer: int = pointer
        self._process = _values._process

    def __del__(self) -> None:
        self._release(self._pointer)

    @property
    def pointer(self) -> int:
        """The library's object. Error ERR_STATE in a forked child, where nothing would make it happen."""
        _values.check_process(self._process, "event")
        return self._pointer

    def signal(self) -> None:
        """Makes the event happen now. Error: ERR_STATE if it has happened already, or belongs to a call."""
        lib.expar_event_signal(self.pointer)

    def wait(self) -> None:
        """Waits until the event has happened. It raises the error of the event's call."""
        lib.expar_event_wait(self.pointer)
        _forget_ended()

    def stream_wait(self, stream: Stream | None = None) -> None:
        """Makes later work on that stream wait for the event; this thread does not wait. stream: None for the current
        one, PyTorch's or CuPy's object, or an address. An error of the event's call is not raised. Error: ERR_STATE in
        a capture that the event is not part of."""
        from ._device import stream_of

        lib.expar_event_stream_wait(self.pointer, stream_of(stream, -1) or 1)

    @classmethod
    def record(cls, stream: Stream | None = None) -> Event:
        """Returns an event for `wait_event` that happens after all work that the stream holds now. stream: as of
        stream_wait."""
        from ._device import stream_of

        made = ctypes.c_void_p()
        lib.expar_event_record(stream_of(stream, -1) or 1, ctypes.byref(made))
        assert made.value is not None
        return cls(made.value)

    @property
    def done(self) -> bool:
        """Says whether the event has happened. It does not wait."""
        happened = ctypes.c_int()
        lib.expar_event_query(self.pointer, ctypes.byref(happened))
        return happened.value != 0


# Events of pending calls, with the objects that these calls read and write. They stay alive until the call is done,
# even if the program drops them.
_under_way: collections.deque[tuple[Event, list[Any]]] = collections.deque()
_lock = threading.Lock()
# A new call asks this many pending events whether they have happened. The queue gets shorter, since there are more than
# one. A program may be hundreds of calls ahead of its GPU, so a call does not ask all.
_ASKED_BY_A_CALL = 4


def keep_until(event: Event, kept: list[Any]) -> None:
    """Keeps these objects while the event's call is pending."""
    _forget_ended(_ASKED_BY_A_CALL)
    with _lock:
        _under_way.append((event, kept))


def end_calls_with(things: list[Any]) -> None:
    """Waits for the pending calls that keep one of these objects, ignores their errors, and drops what they keep."""
    with _lock:
        found = [one for one in _under_way if any(thing is kept for kept in one[1] for thing in things)]
    for event, _ in found:
        with contextlib.suppress(Error):
            event.wait()
    _forget_ended()


def _forget_ended(most: int | None = None) -> None:
    """Drops what the calls kept that are done. most: how many events it asks, those first that waited longest."""
    ended: list[Any] = []  # freed after the lock is released, because that may run any finaliser
    with _lock:
        for _ in range(len(_under_way) if most is None else min(most, len(_under_way))):
            if _under_way[0][0].done:
                ended.append(_under_way.popleft())
            else:
                _under_way.rotate(-1)
