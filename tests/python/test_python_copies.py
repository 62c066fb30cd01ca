# SPDX-License-Identifier: Apache-2.0
"""Copies of objects hold the original or are rejected with advice; errors survive pickling, other objects name
themselves when they are rejected."""

from __future__ import annotations

import concurrent.futures
import copy
import gc
import inspect
import multiprocessing
import pickle
import unittest
from typing import Any, Callable

import numpy

import expar
import ranks
from expar import Status

IDX = numpy.array([[0], [1], [1]])
X = numpy.arange(24, dtype="float32").reshape(3, 8)


class World:
    """One object of each class that has something of the library."""

    def __init__(self) -> None:
        self.group = expar.Group.threads(1)[0]
        self.buffer = expar.Buffer(self.group)
        self.low = expar.LowLatencyBuffer(self.group, 4, 128, 1, 2, max_row_bytes=512)
        self.rows = self.buffer.dispatch(X, IDX, None, 2, async_finish=True)
        self.ll_rows = self.low.dispatch(numpy.ones((3, 128), "float32"), IDX, hook=True)
        self.block = self.group.zeros(8, "float32")
        self.lock = self.group.lock(self.group.zeros(1, "uint64"))

    def objects(self) -> dict[str, Any]:
        return {
            "Group": self.group,
            "Buffer": self.buffer,
            "LowLatencyBuffer": self.low,
            "Team": self.group.world(),
            "Handle": self.rows.handle,
            "Event": self.rows.event,
            "Tensor": self.rows.x,
            "LowLatencyHandle": self.ll_rows.handle,
            "Hook": self.ll_rows.hook,
            "Symmetric": self.block,
            "Lock": self.lock,
        }


def worlds_classes() -> set[str]:
    """Classes of expar but for those of plain Python values: enumerations, errors, results, arguments, ids."""
    plain = {"Combined", "Dispatched", "Layout", "LowLatencyCombined", "LowLatencyDispatched", "RecvCounts", "Route",
             "UniqueId", "View"}  # fmt: skip
    classes = {name for name in expar.__all__ if inspect.isclass(getattr(expar, name))}
    others = {name for name in classes if issubclass(getattr(expar, name), (int, BaseException))}
    return classes - plain - others


def use(world: World) -> None:
    """Uses all that a second release would have ended."""
    assert world.rows.event is not None and world.ll_rows.hook is not None
    world.rows.event.wait()
    numpy.testing.assert_array_equal(world.rows.x.numpy(), X)
    numpy.testing.assert_array_equal(world.buffer.combine(X, world.rows.handle).y.numpy(), X)
    world.ll_rows.hook()
    assert world.ll_rows.handle.num_tokens == 3
    assert int(world.ll_rows.count.numpy().sum()) == 3
    world.group.world().sync()
    with world.lock:
        world.group.barrier()
    assert not world.block.numpy().any()


def fails(text: str) -> None:
    """In a process of a pool."""
    raise expar.Error(Status.ERR_PEER, text)


