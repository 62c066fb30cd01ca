# SPDX-License-Identifier: Apache-2.0
"""deep_ep: wrong arguments of each kind, tensors that lie badly, a child by fork, Ctrl-C while calls wait, and imports
that cannot be."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
import threading
import unittest
from typing import Any, Callable

import torch
from deep_ep_elastic_reference import Elastic, World
from deep_ep_ranks import BATCH, fresh, ll_traffic
from deep_ep_silence import masked
from deep_ep_threads import alone, said
from test_python_group import FakeComm

import deep_ep
import expar
import ranks

INTERRUPT_AFTER_S = 0.1
silences: list[Any] = []  # of two ranks each, while this process has not used the library


def setUpModule() -> None:
    silences.extend(ranks.Forks(functools.partial(masked, cleans=cleans)) for cleans in (False, True))


class BufferWorld:
    """A buffer, and results of all its calls."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.traffic = traffic = next(each for each in map(self.many, itertools.count(3)) if each is not None)
        self.experts = traffic.shape.experts
        self.x, self.idx, self.weights = (
            each[buffer.rank] for each in (traffic.x, traffic.topk_idx, traffic.weights)
        )
        self.per_rank, _, self.per_expert, self.in_rank, _ = buffer.get_dispatch_layout(self.idx, self.experts)
        self.rows, _, _, _, self.handle, _ = fresh(buffer, traffic)
        self.packed, _, self.ll_handle, _, self.hook = self.sent(return_recv_hook=True)

    def many(self, seed: int) -> Any:
        """None where a rank has fewer than two tokens or rows: one lies right either way round."""
        traffic = ll_traffic(self.buffer, seed)
        ranks_ = range(traffic.shape.ranks)
        return traffic if min(min(len(traffic.x[r]), len(traffic.received(r)[0])) for r in ranks_) > 1 else None

    def dispatch(self, x: Any = None, **options: Any) -> Any:
        routing = dict(
            num_tokens_per_rank=self.per_rank, is_token_in_rank=self.in_rank, num_tokens_per_expert=self.per_expert
        )
        given = {**routing, "topk_idx": self.idx, **options}
        return self.buffer.dispatch(self.x if x is None else x, **given)

    def sent(self, x: Any = None, idx: Any = None, **options: Any) -> Any:
        given = (self.x if x is None else x, self.idx if idx is None else idx)
        return self.buffer.low_latency_dispatch(*given, BATCH, self.experts, use_fp8=False, **options)

    def summed(self, packed: Any = None, **options: Any) -> Any:
        given = (self.packed if packed is None else packed, self.idx, self.weights)
        return self.buffer.low_latency_combine(*given, self.ll_handle, **options)


class ElasticWorld:
    """Likewise, of an `ElasticBuffer`."""

    def __init__(self, buffer: Any) -> None:
        self.buffer, rank = buffer, buffer.rank_idx
        self.e = Elastic(World(buffer.num_ranks, 2 * buffer.num_ranks, 2, 64, 8), 5)
        self.x, self.idx, self.weights = self.e.x[rank], self.e.topk_idx[rank], self.e.weights[rank]
        self.rows, _, _, self.handle, _ = self.dispatch()
        self.expanded, _, _, self.expanded_handle, _ = self.dispatch(do_expand=True)

    def dispatch(self, **options: Any) -> Any:
        return self.buffer.dispatch(
            self.x, self.idx, self.weights, num_experts=self.e.world.experts, num_max_tokens_per_rank=8, **options
        )

    def again(self, **options: Any) -> Any:
        return self.buffer.dispatch(self.x, handle=self.handle, **options)

    def combine(self, **options: Any) -> Any:
        return self.buffer.combine(self.rows, self.handle, **options)


HINTS: dict[str, Any] = dict(num_max_tokens_per_rank=8, hidden=64)


def across(tensor: Any) -> Any:
    """The same values, the other way round in memory."""
    return tensor.t().contiguous().t()


