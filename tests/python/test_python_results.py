# SPDX-License-Identifier: Apache-2.0
"""Results of calls: they unpack and index as tuples, and have the names that the structs of C have."""

from __future__ import annotations

import copy
import unittest
from typing import Any

import numpy

import expar
from expar import _abi

import ranks

# Members of C's structs that say how memory is passed on, or that are the length of another one.
ONLY_C = {"struct_size", "output", "num_local_experts", "stream"}
STRUCTS: dict[Any, list[Any]] = {
    expar.Layout: [_abi.EpLayout],
    # A route of C has an event in place of Python's wait.
    expar.Route: [_abi.EpRouteResult],
    expar.Dispatched: [_abi.EpDispatchResult],
    expar.Combined: [_abi.EpCombineResult],
    expar.LowLatencyDispatched: [_abi.LlDispatchResult],
    expar.LowLatencyCombined: [_abi.LlCombineResult],
}


class Results(unittest.TestCase):
    def expect_tuple(self, result: Any) -> None:
        kind = type(result)
        self.assertIsInstance(result, tuple)
        self.assertEqual(len(result), len(kind._fields))
        for number, (name, value) in enumerate(zip(kind._fields, result)):
            self.assertIs(getattr(result, name), value)
            self.assertIs(result[number], value)
            self.assertIs(result[number - len(result)], value)
        for struct in STRUCTS[kind]:
            for name in {field[0] for field in struct._fields_} - ONLY_C:
                if (kind, name) == (expar.Route, "event"):
                    continue
                short = name[5:] if name.startswith("recv_") else name
                self.assertIs(getattr(result, name), getattr(result, short), name)
        with self.assertRaises(AttributeError):
            setattr(result, kind._fields[0], None)
        # Arrays among the members are not compared.
        self.assertTrue(result == result and not result != result)
        self.assertFalse(result == kind(*result))
        self.assertEqual({result: 1}[result], 1)
        self.assertEqual(type(copy.copy(result)), kind)

    def test_normal(self) -> None:
        def body(group: expar.Group) -> None:
            x = numpy.arange(32, dtype="float32").reshape(4, 8) + group.rank
            experts = numpy.tile(numpy.arange(2, dtype="int64"), (4, 1))
            weights = numpy.ones((4, 2), "float32")
            with expar.Buffer(group) as buffer:
                layout = buffer.layout(experts, num_experts=2)
                self.expect_tuple(layout)
                per_rank, per_node, per_expert, in_rank = layout
                self.assertEqual((per_rank, per_node, per_expert, in_rank.shape), ([4, 4], [4], [4, 4], (4, 2)))
                route = buffer.route(experts, num_experts=2)
                self.expect_tuple(route)
                self.assertEqual(route[1:3], (8, 8))
                rows = buffer.dispatch(x, experts, weights, num_experts=2)
                self.expect_tuple(rows)
                recv_x, recv_topk_idx, recv_topk_weights, *_ = rows
                self.assertEqual(recv_x.numpy()[:4].sum(), numpy.arange(32).sum())
                self.assertEqual((recv_topk_idx.shape, recv_topk_weights.shape), ((8, 2), (8, 2)))
                sums = buffer.combine(recv_x, rows.handle, recv_topk_weights, out_y=numpy.empty_like(x))
                self.expect_tuple(sums)
                y, topk_weights, event = sums
                self.assertTrue((y == 2 * x).all())
                self.assertEqual((topk_weights.shape, event), ((4, 2), None))

        ranks.on_threads(2, body)

    def test_low_latency(self) -> None:
        def body(group: expar.Group) -> None:
            x = numpy.ones((3, 128), "float32")
            experts, weights = numpy.zeros((3, 1), "int64"), numpy.ones((3, 1), "float32")
            sizes = {"max_tokens": 4, "hidden": 128, "max_topk": 1, "num_experts": 2, "max_row_bytes": 512}
            with expar.LowLatencyBuffer(group, **sizes) as buffer:
                rows = buffer.dispatch(x, experts, weights)
                self.expect_tuple(rows)
                recv_x, recv_scales, recv_count, handle, hook, event = rows
                self.assertEqual(recv_count.numpy().tolist(), [6 if group.rank == 0 else 0])
                self.assertEqual((recv_x.shape, recv_scales, hook, event), ((1, 8, 128), None, None, None))
                sums = buffer.combine(recv_x, experts, weights, handle)
                self.expect_tuple(sums)
                y, hook, event = sums
                self.assertTrue((y.numpy() == x).all())

        ranks.on_threads(2, body)


if __name__ == "__main__":
    unittest.main()
