# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends each call that waits, while it waits: with KeyboardInterrupt, and leaves what can be closed or abandoned.

As a program: `test_python_interrupts.py waits` makes one waiting call after another; its parent interrupts each. With
EXPAR_TEST_TIMES set the test prints how long each took to end.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import unittest
from typing import Any, Callable

import numpy

import expar

import ranks

X, IDX = numpy.ones((4, 64), "float32"), numpy.zeros((4, 1), "int64")
LOW_X, WEIGHTS = numpy.ones((4, 128), "float16"), numpy.ones((4, 1), "float32")


def on_both(groups: list[expar.Group], call: Callable[[expar.Group], Any]) -> list[Any]:
    """The calls of all ranks that lead rank 0 to its wait; the results by rank."""
    made: dict[int, Any] = {}

    def run(group: expar.Group) -> None:
        made[group.rank] = call(group)

    ranks.at_once([lambda group=group: run(group) for group in groups])  # type: ignore[misc]
    return [made[rank] for rank in range(len(groups))]


def teams(groups: list[expar.Group]) -> Any:
    return on_both(groups, lambda group: (group.world(), group.zeros(4, "int32")))[0]


def words(groups: list[expar.Group]) -> Any:
    return on_both(groups, lambda group: group.zeros(4, "uint64"))[0]


def buffers(groups: list[expar.Group]) -> Any:
    return on_both(groups, expar.Buffer)


def low_buffers(groups: list[expar.Group]) -> Any:
    return on_both(groups, lambda group: expar.LowLatencyBuffer(group, 4, 128, 1, 2))


def lock_of_another(groups: list[expar.Group]) -> Any:
    locks = on_both(groups, lambda group: group.lock(group.zeros(1, "uint64")))
    locks[1].acquire()
    return locks


def handles(groups: list[expar.Group]) -> Any:
    made = buffers(groups)
    rows = on_both(groups, lambda group: made[group.rank].dispatch(X, IDX, num_experts=2))
    return made, rows


def hooked(groups: list[expar.Group]) -> Any:
    made = low_buffers(groups)
    return made, made[0].dispatch(LOW_X, IDX, hook=True).hook


def under_way(groups: list[expar.Group]) -> Any:
    made, rows = handles(groups)
    return made, made[0].combine(rows[0].x, rows[0].handle, async_finish=True).event


def nothing(groups: list[expar.Group]) -> None:
    return None


# The earlier calls, and the call that then waits on rank 0: the other one never comes.
WAITS: dict[str, tuple[Callable[[list[expar.Group]], Any], Callable[[expar.Group, Any], Any]]] = {
    "barrier": (nothing, lambda group, _: group.barrier()),
    "allgather": (nothing, lambda group, _: group.allgather(b"x")),
    "broadcast": (nothing, lambda group, _: group.broadcast(b"x", root=1)),
    "zeros": (nothing, lambda group, _: group.zeros(4)),
    "world": (nothing, lambda group, _: group.world()),
    "close": (nothing, lambda group, _: group.close()),
    "free": (words, lambda _, block: block.free()),
    "wait_until": (words, lambda group, block: group.wait_until(block.numpy()[:1], expar.Cmp.NE, 0)),
    "wait_until_all": (words, lambda group, block: group.wait_until_all(block, expar.Cmp.NE, 0)),
    "wait_until_any": (words, lambda group, block: group.wait_until_any(block, expar.Cmp.NE, 0)),
    "lock": (lock_of_another, lambda _, locks: locks[0].acquire()),
    "team.sync": (teams, lambda _, made: made[0].sync()),
    "team.barrier": (teams, lambda _, made: made[0].barrier()),
    "team.split": (teams, lambda _, made: made[0].split(0, 1, 2)),
    "team.broadcast": (teams, lambda _, made: made[0].broadcast(made[1], made[1], 1)),
    "team.reduce": (teams, lambda _, made: made[0].reduce(made[1], numpy.zeros(4, "int32"))),
    "team.alltoall": (teams, lambda _, made: made[0].alltoall(made[1], numpy.zeros(4, "int32"))),
    "Buffer": (nothing, lambda group, _: expar.Buffer(group)),
    "Buffer.dispatch": (buffers, lambda _, made: made[0].dispatch(X, IDX, num_experts=2)),
    "Buffer.route": (buffers, lambda _, made: made[0].route(IDX, 2)),
    "Buffer.combine": (handles, lambda _, made: made[0][0].combine(made[1][0].x, made[1][0].handle)),
    "Buffer.close": (buffers, lambda _, made: made[0].close()),
    "LowLatencyBuffer": (nothing, lambda group, _: expar.LowLatencyBuffer(group, 4, 128, 1, 2)),
    "LowLatencyBuffer.dispatch": (low_buffers, lambda _, made: made[0].dispatch(LOW_X, IDX)),
    "hook": (hooked, lambda _, made: made[1]()),
    "LowLatencyBuffer.close": (low_buffers, lambda _, made: made[0].close()),
    "event": (under_way, lambda _, made: made[1].wait()),
    "event of one's own": (nothing, lambda *_: expar.Event().wait()),
    "wait_event": (buffers, lambda _, made: made[0].dispatch(X, IDX, num_experts=2, wait_event=expar.Event())),
    "bootstrap": (nothing, lambda *_: expar.Group.from_id(expar.UniqueId(), 0, 2)),
}