class Arguments(unittest.TestCase):
    def test_what_is_no_number(self) -> None:
        world = BufferWorld(alone(enable_shrink=True))
        buffer, hint = world.buffer, deep_ep.Buffer.get_low_latency_rdma_size_hint
        for name, call in (
            ("num_nvl_bytes", lambda: alone(num_nvl_bytes="1 GB")),
            ("num_rdma_bytes", lambda: alone(num_rdma_bytes=1.5)),
            ("new_num_sms", lambda: deep_ep.Buffer.set_num_sms("20")),
            ("num_experts", lambda: buffer.get_dispatch_layout(world.idx, "two")),
            ("num_worst_tokens", lambda: world.dispatch(num_worst_tokens="64")),
            ("expert_alignment", lambda: world.dispatch(expert_alignment=1.5)),
            ("num_sms", lambda: world.dispatch(config=deep_ep.Config("many"))),
            ("hidden_bytes", lambda: deep_ep.Config().get_nvl_buffer_size_hint("wide", 2)),
            ("num_ranks", lambda: deep_ep.Config().get_nvl_buffer_size_hint(256, None)),
            ("num_max_dispatch_tokens_per_rank", lambda: hint("few", 128, 2, 4)),
            ("hidden", lambda: hint(16, 128.5, 2, 4)),
            ("num_ranks", lambda: hint(16, 128, "2", 4)),
            ("num_experts", lambda: hint(16, 128, 2, [4])),
            ("num_max_dispatch_tokens_per_rank", lambda: buffer.low_latency_dispatch(world.x, world.idx, "8", 2)),
            ("num_experts", lambda: buffer.low_latency_dispatch(world.x, world.idx, 8, 2.5)),
            ("rank_to_mask", lambda: buffer.low_latency_update_mask_buffer("1", True)),
        ):
            self.assertRegex(said(AssertionError, call), f"^{name} is .*: expected a whole number$")
        self.assertEqual(said(AssertionError, lambda: world.dispatch(config=3)), "config is 3: expected a Config")
        self.assertIn("num_nvl_bytes is -1: expected 0", said(AssertionError, lambda: alone(num_nvl_bytes=-1)))
        self.assertIn("process_group is 'all'", said(AssertionError, lambda: deep_ep.Buffer("all")))
        self.assertIn("comm is 7: expected a communicator", said(AssertionError, lambda: deep_ep.Buffer(comm=7)))
        wrong_handle = said(AssertionError, lambda: buffer.get_next_low_latency_combine_buffer((1, 2, 3, 4, 5)))
        self.assertIn("made by a low-latency dispatch", wrong_handle)
        ahead = torch.zeros(1, dtype=torch.int64)[0]  # whatever is an index
        self.assertEqual(len(world.dispatch(num_worst_tokens=ahead + 64)[0]), 64)

    def test_what_lies_badly(self) -> None:
        """Rows have to be contiguous; the text has the argument, what it is and what is expected."""
        world = BufferWorld(alone())
        packed = world.packed.transpose(1, 2).contiguous().transpose(1, 2)
        world.hook()
        for name, call in (
            ("x", lambda: world.dispatch(across(world.x))),
            ("topk_idx", lambda: world.dispatch(topk_idx=across(world.idx))),
            ("topk_idx", lambda: world.buffer.get_dispatch_layout(across(world.idx), world.experts)),
            ("x", lambda: world.buffer.combine(across(world.rows), world.handle)),
            ("x", lambda: world.sent(across(world.x))),
            ("topk_idx", lambda: world.sent(idx=across(world.idx))),
            ("x", lambda: world.summed(packed)),
            ("out_y", lambda: world.summed(out=across(torch.empty_like(world.x)))),
        ):
            self.assertRegex(said(RuntimeError, call), rf"{name}\.strides\[\d\] is \d+; expected 1 .*EXPAR_ERR_STRIDE")
        for name, call in (
            ("x", lambda: world.dispatch(world.x[None])),
            ("x", lambda: world.buffer.combine(world.rows[None], world.handle)),
        ):
            self.assertRegex(said(RuntimeError, call), f"{name} has 3 dimensions; expected 2.*EXPAR_ERR_SHAPE")
        y = world.buffer.combine(world.traffic.answer(0, world.rows), world.handle)[0]
        self.assertTrue(torch.equal(y, world.traffic.combined(0)[0]))


