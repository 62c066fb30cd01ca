# SPDX-License-Identifier: Apache-2.0
"""Events: where a stream stands, and when an asynchronous call is done.

On a CPU there are no streams: what the current stream waits for, the thread waits for. On a GPU nobody waits but
streams; what a call ended with is told where it is known.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Callable

import torch
from expar import Event

_finishing = threading.Lock()
_NO_EVENT = object()


class EventHandle:
    """`EventHandle()`: all that the current stream holds now. Asynchronous calls have their own."""

    __slots__ = ("work", "point", "kept", "_finish", "__weakref__")

    def __init__(self) -> None:
        self.work: Event | None = None  # of a call; without one nothing is under way on the CPU
        self.point: Any = _mark()  # PyTorch's event, of a stream
        self.kept: list[Any] | None = None  # what the call uses, where the event has to keep it
        self._finish: Callable[[], object] | None = None  # what of the results is made when the call is done

    def current_stream_wait(self) -> None:
        """The current stream goes on when it has happened; RuntimeError with what the call ended with, on a GPU where
        that is known by now."""
        if self.point is not None:
            self.point.wait()
            if self.work is not None and self.work.done:
                self.work.wait()
        elif self.work is not None:
            self.work.wait()
        if self._finish is not None:
            with _finishing:
                if self._finish is not None:
                    self._finish()
                self._finish = None  # behind it: who finds none comes back at once

    def finish_by(self, finish: Callable[[], object]) -> None:
        """What is left to be done once the call is through: by the first who waits."""
        self._finish = finish

    @property
    def finished(self) -> bool:
        """Whether nothing is left to be done but by the library."""
        return self._finish is None


def _mark() -> Any:
    """All that the current stream holds now; None where there is no stream that holds anything."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        return None
    point = cuda.Event()
    point.record()
    return point


def event_of(work: Event | None) -> EventHandle:
    """That of a call, or of nothing."""
    made = EventHandle.__new__(EventHandle)
    made.work, made.point, made.kept, made._finish = work, None, None, None
    return made


class EventOverlap:
    """An event, and the tensors that must stay until then. As a context manager it waits at the end of the block.
    hook_after_wait: what the next wait runs behind it, once."""

    __slots__ = ("event", "extra_tensors", "hook_after_wait", "_release_at_exit", "__weakref__")

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Callable[[], Any] | None = None
        self._release_at_exit = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """AssertionError without an event. release_handle: `event` is None behind it."""
        if self.event is None:
            raise AssertionError("there is no event: only asynchronous calls have one")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, fn: Callable[[], Any]) -> None:
        """AssertionError where there is one already."""
        if self.hook_after_wait is not None:
            raise AssertionError("there is a hook already: expected one until the next wait")
        self.hook_after_wait = fn

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """Itself, for `with event(release_handle=True):`, behind whose block `event` is None then."""
        self._release_at_exit = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        release, self._release_at_exit = self._release_at_exit, False
        if self.event is not None:
            self.current_stream_wait(release)


def before(previous: Any) -> EventHandle | None:
    """What a call has to wait for: the `event` of an EventOverlap, or of what has one as it does; None: nothing."""
    if previous is None:
        return None
    event = getattr(previous, "event", _NO_EVENT)
    if event is _NO_EVENT:
        raise AssertionError(f"previous_event is of type {type(previous).__name__}: expected an EventOverlap")
    if event is not None and not isinstance(event, EventHandle):
        raise AssertionError(f"previous_event.event is of type {type(event).__name__}: expected an EventHandle")
    return event
