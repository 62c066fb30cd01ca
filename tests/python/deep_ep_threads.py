# SPDX-License-Identifier: Apache-2.0
"""Buffers of `deep_ep` on ranks that are threads of a group of expar's."""

from __future__ import annotations

from typing import Any, Callable

import torch

import expar
from deep_ep import _groups


class Key:
    """What stands for a process group of PyTorch's."""

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
