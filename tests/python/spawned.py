# SPDX-License-Identifier: Apache-2.0
"""Functions that tests start on ranks: each process imports this module."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy

import expar


def layer(group: expar.Group, scale: int) -> Any:
    """Each token goes to the experts of ranks 0 and 1, or 0 alone, and comes back as the sum of both."""
    with expar.Buffer(group) as buffer:
        x = numpy.full((3, 8), float(group.rank * scale + 1), "float32")
        experts = numpy.tile(numpy.arange(min(group.size, 2), dtype="int64"), (3, 1))
        rows = buffer.dispatch(x, experts, num_experts=group.size)
        sums = buffer.combine(rows.x, rows.handle)
        return group.rank, rows.num_recv_tokens, float(sums.y.numpy()[0, 0] / x[0, 0])


def leave_pid(group: expar.Group, folder: str) -> None:
    Path(folder, str(group.rank)).write_text(str(os.getpid()))
    group.barrier()


def fail_on_1(group: expar.Group, folder: str) -> None:
    """Rank 1 fails in a with block, whose end takes longer than the failures of the others."""
    leave_pid(group, folder)
    if group.rank == 1:
        try:
            group.abandon()
            while not Path(folder, "failed").exists():
                time.sleep(0.01)
        finally:
            raise ValueError("the batch is empty")
    try:
        group.barrier()
    except expar.Error as error:
        Path(folder, "failed").touch()
        raise RuntimeError("no barrier") from error


def fail_beside_others(group: expar.Group, folder: str, how: str) -> None:
    """The others stay in a call, in Python code, or in a program that ignores SIGTERM."""
    leave_pid(group, folder)
    if group.rank == 1:
        raise KeyError("rank 1")
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "call":
        flag = group.zeros(1, "uint64")  # collective, so that it waits
        group.wait_until(flag, expar.Cmp.EQ, 1)
    while how != "call":
        time.sleep(0.01)


def die(group: expar.Group, how: str) -> None:
    if group.rank == 1 and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if group.rank == 1:
        os._exit(3)
    group.barrier()


def exit_with(group: expar.Group) -> None:
    sys.exit(7)


class Unpickled(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raise_unpickled(group: expar.Group) -> None:
    raise Unpickled(1, 2)


def return_group(group: expar.Group) -> Any:
    return group


def blame_itself(group: expar.Group) -> None:
    """Both ranks end with an error of the library that says that another rank is the reason."""
    group.barrier()
    raise expar.Error(expar.Status.ERR_PEER, f"seen by rank {group.rank}")


def wait_for_signal(group: expar.Group, folder: str) -> None:
    leave_pid(group, folder)
    time.sleep(1000)
