# SPDX-License-Identifier: Apache-2.0
"""Teams: some of a group's ranks, at equal distances, for common operations on symmetric memory."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _values
from ._abi import Status
from ._copies import Shared
from ._errors import Error
from ._library import give_types, lib
from ._symmetric import Symmetric, interface_of, span_of

if TYPE_CHECKING:
    from ._group import Group
    from ._types import HostArray

# The names of element types in the library's reductions.
_SUFFIXES = {
    "|i1": "i8",
    "<i2": "i16",
    "<i4": "i32",
    "<i8": "i64",
    "|u1": "u8",
    "<u2": "u16",
    "<u4": "u32",
    "<u8": "u64",
    "<f4": "f32",
    "<f8": "f64",
}
_OPERATIONS = ("sum", "prod", "min", "max", "and", "or", "xor")


class Team(Shared):
    """A team of ranks, made by `Group.world`, `shared`, `rail` and `team`, or by `split` and `split_2d` of another one.
    Members have their own numbers, from 0 on.

    All members make collective calls in the same order, one thread of a rank at a time. In calls with `dest`, it is
    symmetric, the same place on all members. It must be writable on all members before any of them calls, and is filled
    at the return. Arrays are contiguous and do not overlap; sizes and `root` are the same on all members.

    Error: ERR_ADDRESS (dest is no symmetric memory), ERR_RANGE (root), ERR_ABORTED, ERR_HANDLE (the team is gone).
    ERR_PEER: a member died, left, or had its arguments rejected. An unusable array is a TypeError or ValueError.
    """

    _no_pickle = "make the team in each process, from that process's group"

    def __init__(self, group: Group, pointer: int, standing: bool = False) -> None:
        self.group = group
        self._pointer: int | None = pointer
        self._standing = standing

    @property
    def pointer(self) -> int:
        """The library's object. ValueError after the team or its group is closed."""
        self.group.pointer  # raises an error if it is closed
        if self._pointer is None:
            raise ValueError("the team is closed: expected one that is open")
        return self._pointer

    @property
    def rank(self) -> int:
        """This rank's number in the team."""
        return int(lib.expar_team_my_pe(self.pointer))

    @property
    def size(self) -> int:
        """The number of members."""
        return int(lib.expar_team_n_pes(self.pointer))

    def __repr__(self) -> str:
        if self._pointer is None or self.group.closed:
            return "expar.Team(closed)"
        return f"expar.Team(rank={self.rank}, size={self.size})"

    def translate(self, member: int, to: Team) -> int | None:
        """Returns the number that this team's member has in the other team; None if it is no member there. Local."""
        number = ctypes.c_int32()
        other, own = _values.one_of(to, "to", Team).pointer, _values.whole(member, "member")
        if not 0 <= own < self.size:
            raise Error(Status.ERR_RANGE, f"translate: member is {own}: expected 0 to {self.size - 1}")
        lib.expar_team_translate_pe(self.pointer, own, other, ctypes.byref(number))
        return number.value if number.value >= 0 else None

    # ---- more teams --------------------------------------------------------------------------------------------------

    def split(self, start: int, stride: int, size: int) -> Team | None:
        """Returns the team of `size` members of this team: start, start + stride, …; None on other ranks. Collective
        over this team. Error: ERR_RANGE, ERR_LIMIT (63 teams a rank)."""
        made = ctypes.c_void_p()
        numbers = [_values.whole(v, n) for v, n in ((start, "start"), (stride, "stride"), (size, "size"))]
        lib.expar_team_split_strided(self.pointer, *numbers, None, ctypes.byref(made))
        return None if made.value is None else Team(self.group, made.value)

    def split_2d(self, columns: int) -> tuple[Team, Team]:
        """Arranges this team in rows of that many members, and returns this rank's row and its column. Collective over
        this team."""
        row, column = ctypes.c_void_p(), ctypes.c_void_p()
        wanted = _values.whole(columns, "columns")
        lib.expar_team_split_2d(self.pointer, wanted, None, None, ctypes.byref(row), ctypes.byref(column))
        assert row.value is not None and column.value is not None
        return Team(self.group, row.value), Team(self.group, column.value)

    def close(self) -> None:
        """Destroys the team. Collective over the team, but local for one made by `Group.team`. It has no effect the
        second time, or on a standing team (world, shared, rail). Teams that are not closed end with the group."""
        if self._pointer is not None and not self._standing:
            lib.expar_team_destroy(self.pointer)
            self._pointer = None

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the team. If the block raised, this rank does not wait for the others, and the team ends with its
        group."""
        if error is None:
            self.close()

    # ---- meeting -----------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Waits until all members have come. Collective."""
        lib.expar_team_sync(self.pointer)

    def barrier(self) -> None:
        """Does what `sync` does, and waits until this rank's operations on symmetric memory are complete."""
        lib.expar_team_barrier(self.pointer)

    # ---- data --------------------------------------------------------------------------------------------------------

    def broadcast(self, dest: HostArray, source: HostArray, root: int = 0) -> None:
        """Copies root's source to every member's dest, its own included; both have as many bytes, of any shape and
        dtype. source is symmetric, too, and may be dest."""
        address, size = _pair(dest, source)
        lib.expar_broadcast(self.pointer, address, span_of(source, "source")[0], size, _values.whole(root, "root"))

    def fcollect(self, dest: HostArray, source: HostArray) -> None:
        """Copies source of all members, in the order of members, to every member's dest. dest has the team's size times
        the bytes of source. Both may have any shape and dtype."""
        address, size = _pair(dest, source, self.size)
        lib.expar_fcollect(self.pointer, address, span_of(source, "source")[0], size)

    def collect(self, dest: HostArray, source: HostArray) -> None:
        """As fcollect, but source may differ in size between members, and be empty. dest must hold all of them; no
        member can check its size alone."""
        address = span_of(dest, "dest", writable=True)[0]
        lib.expar_collect(self.pointer, address, *span_of(source, "source"))

    def alltoall(self, dest: HostArray, source: HostArray) -> None:
        """Copies block j of member i's source to block i of member j's dest. Both have as many blocks as the team has
        members, of equal bytes, of any shape and dtype."""
        address, size = _pair(dest, source)
        members = self.size
        if size % members:
            raise ValueError(f"source has {size} bytes: expected a multiple of the team's size, {members}")
        lib.expar_alltoall(self.pointer, address, span_of(source, "source")[0], size // members)

    def reduce(self, dest: HostArray, source: HostArray, operation: str = "sum") -> None:
        """Combines source[i] of all members into dest[i] by "sum", "prod", "min" or "max", for integers also by "and",
        "or" or "xor". The order is that of members on each node, then that of nodes, so all members get the same bits.
        Types are integers of 8 to 64 bits, float32 and float64, the same for both; dest may be source."""
        if operation not in _OPERATIONS:
            raise ValueError(f"operation is {_values.shown(operation)}: expected one of {', '.join(_OPERATIONS)}")
        kinds = [_suffix(array, name) for array, name in ((dest, "dest"), (source, "source"))]
        if kinds[0] != kinds[1]:
            raise TypeError(f"dest has elements of {kinds[0]}, source of {kinds[1]}: expected the same")
        address, size = _pair(dest, source)
        function = getattr(lib, f"expar_{operation}_reduce_{kinds[0]}", None)
        if function is None:
            raise TypeError(f"reduce: there is no {operation} of {kinds[0]}")
        if function.argtypes is None:
            give_types(function, Status, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t])
        element_bytes = int(kinds[0][1:]) // 8
        function(self.pointer, address, span_of(source, "source")[0], size // element_bytes)


def _pair(dest: HostArray, source: HostArray, times: int = 1) -> tuple[int, int]:
    """Returns the address of dest and the bytes of source. ValueError unless dest has that many times the bytes of
    source."""
    address, room = span_of(dest, "dest", writable=True)
    size = span_of(source, "source")[1]
    if room != size * times:
        raise ValueError(f"dest has {room} bytes, source {size}: expected {size * times} in dest")
    return address, size


def _suffix(array: Any, name: str) -> str:
    if isinstance(array, Symmetric) and array.dtype == "bfloat16":
        raise TypeError(f"{name}: there are no reductions of bfloat16")
    typestr = interface_of(array, name)["typestr"]
    if typestr not in _SUFFIXES:
        raise TypeError(f"{name}: there are no reductions of {typestr}: expected one of {', '.join(_SUFFIXES)}")
    return _SUFFIXES[typestr]
