# SPDX-License-Identifier: Apache-2.0
"""Every public call of expar with one argument wrong at a time: the exception, what its text names, and that nothing is
written. The table of wrong_calls.py is held against the signatures of the package: a call or an argument that it lacks
fails.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import unittest
from typing import Any

import numpy
from wrong_calls import CALLS, ELSEWHERE, IN_C, World, public_calls
from wrong_values import SENTINEL, filled

import expar
from expar import Error

import ranks


class Table(unittest.TestCase):
    def test_is_whole(self) -> None:
        """Each public call and each of its arguments."""
        found = 0
        for name, arguments in public_calls():
            if not arguments or name in ELSEWHERE:
                continue
            self.assertTrue(name in CALLS, f"{name}: wrong_calls.py has no wrong argument for it")
            self.assertEqual([each for each in arguments if each not in CALLS[name][2]], [], name)
            found += 1
        self.assertEqual(found, len(CALLS))

    def test_each_argument(self) -> None:
        """One wrong at a time: what is raised says which and what; nothing is written, and the next call is good."""
        world = World()
        count = 0
        for name, (call, good, wrong) in CALLS.items():
            for argument, values in wrong.items():
                for value, kind, text in values:
                    with self.subTest(call=name, argument=argument, value=value if numpy.ndim(value) == 0 else text):
                        self.refuses(world, call(world), {**good(world), argument: value}, argument, kind, text)
                    count += 1
        self.assertGreater(count, 900)
        self.assertFalse(world.written())
        world.group.barrier()
        rows = world.buffer.dispatch(world.x, world.idx, world.weights, 2)
        self.assertEqual(rows.num_recv_tokens, 6)
        world.low.combine(world.sent, world.idx, world.weights, world.ll_rows.handle)

    def refuses(
        self, world: World, call: Any, given: dict[str, Any], argument: str, kind: type[BaseException], text: str
    ) -> None:
        with self.assertRaises(kind) as caught:
            call(**given)
        said = str(caught.exception)
        self.assertRegex(said, text)
        names = {argument, IN_C.get(argument, argument)}
        if argument == "word":
            names.add("lock")
        self.assertTrue(any(re.search(rf"\b{name}\b", said) for name in names), f"{said!r} does not name {argument}")
        for each in given.values():
            if isinstance(each, numpy.ndarray) and each.dtype.kind == "f":
                self.assertTrue((each == SENTINEL).all(), "a refused call has written")
        self.assertFalse(world.written(), "a refused call has written")


class Dead(unittest.TestCase):
    """Objects that are gone."""

    def test_each(self) -> None:
        world = World()
        team, lock = world.team.split(0, 1, 1), world.group.lock(world.flag)
        assert team is not None
        team.close()
        hook = world.low.dispatch(world.ll_x, world.idx, hook=True).hook
        assert hook is not None
        other = world.group.zeros(4, "int32")
        other.free()
        world.buffer.close()
        world.low.close()
        world.early.close()
        dispatch = dict(x=world.x, topk_idx=world.idx, num_experts=2)
        for text, call in (
            ("the team is closed", lambda: team.sync()),
            ("the team is closed", lambda: world.team.translate(0, team)),
            ("dest: the symmetric memory has been freed", lambda: world.group.put(other, world.own, 0)),
            ("the symmetric memory has been freed", lambda: other.numpy()),
            ("the buffer is closed", lambda: world.buffer.dispatch(**dispatch)),
            ("the buffer is closed", lambda: world.buffer.combine(world.x, world.rows.handle)),
            ("the buffer is closed", lambda: world.buffer.route(world.idx, 2)),
            ("the buffer is closed", lambda: world.buffer.alloc(3, "f32")),
            ("the buffer is closed", world.buffer.stats),
            ("the buffer is closed", world.buffer.trim),
            ("the buffer is closed", world.buffer.query),
            ("the low-latency buffer is closed", lambda: world.low.dispatch(world.ll_x, world.idx)),
            ("the low-latency buffer is closed",
             lambda: world.low.combine(world.sent, world.idx, world.weights, world.ll_rows.handle)),
            ("the low-latency buffer is closed", lambda: world.low.combine_buffer(world.ll_rows.handle, "f16")),
            ("the low-latency buffer is closed", world.low.mask_query),
            ("the low-latency buffer is closed", world.low.stats),
            ("the low-latency buffer is closed", lambda: world.early.set_shape(2, 128, 2, 2)),
        ):  # fmt: skip
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                call()  # type: ignore[no-untyped-call]
        with self.assertRaisesRegex(Error, "ERR_STATE"):
            hook()
        self.assertFalse(world.written())
        world.group.close()
        for call in (
            world.group.barrier, world.group.abort, world.group.world, world.group.fence, world.group.quiet,
            lambda: world.group.rank, lambda: world.group.put(world.block, world.own, 0), world.block.numpy,
            lambda: world.group.wait_until(world.flag, expar.Cmp.EQ, 0), world.team.sync, lock.acquire, lock.release,
            lambda: expar.Buffer(world.group), lambda: expar.LowLatencyBuffer(world.group, 2, 128, 2, 2),
            lambda: world.buffer.layout(world.idx, 2), world.group.heap_stats, lambda: world.group.allgather(b""),
        ):  # fmt: skip
            with self.assertRaisesRegex(ValueError, "the (group|buffer) is closed"):
                call()

    def test_in_a_child(self) -> None:
        """A child by fork is no rank: its calls say so, and touch nothing; what they read of results stays."""
        world = World()
        event = expar.Event()
        hook = world.low.dispatch(world.ll_x, world.idx, hook=True).hook
        assert hook is not None
        array = world.rows.x.numpy()
        calls = [
            world.group.barrier, world.team.sync, lambda: world.group.put(world.block, world.own, 0),
            lambda: world.group.wait_until(world.flag, expar.Cmp.EQ, 0), world.group.lock(world.flag).acquire,
            lambda: world.buffer.dispatch(world.x, world.idx, num_experts=2), lambda: world.buffer.alloc(3, "f32"),
            lambda: world.low.dispatch(world.ll_x, world.idx), hook, event.wait, event.signal, lambda: event.done,
            lambda: expar.Buffer(world.group), world.group.close, world.buffer.close, world.low.close,
        ]  # fmt: skip
        child = os.fork()
        if child == 0:
            failed = 0
            signal.alarm(ranks.DEADLINE_S)  # a call that waits ends the child
            try:
                for index, call in enumerate(calls):
                    try:
                        call()
                        failed = failed or 100 + index
                    except Error as error:
                        if error.status != expar.Status.ERR_STATE or "forked" not in str(error):
                            failed = failed or 1 + index
                if (array != SENTINEL).any():
                    failed = 99
            finally:
                os._exit(failed)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "the number of the call, and 1 or 100")
        self.assertFalse(world.written())
        hook()
        event.signal()
        world.group.barrier()


class Others(unittest.TestCase):
    def test_they_do_not_hang(self) -> None:
        """An access outside of one rank's block, found before the library was called, ends the calls of the others."""
        mine, other = expar.Group.threads(2)
        x, idx = filled((6, 64), "float32"), numpy.zeros((6, 1), "int64")
        said: list[BaseException] = []

        def step(group: expar.Group, tokens: Any) -> None:
            try:
                with group, expar.Buffer(group) as buffer:
                    buffer.dispatch(tokens, idx, num_experts=2)
            except (Error, TypeError) as error:
                said.append(error)

        ranks.at_once([lambda: step(mine, [1.5]), lambda: step(other, x)])
        wrong = next(error for error in said if isinstance(error, TypeError))
        told = next(error for error in said if isinstance(error, Error))
        self.assertRegex(str(wrong), r"x: list is no tensor: it is \[1.5\], expected")
        self.assertEqual(told.status, expar.Status.ERR_PEER)
        self.assertIn("rank 0", str(told))


