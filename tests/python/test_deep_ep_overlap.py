# SPDX-License-Identifier: Apache-2.0
"""deep_ep: low-latency calls with signals of a running GEMM, with NVFP4 rows, and with the weight of each row. Also the
orders of arguments that callers pass by position."""

from __future__ import annotations

import itertools
import os
import threading
import time
import unittest
from typing import Any
from unittest import mock

import torch
from deep_ep_reference import BATCH, ll_check, ll_traffic, same
from deep_ep_rows_calls import nearest, nvfp4_rows, values_of, weights_in_orders
from deep_ep_threads import alone, on_threads, said
from test_python_group import FakeComm

import deep_ep

REST_S = 0.02


def made(comm: Any, **options: Any) -> Any:
    torch.set_num_threads(1)
    return deep_ep.Buffer(comm=comm, low_latency_mode=True, **options)


def received(buffer: Any, seed: int, **options: Any) -> Any:
    """Traffic, its rows as numbers, counts, handle, and what the combine gets of it."""
    traffic = ll_traffic(buffer, seed)
    rank = buffer.rank
    rows, count, handle, _, _ = buffer.low_latency_dispatch(
        traffic.x[rank], traffic.topk_idx[rank], BATCH, traffic.shape.experts, use_fp8=False, **options
    )
    found = ll_check(traffic, rank, rows, count, handle)
    return traffic, found, count, handle


