# SPDX-License-Identifier: Apache-2.0
"""Ranks that `expar run` has started: the launcher names the rank whose Python exception made the others fail."""

from __future__ import annotations

import re
import tempfile
import unittest
from pathlib import Path

import ranks

# Rank 1 comes to its end after the others have exited, as it may with a slow end of the interpreter.
PROGRAM = """
import atexit, os, sys, time
from pathlib import Path

import expar

folder = Path(sys.argv[1])

def runs(rank):
    try:
        os.kill(int((folder / str(rank)).read_text()), 0)
    except ProcessLookupError:
        return False
    return True

def outlive_the_others():
    while runs(0) or runs(2):
        time.sleep(0.01)

def step(group):
    if group.rank == 1:
        atexit.register(outlive_the_others)
        raise ValueError("the batch is empty")
    group.barrier()

group = expar.Group.from_env()
(folder / str(group.rank)).write_text(sys.argv[2] if sys.argv[2:] else str(os.getpid()))
group.barrier()
"""


class TheFirstFailure(unittest.TestCase):
    def expect_rank_1(self, program: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "program.py").write_text(program)
            ended = ranks.launched(3, str(Path(folder, "program.py")), folder)
        self.assertEqual(ended.returncode, 1, ended.stdout)
        told = [line for line in ended.stdout.splitlines() if line.startswith("expar run: ")]
        self.assertEqual(len(told), 1, ended.stdout)
        self.assertRegex(told[0], r"^expar run: rank 1 \(pid \d+\) exited with code 1$")
        self.assertIn("[1] ValueError: the batch is empty", ended.stdout)
        for rank in (0, 2):
            self.assertTrue(re.search(rf"^\[{rank}\] expar\..*Error: .*ERR_PEER", ended.stdout, re.M), ended.stdout)

    def test_an_exception_that_leaves_the_group(self) -> None:
        self.expect_rank_1(PROGRAM + "with group:\n    step(group)\n")

    def test_an_exception_in_a_child_process(self) -> None:
        """A program between the launcher and the rank passes no descriptors on."""
        inner = PROGRAM + "with group:\n    step(group)\n"
        outer = """
import os, subprocess, sys
command = [sys.executable, "-c", %r, sys.argv[1], str(os.getpid())]
sys.exit(subprocess.run(command).returncode)
"""
        self.expect_rank_1(outer % inner)


if __name__ == "__main__":
    unittest.main()
