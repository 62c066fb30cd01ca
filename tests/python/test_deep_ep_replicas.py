# SPDX-License-Identifier: Apache-2.0
"""Replicas of experts: weights and gradients to the bit, on the CPU and on simulated nodes, and wrong use."""

from __future__ import annotations

import unittest
from typing import Any

import ranks
import torch
from deep_ep_reference import same
from deep_ep_replicas_calls import everything, first_node_alone
from deep_ep_threads import in_turn, on_threads, said
from test_deep_ep import arguments_of
from test_python_group import FakeComm

import deep_ep
from deep_ep._elastic_sizes import group_for
from deep_ep._replicas import Replicas


class Moves(unittest.TestCase):
    def test_on_one_node(self) -> None:
        for size in (1, 2, 4):
            ranks.on_threads(size, in_turn, (everything,))

    def test_on_two_nodes(self) -> None:
        ranks.on_threads(4, in_turn, (everything, first_node_alone), ranks_per_node=2)

    def test_other_types(self) -> None:
        """Slots and experts may have other shapes and types, if an expert has as many bytes."""

        def body(comm: Any) -> None:
            storage = torch.zeros(64, dtype=torch.uint8)
            weights = torch.arange(24.0).view(3, 2, 4) + 100 * group_for(comm).rank
            mapping = torch.tensor([[4, -1], [-1, 2]], dtype=torch.int32)
            slots = storage.view(torch.int16).view(2, 16)
            Replicas(group_for(comm), storage).prefetch(slots, weights, mapping, None).wait()
            found = slots.view(-1).view(torch.float32).view(2, 2, 4)
            if group_for(comm).rank == 0:
                same(found[0], weights[1] + 100)
            else:
                same(found[1], weights[2] - 100)

        on_threads(2, body)

    def test_without_slots(self) -> None:
        """Nothing moves, and nobody waits."""

        def body(comm: Any) -> None:
            storage = torch.zeros(64, dtype=torch.uint8)
            none, mapping = storage[:0].view(torch.float32).view(0, 8), torch.zeros((2, 0), dtype=torch.int32)
            moved, weights = Replicas(group_for(comm), storage), torch.ones((2, 8))
            moved.prefetch(none, weights, mapping, None).current_stream_wait()
            moved.reduce(none, weights, mapping, None).current_stream_wait()
            assert torch.equal(weights, torch.ones((2, 8)))

        on_threads(2, body)


class Buffers(unittest.TestCase):
    def test_by_a_buffer(self) -> None:
        """A plan of slots, weights there, gradients back, and the end."""

        def body(comm: Any) -> None:
            plan = deep_ep.BufferAllocator()
            slots, slot_grads = plan.allocate((2, 16), torch.bfloat16), plan.allocate((2, 16), torch.float32)
            buffer = deep_ep.EPBuffer(
                comm,
                num_max_tokens_per_rank=4,
                hidden=64,
                lb_allocation_plan_or_num_bytes=plan,
                explicitly_destroy=True,
            )
            rank = buffer.rank_idx
            weights = torch.arange(48.0).view(3, 16).bfloat16() + 100 * rank
            mapping = torch.tensor([[3, -1], [1, 2]], dtype=torch.int32)
            event = buffer.lb_prefetch_weights(slots, weights, mapping, 8, previous_event=buffer.capture())
            assert event.wait() is None
            of_others = torch.arange(48.0).view(3, 16).bfloat16() + 100 * (1 - rank)
            same(slots, torch.stack([of_others[0], torch.zeros(16).bfloat16()]) if rank == 0 else of_others[1:])
            slot_grads.fill_(rank + 1.0)
            grads = torch.ones((3, 16))
            buffer.lb_reduce_grads(slot_grads, grads, redundancy_mapping=mapping, num_sms=0).wait()
            same(grads[:, 0].contiguous(), torch.tensor([1.0, 3.0, 3.0] if rank == 0 else [2.0, 1.0, 1.0]))
            buffer.destroy()
            said(AssertionError, lambda: buffer.lb_prefetch_weights(slots, weights, mapping))

        on_threads(2, body)

    def test_names(self) -> None:
        self.assertEqual(
            arguments_of(deep_ep.EPBuffer.lb_prefetch_weights),
            "redundant_expert_weights, expert_weights, redundancy_mapping, num_sms=0, previous_event=None",
        )
        self.assertEqual(
            arguments_of(deep_ep.EPBuffer.lb_reduce_grads),
            "redundant_expert_grads, expert_grads, redundancy_mapping, num_sms=0, previous_event=None",
        )


class Wrong(unittest.TestCase):
    def test_arguments(self) -> None:
        storage = torch.zeros(256, dtype=torch.uint8)
        slots, weights = storage[:64].view(torch.float32).view(2, 8), torch.zeros((3, 8))
        mapping = torch.tensor([[0, -1]], dtype=torch.int32)
        moved = Replicas(group_for(FakeComm(1).rank(0)), storage)
        for kind, text, call in (
            (TypeError, "expert_weights is of type int", lambda: moved.prefetch(slots, 3, mapping, None)),
            (TypeError, "previous_event is of type int", lambda: moved.prefetch(slots, weights, mapping, 3)),
            (TypeError, "redundancy_mapping is of type list", lambda: moved.prefetch(slots, weights, [[0, 1]], None)),
            (RuntimeError, "has 2 tensors: expected the 1", lambda: moved.prefetch([slots, slots], weights, mapping, None)),
            (RuntimeError, "has 0 tensors: expected 1 to 16", lambda: moved.prefetch([], [], mapping, None)),
            (RuntimeError, "has 17 tensors", lambda: moved.prefetch([slots] * 17, [weights] * 17, mapping, None)),
            (RuntimeError, "redundant_expert_weights[0] lies outside",
             lambda: moved.prefetch(torch.zeros((2, 8)), weights, mapping, None)),
            (RuntimeError, "has 32 bytes an expert: expected the 16 of expert_weights[0]",
             lambda: moved.prefetch(slots, weights[:, :4].contiguous(), mapping, None)),
            (RuntimeError, "has 4 bytes an expert: expected a multiple of 16",
             lambda: moved.prefetch(storage[:8].view(torch.float32).view(2, 1),
                                    weights[:, :1].contiguous(), mapping, None)),
            (RuntimeError, "expected contiguous", lambda: moved.prefetch(slots, torch.zeros((8, 3)).t(), mapping, None)),
            (RuntimeError, "redundancy_mapping is torch.int64", lambda: moved.prefetch(slots, weights, mapping.long(), None)),
            (RuntimeError, "redundancy_mapping is torch.int32 (1, 1)",
             lambda: moved.prefetch(slots, weights, mapping[:, :1].contiguous(), None)),
            (RuntimeError, "redundancy_mapping[0][1] is 3: expected -1 or an expert of the node, 0 to 2",
             lambda: moved.prefetch(slots, weights, torch.tensor([[0, 3]], dtype=torch.int32), None)),
            (RuntimeError, "redundancy_mapping[0][0] is -2",
             lambda: moved.reduce(slots, weights, torch.tensor([[-2, 0]], dtype=torch.int32), None)),
            (RuntimeError, "expert_grads is torch.float64", lambda: moved.reduce(slots, weights.double(), mapping, None)),
            (RuntimeError, "redundant_expert_grads lies outside",
             lambda: moved.reduce(torch.zeros((2, 8)), weights, mapping, None)),
        ):  # fmt: skip
            self.assertIn(text, said(kind, call))


if __name__ == "__main__":
    unittest.main()
