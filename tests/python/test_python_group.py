# SPDX-License-Identifier: Apache-2.0
"""Groups: how they are made, what they do, how they end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any

import expar

import ranks


def gather(group: expar.Group) -> None:
    """The work of every rank in every kind of group."""
    mine = bytes([group.rank, 7])
    assert group.allgather(mine) == [bytes([r, 7]) for r in range(group.size)]
    root = group.size - 1
    assert group.broadcast(bytes([group.rank]) * 3, root=root) == bytes([root]) * 3
    assert (group.num_nodes, group.node, group.local_rank) == (1, 0, group.rank)
    group.barrier()


class FakeComm:
    """An mpi4py communicator among threads, as far as expar uses one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.meeting = threading.Barrier(size)
        self.value: Any = None

    def rank(self, number: int) -> Any:
        class Rank:
            rank, size = number, self.size  # numbers, where a process group of PyTorch's has methods
            Get_rank = staticmethod(lambda: number)
            Get_size = staticmethod(lambda: self.size)
            bcast = staticmethod(lambda value: self.broadcast(number, value))

        return Rank()

    def broadcast(self, number: int, value: Any) -> Any:
        if number == 0:
            self.value = value
        self.meeting.wait()
        return self.value


class Making(unittest.TestCase):
    def test_alone(self) -> None:
        with expar.Group.from_env() as group:
            self.assertEqual((group.rank, group.size, group.ranks_per_node), (0, 1, 1))
            gather(group)
            self.assertEqual(repr(group), "expar.Group(rank=0, size=1)")
        self.assertTrue(group.closed)
        self.assertEqual(repr(group), "expar.Group(closed)")

    def test_threads(self) -> None:
        for size in (1, 2, 4, 8):
            ranks.on_threads(size, gather)

    def test_processes(self) -> None:
        for size in (2, 4):
            ranks.on_processes(size, "test_python_group", "gather")

    def test_mpi4py(self) -> None:
        comm = FakeComm(3)
        self.made_by(3, lambda number: expar.Group.from_mpi4py(comm.rank(number)))

    def test_mpi4py_itself(self) -> None:
        ranks.mpirun(self, 3)

    def made_by(self, size: int, make: Any) -> None:
        failures: list[BaseException] = []

        def run(number: int) -> None:
            try:
                with make(number) as group:
                    assert (group.rank, group.size) == (number, size)
                    gather(group)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ranks.DEADLINE_S)
        self.assertEqual(failures, [])

    def test_mpi4py_without_an_id(self) -> None:
        """All ranks learn why rank 0 has none."""
        comm = FakeComm(2)
        said: list[str] = []

        def run(number: int) -> None:
            try:
                expar.Group.from_mpi4py(comm.rank(number), interface="nosuch0")
            except expar.Error as error:
                said.append(f"{error.status.name} {error}")

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ranks.DEADLINE_S)
        self.assertEqual(len(said), 2)
        for text in said:
            self.assertIn("ERR_ARGUMENT rank 0 has no unique id:", text)
            self.assertIn("nosuch0", text)

    def test_torch(self) -> None:
        """Where it is installed: a process group of all ranks, and one of some, in another order."""
        ranks.torch_for(self)
        code = """
import os, sys
import torch.distributed as dist
import expar
import test_python_group
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(os.environ["EXPAR_RANK"]), world_size=3)
with expar.Group.from_torch() as group:
    assert (group.rank, group.size) == (dist.get_rank(), 3)
    test_python_group.gather(group)
some = dist.new_group([2, 1])
if dist.get_rank() > 0:
    with expar.Group.from_torch(some, timeout_ms=20000) as group:
        assert (group.rank, group.size) == (dist.get_rank(some), 2)
        test_python_group.gather(group)
dist.destroy_process_group()
"""
        with tempfile.TemporaryDirectory() as folder:
            ended = ranks.launched(3, "-c", code, folder + "/meeting")
        self.assertEqual(ended.returncode, 0, ended.stdout)

    def test_options(self) -> None:
        with expar.Group.from_env(timeout_ms=1234, heap_bytes=1 << 22, heap_kind=expar.HeapKind.STATIC) as group:
            gather(group)
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'time_out'"):
            expar.Group.from_env(time_out=3)
        with self.assertRaisesRegex(expar.Error, "ranks_per_node") as caught:
            expar.Group.threads(3, ranks_per_node=2)
        self.assertEqual(caught.exception.status, expar.Status.ERR_ARGUMENT)

    def test_wrong_arguments(self) -> None:
        with self.assertRaisesRegex(ValueError, "unique_id has 5 bytes: expected 128"):
            expar.Group.from_id(b"short", 0, 1)
        with self.assertRaises(expar.Error) as caught:
            expar.Group.threads(0)
        self.assertEqual(caught.exception.status, expar.Status.ERR_RANGE)
        with self.assertRaisesRegex(TypeError, "size is 'two': expected a number of ranks"):
            expar.Group.threads("two")  # type: ignore[arg-type]
        with expar.Group.from_env() as group:
            with self.assertRaisesRegex(expar.Error, r"root 5.*\(EXPAR_ERR_RANGE\)"):
                group.broadcast(b"x", root=5)
        with self.assertRaisesRegex(ValueError, "the group is closed"):
            group.barrier()
        group.close()  # again
        group.abandon()


