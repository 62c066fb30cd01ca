# SPDX-License-Identifier: Apache-2.0
"""deep_ep: ends in every order, and what variables of the environment choose."""

from __future__ import annotations

import copy
import ctypes
import gc
import itertools
import os
import pickle
import sys
import threading
import time
import unittest
from typing import Any, Callable
from unittest import mock

import torch
from deep_ep_ranks import BATCH, fresh, ll_traffic
from deep_ep_reference import Shape, Traffic, same
from deep_ep_threads import alone, on_threads, said
from test_python_group import FakeComm

import deep_ep
import expar
from deep_ep import _call, _low_latency, _place
from expar import _abi
from expar._library import lib
import ranks

HERE = os.path.dirname(os.path.abspath(__file__))

# DLPack's exchange, whose functions hold the interpreter's lock.
TENSOR_NEW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Ends(unittest.TestCase):
    def test_destroy(self) -> None:
        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm, explicitly_destroy=True)
            traffic = ll_traffic(buffer, 2)
            rank = buffer.rank
            idx, weights = traffic.topk_idx[rank], traffic.weights[rank]
            rows, _, _, _, handle, _ = fresh(buffer, traffic)
            found = buffer.low_latency_dispatch(traffic.x[rank], idx, BATCH, traffic.shape.experts, use_fp8=False)
            region = buffer.get_next_low_latency_combine_buffer(found[2])
            sent = buffer.low_latency_combine(found[0], idx, weights, found[2], return_recv_hook=True)
            buffer.destroy()
            buffer.destroy()
            self.assertIsNone(buffer.runtime)
            self.assertIn("has been destroyed", said(AssertionError, lambda: buffer.combine(rows, handle)))
            said(RuntimeError, sent[2])
            same(rows, traffic.received(rank)[0])
            region.zero_()
            later = deep_ep.Buffer(comm=comm)
            same(later.combine(traffic.answer(rank, rows), handle)[0], traffic.combined(rank)[0])

        on_threads(2, body)

    def test_every_order(self) -> None:
        """Results and handles live by themselves, whatever goes first."""
        traffic = Traffic(Shape(1, 2, 2, 32, 9), 4)
        expected = traffic.received(0)[0]
        for order in itertools.permutations(("buffer", "handle", "idx", "ll")):
            buffer = alone()
            rows, idx, _, _, handle, event = fresh(buffer, traffic, async_finish=True)
            event.current_stream_wait()
            ll = buffer.low_latency_dispatch(
                traffic.x[0], traffic.topk_idx[0] * 0 - 1, BATCH, 2, use_fp8=False, return_recv_hook=True
            )
            held: dict[str, Any] = dict(buffer=buffer, handle=handle, idx=idx, ll=ll)
            del buffer, handle, idx, ll, event
            for name in order:
                del held[name]
                same(rows, expected)

    def test_copies(self) -> None:
        """Copies of buffers, events, hooks and routings are the object itself, so that none ends the original; their
        pickles are rejected by name."""
        traffic, buffer = Traffic(Shape(1, 2, 2, 128, 9), 4), alone()
        elastic = deep_ep.ElasticBuffer(FakeComm(1).rank(0), num_max_tokens_per_rank=8, hidden=128)
        rows, _, _, _, handle, event = fresh(buffer, traffic, async_finish=True)
        nowhere = traffic.topk_idx[0] * 0 - 1
        ll_rows, _, ll_handle, _, hook = buffer.low_latency_dispatch(
            traffic.x[0], nowhere, BATCH, 2, use_fp8=False, return_recv_hook=True
        )
        routings = [_call.owner_of(handle[0]), _call.owner_of(ll_handle[0])]
        for each in (buffer, elastic, event, event.event, hook, *routings):
            name = type(each).__name__
            self.assertIs(copy.copy(each), each, name)
            self.assertIs(copy.deepcopy([each])[0], each, name)
            with self.assertRaisesRegex(TypeError, f"cannot pickle deep_ep.{name}, which belongs to this process: "):
                pickle.dumps(each)
        gc.collect()
        event.current_stream_wait()
        same(rows, traffic.received(0)[0])
        hook()
        weights = torch.ones(nowhere.shape, dtype=torch.float32)
        y = buffer.low_latency_combine(ll_rows, nowhere, weights, ll_handle)[0]
        self.assertFalse(y.any())
        self.assertEqual(buffer.combine(rows, handle)[0].shape, traffic.x[0].shape)

    def test_tensors_that_are_not_made(self) -> None:
        """PyTorch has no memory for one of a call's tensors: all that were to be made are given back."""
        traffic, buffer = Traffic(Shape(1, 2, 2, 128, 9), 4), alone()
        nowhere, take, new = traffic.topk_idx[0] * 0 - 1, _call._from_capsule, _call._python.tensor_new
        calls: dict[Callable[[], Any], int] = {  # and how many tensors of the library's they give
            lambda: fresh(buffer, traffic): 3,
            lambda: buffer.low_latency_dispatch(traffic.x[0], nowhere, BATCH, 2, use_fp8=True): 5,
        }
        handle_tensors = _call.handle_tensors
        handles: list[int] = []

        def tensors_of(handle: int) -> Any:
            handles.append(handle)
            return handle_tensors(handle)

        for (call, tensors), by_capsules in itertools.product(calls.items(), (True, False) if new else (True,)):
            call()
            used = lambda: buffer._at(_place.CPU)[0].ep.stats()["group_used_bytes"]  # noqa: E731
            before = used()
            for number in range(tensors):
                left = [number]

                def fail(capsule: Any, left: list[int] = left) -> Any:
                    left[0] -= 1
                    if left[0] < 0:
                        raise MemoryError("simulated")
                    return take(capsule)

                @TENSOR_NEW
                def none_new(managed: int, made: int, left: list[int] = left) -> int:
                    left[0] -= 1
                    if left[0] >= 0:
                        return int(TENSOR_NEW(new)(managed, made))
                    DELETER(_abi.DlVersioned.from_address(managed).deleter)(managed)
                    return -1

                with mock.patch.object(_call, "_from_capsule", fail), mock.patch.object(
                    _call, "handle_tensors", tensors_of
                ):
                    _call._python.tensor_new = None if by_capsules else ctypes.cast(none_new, ctypes.c_void_p).value
                    try:
                        wanted = (MemoryError, "simulated") if by_capsules else (RuntimeError, "Python has no tensor")
                        self.assertRaisesRegex(*wanted, call)
                    finally:
                        _call._python.tensor_new = new
                gc.collect()
                self.assertEqual(used(), before, number)
        self.assertEqual(len(handles), 2)  # elsewhere C makes the tensors
        for handle in handles:
            self.assertRaisesRegex(expar.Error, "not a living handle", lib.expar_ll_handle_retain, handle)
        same(fresh(buffer, traffic)[0], traffic.received(0)[0])

    def test_an_exception(self) -> None:
        """In the middle of a step on one rank: the others' calls end, and all go on with a new buffer."""
        traffic = Traffic(Shape(3, 3, 2, 32, 9), 5)
        meeting = threading.Barrier(3)

        def step(buffer: Any) -> Any:
            rows, _, _, _, handle, _ = fresh(buffer, traffic)
            if buffer.rank == 1 and meeting.n_waiting == 0 and not again.is_set():
                raise ZeroDivisionError
            return buffer.combine(traffic.answer(buffer.rank, rows), handle)[0]

        again = threading.Event()

        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm)
            rank = buffer.rank
            try:
                step(buffer)
                raise AssertionError("rank 1 has not come, and yet it ended")
            except ZeroDivisionError:
                assert rank == 1
            except RuntimeError as error:
                assert rank != 1 and "rank 1" in str(error), error
            del buffer
            gc.collect()
            meeting.wait(ranks.DEADLINE_S)
            again.set()
            buffer = deep_ep.Buffer(comm=comm)
            same(step(buffer), traffic.combined(rank)[0])

        on_threads(3, body)

    def test_masks(self) -> None:
        """Rank 1 is masked by the others, which go on without it, and is back after a clean."""
        meeting = threading.Barrier(3)

        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm, low_latency_mode=True, enable_shrink=True)
            traffic = ll_traffic(buffer, 6)
            rank = buffer.rank
            x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
            status = torch.full((3,), 9, dtype=torch.int32)

            def exchange() -> Any:
                rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, BATCH, 6, use_fp8=False)
                answers = traffic.answer(rank, rows)
                return buffer.low_latency_combine(answers, idx, weights, handle)[0]

            same(exchange(), traffic.weighted(rank))
            if rank != 1:
                buffer.low_latency_update_mask_buffer(1, True)
                buffer.low_latency_query_mask_buffer(status)
                self.assertEqual(status.tolist(), [0, 1, 0])
                exchange()
            meeting.wait(ranks.DEADLINE_S)
            buffer.low_latency_clean_mask_buffer()
            buffer.clean_low_latency_buffer(BATCH, 256, 6)
            buffer.low_latency_query_mask_buffer(status)
            self.assertEqual(status.tolist(), [0, 0, 0])
            same(exchange(), traffic.weighted(rank))

        on_threads(3, body)

    def test_cleans(self) -> None:
        """Nobody leaves a clean before all have come to it, also with masks; before any call of its shape that is so
        without masks alone."""
        for shrink in (False, True):
            came = [False, False]

            def body(comm: Any) -> None:
                buffer = deep_ep.Buffer(comm=comm, low_latency_mode=True, enable_shrink=shrink)
                traffic = ll_traffic(buffer, 4)
                rank, experts = buffer.rank, traffic.shape.experts
                x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
                buffer.clean_low_latency_buffer(BATCH, 256, experts)
                found = buffer.low_latency_dispatch(x, idx, BATCH, experts, use_fp8=False)
                if rank == 1:
                    time.sleep(0.1)  # the other one is there long since
                came[rank] = True
                buffer.clean_low_latency_buffer(BATCH, 256, experts)
                self.assertEqual(came, [True, True])
                answers = traffic.answer(rank, found[0])
                same(buffer.low_latency_combine(answers, idx, weights, found[2])[0], traffic.weighted(rank))

            on_threads(2, body)

    def test_options(self) -> None:
        """The library gets this: how long a rank may be silent, and that low latency takes no mapped memory."""
        with mock.patch.object(expar.Group, "from_mpi4py", side_effect=KeyError) as making, mock.patch.dict(os.environ):
            os.environ.pop("EXPAR_TIMEOUT", None)
            self.assertRaises(KeyError, alone)
            os.environ["EXPAR_TIMEOUT"] = "7"
            self.assertRaises(KeyError, alone)
        self.assertEqual([call.kwargs for call in making.call_args_list], [{"timeout_ms": 100_000}, {}])
        x, idx = torch.zeros((2, 128), dtype=torch.bfloat16), torch.zeros((2, 1), dtype=torch.int64)
        for allowed in (True, False):
            buffer = alone(allow_nvlink_for_low_latency_mode=allowed)
            with mock.patch.object(_low_latency, "LowLatencyBuffer", side_effect=KeyError) as making:
                self.assertRaises(KeyError, buffer.low_latency_dispatch, x, idx, 8, 2)
            self.assertEqual(making.call_args.kwargs["unmapped"], 0 if allowed else 1)

    def test_across(self) -> None:
        """internode_… are the calls, which find out by themselves where ranks are."""

        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm)
            traffic, rank = Traffic(Shape(2, 4, 2, 32, 9), 6), buffer.rank
            x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
            per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, 4)
            config = buffer.get_dispatch_config(2)
            rows, local, gates, counts, handle, event = buffer.internode_dispatch(
                x, None, per_rank, per_node, in_rank, per_expert, idx, weights, 8, 0, config, buffer.capture(), True, True
            )
            event.current_stream_wait()
            for one, other in zip((rows, local, gates), traffic.received(rank)):
                same(one, other)
            self.assertEqual(counts, traffic.per_expert(rank, 8))
            bias = torch.full_like(x, 0.5)
            y, sums, event = buffer.internode_combine(
                traffic.answer(rank, rows), handle, gates, bias, config, buffer.capture(), True, True
            )
            event.current_stream_wait()
            for one, other in zip((y, sums), traffic.combined(rank, (bias,))):
                same(one, other)

        on_threads(2, body)

    def test_exit(self) -> None:
        """Without an end, with results, hooks and calls under way, also as globals that go one after the other."""
        ended = ranks.start([sys.executable, os.path.join(HERE, "deep_ep_exits.py")])
        self.assertEqual((ended.returncode, ended.stdout), (0, ""))


