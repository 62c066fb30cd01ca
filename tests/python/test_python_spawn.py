# SPDX-License-Identifier: Apache-2.0
"""expar.spawn: values of ranks, the rank that failed first, the end of the others, and what cannot be sent."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any

import ranks
import spawned

import expar


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


class Spawn(unittest.TestCase):
    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = made.name

    def expect_gone(self, count: int) -> None:
        """No process that left its number runs."""
        pids = [int(Path(self.folder, str(rank)).read_text()) for rank in range(count)]
        deadline = time.monotonic() + ranks.DEADLINE_S
        while any(map(runs, pids)):
            self.assertLess(time.monotonic(), deadline, "a rank still runs")
            time.sleep(0.01)

    def failure(self, *arguments: Any, **options: Any) -> expar.SpawnError:
        with self.assertRaises(expar.SpawnError) as caught:
            expar.spawn(*arguments, **options)
        return caught.exception

    # ---- values ------------------------------------------------------------------------------------------------------

    def test_a_layer(self) -> None:
        for size in (1, 3):
            expected = [(rank, 3 * size if rank < 2 else 0, float(min(size, 2))) for rank in range(size)]
            for threads in (False, True):
                with self.subTest(size=size, threads=threads):
                    options = {"threads": threads, "timeout_ms": 60000}
                    self.assertEqual(expar.spawn(spawned.layer, size, 5, **options), expected)

    def test_a_local_function(self) -> None:
        """By threads."""
        seen: list[int] = []
        self.assertEqual(expar.spawn(lambda group: seen.append(group.rank), 4, threads=True), [None] * 4)
        self.assertEqual(sorted(seen), [0, 1, 2, 3])

    # ---- failures ----------------------------------------------------------------------------------------------------

    def test_the_first_failure(self) -> None:
        """Rank 1 made the others fail, and is named although they ended earlier."""
        for threads in (False, True):
            with self.subTest(threads=threads), tempfile.TemporaryDirectory() as folder:
                error = self.failure(spawned.fail_on_1, 3, folder, threads=threads)
                self.assertEqual(error.rank, 1)
                self.assertIn("rank 1 of 3 failed", str(error))
                self.assertIn("ValueError: the batch is empty", str(error))
                self.assertIsInstance(error.__cause__, ValueError)
                if threads:
                    assert error.__cause__ is not None and error.__cause__.__traceback__ is not None
                else:
                    self.assertIn("in fail_on_1", str(error))

    def test_the_others_end(self) -> None:
        for how in ("call", "python", "deaf"):
            with self.subTest(how=how):
                error = self.failure(spawned.fail_beside_others, 3, self.folder, how)
                self.assertEqual((error.rank, type(error.__cause__)), (1, KeyError))
                self.expect_gone(3)

    def test_other_threads_end(self) -> None:
        for how in ("call", "python"):
            with self.subTest(how=how):
                error = self.failure(spawned.fail_beside_others, 3, self.folder, how, threads=True)
                self.assertEqual((error.rank, type(error.__cause__)), (1, KeyError))
                deadline = time.monotonic() + ranks.DEADLINE_S
                while any(thread.name.startswith("rank ") for thread in threading.enumerate()):
                    self.assertLess(time.monotonic(), deadline, "a thread still runs")
                    time.sleep(0.01)

    def test_all_blame_others(self) -> None:
        """The first that is seen is named then."""
        for threads in (False, True):
            error = self.failure(spawned.blame_itself, 2, threads=threads)
            self.assertIn(f"seen by rank {error.rank} (EXPAR_ERR_PEER)", str(error))

    def test_deaths(self) -> None:
        for how, told in (("kill", r"was killed by signal 9 \(Killed\)"), ("exit", "exited with code 3")):
            error = self.failure(spawned.die, 3, how)
            self.assertEqual((error.rank, error.__cause__), (1, None))
            self.assertRegex(str(error), rf"^rank 1 of 3 \(pid \d+\) {told}$")

    def test_an_exit(self) -> None:
        for threads in (False, True):
            self.assertIn("SystemExit: 7", str(self.failure(spawned.exit_with, 1, threads=threads)))

    def test_what_cannot_come_back(self) -> None:
        error = self.failure(spawned.raise_unpickled, 1)
        self.assertIsNone(error.__cause__)
        self.assertIn("Unpickled: 1 and 2", str(error))
        self.assertIn("cannot pickle", str(self.failure(spawned.return_group, 1)))

    def test_options_of_the_group(self) -> None:
        for threads in (False, True):
            with self.assertRaises((TypeError, expar.SpawnError)) as caught:
                expar.spawn(spawned.layer, 1, 5, threads=threads, timeout_sm=5)
            self.assertIn("timeout_sm", str(caught.exception))

    def test_the_error_survives_pickling(self) -> None:
        error = pickle.loads(pickle.dumps(expar.SpawnError(3, "rank 3 of 4 failed")))
        self.assertEqual((error.rank, str(error)), (3, "rank 3 of 4 failed"))

    # ---- the program that starts them --------------------------------------------------------------------------------

    def test_arguments(self) -> None:
        for arguments, kind, text in (
            ((5, 2), TypeError, "fn is 5: expected a function that takes a group"),
            ((spawned.layer, 0), ValueError, "n is 0: expected at least 1 rank"),
            ((spawned.layer, 1.5), TypeError, "n is 1.5: expected a number of ranks"),
            ((lambda group: None, 2), TypeError, "cannot be sent to other processes.*threads=True"),
            ((spawned.layer, 2, threading.Lock()), TypeError, "cannot be sent to other processes.*threads=True"),
        ):
            with self.assertRaisesRegex(kind, text):
                expar.spawn(*arguments)

    def test_an_interactive_session(self) -> None:
        program = "import expar\ndef layer(group):\n    return group.rank\n"
        ended = ranks.start([sys.executable, "-c", program + "expar.spawn(layer, 2)"])
        self.assertIn("put it into a module, or use threads=True", ended.stdout)
        ended = ranks.start([sys.executable, "-c", program + "print(expar.spawn(layer, 2, threads=True))"])
        self.assertEqual(ended.stdout, "[0, 1]\n")

    def test_ctrl_c(self) -> None:
        """It ends the ranks, and the program that started them."""
        program = "import sys, expar, spawned\nif __name__ == '__main__':\n    "
        program += "expar.spawn(spawned.wait_for_signal, 2, sys.argv[1], threads=len(sys.argv) > 2)\n"
        path = Path(self.folder, "program.py")
        path.write_text(program)
        for threads in ([], ["threads"]):
            for rank in range(2):
                Path(self.folder, str(rank)).unlink(missing_ok=True)
            command = [sys.executable, str(path), self.folder, *threads]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            deadline = time.monotonic() + ranks.DEADLINE_S
            while not all(Path(self.folder, str(rank)).exists() for rank in range(2)):
                self.assertLess(time.monotonic(), deadline, "the ranks do not start")
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=ranks.DEADLINE_S)[1]
            self.assertIn("KeyboardInterrupt", said)
            self.expect_gone(2)

    def test_ranks_die_with_their_parent(self) -> None:
        path = Path(self.folder, "program.py")
        program = "import sys, expar, spawned\nif __name__ == '__main__':\n    "
        path.write_text(program + "expar.spawn(spawned.wait_for_signal, 2, sys.argv[1])\n")
        process = subprocess.Popen([sys.executable, str(path), self.folder])
        deadline = time.monotonic() + ranks.DEADLINE_S
        while not all(Path(self.folder, str(rank)).exists() for rank in range(2)):
            self.assertLess(time.monotonic(), deadline, "the ranks do not start")
            time.sleep(0.01)
        process.kill()
        process.wait()
        self.expect_gone(2)


if __name__ == "__main__":
    unittest.main()