class Ends(unittest.TestCase):
    def left_alone(self, leave: Any) -> None:
        """The other rank learns that this one has gone."""
        said: list[expar.Error] = []
        mine, other = expar.Group.threads(2)

        def wait() -> None:
            try:
                other.barrier()
            except expar.Error as error:
                said.append(error)
            other.close()

        thread = threading.Thread(target=wait)
        thread.start()
        holder = [mine]
        del mine
        leave(holder)
        thread.join(ranks.DEADLINE_S)
        self.assertEqual([error.status for error in said], [expar.Status.ERR_PEER])
        self.assertIn("rank 0", str(said[0]))

    def test_abandoned(self) -> None:
        self.left_alone(lambda holder: holder.pop().abandon())

    def test_collected(self) -> None:
        self.left_alone(lambda holder: holder.pop())

    def test_collected_in_a_cycle(self) -> None:
        def leave(holder: list[Any]) -> None:
            holder.append(holder)
            holder[0].cycle = holder[:]
            holder[0].cycle[0].self = holder[0]
            holder.clear()
            gc.collect()

        self.left_alone(leave)

    def test_an_exception(self) -> None:
        def leave(holder: list[Any]) -> None:
            with self.assertRaises(ZeroDivisionError), holder.pop():
                raise ZeroDivisionError

        self.left_alone(leave)

    def test_aborted(self) -> None:
        mine, other = expar.Group.threads(2)
        threading.Timer(0.1, mine.abort).start()
        with self.assertRaises(expar.Error) as caught:
            mine.barrier()
        self.assertEqual(caught.exception.status, expar.Status.ERR_ABORTED)
        mine.close()
        other.close()

    def test_exit_without_an_end(self) -> None:
        """At exit of the interpreter, whatever is alive, and whatever other threads wait for."""
        code = """
import expar, sys, threading, time
groups = expar.Group.threads(3)
def wait():
    try:
        groups[1].barrier()
    except expar.Error:
        pass
threading.Thread(target=wait, daemon=%s).start()
time.sleep(0.05)
%s
"""
        for daemon, end in ((True, ""), (True, "sys.exit(0)"), (True, "raise SystemExit(0)"), (True, "groups = 5")):
            ended = ranks.start([sys.executable, "-c", code % (daemon, end)])
            self.assertEqual((ended.returncode, ended.stdout), (0, ""), end)

    def test_exit_of_one_rank(self) -> None:
        """The others are told; nobody hangs."""
        code = """
import expar, sys
group = expar.Group.from_env()
group.barrier()
if group.rank == 0:
    sys.exit(0)
try:
    group.barrier()
except expar.Error as error:
    assert error.status == expar.Status.ERR_PEER and "rank 0" in str(error), error
else:
    sys.exit("nobody has gone")
"""
        ended = ranks.launched(3, "-c", code)
        self.assertEqual(ended.returncode, 0, ended.stdout)

    def test_fork(self) -> None:
        """A child is no rank: its end is not the parent's."""
        ranks.on_processes(2, "test_python_group", "fork_within")