class Copies(unittest.TestCase):
    def test_knows_all_classes(self) -> None:
        self.assertEqual(worlds_classes(), set(World().objects()))

    def test_a_copy_ends_nothing(self) -> None:
        """Each copy, also a deep one and one within a container, may go; the original works on."""
        world = World()
        for name, each in world.objects().items():
            self.assertIs(copy.copy(each), each, name)
            if name not in ("Tensor", "Symmetric"):
                self.assertIs(copy.deepcopy(each), each, name)
                self.assertIs(copy.deepcopy({"of a model": [each]})["of a model"][0], each, name)
        gc.collect()
        use(world)

    def test_results(self) -> None:
        """A copy of a result shares tensors and handle. A deep one would have to copy memory of the library."""
        world = World()
        assert world.rows.event is not None
        world.rows.event.wait()
        again = copy.copy(world.rows)
        self.assertIs(again.handle, world.rows.handle)
        route = copy.deepcopy(world.buffer.route(IDX, 2))
        numpy.testing.assert_array_equal(world.buffer.combine(X, route.handle).y.numpy(), X)
        del again, route
        gc.collect()
        with self.assertRaisesRegex(TypeError, r"cannot copy expar.Tensor deeply.*numpy\(\).copy\(\) or torch\(\)"):
            copy.deepcopy(world.rows)
        use(world)

    def test_memory(self) -> None:
        """Deep copies of memory say how to copy it."""
        world = World()
        for name, each in (("Tensor", world.rows.x), ("Symmetric", world.block)):
            with self.assertRaisesRegex(TypeError, rf"cannot copy expar.{name} deeply: .*numpy\(\).copy\(\)"):
                copy.deepcopy(each)
        use(world)

    def test_plain_values(self) -> None:
        """Arguments copy as Python's values do."""
        view = copy.deepcopy(expar.View(numpy.arange(4, dtype="uint16"), "bf16"))
        self.assertIs(view.dtype, expar.Dtype.BF16)
        counts = numpy.zeros(2, "int32")
        World().buffer.dispatch(X, IDX, None, 2, recv_counts=copy.copy(expar.RecvCounts(counts)))
        self.assertEqual(counts.tolist(), [1, 2])
        unique = expar.UniqueId()
        for made in (copy.copy(unique), copy.deepcopy(unique), pickle.loads(pickle.dumps(unique))):
            self.assertEqual(bytes(made), bytes(unique))
        unique.retire()

    def test_module_with_a_buffer(self) -> None:
        """A deep copy of a model shares the buffer, and has weights of its own."""
        torch = ranks.torch_for(self)
        world = World()
        layer = torch.nn.Linear(8, 8)
        layer.buffer = world.buffer
        other = copy.deepcopy(layer)
        self.assertIs(other.buffer, world.buffer)
        self.assertNotEqual(other.weight.data_ptr(), layer.weight.data_ptr())
        del other, layer
        use(world)


class Pickles(unittest.TestCase):
    def test_each_says_what_to_do(self) -> None:
        """The text names the class, and has advice of its own."""
        world = World()
        advice = set()
        for name, each in world.objects().items():
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                with self.assertRaisesRegex(TypeError, f"cannot pickle expar.{name}, which belongs to this.*: ") as said:
                    pickle.dumps(each, protocol)
            advice.add(str(said.exception).split(": ", 1)[1])
        self.assertNotIn("make one in each process", advice)  # that of the base
        self.assertGreaterEqual(len(advice), 9)
        with self.assertRaisesRegex(TypeError, "cannot pickle expar.(Tensor|Handle)"):
            pickle.dumps(world.rows)
        use(world)

    def check(self, error: expar.Error, by: Callable[[expar.Error], expar.Error]) -> expar.Error:
        made = by(error)
        self.assertIs(type(made), type(error))
        self.assertEqual(str(made), str(error))
        self.assertIs(made.status, error.status)
        self.assertEqual(vars(made).get("rank"), 3)
        return made

    def test_errors(self) -> None:
        """Class, text, code and further attributes stay."""
        error = expar.Error(Status.ERR_PEER, "rank 1 left")
        error.rank = 3  # type: ignore[attr-defined]
        for by in (copy.copy, copy.deepcopy):
            self.check(error, by)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            made = self.check(error, lambda each: pickle.loads(pickle.dumps(each, protocol)))  # noqa: B023
            self.assertEqual(str(made), "rank 1 left (EXPAR_ERR_PEER)")

    def test_dropped(self) -> None:
        """A copy has the rows that came. A pickle leaves them out."""
        world = World()
        with self.assertRaises(expar.DroppedError) as caught:
            world.buffer.dispatch(X, IDX, None, 2, num_worst_tokens=2)
        error: Any = caught.exception
        error.rank = 3
        for by in (copy.copy, copy.deepcopy):
            self.assertIs(vars(self.check(error, by))["result"], error.result)
        made: Any = self.check(error, lambda each: pickle.loads(pickle.dumps(each)))
        self.assertIsNone(made.result)
        self.assertEqual(error.result.num_dropped_tokens, 1)

    def test_pool(self) -> None:
        """A pool of processes passes an error of the library on, and survives."""
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            for text in ("rank 1 left", "rank 2 left"):
                with self.assertRaises(expar.Error) as caught:
                    pool.submit(fails, text).result(ranks.DEADLINE_S)
                self.assertEqual(str(caught.exception), f"{text} (EXPAR_ERR_PEER)")
                self.assertIs(caught.exception.status, Status.ERR_PEER)


if __name__ == "__main__":
    unittest.main()