class HybridWorld:
    """A buffer of `HybridEPBuffer` with handles."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.buffer = deep_ep.HybridEPBuffer(comm, 32, 4, 2)
        self.x, experts = torch.ones((3, 32), dtype=torch.bfloat16), 2 * self.buffer.group_size
        self.given: dict[str, Any] = dict(hidden=self.x, routing_map=torch.ones((3, experts), dtype=torch.bool))
        self.rows, *_, self.handle = self.buffer.dispatch_with_permute(**self.given)
        self.plain, _, _, self.of_plain = self.buffer.dispatch(**self.given)

    def calls(self) -> dict[str, Callable[[], Any]]:
        buffer, permute = self.buffer, self.buffer.dispatch_with_permute
        return {
            "dispatch, permuted": lambda: permute(**self.given),
            "dispatch, capacity": lambda: permute(**self.given, num_permuted_tokens=4, non_blocking=True),
            "dispatch, permuted, handle": lambda: permute(hidden=self.x, handle=self.handle),
            "combine, permuted": lambda: buffer.combine_with_unpermute(hidden=self.rows, handle=self.handle),
            "dispatch": lambda: buffer.dispatch(**self.given),
            "combine": lambda: buffer.combine(self.plain, handle=self.of_plain),
            "another buffer": lambda: deep_ep.HybridEPBuffer(self.comm, 32, 4, 2),
        }


def failure_of(calls: list[Callable[[], Any]], read: Callable[[], bool]) -> int:
    """For a child by fork: the number, from 1, of the first call that does not say whose the buffer is. From 100 on: of
    one that went on. 99: results cannot be read."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    failed = 0
    signal.alarm(ranks.DEADLINE_S)  # a call that waits ends the child
    try:
        for index, call in enumerate(calls):
            try:
                call()
                failed = failed or 100 + index
            except RuntimeError as error:
                if "forked" not in str(error):
                    failed = failed or 1 + index
        if not read():
            failed = failed or 99
    finally:
        os._exit(failed)


class Fork(unittest.TestCase):
    def test_in_a_child(self) -> None:
        world = BufferWorld(alone(explicitly_destroy=True))
        buffer, wanted = world.buffer, world.rows.clone()
        calls: list[Callable[[], Any]] = [
            lambda: buffer.get_dispatch_layout(world.idx, world.experts),
            world.dispatch,
            lambda: buffer.dispatch(world.x, handle=world.handle),
            lambda: buffer.combine(world.rows, world.handle),
            world.sent,
            world.hook,
            world.summed,
            lambda: buffer.clean_low_latency_buffer(BATCH, 256, world.experts),
            lambda: deep_ep.Buffer(comm=buffer.group),
            buffer.destroy,
        ]
        self.assertEqual(failure_of(calls, lambda: torch.equal(world.rows, wanted)), 0)
        world.hook()
        buffer.destroy()

    def test_elastic_in_a_child(self) -> None:
        world = ElasticWorld(deep_ep.ElasticBuffer(FakeComm(1).rank(0), **HINTS, explicitly_destroy=True))
        buffer, wanted = world.buffer, world.rows.clone()
        event = world.dispatch(async_with_compute_stream=True)[4]
        calls: list[Callable[[], Any]] = [
            world.dispatch,
            lambda: world.dispatch(do_expand=True, do_cpu_sync=False),
            world.again,
            world.combine,
            lambda: buffer.combine(world.expanded, world.expanded_handle),
            buffer.barrier,
            event.current_stream_wait,
            lambda: deep_ep.ElasticBuffer(buffer.group, **HINTS),
            buffer.destroy,
        ]

        def read() -> bool:
            source = world.handle.recv_src_metadata[:, 0]  # made now
            return torch.equal(world.rows, wanted) and torch.equal(world.x[source], wanted)

        self.assertEqual(failure_of(calls, read), 0)
        event.current_stream_wait()
        self.assertTrue(torch.equal(world.again()[0], wanted))
        buffer.destroy()


    def test_hybrid_in_a_child(self) -> None:
        world = HybridWorld(FakeComm(1).rank(0))
        wanted = world.rows.clone()
        self.assertEqual(failure_of(list(world.calls().values()), lambda: torch.equal(world.rows, wanted)), 0)
        self.assertTrue(torch.equal(world.calls()["dispatch, permuted, handle"]()[0], wanted))


