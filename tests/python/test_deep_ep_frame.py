# SPDX-License-Identifier: Apache-2.0
"""Frames of dispatches. Tensors that PyTorch shows to C are put as those that are read one by one. Calls whose tensors
are not as the last one's are not mistaken for such."""

from __future__ import annotations

import ctypes
import unittest
from typing import Any
from unittest import mock

import torch

import deep_ep
from deep_ep import _frame
from expar import _exchange

PLACES = _frame.places_of_dispatch(x="x", x_scales="x[1]", topk_idx="topk_idx", topk_weights="topk_weights")
TOKENS, TOPK, EXPERTS, HIDDEN = 3, 2, 4, 64
SHOWN = unittest.skipUnless(_frame._view, "this PyTorch does not show tensors to C")


def put(tensors: tuple[Any, ...], before: bytes | None = None, shown: bool = True) -> tuple[bool, bytes]:
    """(whether they are as those before, the arguments)"""
    frame = _frame.Words.from_buffer_copy(before or bytes(_frame.Frame()))
    with mock.patch.object(_frame, "_view", _frame._view if shown else None):
        alike = _frame.fill(frame, ctypes.addressof(frame), PLACES, tensors)
    return alike, bytes(frame)[: _frame.COUNTS_AT]


def tensors() -> list[Any]:
    """Tensors of all types and many shapes, in rows that lie apart, across, without elements, of parameters."""
    wide = torch.arange(240).view(6, 40)
    found: list[Any] = [wide.to(dtype)[:4] for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32)]
    found += [wide, wide.to(torch.uint8), wide.to(torch.int8), wide > 7, wide.float().to(torch.float8_e4m3fn)]
    found += [wide[:, 8:16], wide.t(), wide[1:2], wide[:1, :5], wide[:, :1], wide[:, 3], wide.view(2, 3, 2, 20)]
    found += [wide[:0], wide[:, :0], wide.view(3, 2, 40)[:, 1], torch.nn.Parameter(wide.float()), torch.ones(5)[1]]
    return found


class Views(unittest.TestCase):
    @SHOWN
    def test_as_they_are_read(self) -> None:
        for tensor in tensors():
            for given in ((tensor, None, None, None), (None, tensor, wide(), None), (wide(), None, None, tensor)):
                with self.subTest(tensor.dtype, shape=tensor.shape, strides=tensor.stride()):
                    (_, shown), (_, read) = put(given), put(given, shown=False)
                    self.assertEqual(meaning(shown), meaning(read))

    def test_alike(self) -> None:
        """In all but the address; either way."""
        for shown in (True, False):
            known: list[bytes] = []
            for tensor in tensors():
                given = (tensor, None, wide(), None)
                _, made = put(given, shown=shown)
                for other in known:
                    alike, _ = put(given, full(other), shown)
                    self.assertEqual(alike, without_address(other) == without_address(made), tensor.shape)
                known.append(made)

            _, made = put((wide(), None, torch.ones(4, 16)[:, :8], None), shown=shown)
            self.assertTrue(put((wide(), None, torch.ones(4, 16)[:, 8:], None), full(made), shown)[0])

    def test_no_tensors(self) -> None:
        """Told by name, and nothing is put."""
        for shown in (True, False):
            with self.assertRaisesRegex(AssertionError, "topk_idx is of type list: expected a tensor"):
                put((wide(), None, [1], None), shown=shown)
            with self.assertRaisesRegex(RuntimeError, "topk_idx lies on meta: expected a tensor on the CPU or on a GPU"):
                put((wide(), None, torch.ones(2, 2, device="meta"), None), shown=shown)
            with self.assertRaisesRegex(AssertionError, "x has 5 dimensions: expected at most 4"):
                put((torch.ones(1, 1, 1, 1, 1), None, None, None), shown=shown)

    @SHOWN
    def test_of_other_pytorchs(self) -> None:
        """The object of that name is another, or does not know FP8: all goes as without it."""
        self.assertIsNotNone(_exchange._table_of(torch))
        with mock.patch.object(torch.Tensor, "__dlpack_c_exchange_api__", 5):
            self.assertIsNone(_exchange._table_of(torch))
        with mock.patch.object(torch.utils.dlpack, "from_dlpack", side_effect=BufferError("float8_e4m3fn is not there")):
            self.assertIsNone(_exchange._table_of(torch))


def wide() -> Any:
    return torch.ones(4, 8)


def full(arguments: bytes) -> bytes:
    """A frame with these."""
    return arguments + bytes(ctypes.sizeof(_frame.Frame) - len(arguments))


def views_of(arguments: bytes) -> list[Any]:
    return [_frame._abi.Tensor.from_buffer_copy(arguments, offset) for offset in PLACES.offsets]


