# SPDX-License-Identifier: Apache-2.0
"""Waits of low-latency combines for a GEMM that is still writing their rows.

The GEMM sets a word when rows are there. The host polls the words here, so this works for tensors on the CPU.

Letters in shapes: B maximum of tokens a rank, L local experts, N ranks, S = ceil(N·B / block_m).
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 1e-3
_WORD = 1 << 32


class Signals(NamedTuple):
    """The words to wait for, int32 [L, S], the value that counts, and how many words of each expert count."""

    words: Any
    value: int
    counts: list[int]
    name: str

    def missing(self) -> tuple[int, int] | None:
        """Returns expert and word of one that has not come."""
        for expert, count in enumerate(self.counts):
            lacking = (self.words[expert, :count] != self.value).nonzero()
            if len(lacking):
                return expert, int(lacking[0, 0])
        return None

    def wait(self, seconds: float) -> str | None:
        """Waits until all have come. Returns the text of an error after that time."""
        end, pause = time.monotonic() + seconds, _FIRST_PAUSE_S
        while True:
            found = self.missing()
            if found is None:
                return None
            if time.monotonic() > end:
                expert, word = found
                value = int(self.words[expert, word])
                return (
                    f"{self.name} of local expert {expert}, word {word}, is {value} after {seconds:g} s: expected "
                    f"{self.value}"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def _signed(value: int) -> int:
    """Returns the int32 that has the bits of this uint32."""
    return (value + _WORD // 2) % _WORD - _WORD // 2


def signals_of(
    x: Any, packed_recv_count: Any, comp_signal: Any, block_m: int, threshold: int, src_signals: Any, expected: int
) -> Signals | None:
    """Returns what to wait for, or None without signals. x: [L, N·B, H]. AssertionError for wrong signals.

    src_signals: uint32 or int32 [L]. comp_signal: int32 [L·S]. packed_recv_count: int32 [L]."""
    local, rows = x.shape[0], x.shape[1]
    if src_signals is not None:
        _check("src_signals", src_signals, (torch.uint32, torch.int32), local)
        return Signals(src_signals.view(torch.int32).view(local, 1), _signed(expected), [1] * local, "src_signals")
    if comp_signal is None:
        return None
    if block_m <= 0:
        raise AssertionError(f"block_m is {block_m}: expected 1 or more")
    blocks = -(-rows // block_m)
    _check("comp_signal", comp_signal, (torch.int32,), local * blocks)
    if packed_recv_count is None:
        raise AssertionError("packed_recv_count is not given: expected it with comp_signal")
    _check("packed_recv_count", packed_recv_count, (torch.int32,), local)
    counts = [min(-(-count // block_m), blocks) for count in packed_recv_count.tolist()]
    return Signals(comp_signal.view(local, blocks), _signed(threshold), counts, "comp_signal")


def _check(name: str, tensor: Any, dtypes: tuple[Any, ...], count: int) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise AssertionError(f"{name} is of type {type(tensor).__name__}: expected a tensor")
    if not tensor.is_cpu:
        raise RuntimeError(f"{name} lies on {tensor.device}: expected tensors on the CPU, whose signals the host polls")
    if tensor.dtype not in dtypes or tensor.numel() != count or not tensor.is_contiguous():
        raise AssertionError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}: expected contiguous {dtypes[0]} [{count}]")