def say(line: str) -> None:
    """In one piece, also from a handler."""
    os.write(1, f"{line}\n".encode())


def say_where(_: int, frame: Any) -> None:
    """From the library's question whether to go on: then the main thread is in a wait of the library."""
    say("waits" if frame.f_code.co_name == "_answers" else "runs")


def wait_one_by_one() -> None:
    signal.signal(signal.SIGUSR1, say_where)
    for name, (prepare, wait) in WAITS.items():
        groups = expar.Group.threads(2)
        there = prepare(groups)
        try:
            say(f"now {name}")
            wait(groups[0], there)
            say("over")
        except KeyboardInterrupt:
            say("interrupted")
        except BaseException as error:
            say(f"{type(error).__name__} {error}")
        finally:
            for group in groups:
                group.abandon()


class Interrupts(unittest.TestCase):
    def setUp(self) -> None:
        self.program = subprocess.Popen([sys.executable, __file__, "waits"], stdout=subprocess.PIPE, bufsize=0)
        assert self.program.stdout is not None
        self.said = self.program.stdout
        self.rest = b""

    def tearDown(self) -> None:
        self.program.kill()
        self.program.wait()
        self.said.close()

    def line(self, within_s: float) -> str | None:
        """The next line; None: there was none in that time."""
        while b"\n" not in self.rest:
            if not select.select([self.said], [], [], within_s)[0]:
                return None
            more = self.said.read(4096)
            self.assertTrue(more, f"the program has ended, and said: {self.rest!r}")
            self.rest += more
        first, self.rest = self.rest.split(b"\n", 1)
        return first.decode()

    def until_it_waits(self, name: str) -> None:
        """Asks where the main thread is until that is a wait of the library's."""
        end_s = time.monotonic() + ranks.DEADLINE_S
        while time.monotonic() < end_s:
            self.program.send_signal(signal.SIGUSR1)
            said = self.line(0.2)
            if said == "waits":
                return
            self.assertIn(said, ("runs", None), name)
            time.sleep(0.01)
        self.fail(f"{name} does not wait, or nobody is asked while it does")

    def next_line(self) -> str | None:
        """The next line that is no late answer."""
        said: str | None = "runs"
        while said in ("runs", "waits"):
            said = self.line(ranks.DEADLINE_S)
        return said

    def test_every_wait(self) -> None:
        for name in WAITS:
            self.assertEqual(self.next_line(), f"now {name}")
            self.until_it_waits(name)
            sent = time.monotonic()
            self.program.send_signal(signal.SIGINT)
            self.assertEqual(self.next_line(), "interrupted", name)
            if "EXPAR_TEST_TIMES" in os.environ:
                print(f"{name}: {1e3 * (time.monotonic() - sent):.0f} ms")
        self.assertEqual(self.program.wait(ranks.DEADLINE_S), 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["waits"]:
        wait_one_by_one()
    else:
        unittest.main()