def meaning(arguments: bytes) -> list[Any]:
    """Views as calls see them: strides of extents of 1 and without elements may be anything."""
    found: list[Any] = []
    for view in views_of(arguments):
        shape = view.shape[: view.ndim]
        strides = [stride for stride, extent in zip(view.strides, shape) if extent > 1 and 0 not in shape]
        found.append((view.data, view.dtype, view.ndim, shape, strides, view.device.type, view.device.index))
    return found


def without_address(arguments: bytes) -> list[bytes]:
    return [bytes(view)[ctypes.sizeof(ctypes.c_void_p) :] for view in views_of(arguments)]


class Calls(unittest.TestCase):
    """On one rank, whose rows come back as they are."""

    buffer: Any
    old: Any

    @classmethod
    def setUpClass(cls) -> None:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        world = torch.distributed.group.WORLD
        hints: Any = dict(num_max_tokens_per_rank=TOKENS, hidden=HIDDEN)
        cls.buffer = deep_ep.ElasticBuffer(world, explicitly_destroy=True, **hints)
        cls.old = deep_ep.Buffer(world, explicitly_destroy=True)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.buffer.destroy()
        cls.old.destroy()
        torch.distributed.destroy_process_group()

    def given(self, topk: int, seed: int) -> tuple[Any, Any, Any]:
        random = torch.Generator().manual_seed(seed)
        idx = torch.stack([torch.randperm(EXPERTS, generator=random)[:topk] for _ in range(TOKENS)])
        x = torch.randn(TOKENS, HIDDEN, generator=random).to(torch.bfloat16)
        return x, idx, torch.rand(TOKENS, topk, generator=random)

    def test_of_another_look(self) -> None:
        """Calls that are asked the same, and have other top-k, types or strides, or a tensor that is wrong."""
        for shown in (True, False):
            with mock.patch.object(_frame, "_view", _frame._view if shown else None):
                for seed, topk in enumerate((2, 4, 2, 1, 4)):
                    x, idx, weights = self.given(topk, seed)
                    rows, recv_idx, recv_weights, handle, _ = self.buffer.dispatch(x, idx, weights, num_experts=EXPERTS)
                    self.assertTrue(torch.equal(rows, x) and torch.equal(recv_idx, idx))
                    self.assertTrue(torch.equal(recv_weights, weights) and torch.equal(handle.topk_idx, idx))
                    counts = torch.bincount(idx.flatten(), minlength=EXPERTS).tolist()
                    self.assertEqual(handle.num_unaligned_recv_tokens_per_expert.tolist(), counts)
                    again = self.buffer.dispatch(-x, topk_weights=weights, handle=handle)[0]
                    self.assertTrue(torch.equal(again, -x))
                    for wrong in (idx.int(), idx.repeat(1, 2)[:, ::2], idx.flatten()):
                        with self.assertRaisesRegex(RuntimeError, "expected contiguous torch.int64"):
                            self.buffer.dispatch(x, wrong, None, num_experts=EXPERTS)
                    with self.assertRaisesRegex(RuntimeError, "x is torch.float32"):
                        self.buffer.dispatch(x.float(), idx, weights, num_experts=EXPERTS)
                    self.old_ones(x, idx, weights)

    def old_ones(self, x: Any, idx: Any, weights: Any) -> None:
        """`Buffer`: with indices of both types and without, rows that lie apart."""
        per_rank, _, per_expert, in_rank, _ = self.old.get_dispatch_layout(idx, EXPERTS)
        routing = dict(num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert)
        counts = per_expert.tolist()
        for own, own_weights in ((idx, weights), (idx.int(), weights), (idx, None), (None, None)):
            for rows in (x, x.float()):
                found = self.old.dispatch(rows, topk_idx=own, topk_weights=own_weights, **routing)
                self.assertTrue(torch.equal(found[0], rows) and found[3] == counts)
                for result, wanted in zip(found[1:3], (own, own_weights)):
                    self.assertTrue(result is wanted is None or torch.equal(result, wanted))

    def test_read_late(self) -> None:
        """A handle knew its attributes when it was made, whichever rank or thread reads them first."""
        x, idx, weights = self.given(2, 7)
        for expand in (False, True):
            handle = self.buffer.dispatch(x, idx, weights, num_experts=EXPERTS, expert_alignment=2, do_expand=expand)[3]
            wanted = idx.clone()
            for seed in range(3):
                other, other_idx, other_weights = self.given(2, seed)
                self.buffer.dispatch(other, other_idx, other_weights, num_experts=EXPERTS, do_expand=expand)
            counts = torch.bincount(wanted.flatten(), minlength=EXPERTS)
            self.assertEqual(handle.recv_src_metadata[:, 0].tolist(), list(range(TOKENS)))
            self.assertEqual(handle.num_recv_tokens_per_expert_list, [int(n + 1) // 2 * 2 for n in counts])
            self.assertEqual(handle.num_unaligned_recv_tokens_per_expert.tolist(), counts.tolist())
            self.assertTrue(torch.equal(handle.topk_idx, wanted))


if __name__ == "__main__":
    unittest.main()
