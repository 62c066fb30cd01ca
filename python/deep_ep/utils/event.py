# SPDX-License-Identifier: Apache-2.0
"""Events: where a stream stands, and when a call with async_finish is done.

On a CPU there are no streams: what the current stream waits for, the thread waits for.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from expar import Event


class EventHandle:
    """`EventHandle()`: all that the current stream holds now. Calls with async_finish have their own."""

    __slots__ = ("work", "__weakref__")

    def __init__(self) -> None:
        self.work: Event | None = None  # of a call; without one nothing is under way

    def current_stream_wait(self) -> None:
        """The current stream goes on when it has happened; RuntimeError with what the call ended with."""
        if self.work is not None:
            self.work.wait()


def event_of(work: Event | None) -> EventHandle:
    """That of a call, or of nothing."""
    made = EventHandle()
    made.work = work
    return made


class EventOverlap:
    """An event, and the tensors that must stay until then. As a context manager it waits at the end of the block."""

    __slots__ = ("event", "extra_tensors", "__weakref__")

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        """AssertionError without an event."""
        if self.event is None:
            raise AssertionError("there is no event: only calls with async_finish have one")
        self.event.current_stream_wait()

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.event is not None:
            self.event.current_stream_wait()


def work_of(previous: EventOverlap | None) -> Event | None:
    """What a call has to wait for."""
    if previous is None:
        return None
    if not isinstance(previous, EventOverlap):
        raise AssertionError(f"previous_event is of type {type(previous).__name__}: expected an EventOverlap")
    return previous.event.work if previous.event is not None else None
