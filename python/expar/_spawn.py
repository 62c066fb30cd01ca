# SPDX-License-Identifier: Apache-2.0
"""Starts a function on the ranks of a new group, as processes or as threads of this process."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from multiprocessing import connection
from typing import Any, Callable, NamedTuple

from . import _values
from ._abi import Status
from ._errors import Error
from ._group import Group, UniqueId

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_CULPRIT_S = 5.0  # how long the rank is awaited that made another one fail
_GRACE_S = 3.0  # how long the others have to end before they are killed
_EXIT_S = 60.0  # how long a rank that has returned may take to exit


class SpawnError(RuntimeError):
    """A rank of `spawn` failed. `rank` is its number, and the text has its traceback. `__cause__` is the exception of
    the rank, unless the rank was killed, or the exception cannot be pickled.
    """

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank
        self._text = text

    def __reduce__(self) -> Any:
        return type(self), (self.rank, self._text)


class _Outcome(NamedTuple):
    """How one rank ended."""

    rank: int
    failed: bool
    value: Any  # what fn has returned
    text: str  # of a failure
    because: bool  # the failure follows from another rank
    error: BaseException | None


def spawn(fn: Callable[..., Any], n: int, *args: Any, threads: bool = False, **options: Any) -> list[Any]:
    """Calls fn(group, *args) on each of n ranks, and returns what they return, by rank.

    fn: in a process it must be importable, and args and results must be picklable. A script calls spawn below
        `if __name__ == "__main__":`, because each process imports it.
    threads: the ranks are threads of this process instead. fn may then be a local function, or one of a notebook.
    options: of the group, as of Group.from_id (`timeout_ms`, `heap_bytes`, …).

    If ranks fail, spawn ends the others, and raises SpawnError with the traceback of the rank that failed first. A rank
    that failed because of another one does not count as the first. Threads cannot be killed: their calls of expar and
    their Python code end, but other C code runs on.
    """
    if not callable(fn):
        raise TypeError(f"fn is {_values.shown(fn)}: expected a function that takes a group")
    size = _values.whole(n, "n", expected="a number of ranks")
    if size < 1:
        raise ValueError(f"n is {size}: expected at least 1 rank")
    if threads:
        return _on_threads(fn, size, args, options)
    return _on_processes(_packed(fn, args), size, options)


# ---- the rank that failed first --------------------------------------------------------------------------------------


def _is_because(error: BaseException) -> bool:
    """True if the exception, or one that led to it, says that another rank is the reason."""
    each: BaseException | None = error
    seen: set[int] = set()
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if isinstance(each, Error) and each.status in (Status.ERR_PEER, Status.ERR_REMOTE):
            return True
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return False


def _collect(size: int, take: Callable[[float | None], _Outcome | None]) -> list[Any]:
    """Returns the values of all ranks. take(seconds) returns the next outcome, or None after that time."""
    values: dict[int, Any] = {}
    first: _Outcome | None = None
    deadline: float | None = None
    for _ in range(size):
        outcome = take(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if outcome is None:
            break
        if not outcome.failed:
            values[outcome.rank] = outcome.value
        elif first is None or not outcome.because:
            first = outcome
            if not outcome.because:
                break
            deadline = time.monotonic() + _CULPRIT_S
    if first is not None:
        raise SpawnError(first.rank, f"rank {first.rank} of {size} {first.text}") from first.error
    return [values[rank] for rank in range(size)]


# ---- threads ---------------------------------------------------------------------------------------------------------


class _Ended(BaseException):
    """Ends the Python code of a thread."""


def _on_threads(fn: Callable[..., Any], size: int, args: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    outcomes: queue.Queue[_Outcome] = queue.Queue()

    def run(rank: int, group: Group) -> None:
        try:
            with group:
                value = fn(group, *args)
            outcomes.put(_Outcome(rank, False, value, "", False, None))
        except BaseException as error:
            told = f"failed: {''.join(traceback.format_exception_only(type(error), error)).strip()}"
            outcomes.put(_Outcome(rank, True, None, told, _is_because(error), error))

    def take(seconds: float | None) -> _Outcome | None:
        with contextlib.suppress(queue.Empty):
            return outcomes.get(timeout=seconds)
        return None

    groups = Group.threads(size, **options)
    started = [
        threading.Thread(target=run, args=(rank, group), name=f"rank {rank}", daemon=True)
        for rank, group in enumerate(groups)
    ]
    try:
        for thread in started:
            thread.start()
        return _collect(size, take)
    except BaseException:
        _end_threads(started, groups)
        raise


def _end_threads(threads: list[threading.Thread], groups: list[Group]) -> None:
    """Ends the calls of the threads, then their Python code."""
    deadline = time.monotonic() + _GRACE_S
    alive = [(thread, group) for thread, group in zip(threads, groups) if thread.is_alive()]
    for _, group in alive:
        with contextlib.suppress(Exception):  # it may have ended meanwhile
            group.abort()
    for thread, _ in alive:
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()) / 2)
    for thread, _ in alive:
        if thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Ended))
            thread.join(max(0.0, deadline - time.monotonic()))


# ---- processes -------------------------------------------------------------------------------------------------------


def _packed(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickles what a process needs. It says what to do if that cannot be."""
    main = sys.modules.get("__main__")
    if getattr(fn, "__module__", None) == "__main__" and not getattr(main, "__file__", None):
        raise ValueError(
            f"fn {_values.shown(fn)} was defined in an interactive session, which other processes cannot import: "
            "put it into a module, or use threads=True"
        )
    try:
        return pickle.dumps((fn, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        advice = "use functions of a module and plain data, or threads=True"
        raise TypeError(f"fn and args cannot be sent to other processes: {error}; {advice}") from error


def _outcome_of(error: BaseException) -> tuple[bool, Any, str, bool, bytes | None]:
    """The message of a rank that has failed."""
    because = _is_because(error)
    text = "failed:\n\n" + "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        packed = None
    return True, None, text, because, packed


def _rank_process(
    pipe: Any, parent: int, unique_id: bytes, rank: int, size: int, packed: bytes, options: dict[str, Any]
) -> None:
    """Runs in the process of a rank, which ends with its parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.environ.pop("EXPAR_JOB_FLAGS", None)  # the parent's launcher knows nothing of this rank
    try:
        fn, args = pickle.loads(packed)
        with Group.from_id(unique_id, rank, size, **options) as group:
            value = fn(group, *args)
        message = pickle.dumps((False, value, "", False, None))
    except BaseException as error:
        message = pickle.dumps(_outcome_of(error))
    pipe.send_bytes(message)
    pipe.close()


class _Rank:
    """A process, seen from its parent."""

    def __init__(self, context: Any, number: int, *arguments: Any) -> None:
        self.number = number
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_rank_process, args=(theirs, *arguments), name=f"rank {number}")
        try:
            self.process.start()
        finally:
            theirs.close()

    def outcome(self) -> _Outcome:
        """Reads how it ended; its pipe has a message, or the process has exited."""
        try:
            if self.pipe.poll():
                failed, value, text, because, packed = pickle.loads(self.pipe.recv_bytes())
                error = pickle.loads(packed) if packed else None
                return _Outcome(self.number, failed, value, text, because, error)
        except EOFError:
            pass
        except Exception as error:
            return _Outcome(self.number, True, None, f"returned what cannot be unpickled: {error}", False, error)
        self.process.join()
        code = self.process.exitcode or 0
        how = f"exited with code {code}"
        if code < 0:
            how = f"was killed by signal {-code} ({signal.strsignal(-code)})"
        return _Outcome(self.number, True, None, f"(pid {self.process.pid}) {how}", False, None)


def _on_processes(packed: bytes, size: int, options: dict[str, Any]) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    meeting = UniqueId()
    ranks: list[_Rank] = []
    waiting: dict[Any, _Rank] = {}

    def take(seconds: float | None) -> _Outcome | None:
        ready = connection.wait(list(waiting), seconds)
        if not ready:
            return None
        rank = waiting[ready[0]]
        del waiting[rank.pipe], waiting[rank.process.sentinel]
        return rank.outcome()

    whole = False
    try:
        for number in range(size):
            made = _Rank(context, number, os.getpid(), bytes(meeting), number, size, packed, options)
            ranks.append(made)
            waiting[made.pipe] = waiting[made.process.sentinel] = made
        values = _collect(size, take)
        whole = True
        return values
    finally:
        _end_processes(ranks, _EXIT_S if whole else 0.0)
        meeting.retire()


def _end_processes(ranks: list[_Rank], seconds: float) -> None:
    """Waits that long for the processes to exit. Then it asks them to, and kills those that do not."""
    for wait, end in ((seconds, "terminate"), (_GRACE_S, "kill"), (_GRACE_S, "")):
        deadline = time.monotonic() + wait
        for rank in ranks:
            rank.process.join(max(0.0, deadline - time.monotonic()))
        for rank in ranks:
            if end and rank.process.is_alive():
                getattr(rank.process, end)()
    for rank in ranks:
        rank.pipe.close()
        rank.process.close()