def fork_within(group: expar.Group) -> None:
    child = os.fork()
    if child == 0:
        sys.exit(0)  # with all that an interpreter does at its end
    assert os.waitpid(child, 0)[1] == 0
    gather(group)


def interrupted_after(code: str, number: int = signal.SIGINT) -> subprocess.CompletedProcess[str]:
    """A program that says "waits" and then waits gets the signal; what it said then."""
    program = subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert program.stdout is not None
    try:
        said = program.stdout.readline()
        assert said == "waits\n", said
        time.sleep(0.1)
        program.send_signal(number)
        rest, _ = program.communicate(timeout=ranks.DEADLINE_S)
    finally:
        program.kill()
        program.wait()
    return subprocess.CompletedProcess([], program.returncode, rest)


class Signals(unittest.TestCase):
    MAKES = "import expar, signal, sys\ngroups = expar.Group.threads(2)\n"

    def test_interrupt(self) -> None:
        code = f"""{self.MAKES}
try:
    print("waits")
    groups[0].barrier()
except KeyboardInterrupt:
    print("interrupted")
"""
        ended = interrupted_after(code)
        self.assertEqual((ended.returncode, ended.stdout), (0, "interrupted\n"))

    def test_nobody_catches_it(self) -> None:
        ended = interrupted_after(self.MAKES + "print('waits')\ngroups[0].barrier()\n")
        self.assertEqual(ended.returncode, -signal.SIGINT)
        self.assertIn("KeyboardInterrupt", ended.stdout)

    def test_in_bootstrap(self) -> None:
        code = """
import expar
unique_id = expar.UniqueId()
try:
    print("waits")
    expar.Group.from_id(unique_id, 0, 2)
except KeyboardInterrupt:
    print("interrupted")
"""
        ended = interrupted_after(code)
        self.assertEqual((ended.returncode, ended.stdout), (0, "interrupted\n"))

    def test_a_handler_that_raises(self) -> None:
        code = f"""{self.MAKES}
def handle(*_):
    raise OverflowError("told")
signal.signal(signal.SIGTERM, handle)
try:
    print("waits")
    groups[0].barrier()
except OverflowError as error:
    print(error)
"""
        ended = interrupted_after(code, signal.SIGTERM)
        self.assertEqual((ended.returncode, ended.stdout), (0, "told\n"))

    def test_a_handler_that_returns(self) -> None:
        """It runs while the call waits, and the call goes on."""
        code = f"""
import threading
{self.MAKES}
def handle(*_):
    print("handled")
    threading.Thread(target=groups[1].barrier).start()
signal.signal(signal.SIGTERM, handle)
print("waits")
groups[0].barrier()
print("over")
"""
        ended = interrupted_after(code, signal.SIGTERM)
        self.assertEqual((ended.returncode, ended.stdout), (0, "handled\nover\n"))

    def test_again(self) -> None:
        """The library asks anew after an interrupt."""
        code = """
import expar, os, signal, threading
for i in range(3):
    groups = expar.Group.threads(2)
    try:
        if i == 0:
            print("waits")
        else:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        groups[0].barrier()
    except KeyboardInterrupt:
        print(i)
"""
        ended = interrupted_after(code)
        self.assertEqual((ended.returncode, ended.stdout), (0, "0\n1\n2\n"))


class Log(unittest.TestCase):
    def test_records(self) -> None:
        code = """
import logging, sys
import expar
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(name)s rank=%(rank)d %(message)s", level=5)
expar.log_to(logging.getLogger("engine"))
groups = expar.Group.threads(2)
try:
    groups[1].broadcast(b"", root=9)
except expar.Error:
    pass
expar.log_to(None)
"""
        ended = ranks.start([sys.executable, "-c", code], env={**os.environ, "EXPAR_LOG": "info"})
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("INFO engine rank=1 rank 1: EXPAR_ERR_RANGE: expar_group_broadcast: root 9", ended.stdout)

    def test_stays_at_exit(self) -> None:
        code = "import expar, logging; expar.log_to(logging.getLogger('x')); groups = expar.Group.threads(2)"
        ended = ranks.start([sys.executable, "-c", code], env={**os.environ, "EXPAR_LOG": "trace"})
        self.assertEqual(ended.returncode, 0, ended.stdout)


if __name__ == "__main__":
    unittest.main()
