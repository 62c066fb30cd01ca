# SPDX-License-Identifier: Apache-2.0
"""The build of `pip install .`: that of scikit-build-core, with its progress on the terminal.

pip shows nothing of a build unless it fails, or runs with -v. The compiler takes minutes here, so every few seconds a
line on the terminal says how far it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403 (the other hooks)

INTERVAL_S = 5
STEP = re.compile(r"\[ *\d+(/\d+|%)\] .*")  # of Ninja, or of make


def _forward(source: IO[str], target: int, terminal: IO[str]) -> None:
    """Passes the build's output on to pip, and some of its steps to the terminal."""
    told = 0.0
    for line in source:
        with contextlib.suppress(OSError):
            os.write(target, line.encode())
        now = time.monotonic()
        if STEP.match(line) and now - told >= INTERVAL_S:
            told = now
            terminal.write(f"\nexpar: {line.strip()}")
            terminal.flush()


@contextlib.contextmanager
def shown(terminal_path: str = "/dev/tty") -> Iterator[None]:
    """Shows steps of the build that runs inside on the terminal, if there is one."""
    try:
        terminal = open(terminal_path, "w")
    except OSError:
        yield
        return
    with terminal:
        terminal.write("\nexpar: compiles the library and the tool, which takes minutes; 'pip install -v' shows all")
        terminal.flush()
        try:
            with _redirected(terminal):
                yield
        finally:
            terminal.write("\n")


@contextlib.contextmanager
def _redirected(terminal: IO[str]) -> Iterator[None]:
    """Lets a thread read what this process and its children write to standard output."""
    sys.stdout.flush()
    before = os.dup(1)
    source, sink = os.pipe()
    os.dup2(sink, 1)
    os.close(sink)
    with open(source, errors="replace") as output:
        thread = threading.Thread(target=_forward, args=(output, before, terminal), daemon=True)
        thread.start()
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(before, 1)
            thread.join()
            os.close(before)


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    with shown():
        return _build.build_wheel(wheel_directory, config_settings, metadata_directory)
