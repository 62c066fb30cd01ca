# SPDX-License-Identifier: Apache-2.0
"""Events: points in streams, and the ends of asynchronous calls.

A CPU has no streams: the thread waits in place of the current stream. On a GPU only streams wait. An error of a call is
reported where it is known.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Callable

import torch
from expar import Event
from expar._copies import Shared

_finishing = threading.Lock()
_NO_EVENT = object()


class EventHandle(Shared):
    """An event. `EventHandle()` is an event after all work that the current stream holds now. Asynchronous calls return
    their own."""

    __slots__ = ("work", "point", "kept", "failed", "_finish", "__weakref__")
    _no_pickle = "wait for it in this process"

    def __init__(self) -> None:
        self.work: Event | None = None  # a call's event; without one nothing is pending on the CPU
        self.point: Any = _mark()  # PyTorch's event on a stream
        self.kept: list[Any] | None = None  # what the call uses, where the event has to keep it
        self.failed = False  # a wait has raised the call's error
        self._finish: Callable[[], object] | None = None  # makes the results that are left when the call is done

    def current_stream_wait(self) -> None:
        """Makes the current stream wait for the event. RuntimeError with the call's error; on a GPU only if it is known
        by now."""
        if self.point is not None:
            self.point.wait()
            if self.work is not None and self.work.done:
                self._await(self.work)
        elif (work := self.work) is not None:
            self._await(work)
            self.work = None  # later waits have nothing to ask
        if self._finish is not None:
            with _finishing:
                if self._finish is not None:
                    self._finish()
                self._finish = None  # after the call: a thread that finds None returns at once

    def _await(self, work: Event) -> None:
        try:
            work.wait()
        except RuntimeError:
            self.failed = True
            raise

    def finish_by(self, finish: Callable[[], object]) -> None:
        """Sets work that is left when the call is done. The first thread that waits does it."""
        self._finish = finish

    @property
    def finished(self) -> bool:
        """Returns whether no work is left except the library's."""
        return self._finish is None


def _mark() -> Any:
    """Returns an event after all work of the current stream. None if there is no stream with work."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        return None
    point = cuda.Event()
    point.record()
    return point


def event_of(work: Event | None) -> EventHandle:
    """Returns the event of a call, or one that has happened."""
    made = EventHandle.__new__(EventHandle)
    made.work, made.point, made.kept, made.failed, made._finish = work, None, None, False, None
    return made


class EventOverlap(Shared):
    """An event, and the tensors that must stay until then. As a context manager it waits at the end of the block.
    hook_after_wait: a function that the next wait calls at its end, once."""

    __slots__ = ("event", "extra_tensors", "hook_after_wait", "_release_at_exit", "__weakref__")
    _no_pickle = "wait for it in this process"

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Callable[[], Any] | None = None
        self._release_at_exit = False

    def current_stream_wait(self, release_handle: bool = False) -> Any:
        """Makes the current stream wait for the event, and returns what the hook returns; None without one.
        AssertionError without an event. After an error the hook stays. release_handle: sets `event` to None
        afterwards."""
        if self.event is None:
            raise AssertionError("there is no event: only asynchronous calls have one")
        self.event.current_stream_wait()
        hook = self.hook_after_wait
        found = None if hook is None else hook()
        self.hook_after_wait = None
        if release_handle:
            self.event = None
        return found

    def wait(self) -> Any:
        """Does the same as `current_stream_wait()`."""
        return self.current_stream_wait()

    def register_hook_after_wait(self, fn: Callable[[], Any]) -> None:
        """Sets the hook of the next wait. AssertionError if there is one already."""
        if self.hook_after_wait is not None:
            raise AssertionError("there is a hook already: expected one until the next wait")
        self.hook_after_wait = fn

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """Returns itself, for `with event(release_handle=True):`. After that block `event` is None."""
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
    """Returns the event that a call must wait for: the `event` of an EventOverlap or of a similar object. None stands
    for nothing."""
    if previous is None:
        return None
    event = getattr(previous, "event", _NO_EVENT)
    if event is _NO_EVENT:
        raise AssertionError(f"previous_event is of type {type(previous).__name__}: expected an EventOverlap")
    if event is not None and not isinstance(event, EventHandle):
        raise AssertionError(f"previous_event.event is of type {type(event).__name__}: expected an EventHandle")
    return event
