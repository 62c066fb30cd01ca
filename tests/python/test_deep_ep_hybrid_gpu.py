# SPDX-License-Identifier: Apache-2.0
"""`HybridEPBuffer`, and replicas of experts, on a simulated GPU, on thread ranks: the bodies that run on real ones,
too."""

from __future__ import annotations

import functools
import unittest
import warnings
from typing import Any

import deep_ep_hybrid_calls as calls
import ranks
import simulated_torch
import torch
from deep_ep_hybrid_callers import CALLERS
from deep_ep_hybrid_layer import training_steps
from deep_ep_hybrid_reference import Hybrid, World
from deep_ep_replicas_calls import everything


def _simulated(group: Any, body: Any) -> None:
    with simulated_torch.Behind(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        body(simulated_torch.group_of(group))


def trained(group: Any) -> None:
    h = Hybrid(World(2, 4, 32, 6, 3), 52)
    training_steps(calls.buffer_of(group, h), h)


def slow_work(group: Any) -> None:
    """Calls come after slow work of the current stream, and work after them reads what they have written."""
    gpu, h = simulated_torch.GPU, Hybrid(World(2, 4, 64, 9), 13, [9, 9])
    buffer = calls.buffer_of(group, h)
    rank, options = buffer.rank, calls.Options(4, non_blocking=True, capacity="half")
    _, handle = calls.dispatch(buffer, h, options)
    for routing in (calls.routing(h, rank, options), dict(handle=handle)):
        x = torch.full_like(h.x[rank], -3.0)
        gpu.current().slowly(functools.partial(x.copy_, h.x[rank]))
        rows, probs, *_ = buffer.dispatch_with_permute(
            hidden=x,
            **routing,
            pad_multiple=4,
            num_permuted_tokens=calls.capacity_of(h, rank, options),
            non_blocking=True,
        )
        calls.check_rows(h, rank, options._replace(probs=probs is not None), rows, probs, None)


def rejected(group: Any) -> None:
    """A rejection of one rank reaches the other by a later call where it does not wait, and the buffer goes on."""
    h = Hybrid(World(2, 4, 64, 9), 15, [9, 9])
    buffer = calls.buffer_of(group, h)
    rank, options = buffer.rank, calls.Options(4, non_blocking=True, capacity="more")
    rows, handle = calls.dispatch(buffer, h, options)
    heard = []
    for wrong in (rank == 0, False):
        try:
            buffer.combine_with_unpermute(hidden=rows.float() if wrong else rows, handle=handle)
        except (AssertionError, RuntimeError) as error:
            heard.append(str(error))
        simulated_torch.GPU.synchronize()  # now it is known
    assert len(heard) == 1 and ("torch.float32" if rank == 0 else "rank 0") in heard[0], heard
    calls.exchange(buffer, h, options, 2)


def more_tokens_elsewhere(group: Any) -> None:
    """Without waits a rank has memory for as many tokens of the others as its own buffer knows. If more come, this or
    a later call raises an error."""
    many = 1500
    h = Hybrid(World(2, 2, 64, 9, 1), 16, [many, 4])
    buffer = calls.buffer_of(group, h)
    rank, heard = buffer.rank, []
    everywhere = torch.ones_like(h.maps[rank])
    for _ in range(2):
        try:
            buffer.dispatch_with_permute(
                hidden=h.x[rank], routing_map=everywhere, num_permuted_tokens=2 * many, non_blocking=True
            )
        except RuntimeError as error:
            heard.append(str(error))
        simulated_torch.GPU.synchronize()
    assert bool(heard) == (rank == 1) and all("rows were dropped" in each for each in heard), heard


class Gpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        torch.set_num_threads(1)
        simulated_torch.play()

    def on_ranks(self, *bodies: Any, **options: int) -> None:
        for body in bodies:
            with self.subTest(body=getattr(body, "__name__", None) or body.func.__name__):
                ranks.on_threads(2, _simulated, body, **options)

    def test_combinations(self) -> None:
        self.on_ranks(functools.partial(calls.combinations, few=True), calls.plain)

    def test_across_nodes(self) -> None:
        self.on_ranks(calls.plain, trained, ranks_per_node=1)

    def test_streams(self) -> None:
        self.on_ranks(slow_work)

    def test_rejections(self) -> None:
        self.on_ranks(rejected, more_tokens_elsewhere)

    def test_callers(self) -> None:
        self.on_ranks(*CALLERS)

    def test_layer(self) -> None:
        self.on_ranks(trained)

    def test_replicas(self) -> None:
        self.on_ranks(everything)


if __name__ == "__main__":
    unittest.main()
