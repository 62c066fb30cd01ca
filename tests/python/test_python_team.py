# SPDX-License-Identifier: Apache-2.0
"""Teams and their collectives against NumPy; locks, waits for several words, and memory of other ranks."""

from __future__ import annotations

import unittest
from typing import Any, Callable

import numpy

import expar

import ranks

same = numpy.testing.assert_array_equal


def values(member: int, dtype: str, count: int = 12) -> Any:
    return numpy.random.default_rng(member).integers(1, 4, count).astype(dtype)


def reductions(group: expar.Group, team: expar.Team) -> None:
    """For each type; from memory that is not symmetric, and in place."""
    together: dict[str, Callable[..., Any]] = {
        "sum": numpy.add,
        "prod": numpy.multiply,
        "min": numpy.minimum,
        "max": numpy.maximum,
        "and": numpy.bitwise_and,
        "or": numpy.bitwise_or,
        "xor": numpy.bitwise_xor,
    }
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"):
        block = group.zeros(12, dtype)
        for name, combine in together.items():
            if dtype.startswith("float") and name in ("and", "or", "xor"):
                continue
            expected = values(0, dtype)
            for member in range(1, team.size):
                expected = combine(expected, values(member, dtype))
            team.sync()
            team.reduce(block, values(team.rank, dtype), name)
            same(block.numpy(), expected)
            team.sync()
            block.numpy()[:] = values(team.rank, dtype)
            team.reduce(block, block, name)
            same(block.numpy(), expected)
        block.free()


def movements(group: expar.Group, team: expar.Team) -> None:
    size, rank = team.size, team.rank
    whole, part = group.zeros((group.size, 5), "float32"), group.zeros(5, "float32")
    rows = whole.numpy()[:size]
    everybody = numpy.stack([values(member, "float32", 5) for member in range(size)])
    team.fcollect(rows, everybody[rank])
    same(rows, everybody)
    rows[:] = -1
    team.sync()
    team.collect(whole, everybody[rank, : rank % 3])  # none of member 0
    expected = numpy.concatenate([everybody[member, : member % 3] for member in range(size)])
    same(whole.numpy().ravel()[: len(expected)], expected)
    team.sync()
    team.alltoall(rows, everybody + 10 * rank)
    same(rows, numpy.stack([everybody[rank] + 10 * member for member in range(size)]))
    team.sync()
    for root in (0, size - 1):
        part.numpy()[:] = everybody[rank]
        team.barrier()
        team.broadcast(part, part, root)
        same(part.numpy(), everybody[root])
        team.sync()
    del rows
    group.barrier()
    whole.free()
    part.free()


