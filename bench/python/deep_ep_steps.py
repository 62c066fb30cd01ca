# SPDX-License-Identifier: Apache-2.0
"""Where the time of a call of `deep_ep` goes: the table of deep_ep_overhead.py with --steps.

Functions that the module calls by their names are replaced by ones that look at the clock. A step's time is that of its
functions without other steps inside of them. The cost of looking is taken off; it is measured beforehand by a function
that does nothing. The library's call is a step, too, so it is measured where it is made. The way there, by ctypes, is
measured by a call of the library's that does nothing, taken off, and shown by itself. The step "form" is the function
of a form (deep_ep/_forms.py), with views, the library's call and tensors inside. The rest of a whole call, measured
without all that, is the interpreter's. Numbers are medians of single calls, in microseconds, so that a rare one (the
allocator's, a collector's) is not seen.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from typing import Any, Callable

try:
    import deep_ep
    from deep_ep import _call, _elastic, _forms, _handles, _normal, _normal_forms, _place
    from deep_ep.utils.event import EventHandle
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

CALLS = 20  # one after the other
_now = time.perf_counter_ns
_NAMES = "_normal", "_elastic", "_hybrid", "_late_sums"  # an older package lacks some
_WITH_CALLS = [getattr(deep_ep, name) for name in _NAMES if hasattr(deep_ep, name)]

# Modules, and the names by which they call what belongs to a step.
_STEPS: dict[str, tuple[tuple[Any, str], ...]] = {
    "library": tuple(
        (module, name)
        for module in _WITH_CALLS
        for name in ("_dispatch", "_combine", "_route", "_find_terms", "_sum_terms")
    ),
    "wait": ((EventHandle, "_await"),),
    "query": ((_normal_forms, "_query"), (_elastic, "_query")),
    "reader": ((_place, "_read_on"),),
    "event": ((_place, "_forget"),),
    "stream": ((_place, "_raw_stream"), (_place, "_current_gpu")),
    "memory": (
        (_place, "strided_on_gpu"),
        (_place, "strided_on_cpu"),
        (_call, "strided_on_cpu"),
        (_call, "_alloc"),
    ),
    "capsule": ((_call, "_output_capsules"), (_call, "_handle_capsules")),
    "tensor": ((_call, "_from_capsule"),),
    "owner": ((_call, "give_owner"), (_handles, "give_owner")),
    "views": (
        *((module, name) for module in _WITH_CALLS for name in ("fill", "put")),
        *((module, "put_view") for module in _WITH_CALLS),
    ),
    "looks": ((_place, "of"),),
    "handle": (
        (_elastic, "EPHandle"),
        (_handles, "wrap_low_latency"),
        (_handles, "read_prefix"),
    ),
}


class _Clock:
    """Measures the steps of one call at a time."""

    def __init__(self) -> None:
        self._looking_ns = self._around_ns = 0.0  # the clock's own time inside of a measured step, and around it
        self._inside_ns = 0.0  # the time of steps inside of the present one, with the clock's own
        self._taken: dict[str, float] = {}
        self._calls = 0
        self._calibrate()

    def watched(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            before, self._inside_ns = self._inside_ns, 0.0
            begin = _now()
            try:
                return function(*arguments, **named)
            finally:
                elapsed = _now() - begin
                self._taken[step] = self._taken.get(step, 0.0) + elapsed - self._inside_ns - self._looking_ns
                self._inside_ns = before + elapsed + self._around_ns
                self._calls += step == "library"

        return timed

    def _calibrate(self) -> None:
        nothing = {}.clear
        timed, plain, looking = self.watched("nothing", nothing), [], []
        for _ in range(4000):
            looking.append(self.split(timed)[1]["nothing"])
            plain.append(_elapsed_ns(nothing))
        whole = statistics.median(_elapsed_ns(timed) for _ in range(4000))
        self._looking_ns = statistics.median(looking)
        self._around_ns = whole - statistics.median(plain) - self._looking_ns

    def split(self, call: Callable[[], Any]) -> tuple[Any, dict[str, float], int]:
        """Makes a call. Returns (its result, nanoseconds of each step, the number of library calls)."""
        self._taken, self._inside_ns, self._calls = {}, 0.0, 0
        return call(), self._taken, self._calls


def _elapsed_ns(call: Callable[[], Any]) -> float:
    begin = _now()
    call()
    return _now() - begin


def _functions(clock: _Clock) -> Any:
    """Returns a property of forms: the function object with the clock around it."""
    of_form = _forms.Form.call
    return property(lambda form: clock.watched("form", of_form.__get__(form)), of_form.__set__)


def _way_to_library_ns() -> float:
    """Returns the nanoseconds that a call through ctypes takes."""
    nothing = _call.plain("expar_ep_handle_release", *[ctypes.c_void_p] * 3)  # it gets no handle
    return statistics.median(_elapsed_ns(lambda: nothing(None, None, None)) for _ in range(4000))


def _replaced(clock: _Clock) -> list[tuple[Any, str, Any]]:
    """Replaces the functions; returns the original ones."""
    found = []
    for step, names in _STEPS.items():
        for module, name in names:
            function = getattr(module, name, None)
            if function is not None:
                found.append((module, name, function))
                setattr(module, name, clock.watched(step, function))
    found.append((_forms.Form, "call", _forms.Form.call))
    setattr(_forms.Form, "call", _functions(clock))
    return found


class _Times:
    """The times of one kind of call."""

    def __init__(self) -> None:
        self.whole_ns: list[float] = []
        self.row_ns: list[float] = []
        self.let_go_ns: list[float] = []
        self.steps_ns: dict[str, list[float]] = {step: [] for step in (*_STEPS, "form", "ctypes")}

    def numbers(self) -> list[float]:
        whole, row, let_go = (statistics.median(each) for each in (self.whole_ns, self.row_ns, self.let_go_ns))
        steps = [statistics.median(each) for each in self.steps_ns.values()]
        return [min(self.whole_ns), whole, row, let_go, *steps, whole - sum(steps)]


def _measure(times: _Times, call: Callable[[], Any], settle: Callable[[], None]) -> None:
    """Measures calls alone, each with nothing else pending, and in a row without waits in between."""
    for _ in range(CALLS):
        settle()
        begin = _now()
        result = call()
        made = _now()
        del result
        ended = _now()
        times.whole_ns.append(made - begin)
        times.let_go_ns.append(ended - made)
    settle()
    begin = _now()
    for _ in range(CALLS):
        call()
    times.row_ns.append((_now() - begin) / CALLS)
    settle()


def _measure_steps(
    times: _Times, call: Callable[[], Any], settle: Callable[[], None], clock: _Clock, way_ns: float
) -> None:
    before = _replaced(clock)
    try:
        for _ in range(CALLS):
            settle()
            result, taken, calls = clock.split(call)
            taken["ctypes"] = way_ns * calls
            taken["library"] = taken.get("library", 0.0) - way_ns * calls
            for step, found in times.steps_ns.items():
                found.append(taken.get(step, 0.0))
            del result
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def heading() -> str:
    return f"{'T 1, one rank, us':37}" + "".join(
        f"{name:>8}" for name in ("least", "median", "in row", "let go", *_Times().steps_ns, "rest")
    )


def table(calls: dict[str, Callable[[], Any]], settle: Callable[[], None], rounds: int) -> list[str]:
    """Returns a line for each call; the calls take turns. It has the whole time, the least and the median, and the time
    in a row with others, with results released at once. Then come the time of that release, and the steps. settle:
    waits until nothing is pending.
    """
    clock, way_ns = _Clock(), _way_to_library_ns()
    all_times = {name: _Times() for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            _measure(all_times[name], call, settle)
            _measure_steps(all_times[name], call, settle, clock, way_ns)
    return [
        f"{name:37}" + "".join(f"{number / 1000:8.1f}" for number in times.numbers())
        for name, times in all_times.items()
    ]
