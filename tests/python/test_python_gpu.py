# SPDX-License-Identifier: Apache-2.0
"""`expar` on a simulated GPU, on thread ranks: NumPy's arrays that say by DLPack that they lie on GPU 0."""

from __future__ import annotations

import os
import sys
import threading
import unittest
from typing import Any
from unittest import mock

import numpy

import expar
from expar import _arguments, _event, _tensor
from expar._device import device_of, stream_of

import gpu_calls
import simulated
import ranks


def _with_card(group: expar.Group, body: Any) -> None:
    simulated.driver()
    body(group, gpu_calls.SimulatedCard())


def streams_of_dlpack(group: expar.Group, card: Any) -> None:
    """Inputs are asked for on the call's stream. Outputs come after that stream for their consumer's, and go back after
    the consumer's."""
    own, other = simulated.Stream(), simulated.Stream()
    with expar.Buffer(group, device="cuda:0", num_sms=2, pool_bytes=1 << 20) as buffer:
        x = card.put(numpy.ones((5, 64), "float32"))
        experts = card.put(numpy.zeros((5, 1), "int64"))
        done = buffer.dispatch(x, experts, num_experts=group.size, stream=own)
        assert x.streams == [own.cuda_stream] and experts.streams == [own.cuda_stream]
        taken = simulated.values_of(done.x, other)
        assert (taken == 1).all() and len(taken) == (0 if group.rank else 5 * group.size)
        if group.rank == 0:
            pointer = done.x._owner.pointer
            before = buffer.stats()["group_used_bytes"]
            assert done.x._owner.read_on(pointer, other.cuda_stream) == 0  # once more: no effect
            del done
            assert buffer.stats()["group_used_bytes"] < before
        group.barrier()


def events(group: expar.Group, card: Any) -> None:
    """Those of streams and of calls, waited for by streams and by calls."""
    own, other = simulated.Stream(), simulated.Stream()
    with expar.Buffer(group, device="cuda:0", num_sms=2) as buffer:
        x, experts = card.put(numpy.ones((5, 64), "float32")), card.put(numpy.zeros((5, 1), "int64"))
        recorded = expar.Event.record(other)
        done = buffer.dispatch(
            x, experts, num_experts=group.size, stream=own, wait_event=recorded, async_finish=True
        )
        assert done.event is not None and done.handle is not None
        done.event.stream_wait(other)
        again = buffer.dispatch(x, handle=done.handle, stream=own, async_finish=True, wait_event=done.event)
        assert again.event is not None
        again.event.wait()
        assert again.event.done


asked: list[_event.Event] = []


def _asked_for(event: _event.Event) -> bool:
    """In place of Event.done, while no event can have happened."""
    asked.append(event)
    return False


def far_ahead(group: expar.Group, card: Any) -> None:
    """The host runs ahead of a stream that stands still, and drops each result. Calls take the same memory again, and
    what the program keeps until they end is its own."""
    stream, opened = simulated.Stream(), threading.Event()
    with expar.Buffer(group, device="cuda:0", num_sms=2, pool_bytes=1 << 20) as buffer:
        rows, experts = numpy.ones((64, 512), "float32"), numpy.zeros((64, 1), "int64")
        x, lane = card.put(rows), dict(stream=stream, async_finish=True)
        handle = buffer.dispatch(x, card.put(experts), num_experts=1, stream=stream).handle
        assert handle is not None

        def layer() -> Any:
            return buffer.combine(buffer.dispatch(x, handle=handle, **lane).x, handle, **lane)

        for _ in range(2):
            last = layer()
        last.event.wait()
        before = buffer.stats()
        stream.slowly(lambda: opened.wait(60))
        try:
            for _ in range(20):
                last = layer()
            kept = [type(each).__name__ for _, things in _event._under_way for each in things]
            assert kept == ["Array", "PyCapsule"] * 20, kept
            with mock.patch.object(_event.Event, "done", property(_asked_for)):
                last = layer()
            assert 0 < len(asked) <= 2 * _event._ASKED_BY_A_CALL, len(asked)  # of 40 events that wait
        finally:
            opened.set()
        last.event.wait()
        after = buffer.stats()
        for name in ("growths", "queue_calls", "other_blocks", "used_high_bytes"):
            assert after[name] == before[name], (name, before, after)
        assert after["direct_calls"] == before["direct_calls"] + 42
        assert (simulated.values_of(last.y, stream) == rows).all()