class Signals(unittest.TestCase):
    def combine_late(self, comm: Any, form: str, how: dict[str, Any], by_position: bool) -> None:
        """Rows are written by another thread, expert by expert, each before its signal."""
        buffer = made(comm)
        traffic, found, count, handle = received(buffer, 5)
        rank, local, rows = buffer.rank, traffic.local, found.shape[1]
        answers, late = traffic.answer(rank, found), torch.full_like(found, 9.0)
        blocks, block_m = -(-rows // 5), 5
        words = torch.full((local if form == "src" else local * blocks,), 3, dtype=torch.int32)

        def compute() -> None:
            for expert in reversed(range(local)):
                time.sleep(REST_S)
                late[expert] = answers[expert]
                if form == "src":
                    words[expert] = -2
                else:
                    needed = -(-int(count[expert]) // block_m)
                    words[expert * blocks : expert * blocks + needed] = 7

        worker = threading.Thread(target=compute)
        worker.start()
        given = late, traffic.topk_idx[rank], traffic.weights[rank], handle
        if form == "src":
            unsigned = words.view(torch.uint32)
            y, event, hook = buffer.low_latency_combine(
                *given, overlap=True, src_signals=unsigned, src_signal_expect_value=(1 << 32) - 2, **how
            )
        elif by_position:
            y, event, hook = buffer.low_latency_combine(*given, True, count, words, block_m, 7, 3, False, **how)
        else:
            y, event, hook = buffer.low_latency_combine(
                *given, overlap=True, packed_recv_count=count, comp_signal=words, block_m=block_m, threshold=7,
                num_sms=3, **how,
            )
        worker.join()
        if hook is not None:
            hook()
        with event:
            pass
        same(y, traffic.weighted(rank))
        if form == "src":
            assert (words == -2).all()  # nothing is reset

    def test_late_rows(self) -> None:
        hows: Any = ({}, dict(return_recv_hook=True), dict(async_finish=True))
        for how, (form, by_position) in itertools.product(hows, (("src", False), ("comp", False), ("comp", True))):
            with self.subTest(how=how, form=form, by_position=by_position):
                on_threads(2, self.combine_late, form, how, by_position)

    def test_without_signals(self) -> None:
        """Without signals it is a plain combine, and without overlap signals are ignored."""

        def body(comm: Any) -> None:
            buffer = made(comm)
            traffic, found, count, handle = received(buffer, 6)
            rank = buffer.rank
            given = traffic.answer(rank, found), traffic.topk_idx[rank], traffic.weights[rank], handle
            never = torch.zeros(traffic.local, dtype=torch.int32)
            for options in (
                dict(overlap=True),
                dict(overlap=True, num_sms=4),
                dict(src_signals=never, src_signal_expect_value=1),
                dict(comp_signal=never, packed_recv_count=count, threshold=5, block_m=1),
            ):
                same(buffer.low_latency_combine(*given, **options)[0], traffic.weighted(rank))

        on_threads(2, body)

    def test_none_to_wait_for(self) -> None:
        """An expert without rows has no block that counts."""
        buffer = alone(low_latency_mode=True)
        x, idx = torch.ones((2, 128), dtype=torch.bfloat16), torch.zeros((2, 1), dtype=torch.int64)
        rows, count, handle, _, _ = buffer.low_latency_dispatch(x, idx, 8, 2, use_fp8=False)
        words = torch.tensor([4, 0, 0, 0], dtype=torch.int32)
        y = buffer.low_latency_combine(
            rows, idx, torch.ones((2, 1)), handle, overlap=True, packed_recv_count=count, comp_signal=words, block_m=4,
            threshold=4,
        )[0]
        same(y, x)

    def test_time_out(self) -> None:
        """The error names expert, word, value and expectation. The other rank learns of it."""

        def body(comm: Any) -> None:
            buffer = made(comm)
            traffic, found, count, handle = received(buffer, 7)
            rank = buffer.rank
            given = traffic.answer(rank, found), traffic.topk_idx[rank], traffic.weights[rank], handle
            words = torch.full((traffic.local,), 5, dtype=torch.int32)
            words[1] -= 1 - rank
            heard = said(
                RuntimeError,
                lambda: buffer.low_latency_combine(*given, overlap=True, src_signals=words, src_signal_expect_value=5),
            )
            own = r"signals of local expert 1: word 0 is 4 after 0.3 s; expected 5"
            self.assertRegex(heard, "rank 0" if rank else own)
            same(buffer.low_latency_combine(*given)[0], traffic.weighted(rank))

        with mock.patch.dict(os.environ, EXPAR_DEEP_EP_MASK_TIMEOUT="0.3"):
            on_threads(2, body)

    def test_wrong(self) -> None:
        buffer = alone(low_latency_mode=True)
        x, idx = torch.ones((2, 128), dtype=torch.bfloat16), torch.zeros((2, 1), dtype=torch.int64)
        rows, count, handle, _, _ = buffer.low_latency_dispatch(x, idx, 8, 2, use_fp8=False)
        words = torch.zeros(2, dtype=torch.int32)
        for options, text in (
            (dict(src_signals=words[:1]), r"^src_signals is torch.int32 \(1,\): expected contiguous torch.uint32 \[2\]"),
            (dict(src_signals=words.long()), "^src_signals is torch.int64"),
            (dict(src_signals=3), "^src_signals is of type int: expected a tensor"),
            (dict(comp_signal=words), "^packed_recv_count is not given: expected it with comp_signal"),
            (dict(comp_signal=words, packed_recv_count=count, block_m=1), r"^comp_signal is .*expected .* \[16\]"),
            (dict(comp_signal=words, packed_recv_count=count, block_m=0), "^block_m is 0: expected 1 or more"),
            (dict(comp_signal=words, packed_recv_count=count.long()), "^packed_recv_count is torch.int64"),
        ):
            given: Any = options
            self.assertRegex(
                said(
                    AssertionError,
                    lambda: buffer.low_latency_combine(rows, idx, torch.ones((2, 1)), handle, overlap=True, **given),
                ),
                text,
            )


# ---- NVFP4 -----------------------------------------------------------------------------------------------------------


class Nvfp4(unittest.TestCase):
    def test_codes(self) -> None:
        """Every limit and its neighbours, both signs, and rows of zeros. A 6 in each block makes its scale 1."""
        limits = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=torch.bfloat16)
        bits = limits.view(torch.int16)
        numbers = torch.cat((limits, (bits + 1).view(torch.bfloat16), (bits - 1).view(torch.bfloat16)))
        x = torch.zeros((3, 128), dtype=torch.bfloat16)
        for row, sign in enumerate((1, -1)):
            x[row].view(8, 16)[:, 15] = 6
            x[row].view(8, 16)[:, :7] = sign * torch.cat((numbers, numbers, limits, limits)).view(8, 7)
        buffer, idx = alone(low_latency_mode=True), torch.zeros((3, 1), dtype=torch.int64)
        (codes, scales), *_ = buffer.low_latency_dispatch(
            x, idx, 8, 1, use_fp8=False, use_nvfp4=True, x_global_scale=torch.ones(1)
        )
        codes = codes[:3, :, 0]
        wanted = torch.tensor([[nearest(float(each)) for each in row] for row in x])
        same(values_of(codes).abs(), wanted)
        same(values_of(codes) < 0, (x < 0) & (wanted > 0))
        self.assertFalse(codes[2].any())
        self.assertEqual([scales.float()[r, 0, 0, 0, 0, 0].item() for r in range(3)], [1, 1, 0])

    def test_rows(self) -> None:
        on_threads(2, lambda comm: nvfp4_rows(made(comm)))

    def test_wrong(self) -> None:
        buffer = alone(low_latency_mode=True)
        x, idx = torch.ones((2, 128), dtype=torch.bfloat16), torch.zeros((2, 1), dtype=torch.int64)
        g = torch.ones(1)
        for options, text in (
            (dict(use_nvfp4=True, x_global_scale=g), "use_nvfp4 and use_fp8 do not go together"),
            (dict(use_nvfp4=True, use_fp8=False), "x_global_scale is no float32 tensor"),
            (dict(use_nvfp4=True, use_fp8=False, x_global_scale=torch.ones(2)), "x_global_scale has 2 elements"),
            (dict(x_global_scale=g), "x_global_scale is given: expected use_nvfp4"),
            (dict(topk_weights=torch.ones((2, 2))), r"topk_weights has shape \(2, 2\): expected float32 \(2, 1\)"),
        ):
            given: Any = options
            self.assertRegex(said(AssertionError, lambda: buffer.low_latency_dispatch(x, idx, 8, 2, **given)), text)
        wide: Any = dict(use_nvfp4=True, use_fp8=False, x_global_scale=g)
        self.assertIn("torch.float32", said(AssertionError, lambda: buffer.low_latency_dispatch(x.float(), idx, 8, 2, **wide)))
        self.assertIn("120", said(AssertionError, lambda: buffer.low_latency_dispatch(x[:, :120], idx, 8, 2, **wide)))


# ---- weights ---------------------------------------------------------------------------------------------------------


class Weights(unittest.TestCase):
    def test_orders(self) -> None:
        on_threads(2, lambda comm: weights_in_orders(made(comm)))

    def test_wrong_orders(self) -> None:
        """An argument by position and by keyword, and too many; the usual order has the counts fifth."""
        buffer = alone(low_latency_mode=True)
        x, idx = torch.ones((2, 128), dtype=torch.bfloat16), torch.zeros((2, 1), dtype=torch.int64)
        stats, weights, dispatch = torch.zeros(2, dtype=torch.int32), torch.ones((2, 1)), buffer.low_latency_dispatch
        call: Any = lambda: dispatch(x, idx, 8, 2, weights, stats, cumulative_local_expert_recv_stats=stats)
        self.assertIn("expected it once", said(TypeError, call))
        self.assertIn("at most 15", said(TypeError, lambda: dispatch(x, idx, 8, 2, weights, *[None] * 11)))
        self.assertEqual(len(dispatch(x, idx, 8, 2, stats, None, False)), 5)

    def test_of_nvfp4(self) -> None:
        def body(comm: Any) -> None:
            buffer = made(comm)
            traffic, rank = ll_traffic(buffer, 10), buffer.rank
            g = torch.tensor([2.0])
            found = buffer.low_latency_dispatch(
                traffic.x[rank], traffic.topk_idx[rank], BATCH, traffic.shape.experts, traffic.weights[rank],
                x_global_scale=g, use_fp8=False, use_nvfp4=True,
            )
            assert len(found) == 7 and len(found[0]) == 2
            plain = buffer.low_latency_dispatch(
                traffic.x[rank], traffic.topk_idx[rank], BATCH, traffic.shape.experts, use_fp8=False, use_nvfp4=True,
                x_global_scale=g,
            )
            for expert in range(traffic.local):
                n = int(found[1][expert])
                same(found[0][0][:n, :, expert], plain[0][0][:n, :, expert])

        on_threads(2, body)


class Constructor(unittest.TestCase):
    def test_tensorrt(self) -> None:
        """A communicator, and the ranks of a node by name."""
        buffer = deep_ep.Buffer(None, 1 << 20, 1 << 20, num_nvl_peers=1, comm=FakeComm(1).rank(0))
        self.assertEqual((buffer.num_nvl_bytes, buffer.num_nvl_peers, buffer.group_size), (1 << 20, 1, 1))

    def test_slime(self) -> None:
        """Buffer.__init__ is replaced by a wrapper, which switches something off meanwhile."""
        off: list[bool] = []
        first = deep_ep.Buffer.__init__

        def wrapped(self: Any, *arguments: Any, **options: Any) -> None:
            off.append(True)
            first(self, *arguments, **options)
            off.append(False)

        with mock.patch.object(deep_ep.Buffer, "__init__", wrapped):
            buffer = deep_ep.Buffer(None, 1 << 20, comm=FakeComm(1).rank(0))
        self.assertEqual((off, buffer.num_nvl_bytes), ([True, False], 1 << 20))
        idx = torch.zeros((2, 1), dtype=torch.int64)
        layout = buffer.get_dispatch_layout(idx, 2)
        rows = buffer.dispatch(torch.ones((2, 64)).bfloat16(), None, layout[0], None, layout[3], layout[2], idx)[0]
        self.assertEqual(rows.shape, (2, 64))


if __name__ == "__main__":
    unittest.main()
