# SPDX-License-Identifier: Apache-2.0
"""Signals of a GEMM that is still writing the rows of a low-latency combine.

The GEMM sets a word when rows are there. The library waits for the words: on a CPU in the call, on a GPU in a kernel of
one block on the call's stream.

Letters in shapes: B maximum of tokens a rank, L local experts, N ranks, S = ceil(N·B / block_m).
"""

from __future__ import annotations

from ctypes import sizeof
from typing import Any, NamedTuple

import torch
from expar import _abi

from ._call import put
from ._shrink import mask_ms

_WORD = 1 << 32
_WORDS, _COUNT = _abi.LlSignals.words.offset, _abi.LlSignals.count.offset


class Signals(NamedTuple):
    """The words to wait for, int32 [L] or [L·S], and the value that counts. counts: int32 [L] rows of each expert, or
    None. block_rows: 0 without counts."""

    words: Any
    value: int
    counts: Any
    block_rows: int

    def fill(self, struct: Any) -> None:
        """Fills the struct from `empty_signals`."""
        put(struct, _WORDS, self.words, "signals")
        if self.counts is not None:
            put(struct, _COUNT, self.counts, "packed_recv_count")
        struct.block_rows, struct.value, struct.timeout_ms = self.block_rows, self.value, mask_ms()


def empty_signals() -> Any:
    return _abi.LlSignals(sizeof(_abi.LlSignals))


def _signed(value: int) -> int:
    """Returns the int32 that has the bits of this uint32."""
    return (value + _WORD // 2) % _WORD - _WORD // 2


def signals_of(
    x: Any, packed_recv_count: Any, comp_signal: Any, block_m: int, threshold: int, src_signals: Any, expected: int
) -> Signals | None:
    """Returns what to wait for, or None without signals. x: [L, N·B, H]. AssertionError for wrong signals.

    src_signals: uint32 or int32 [L]. comp_signal: int32 [L·S]. packed_recv_count: int32 [L]. All lie on x's device."""
    local, rows = x.shape[0], x.shape[1]
    if src_signals is not None:
        _check(x, "src_signals", src_signals, (torch.uint32, torch.int32), local)
        return Signals(src_signals.view(torch.int32).view(local), _signed(expected), None, 0)
    if comp_signal is None:
        return None
    if block_m <= 0:
        raise AssertionError(f"block_m is {block_m}: expected 1 or more")
    blocks = -(-rows // block_m)
    _check(x, "comp_signal", comp_signal, (torch.int32,), local * blocks)
    if packed_recv_count is None:
        raise AssertionError("packed_recv_count is not given: expected it with comp_signal")
    _check(x, "packed_recv_count", packed_recv_count, (torch.int32,), local)
    return Signals(comp_signal.view(local * blocks), _signed(threshold), packed_recv_count.view(local), block_m)


def _check(x: Any, name: str, tensor: Any, dtypes: tuple[Any, ...], count: int) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise AssertionError(f"{name} is of type {type(tensor).__name__}: expected a tensor")
    if tensor.device != x.device:
        raise AssertionError(f"{name} lies on {tensor.device}: expected {x.device}, where x lies")
    if tensor.dtype not in dtypes or tensor.numel() != count or not tensor.is_contiguous():
        raise AssertionError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}: expected contiguous {dtypes[0]} [{count}]")