def held_stream(group: expar.Group, card: Any) -> None:
    """Calls of forms on a stream that stands still. Another stream, which reads their results, waits for them."""
    import torch

    with card.lane() as lane, expar.Buffer(group, device="cuda:0", num_sms=2, pool_bytes=1 << 20) as buffer:
        own, later = lane["stream"], dict(**lane, async_finish=True)
        x = torch.ones((64, 512))
        handle = buffer.dispatch(x, torch.zeros((64, 1), dtype=torch.int64), num_experts=1, **lane).handle
        for _ in range(2):
            last = buffer.combine(buffer.dispatch(x, handle=handle, **later).x.torch(), handle, **later)
        last.event.wait()
        assert len(buffer._forms._forms) == 3
        with mock.patch("expar._buffer.Arguments", side_effect=AssertionError("the general way")):
            with own.held():
                rows = buffer.dispatch(x + 1, handle=handle, **later).x
                sums = buffer.combine(rows, handle, **later)
                with card.lane() as other:
                    taken = rows.torch(), sums.y.torch()
                    assert not other["stream"].query(), "the reader does not wait"
                del rows, sums
            other["stream"].synchronize()
            assert all((each == 2).all() for each in taken)


class Driver(unittest.TestCase):
    def test_settings_are_held(self) -> None:
        """Threads ask the simulated driver while this thread changes the environment."""
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                for _ in range(1000):
                    driver.cuInit(0)

        driver = simulated.driver()
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for i in range(1000):
            with mock.patch.dict(os.environ, {f"EXPAR_TEST_{i % 7}": "1"}):
                pass
        ended.set()
        for thread in threads:
            thread.join()


