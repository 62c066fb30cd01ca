# SPDX-License-Identifier: Apache-2.0
"""`EPBuffer` on a simulated GPU, on thread ranks: the bodies that run on real ones, too."""

from __future__ import annotations

import functools
import gc
import itertools
import unittest
import weakref
from typing import Any

import deep_ep_epbuffer_calls as calls
import simulated
import simulated_torch
import ranks
import torch
from deep_ep_elastic_calls import HINTS, Options, check_rows, dispatch
from deep_ep_elastic_reference import Elastic, World
from deep_ep_reference import same

import deep_ep


def _simulated(group: Any, body: Any) -> None:
    with simulated_torch.Behind():
        body(simulated_torch.group_of(group))


def slow_work(group: Any) -> None:
    """x is written late by the stream of the call, biases by the stream of the wait. Results are valid on the stream
    that waits, whichever it is."""
    buffer, gpu, other = deep_ep.EPBuffer(group, **HINTS), simulated_torch.GPU, simulated_torch._Stream()
    rank, e = buffer.rank_idx, Elastic(World(2, 6, 3, 64, 16, 2), 12)
    source, handle = e.x[rank], dispatch(buffer, e, Options())[2]
    of_all = [e.answers(r, len(e.plain(r)), 4) for r in range(2)]
    for on_other, synced, again in itertools.product((False, True), repeat=3):
        x = torch.full_like(source, -3.0)
        gpu.current().slowly(functools.partial(x.copy_, source))
        if again:
            event = buffer.dispatch(x, handle=handle, **calls.ASIDE)
        else:
            event = buffer.dispatch(x, e.topk_idx[rank], **calls.form_of(e), **calls.ASIDE, do_cpu_sync=synced)
        with gpu.on(other if on_other else gpu.current()):
            rows = event.wait()[0]
            check_rows(e, rank, Options(synced=again or synced), rows, None)
        mine, bias = torch.full_like(of_all[rank], -3.0), torch.full_like(source, -3.0)
        gpu.current().slowly(functools.partial(mine.copy_, of_all[rank]))
        event = buffer.combine(mine, handle, bias=bias, **calls.ASIDE)
        with gpu.on(other if on_other else gpu.current()):
            gpu.current().slowly(functools.partial(bias.copy_, e.biases[rank][0]))
            same(event.wait()[0], e.combined(rank, of_all, False, True, (e.biases[rank][0],)))


def memory(group: Any) -> None:
    """The allocator is told of arguments of a deferred call, and of results on the stream that waits."""
    buffer, gpu = deep_ep.EPBuffer(group, **HINTS), simulated_torch.GPU
    rank, e = buffer.rank_idx, Elastic(World(2, 6, 3, 64, 16, 2), 13)
    x, idx = e.x[rank].clone(), e.topk_idx[rank].clone()
    event = buffer.dispatch(x, idx, **calls.form_of(e), **calls.ASIDE)
    assert {(x.data_ptr(), True), (idx.data_ptr(), True)} <= set(gpu.used)
    before = len(gpu.used)  # the other rank adds to it, too
    handle = event.wait()[3]
    assert (handle._memory.data_ptr(), False) in gpu.used[before:]
    stays = weakref.ref(x)
    with gpu.current().held():
        event = buffer.dispatch(x, handle=handle, **calls.ASIDE)
        del x
        gc.collect()
        assert stays() is not None  # until the call has read it
    rows = event.wait()[0]
    check_rows(e, rank, Options(), rows, None)


def barrier_streams(group: Any) -> None:
    """A barrier lies on the current stream, which waits for the communication stream before, and that for it after."""
    buffer, gpu = deep_ep.EPBuffer(group, **HINTS), simulated_torch.GPU
    for waits in (False, True):
        buffer.barrier(waits)  # kernels are there
        came: list[str] = []
        gpu.comm().slowly(lambda: came.append("before"))
        buffer.barrier(waits)
        gpu.current().slowly(lambda: came.append("after"))
        gpu.comm().slowly(lambda: came.append("aside"))
        gpu.current().synchronize()
        assert ("before" in came) or not waits
        if waits:
            assert came.index("before") < came.index("after")
        gpu.synchronize()


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
        self.on_ranks(functools.partial(calls.every_combination, few=True))

    def test_across_nodes(self) -> None:
        self.on_ranks(slow_work, barrier_streams, ranks_per_node=1)

    def test_calls(self) -> None:
        self.on_ranks(*calls.EVERYWHERE, calls.of_nobody)

    def test_streams(self) -> None:
        self.on_ranks(slow_work, memory, barrier_streams)


if __name__ == "__main__":
    unittest.main()