class Interrupts(unittest.TestCase):
    """Rank 1 has come so far and makes no call any more; rank 0 waits for it until Ctrl-C."""

    def test_each_wait(self) -> None:
        def begin(comm: Any) -> Any:
            world = BufferWorld(deep_ep.Buffer(comm=comm, explicitly_destroy=True))
            world.hook()
            return world

        for name, call in {
            "dispatch": lambda world: world.dispatch(),
            "dispatch, handle": lambda world: world.buffer.dispatch(world.x, handle=world.handle),
            "combine": lambda world: world.buffer.combine(world.rows, world.handle),
            "low-latency dispatch": lambda world: world.sent(),
            "hook": lambda world: world.sent(return_recv_hook=True)[4](),
            "low-latency combine": lambda world: world.summed(),
            "event": lambda world: world.dispatch(num_worst_tokens=99, async_finish=True)[5].current_stream_wait(),
            "another shape": lambda world: world.buffer.low_latency_dispatch(world.x, world.idx, 99, world.experts),
            "clean": lambda world: world.buffer.clean_low_latency_buffer(BATCH, 256, world.experts),
            "destroy": lambda world: world.buffer.destroy(),
        }.items():
            with self.subTest(name=name):
                self.interrupted(begin, call)

    def test_each_wait_of_elastic(self) -> None:
        beside: dict[str, Any] = dict(async_with_compute_stream=True)

        def begin(comm: Any) -> Any:
            return ElasticWorld(deep_ep.ElasticBuffer(comm, **HINTS, explicitly_destroy=name == "destroy"))

        for name, call in {
            "dispatch": lambda world: world.dispatch(),
            "dispatch, expanded": lambda world: world.dispatch(do_expand=True, do_cpu_sync=False),
            "dispatch, handle": lambda world: world.again(),
            "combine": lambda world: world.combine(),
            "combine, expanded": lambda world: world.buffer.combine(world.expanded, world.expanded_handle),
            "event of a dispatch": lambda world: world.again(**beside)[4].current_stream_wait(),
            "event of a combine": lambda world: world.combine(**beside)[2].current_stream_wait(),
            "barrier": lambda world: world.buffer.barrier(),
            "another buffer": lambda world: deep_ep.ElasticBuffer(world.buffer.group, **HINTS),
            "destroy": lambda world: world.buffer.destroy(),
        }.items():
            with self.subTest(name=name):
                self.interrupted(begin, call)

    def test_each_wait_of_hybrid(self) -> None:
        for name in HybridWorld(FakeComm(1).rank(0)).calls():
            with self.subTest(name=name):
                self.interrupted(HybridWorld, lambda world: world.calls()[name]())

    def interrupted(self, begin: Callable[[Any], Any], call: Callable[[Any], Any]) -> None:
        comm = FakeComm(2)
        made: dict[int, Any] = {}

        def make(number: int) -> None:
            made[number] = begin(comm.rank(number))

        other = threading.Thread(target=make, args=(1,))
        other.start()
        make(0)
        other.join(ranks.DEADLINE_S)
        timer = threading.Timer(INTERRUPT_AFTER_S, os.kill, (os.getpid(), signal.SIGINT))
        with self.assertRaises(KeyboardInterrupt):
            timer.start()  # in here: on a busy machine it may come before the call
            call(made[0])
            timer.join()  # a call that does not wait fails below
            raise AssertionError("the call did not wait")


class Masks(unittest.TestCase):
    def test_silence(self) -> None:
        """A rank that is stopped is masked by the others' waits, of calls and of cleans."""
        for silence in silences:
            self.assertEqual(silence.failure(), "")


class Imports(unittest.TestCase):
    def test_without_torch(self) -> None:
        code = "import sys; sys.modules['torch'] = None\nimport deep_ep"
        said_ = ranks.start([sys.executable, "-c", code])
        self.assertNotEqual(said_.returncode, 0)
        self.assertIn("ImportError: deep_ep needs PyTorch, which cannot be imported", said_.stdout)

    def test_old_torch(self) -> None:
        code = "import torch; torch.__version__ = '2.3.1+cpu'\nimport deep_ep"
        said_ = ranks.start([sys.executable, "-c", code])
        self.assertNotEqual(said_.returncode, 0)
        self.assertIn("ImportError: deep_ep needs PyTorch 2.4 or later: this is 2.3.1+cpu", said_.stdout)

    def test_without_a_gpu(self) -> None:
        """Or without so many."""
        for group in expar.Group.threads(1):
            with group:
                text = said(RuntimeError, lambda: expar.Buffer(group, device="cuda:99"))
                self.assertRegex(text, "libcuda.so.1: cannot open|99")


if __name__ == "__main__":
    unittest.main()
