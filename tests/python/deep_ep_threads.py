# SPDX-License-Identifier: Apache-2.0
"""Buffers of `deep_ep` on ranks that are threads."""

from __future__ import annotations

import threading
from typing import Any, Callable

import torch
from test_python_group import FakeComm

import deep_ep
import expar
from deep_ep import _groups
import ranks


class Key:
    """Stands for a process group of PyTorch's."""

    def __init__(self, group: expar.Group) -> None:
        self._rank, self._size = group.rank, group.size
        _groups._by_group[self] = group

    def rank(self) -> int:
        return int(self._rank)

    def size(self) -> int:
        return int(self._size)


def in_turn(group: expar.Group, bodies: tuple[Callable[[Any], None], ...]) -> None:
    """Each with something to make a buffer of that group with."""
    torch.set_num_threads(1)
    key = Key(group)
    try:
        for body in bodies:
            body(key)
    except BaseException:
        group.abort()  # nobody waits for this rank
        raise


def on_threads(size: int, body: Callable[..., None], *arguments: Any) -> None:
    """body(comm, *arguments) on ranks that are threads, each with its end of a communicator."""
    comm = FakeComm(size)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            body(comm.rank(number), *arguments)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ranks.DEADLINE_S)
        assert not thread.is_alive(), "a rank has not come to its end"
    if failures:
        raise failures[0]


def alone(**options: Any) -> Any:
    return deep_ep.Buffer(comm=FakeComm(1).rank(0), **options)


def said(kind: type[BaseException], call: Callable[[], Any]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("it is taken")
