# SPDX-License-Identifier: Apache-2.0
"""Symmetric memory: what ranks do to each other's, against what NumPy says; and how long arrays of it live."""

from __future__ import annotations

import threading
import unittest
from typing import Any

import numpy

import expar

import ranks

DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def row_of(rank: int, pe: int, count: int, dtype: str) -> Any:
    """The data that rank puts to pe."""
    return numpy.random.default_rng(1000 * rank + pe).integers(0, 100, count).astype(dtype)


def put_and_get(group: expar.Group) -> None:
    """A row from each rank to each, of each type; then everybody reads everybody's."""
    for dtype in DTYPES:
        block = group.zeros((group.size, 33), dtype)
        rows = block.numpy()
        assert rows.shape == (group.size, 33) and rows.dtype == dtype and not rows.any()
        group.barrier()
        for pe in range(group.size):
            group.put(rows[group.rank], row_of(group.rank, pe, 33, dtype), pe)
        group.barrier()
        for pe in range(group.size):
            numpy.testing.assert_array_equal(rows[pe], row_of(pe, group.rank, 33, dtype))
            read = numpy.empty(7, dtype)
            group.get(read, rows[group.rank, 5:12], pe)
            numpy.testing.assert_array_equal(read, row_of(group.rank, pe, 33, dtype)[5:12])
        group.barrier()
        del rows
        block.free()
        block.free()  # again


def ring(group: expar.Group) -> None:
    """Rows with signals go round; each rank adds one to the row that it passes on."""
    data, signal = group.zeros(8, numpy.int64), group.zeros(2, "uint64")
    after = (group.rank + 1) % group.size
    rounds = 20
    for turn in range(1, rounds + 1):
        if group.rank > 0 or turn > 1:
            wanted = turn if group.rank > 0 else turn - 1
            seen = group.wait_until(signal.numpy()[:1], expar.Cmp.GE, wanted)
            assert seen == wanted
            assert group.test(signal.numpy()[:1], expar.Cmp.EQ, wanted)
            assert group.signal_fetch(signal.numpy()[:1]) == wanted
        group.put_signal(data, data.numpy() + 1, signal.numpy()[:1], 1, after, expar.SignalOp.ADD)
        group.quiet()
    group.barrier()
    expected = (rounds - 1) * group.size + group.rank if group.rank > 0 else rounds * group.size
    assert (data.numpy() == expected).all(), (data.numpy(), expected)


def atomics(group: expar.Group) -> None:
    for dtype in ("int32", "int64", "uint32", "uint64"):
        words = group.zeros(4, dtype)
        place = words.numpy()
        old = [group.atomic_fetch_add(place[:1], 1, 0) for _ in range(10)]
        assert old == sorted(set(old))
        group.atomic_add(place[1:2], group.rank, 0)
        group.atomic_fetch_or(place[2:3], 1 << group.rank, 0)
        assert group.atomic_compare_swap(place[3:4], 99, 5, 0) == 0
        group.barrier()
        if group.rank == 0:
            everybody = sum(range(group.size)), (1 << group.size) - 1
            assert place.tolist() == [10 * group.size, *everybody, 0], place
            assert group.atomic_fetch_xor(place[2:3], everybody[1], 0) == everybody[1]
            assert group.atomic_fetch_and(place[:1], 0, 0) == 10 * group.size
            assert group.atomic_swap(place[3:4], 7, 0) == 0
            group.atomic_set(place[1:2], 3, 0)
            assert place.tolist() == [0, 3, 0, 7]
        group.barrier()
        assert group.atomic_fetch(place[3:4], 0) == 7
        group.barrier()
    real = group.zeros(1, "float64")
    group.barrier()
    if group.rank == group.size - 1:
        assert group.atomic_swap(real, 0.5, 0) == 0.0
    group.barrier()
    assert group.atomic_fetch(real, 0) == 0.5


def all_of_it(group: expar.Group) -> None:
    put_and_get(group)
    ring(group)
    atomics(group)