class Torch(unittest.TestCase):
    def test_without(self) -> None:
        """Calls that need PyTorch say so where there is none, and a GPU that is missing is no CPU."""
        code = """
import sys
sys.modules["torch"] = None
import numpy
import expar
group = expar.Group.from_env()
block = group.zeros(3)
rows = expar.Buffer(group).dispatch(numpy.zeros((2, 8), "float32"), numpy.zeros((2, 1), "int64"), num_experts=1)
for call in (expar.Group.from_torch, block.torch, rows.x.torch):
    try:
        call()
    except ImportError as error:
        assert "torch" in str(error), error
    else:
        raise SystemExit(f"{call} needs no PyTorch")
group.barrier()
"""
        ended = ranks.start([sys.executable, "-c", code])
        self.assertEqual((ended.returncode, ended.stdout), (0, ""))

    def test_with(self) -> None:
        """Where it is installed."""
        torch = ranks.torch_for(self)
        world = World()
        with self.assertRaisesRegex(TypeError, "process_group is 'all': expected one of torch.distributed"):
            expar.Group.from_torch("all")
        with self.assertRaisesRegex(ValueError, "process_group is None: expected torch.distributed"):
            expar.Group.from_torch()
        with self.assertRaisesRegex(TypeError, "pe is 'one': expected"):
            world.block.torch("one")  # type: ignore[arg-type]
        elsewhere = torch.empty(4, dtype=torch.int32, device="meta")
        with self.assertRaisesRegex(TypeError, "source: "):
            world.group.put(world.block, elsewhere, 0)
        with self.assertRaisesRegex(TypeError, "x: a tensor lies on meta: expected the CPU"):
            world.buffer.dispatch(elsewhere, world.idx, num_experts=2)
        with self.assertRaisesRegex(Error, r"x.strides\[1\] is 6; expected 1"):
            world.buffer.dispatch(torch.zeros(64, 6).T, world.idx, num_experts=2)
        self.assertFalse(world.written())


if __name__ == "__main__":
    faulthandler.dump_traceback_later(2 * ranks.DEADLINE_S, exit=True)  # a call that waits fails with the place
    unittest.main()