class Gpu(unittest.TestCase):
    def test_far_ahead(self) -> None:
        ranks.on_threads(1, _with_card, far_ahead)

    def test_calls(self) -> None:
        for body in gpu_calls.ALL:
            with self.subTest(body=body.__name__):
                ranks.on_threads(2, _with_card, body)

    def test_calls_with_torch(self) -> None:
        """The same with PyTorch's tensors, of which later calls are function objects."""
        ranks.torch_for(self)
        from expar import _exchange

        if _exchange.table() is None:
            self.skipTest("this PyTorch does not show its tensors to C")
        import simulated_exchange

        def on_card(group: expar.Group, body: Any) -> None:
            simulated.driver()
            body(group, simulated_exchange.Card())

        with simulated_exchange.played():
            for body in gpu_calls.ALL:
                if body is not gpu_calls.allocators:  # whose memory goes to PyTorch by CUDA's array interface
                    with self.subTest(body=body.__name__):
                        ranks.on_threads(2, on_card, body)
            ranks.on_threads(1, on_card, held_stream)

    def test_streams(self) -> None:
        for body in (streams_of_dlpack, events):
            with self.subTest(body=body.__name__):
                ranks.on_threads(2, _with_card, body)

    def test_tensors_of_torch(self) -> None:
        """They are not kept: PyTorch's allocator is told which stream uses them."""
        told = []

        class OnGpu:
            is_cuda = True

            def record_stream(self, stream: Any) -> None:
                told.append((self, stream))

        one, other = OnGpu(), OnGpu()
        with mock.patch.object(_arguments, "torch_stream", lambda address, index: (address, index)):
            left = _arguments.unordered(7, (2, 1), [one, "else", expar.View(other, "f32")])
        self.assertEqual(left, ["else"])
        self.assertEqual(told, [(one, (7, 1)), (other, (7, 1))])

    def test_readers_follow_a_hook_on_another_stream(self) -> None:
        """A stream that has read the memory before follows the stream of the hook once more."""
        followed, read = [], []

        class Memory(_tensor.Output):
            __slots__ = ()
            _release = staticmethod(lambda pointer: None)

        with (
            mock.patch.object(_tensor, "let_follow", lambda later, earlier: followed.append((later, earlier))),
            mock.patch.object(_tensor, "_read_on", lambda pointer, stream: read.append(stream) or 0),
        ):
            memory = Memory(1, 5)
            memory.serve(5)
            memory.serve(5)
            self.assertEqual((followed, read), ([], [5]))
            memory.fill_on(6)
            memory.serve(5)
            self.assertEqual((followed, read), ([(5, 6)], [5, 5]))

    def test_exit_with_an_allocator(self) -> None:
        """Memory of results is held for good; the rest has come back before the interpreter is gone."""
        code = """
import atexit, sys
import numpy, expar, gpu_calls, simulated
atexit.register(lambda: print("held:", [len(each._held) for each in allocators.values()]))
simulated.driver()
from expar._allocator import _allocators as allocators
group, card, stream = expar.Group.from_env(), gpu_calls.SimulatedCard(), simulated.Stream()
options = dict(device="cuda:0", num_sms=2, pool_limit_bytes=128, allocator=lambda size: simulated.empty(size, "uint8"))
buffer = expar.Buffer(group, **options)
x, idx = card.put(numpy.ones((9, 64), "float32")), card.put(numpy.zeros((9, 1), "int64"))
rows, other = (buffer.dispatch(x, idx, num_experts=2, stream=stream) for _ in range(2))
sys.kept = [rows]
del other
"""
        for end, held in (("", 1), ("del group, buffer", 1), ("del rows; sys.kept.clear()", 0), ("sys.exit(0)", 1)):
            ended = ranks.start([sys.executable, "-c", code + end])
            self.assertEqual((ended.returncode, ended.stdout), (0, f"held: [{held}]\n"), end)

    def test_names(self) -> None:
        self.assertEqual(device_of(None), (1, 0))
        self.assertEqual(device_of("cpu"), (1, 0))
        self.assertEqual(device_of("cuda"), (2, 0))
        self.assertEqual(device_of("cuda:3"), (2, 3))
        self.assertEqual(device_of((2, 1)), (2, 1))
        for wrong in ("gpu", "cuda:x", (3, 0), (2, -1), "cuda:1:2"):
            self.assertRaises(ValueError, device_of, wrong)
        for wrong in (3.5, 1, object(), ("cuda", 0)):
            self.assertRaises(TypeError, device_of, wrong)
        self.assertEqual(stream_of(None, 0), 0)
        self.assertEqual(stream_of(7, 0), 7)
        self.assertRaises(TypeError, stream_of, "main", 0)

    def test_rejected(self) -> None:
        """A GPU that is not there, options of the other kind of buffer, and NumPy's arrays of a GPU's memory."""
        for group in expar.Group.threads(1):
            with group:
                with self.assertRaisesRegex(expar.Error, "99"):
                    expar.Buffer(group, device="cuda:99")
                with expar.Buffer(group, device="cuda:0", num_sms=2, pool_bytes=1 << 20) as buffer:
                    rows = buffer.alloc((3, 4), "f32", stream=simulated.Stream())
                    self.assertEqual(rows.__dlpack_device__(), (2, 0))
                    self.assertRaises(BufferError, rows.numpy)
                    self.assertFalse(hasattr(rows, "__array_interface__"))
                    del rows
                with expar.LowLatencyBuffer(group, 2, 128, 1, 2, device="cuda:0", num_sms=2, masking=1) as low:
                    with self.assertRaisesRegex(ValueError, r"status is None: expected \[1\] i32 on GPU 0"):
                        low.mask_query()
        size = expar.Buffer.bytes_needed(2, "cuda", max_tokens=64, max_row_bytes=512, max_topk=2)
        self.assertGreater(size, expar.Buffer.bytes_needed(2, max_tokens=64, max_row_bytes=512, max_topk=2))


if __name__ == "__main__":
    unittest.main()