def several(group: expar.Group) -> None:
    """Teams of all ranks, of those of even number, of rows and columns, and formed ones."""
    world, shared = group.world(), group.shared()
    assert (world.rank, world.size, shared.size) == (group.rank, group.size, group.ranks_per_node)
    assert world.translate(group.size - 1, world) == group.size - 1
    reductions(group, world)
    movements(group, world)
    even = world.split(0, 2, (group.size + 1) // 2)
    assert (even is None) == (group.rank % 2 == 1)
    for _ in range(2):  # allocations are of the group
        block = group.zeros(3, "int64")
        if even is not None:
            assert (even.rank, even.size) == (group.rank // 2, (group.size + 1) // 2)
            assert even.translate(even.rank, world) == group.rank
            assert group.size == 1 or world.translate(1, even) is None
            even.reduce(block, numpy.full(3, group.rank), "sum")
            assert block.numpy().tolist() == [sum(range(0, group.size, 2))] * 3
        group.barrier()
        block.free()
    if even is not None:
        even.close()
        even.close()  # again
    with_row, with_column = world.split_2d(2)
    assert (with_row.rank, with_column.rank) == (group.rank % 2, group.rank // 2)
    with with_row, with_column:
        with_row.sync()
        with_column.barrier()
    own = group.team(group.rank, 1, 1)
    assert own is not None and own.size == 1 and group.team((group.rank + 1) % group.size, 1, 1) is not own
    own.close()
    rail = group.rail()
    rail.close()  # of a standing team: nothing
    rail.sync()
    assert repr(rail) == f"expar.Team(rank={group.node}, size={group.num_nodes})"


def words(group: expar.Group) -> None:
    """Locks, waits for several words, puts that are not waited for, and what a rank of this node stores."""
    counter, lock_word, flags = group.zeros(1, "int64"), group.zeros(1, "uint64"), group.zeros(group.size, "uint64")
    lock = group.lock(lock_word)
    for _ in range(20):
        with lock:
            value = numpy.zeros(1, "int64")
            group.get(value, counter, 0)
            group.put(counter, value + 1, 0)
            group.quiet()
    group.barrier()
    if group.rank == 0:
        assert counter.numpy()[0] == 20 * group.size
        assert lock.acquire(blocking=False) and not lock.acquire(blocking=False)
        lock.release()
    group.barrier()

    mine = numpy.array([group.rank + 1], "uint64")
    for pe in range(group.size):
        group.put_nbi(flags.numpy()[group.rank : group.rank + 1], mine, pe)
    group.quiet()
    found: set[int] = set()
    while len(found) < group.size:
        skip = [index in found for index in range(group.size)]
        index = group.wait_until_any(flags, expar.Cmp.NE, 0, skip)
        assert index not in found and flags.numpy()[index] == index + 1
        found.add(index)
    group.wait_until_all(flags, expar.Cmp.GE, 1)
    group.barrier()  # now others have all of theirs, too
    read = numpy.zeros(group.size, "uint64")
    group.get_nbi(read, flags, (group.rank + 1) % group.size)
    group.quiet()
    same(read, numpy.arange(group.size) + 1)
    group.barrier()

    flags.numpy((group.rank + 1) % group.size)[group.rank] = 99
    group.barrier()
    assert flags.numpy()[(group.rank - 1) % group.size] == 99
    assert group.heap_stats()["used_bytes"] > 0 and group.network_stats()["puts"] == 0
    group.barrier()


def all_of_it(group: expar.Group) -> None:
    several(group)
    words(group)


class Teams(unittest.TestCase):
    def test_threads(self) -> None:
        for size in (1, 2, 4):
            ranks.on_threads(size, all_of_it)

    def test_processes(self) -> None:
        ranks.on_processes(3, "test_python_team", "all_of_it")

    def test_wrong_arguments(self) -> None:
        group = expar.Group.from_env()
        block, own = group.zeros(4, "int32"), numpy.zeros(4, "int32")
        half, real = group.zeros(4, "bfloat16"), group.zeros(4, "float32")
        team = group.world()
        for error, text, call in (
            (ValueError, "dest has 16 bytes, source 8: expected 8 in dest", lambda: team.broadcast(block, own[:2])),
            (ValueError, "source: the array is not contiguous", lambda: team.alltoall(block, own[::2])),
            (ValueError, "operation is 'mean': expected one of sum", lambda: team.reduce(block, own, "mean")),
            (TypeError, "dest has elements of i32, source of f32", lambda: team.reduce(block, real)),
            (TypeError, "there is no xor of f32", lambda: team.reduce(real, real, "xor")),
            (TypeError, "there are no reductions of bfloat16", lambda: team.reduce(half, half)),
            (TypeError, "no reductions of <c8", lambda: team.reduce(block, own.view("complex64"))),
            (TypeError, "source: list is no array", lambda: team.fcollect(block, [1])),
            (expar.Error, "EXPAR_ERR_ADDRESS", lambda: team.broadcast(own, block)),
            (expar.Error, "EXPAR_ERR_RANGE", lambda: team.broadcast(block, block, 1)),
            (expar.Error, "EXPAR_ERR_RANGE", lambda: group.team(0, 1, 2)),
            (expar.Error, "EXPAR_ERR_RANGE", lambda: team.split(0, 1, 2)),
            (ValueError, "skip has 1 entries: expected one a word, 4",
             lambda: group.wait_until_any(block, expar.Cmp.EQ, 0, [True])),
            (ValueError, "there is none to wait for",
             lambda: group.wait_until_any(block, expar.Cmp.EQ, 0, [True] * 4)),
            (TypeError, "words: elements of <u2", lambda: group.wait_until_all(half, expar.Cmp.EQ, 0)),
            (TypeError, "word: a word of i32", lambda: group.lock(block.numpy()[:1])),
            (ValueError, "the memory of rank 1 is out of reach", lambda: block.numpy(1)),
            (expar.Error, "EXPAR_ERR_STATE", lambda: group.lock(group.zeros(1, "uint64")).release()),
        ):  # fmt: skip
            with self.subTest(text), self.assertRaisesRegex(error, text):
                call()  # type: ignore[no-untyped-call]
        other = team.split(0, 1, 1)
        assert other is not None
        other.close()
        with self.assertRaisesRegex(ValueError, "the team is closed"):
            other.sync()
        group.close()
        with self.assertRaisesRegex(ValueError, "the group is closed"):
            team.sync()
        self.assertEqual(repr(team), "expar.Team(closed)")

    def test_memory_of_another_rank_is_held(self) -> None:
        mine, other = expar.Group.threads(2)
        made: list[expar.Symmetric] = []

        def allocate(group: expar.Group) -> None:
            made.append(group.zeros(4))

        ranks.at_once([lambda: allocate(mine), lambda: allocate(other)])
        block = next(each for each in made if each.group is mine)
        array = block.numpy(1)
        with self.assertRaises(BufferError):
            mine.close()
        del array
        ranks.at_once([mine.close, other.close])


if __name__ == "__main__":
    unittest.main()
