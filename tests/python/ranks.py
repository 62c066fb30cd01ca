# SPDX-License-Identifier: Apache-2.0
"""Bodies of tests on ranks that are threads, or processes under `expar run`.

As a program: `ranks.py MODULE FUNCTION [ARGUMENT…]` is one rank of the latter.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import traceback
import unittest
from importlib.util import find_spec
from typing import Any, Callable

import expar

DEADLINE_S = 240
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>

# A shell's background jobs begin without Ctrl-C, and tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def at_once(bodies: list[Callable[[], None]]) -> None:
    """Each in a thread of its own; the first failure is raised."""
    failures: list[BaseException] = []

    def run(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a rank has not come to its end"
    if failures:
        raise failures[0]


def on_threads(size: int, body: Callable[..., None], *arguments: Any, **options: int) -> None:
    """body(group, *arguments) on each rank; the first failure is raised."""

    def run(group: expar.Group) -> None:
        with group:
            body(group, *arguments)

    at_once([functools.partial(run, group) for group in expar.Group.threads(size, **options)])


def torch_for(test: unittest.TestCase) -> Any:
    """PyTorch. The test is skipped where it is not installed, or fails where EXPAR_REQUIRE_TORCH is 1."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        if os.environ.get("EXPAR_REQUIRE_TORCH") == "1":
            raise
        test.skipTest("there is no PyTorch")


def start(command: list[str], seconds: int = DEADLINE_S, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program to its end, with what it says; that long at most."""
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, **options)


def launched(size: int, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A Python program on that many ranks of `expar run`."""
    return start([os.environ["EXPAR_TEST_TOOL"], "run", "-n", str(size), "--", sys.executable, *command], **options)


def mpirun(test: unittest.TestCase, size: int, *arguments: str) -> None:
    """mpi_ranks.py on that many ranks of mpirun. The test is skipped where that or mpi4py is not installed, or fails
    where EXPAR_REQUIRE_TORCH is 1: mpi4py comes with PyTorch."""
    there = {"mpirun": shutil.which("mpirun"), "mpi4py": find_spec("mpi4py")}
    lacking = [name for name, found in there.items() if not found]
    if lacking and os.environ.get("EXPAR_REQUIRE_TORCH") != "1":
        test.skipTest(f"there is no {lacking[0]}")
    test.assertEqual(lacking, [])
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi_ranks.py")
    options = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
    ended = start(["mpirun", *options, "-n", str(size), sys.executable, program, *arguments])
    test.assertEqual(ended.returncode, 0, ended.stdout)
    for rank in range(size):
        test.assertIn(f"rank {rank} of mpi4py is through", ended.stdout)


def torchrun(size: int, *command: str) -> subprocess.CompletedProcess[str]:
    """A Python program on that many ranks of torchrun's agent, which are forks: torch_ranks.py. Threads beside those of
    ranks would only wait for each other on few cores."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_ranks.py")
    return start([sys.executable, program, str(size), *command], env={**os.environ, "OMP_NUM_THREADS": "1"})


def on_processes(size: int, module: str, function: str, *arguments: str) -> None:
    """function(group, *arguments) of that module on each rank."""
    ended = launched(size, __file__, module, function, *arguments)
    assert ended.returncode == 0, ended.stdout


class _PipeComm:
    """A communicator of mpi4py's between two forks, as far as expar uses one. pipe: from rank 0 to rank 1."""

    def __init__(self, rank: int, pipe: tuple[int, int]) -> None:
        self._rank, self._pipe = rank, pipe

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return 2

    def bcast(self, obj: Any, root: int = 0) -> Any:
        assert root == 0
        if self._rank == 0:
            os.write(self._pipe[1], pickle.dumps(obj))
            return obj
        return pickle.loads(os.read(self._pipe[0], 1 << 16))


class Forks:
    """body(comm) on two ranks that are forks of this process, which has not used the library by then: what it has
    imported they need not import again."""

    def __init__(self, body: Callable[[Any], None]) -> None:
        meeting, told = os.pipe(), os.pipe()
        sys.stdout.flush()
        self._children = [self._begin(body, _PipeComm(rank, meeting), told[1]) for rank in range(2)]
        for end in (*meeting, told[1]):
            os.close(end)
        self._told = told[0]

    @staticmethod
    def _begin(body: Callable[[Any], None], comm: _PipeComm, told: int) -> int:
        child = os.fork()
        if child:
            return child
        # A rank that is stopped ends with this process, too, whose main thread has begun it.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.alarm(DEADLINE_S)
        try:
            body(comm)
        except BaseException:
            os.write(told, traceback.format_exc().encode())
        os._exit(0)

    def failure(self) -> str:
        """The error, when rank 0 has come to its end; rank 1 may have been stopped."""
        os.waitpid(self._children[0], 0)
        os.kill(self._children[1], signal.SIGKILL)
        os.waitpid(self._children[1], 0)
        with os.fdopen(self._told) as file:
            return file.read()


if __name__ == "__main__":
    with expar.Group.from_env() as its_group:
        getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(its_group, *sys.argv[3:])