class Choices(unittest.TestCase):
    def with_variable(self, name: str, value: str, body: Callable[..., None]) -> None:
        os.environ[name] = value
        try:
            on_threads(2, body)
        finally:
            del os.environ[name]

    def test_reduced_sums(self) -> None:
        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm)
            traffic = ll_traffic(buffer, 9)
            rank = buffer.rank
            idx, weights = traffic.topk_idx[rank], traffic.weights[rank]
            rows, _, handle, _, _ = buffer.low_latency_dispatch(traffic.x[rank], idx, BATCH, 4, use_fp8=False)
            answers = traffic.answer(rank, rows)
            same(buffer.low_latency_combine(answers, idx, weights, handle)[0], traffic.weighted(rank, True))
            y, _, hook = buffer.low_latency_combine(answers, idx, weights, handle, return_recv_hook=True)
            hook()
            same(y, traffic.weighted(rank))

        self.with_variable("EXPAR_DEEP_EP_SUM", "reduced", body)
        self.with_variable("EXPAR_DEEP_EP_SUM", "other", lambda comm: self.refused(comm, "exact or reduced"))

    def refused(self, comm: Any, text: str) -> None:
        self.assertIn(text, said(RuntimeError, lambda: deep_ep.Buffer(comm=comm)))

    def test_memory_of_torch(self) -> None:
        """All results from PyTorch's allocator; the pool has none."""
        from deep_ep_ranks import exchange

        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm)
            for step in range(4):
                exchange(buffer, Traffic(Shape(2, 4, 3, 64, 20), step), step)
            traffic = ll_traffic(buffer, 3)
            rank = buffer.rank
            for fp8 in (False, True):
                rows, _, handle, _, _ = buffer.low_latency_dispatch(
                    traffic.x[rank], traffic.topk_idx[rank], BATCH, 4, None, None, fp8, fp8, fp8
                )
            answers = traffic.answer(rank, buffer.get_next_low_latency_combine_buffer(handle).zero_())
            buffer.low_latency_combine(answers, traffic.topk_idx[rank], traffic.weights[rank], handle)
            self.assertEqual(buffer._at(_place.CPU)[0].ep.stats()["used_high_bytes"], 0)

        self.with_variable("EXPAR_DEEP_EP_OUTPUTS", "torch", body)


if __name__ == "__main__":
    gc.freeze()  # of PyTorch there is much, and none of it goes
    unittest.main()
