# SPDX-License-Identifier: Apache-2.0
"""`deep_ep` on a GPU that is played, on thread ranks: the same bodies as on the CPU."""

from __future__ import annotations

import functools
import unittest
from typing import Any

import deep_ep_ranks
import played_torch
import ranks
import torch
from deep_ep_reference import Shape, Traffic, same

import deep_ep


def _played(group: Any, body: Any) -> None:
    with played_torch.Behind():
        body(played_torch.group_of(group))


def beside(group: Any) -> None:
    """What is put on the stream for communication: results and arguments are said to the allocator, and the event is
    there when the call is."""
    buffer = deep_ep.Buffer(group)
    rank = buffer.rank
    traffic = Traffic(Shape(buffer.group_size, buffer.group_size * 2, 3, 64, 12), 4)
    x = traffic.x[rank]
    found = deep_ep_ranks.fresh(buffer, traffic, async_finish=True, previous_event=buffer.capture())
    handle, event = found[4:]
    assert event.event is not None and event.event.point is not None
    event.current_stream_wait()
    assert (x.data_ptr(), True) in played_torch.GPU.used
    y, _, event = buffer.combine(traffic.answer(rank, found[0]), handle, async_finish=True)
    assert event.event.work is not None and (y.data_ptr(), False) in played_torch.GPU.used
    event.current_stream_wait()
    same(y, traffic.combined(rank)[0])
    y, _, event = buffer.combine(traffic.answer(rank, found[0]), handle)
    assert event.event is None
    same(y, traffic.combined(rank)[0])
    assert isinstance(buffer.get_comm_stream(), played_torch._Stream)


def slow_work(group: Any) -> None:
    """The stream for communication comes behind slow work of the current one, and the current one behind slow work there:
    both ways of a call, with an event and without."""
    buffer = deep_ep.Buffer(group)
    size, gpu = buffer.group_size, played_torch.GPU
    traffic = Traffic(Shape(size, size * 2, 3, 64, 24), 8)
    source, wanted = traffic.x[buffer.rank], traffic.received(buffer.rank)[0]
    handle = deep_ep_ranks.fresh(buffer, traffic)[4]
    for previous in (False, True):
        x = torch.full_like(source, -3.0)
        gpu.current().slowly(functools.partial(x.copy_, source))
        rows, _, _, _, _, event = buffer.dispatch(
            x, handle=handle, async_finish=True, previous_event=buffer.capture() if previous else None
        )
        event.current_stream_wait()
        same(rows, wanted)
        gpu.comm().slowly(lambda: None)
        same(buffer.dispatch(x, handle=handle, previous_event=buffer.capture())[0], wanted)


def cleaned(group: Any) -> None:
    """A clean comes behind what all current streams hold."""
    buffer = deep_ep.Buffer(group)
    done: list[int] = []
    played_torch.GPU.current().slowly(lambda: done.append(buffer.rank))
    buffer.clean_low_latency_buffer(12, 256, 4)
    assert done == [buffer.rank]


def late(group: Any) -> None:
    """What is known only when the call has returned is raised by a later one, on the rank that it came to, and the buffer
    goes on: rows that found no room."""
    buffer = deep_ep.Buffer(group)
    rank, size = buffer.rank, buffer.group_size
    x = torch.ones((4, 64))
    idx = torch.full((4, 1), 0)  # all to rank 0
    wanted = buffer.get_dispatch_layout(idx, size)[:4]
    many = []
    for _ in range(3):
        try:
            buffer.dispatch(
                x, None, wanted[0], None, wanted[3], wanted[2], idx, torch.ones((4, 1)), num_worst_tokens=5
            )
        except RuntimeError as error:
            many.append(str(error))
        played_torch.GPU.current().synchronize()  # now it is known
    assert bool(many) == (rank == 0), many
    assert rank or "dropped" in many[0], many


class Gpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        torch.set_num_threads(1)
        played_torch.play()

    def test_bodies(self) -> None:
        bodies: list[Any] = [
            functools.partial(deep_ep_ranks.normal, number=3, first=1),
            functools.partial(deep_ep_ranks.low_latency, number=4),
            deep_ep_ranks.pairs,
            deep_ep_ranks.by_hand,
            deep_ep_ranks.micro_batches,
            deep_ep_ranks.masks,
            beside,
            slow_work,
            cleaned,
            late,
        ]
        for body in bodies:
            name = getattr(body, "__name__", None) or body.func.__name__
            with self.subTest(body=name):
                ranks.on_threads(2, _played, body)


if __name__ == "__main__":
    unittest.main()