def soak(group: expar.Group) -> None:
    """Blocks come and go; the heap does not grow."""
    places = set()
    for _ in range(200):
        block = group.empty(100)
        places.add(block.interface["data"])
        block.free()
    assert len(places) == 1


class Memory(unittest.TestCase):
    def test_threads(self) -> None:
        for size in (1, 2, 4, 8):
            ranks.on_threads(size, all_of_it)

    def test_processes(self) -> None:
        ranks.on_processes(4, "test_python_symmetric", "all_of_it")

    def test_nothing_is_left(self) -> None:
        ranks.on_threads(2, soak)

    def test_wrong_arguments(self) -> None:
        with expar.Group.from_env() as group:
            block = group.zeros((4, 6), "int32")
            own = numpy.zeros(4, "int32")
            for error, text, call in (
                (ValueError, "dest has 96 bytes, source 16", lambda: group.put(block, own, 0)),
                (ValueError, "dest: the array is not contiguous", lambda: group.put(block.numpy()[:, 1], own, 0)),
                (TypeError, "source: list is no array", lambda: group.put(block, [1], 0)),
                (TypeError, "word: 4 of <i4: expected one word", lambda: group.atomic_add(own, 1, 0)),
                (TypeError, "atomic_add: there is none for f32", lambda: group.atomic_add(group.zeros(1), 1, 0)),
                (TypeError, "signal: a word of i32", lambda: group.signal_fetch(own[:1])),
                (TypeError, "no element type 'complex64'", lambda: group.empty(3, "complex64")),
                (ValueError, "expected extents of 1 or more", lambda: group.empty((3, 0))),
                (expar.Error, "EXPAR_ERR_ADDRESS", lambda: group.put(own, own, 0)),
                (expar.Error, "EXPAR_ERR_RANGE", lambda: group.put(block.numpy()[0, :4], own, 3)),
            ):
                with self.assertRaisesRegex(error, text):
                    call()  # type: ignore[no-untyped-call]
            own.flags.writeable = False
            with self.assertRaisesRegex(TypeError, "dest: the array is read only"):
                group.get(own, block.numpy()[0, :4], 0)


class Lives(unittest.TestCase):
    def test_arrays_hold_the_memory(self) -> None:
        group = expar.Group.from_env()
        block = group.zeros(10)
        part = block.numpy()[3:]
        with self.assertRaisesRegex(BufferError, "before it is freed"):
            block.free()
        with self.assertRaisesRegex(BufferError, "before it is closed"):
            group.close()
        part[:] = 2
        self.assertEqual(block.numpy().sum(), 14)
        del part
        block.free()
        with self.assertRaisesRegex(ValueError, "has been freed"):
            block.numpy()
        group.close()
        with self.assertRaisesRegex(ValueError, "the group is closed"):
            group.zeros(3)

    def test_an_exception_leaves_arrays_readable(self) -> None:
        """And the other rank learns of it once they are gone."""
        said: list[expar.Error] = []
        mine, other = expar.Group.threads(2)

        def stay(group: expar.Group) -> None:
            try:
                group.zeros(5)
                group.barrier()
            except expar.Error as error:
                said.append(error)
            group.close()

        thread = threading.Thread(target=stay, args=(other,))
        thread.start()
        with self.assertRaises(ZeroDivisionError):
            with mine:
                array = mine.zeros(5).numpy()
                array[:] = 3
                raise ZeroDivisionError
        self.assertEqual(array.sum(), 15)
        self.assertTrue(mine.closed)
        del mine, array
        thread.join(ranks.DEADLINE_S)
        self.assertEqual([error.status for error in said], [expar.Status.ERR_PEER])

    def test_collected_without_a_free(self) -> None:
        group = expar.Group.from_env()
        array = group.zeros(5).numpy()
        del group
        array[:] = 1
        self.assertEqual(array.sum(), 5)


if __name__ == "__main__":
    unittest.main()
