# SPDX-License-Identifier: Apache-2.0
"""Bodies of tests on ranks that are threads, or processes under `expar run`.

As a program: `ranks.py MODULE FUNCTION [ARGUMENT…]` is one rank of the latter.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import threading
import unittest
from typing import Any, Callable

import expar

DEADLINE_S = 240


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


def start(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """A program to its end, with what it says."""
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S, **options
    )


def launched(size: int, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A Python program on that many ranks of `expar run`."""
    return start([os.environ["EXPAR_TEST_TOOL"], "run", "-n", str(size), "--", sys.executable, *command], **options)


def on_processes(size: int, module: str, function: str, *arguments: str) -> None:
    """function(group, *arguments) of that module on each rank."""
    ended = launched(size, __file__, module, function, *arguments)
    assert ended.returncode == 0, ended.stdout


if __name__ == "__main__":
    with expar.Group.from_env() as its_group:
        getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(its_group, *sys.argv[3:])
