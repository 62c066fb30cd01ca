# SPDX-License-Identifier: Apache-2.0
"""Every public call of expar with one argument wrong at a time: the exception, what its text names, and that nothing is
written. The table below is held against the signatures of the package: a call or an argument that it lacks fails.
"""

from __future__ import annotations

import faulthandler
import inspect
import os
import re
import signal
import sys
import unittest
from typing import Any, Callable, Iterator

import numpy

import expar
from expar import Error

import ranks

NAN = float("nan")
SENTINEL = 77


class OnGpu:
    """An array that says it lies on a GPU."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3}


def filled(shape: Any, dtype: str) -> Any:
    return numpy.full(shape, SENTINEL, dtype)


def read_only(shape: Any, dtype: str) -> Any:
    array = filled(shape, dtype)
    array.flags.writeable = False
    return array


# ---- what can be wrong with an argument: value, exception, what the text says besides the argument's name ------------

Wrong = tuple[Any, type[BaseException], str]
NO_NUMBERS: list[Wrong] = [
    (None, TypeError, "is None: expected"),
    ("seven", TypeError, "is 'seven': expected"),
    (1.5, TypeError, "is 1.5: expected"),
    (NAN, TypeError, "is nan: expected"),
    (1 << 70, ValueError, f"is {1 << 70}: expected .* from "),
]


def whole(*wrong: int, error: type[BaseException] = Error, text: str = "{}.* expected") -> list[Wrong]:
    """No number, one that no C type holds, and these."""
    return NO_NUMBERS + [(value, error, text.format(value)) for value in wrong]


FLAG: list[Wrong] = [(value, TypeError, f"is {value!r}: expected True or False") for value in (None, "yes", 2, NAN)]
NO_TENSORS: list[Wrong] = [
    ([1], TypeError, r"list is no tensor: it is \[1\], expected"),
    (5, TypeError, "int is no tensor: it is 5, expected"),
    (NAN, TypeError, "float is no tensor: it is nan, expected"),
    (filled((6, 64), "complex64"), TypeError, "no element type <c8"),
    (filled((1, 1, 1, 1, 1), "float32"), TypeError, "5 dimensions: expected at most 4"),
    (expar.View("bits", "bf16"), TypeError, "str is no tensor: it is 'bits', expected"),
]
NONE_TENSOR: list[Wrong] = [(None, Error, "is not given")]


def tensor(shape: Any, dtype: str, *, written: bool = False, optional: bool = True) -> list[Wrong]:
    """No tensor, and tensors that differ from one of that shape and type in one thing."""
    wrong = list(NO_TENSORS) if optional else NO_TENSORS + NONE_TENSOR
    wrong.append((OnGpu(filled(shape, dtype)), Error, r"type 2( \(CUDA\))?; expected.* 1"))
    wrong.append((filled((*shape, 1), dtype), Error, f"has {len(shape) + 1} dimensions; expected {len(shape)}"))
    if len(shape) > 1:
        apart = filled((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
        wrong.append((apart, Error, r"strides.* is 2; expected 1"))
    if written:
        wrong.append((read_only(shape, dtype), TypeError, "the array is read only"))
    return wrong


def array(shape: int, dtype: str, *, written: bool = False, symmetric: bool = False) -> list[Wrong]:
    """Of the calls on symmetric memory: no array, and such as do not fit."""
    wrong: list[Wrong] = [
        (None, TypeError, "NoneType is no array: it is None, expected"),
        ([1], TypeError, r"list is no array: it is \[1\], expected"),
        (NAN, TypeError, "float is no array: it is nan, expected"),
        (OnGpu(filled(shape, dtype)), TypeError, "OnGpu is no array"),
        (filled(2 * shape, dtype)[::2], ValueError, "is not contiguous"),
    ]
    if written:
        wrong.append((read_only(shape, dtype), TypeError, "the array is read only"))
    if symmetric:
        wrong.append((filled(shape, dtype), Error, "is not within the symmetric heap"))
    return wrong


def word(dtype: str) -> list[Wrong]:
    """One word of symmetric memory."""
    return [
        (None, TypeError, "NoneType is no array: it is None, expected"),
        (5, TypeError, "int is no array: it is 5, expected"),
        (filled(3, dtype), TypeError, "3 of <.*expected one word"),
        (filled(1, "int16"), TypeError, "1 of <i2: expected one word"),
        (filled(1, dtype), Error, "is not within the symmetric heap"),
    ]


def words(dtype: str) -> list[Wrong]:
    return [
        (None, TypeError, "NoneType is no array: it is None, expected"),
        (filled(4, "int16"), TypeError, "elements of <i2: expected one of"),
        (filled(8, dtype)[::2], ValueError, "is not contiguous"),
        (filled(4, dtype), Error, "is not within the symmetric heap"),
    ]


def object_of(kind: str, *, optional: bool) -> list[Wrong]:
    wrong: list[Wrong] = [
        ("it", TypeError, f"is 'it': expected an expar.{kind}"),
        (5, TypeError, f"is 5: expected an expar.{kind}"),
    ]
    return wrong if optional else [*wrong, (None, TypeError, f"is None: expected an expar.{kind}")]


BYTES: list[Wrong] = [
    (None, TypeError, "is None: expected bytes"),
    ("text", TypeError, "is 'text': expected bytes"),
    (5, TypeError, "is 5: expected bytes"),
    (b"x" * (1 << 20 | 1), Error, "bytes 1048577, expected at most 1048576"),
]
INTERFACE: list[Wrong] = [
    (5, TypeError, "is 5: expected a text"),
    ("a\0b", ValueError, r"is 'a\\x00b': expected a text without"),
    ("nosuch0", Error, "nosuch0: no such interface"),
]


def shapes(least: int) -> list[Wrong]:
    return [
        (None, TypeError, "is None: expected extents"),
        ("four", TypeError, "is 'four': expected extents"),
        (1.5, TypeError, "is 1.5: expected extents"),
        ([2, None], TypeError, "is None: expected extents"),
        ((2, least - 1), ValueError, f"expected extents of {least} or more"),
        ((1 << 40, 1 << 40), ValueError, "expected no more bytes"),
        (1 << 70, ValueError, f"is {1 << 70}: expected"),
    ]


DTYPE: list[Wrong] = [
    (None, TypeError, "element type None: expected one of"),
    (5, TypeError, "element type 5: expected one of"),
    ("complex64", TypeError, "element type 'complex64': expected one of"),
]


def choice(kind: str) -> list[Wrong]:
    return [
        (None, TypeError, f"is None: expected one of expar.{kind}"),
        ("best", TypeError, f"is 'best': expected one of expar.{kind}"),
        (99, Error, "99.* expected"),
    ]


def sequence(entries: str) -> list[Wrong]:
    return [
        (5, TypeError, f"is 5: expected a list of {entries}"),
        ("ab", TypeError, f"is 'ab': expected a list of {entries}"),
        ([1] * 9, ValueError, "has 9 entries: expected"),
        ([None, None], TypeError, "is None: expected"),
    ]


DEVICE: list[Wrong] = [
    (1, TypeError, "is 1: expected"),
    ("gpu", ValueError, "is 'gpu': expected"),
    ((3, 0), ValueError, r"is \(3, 0\): expected type 1 .* or 2"),
]
STREAM: list[Wrong] = [
    ("main", TypeError, "is 'main': expected a stream of"),
    (1.5, TypeError, "is 1.5: expected a stream of"),
    (-1, ValueError, "is -1: expected a stream of"),
    (5, ValueError, "is 0x5: expected None, since the buffer lies on the CPU"),
]


class World:
    """A group of one rank and what it has, for the calls."""

    def __init__(self) -> None:
        self.group = expar.Group.from_env()
        self.block = self.group.zeros(4, "int32")
        self.flag = self.group.zeros(1, "uint64")
        self.four = self.group.zeros(4, "uint64")
        self.real = self.group.zeros(1, "float32")
        self.own = filled(4, "int32")
        self.team = self.group.world()
        self.buffer = expar.Buffer(self.group)
        self.x = filled((6, 64), "float32")
        self.idx = numpy.tile(numpy.array([0, 1], "int64"), (6, 1))
        self.weights = filled((6, 2), "float32")
        self.rows = self.buffer.dispatch(self.x, self.idx, self.weights, 2)
        self.low = expar.LowLatencyBuffer(self.group, 6, 128, 2, 2, masking=1)
        self.ll_x = filled((6, 128), "float16")
        self.ll_rows = self.low.dispatch(self.ll_x, self.idx, self.weights)
        self.sent = filled((2, 6, 128), "float16")
        self.block.numpy()[:] = SENTINEL
        self.flag.numpy()[:] = SENTINEL
        self.four.numpy()[:] = SENTINEL

    def written(self) -> bool:
        """Whether a call has stored to what the program has."""
        mine = [self.own, self.x, self.weights, self.ll_x, self.sent]
        mine += [self.block.numpy(), self.flag.numpy(), self.four.numpy()]
        return any((each != SENTINEL).any() for each in mine) or bool((self.idx != [0, 1]).any())


class Comm:
    """As much of a communicator as is needed."""

    bcast = staticmethod(lambda value: value)
    Get_rank = staticmethod(lambda: 0)
    Get_size = staticmethod(lambda: 1)


GROUP_OPTIONS = {"ranks_per_node": whole(-7), "timeout_ms": whole(-7), "bootstrap_timeout_ms": whole(-7),
                 "heap_bytes": whole(1), "heap_kind": whole(9), "heap_pages": whole(9),
                 "late_limit_ms": whole(-7), "nothing": [(1, TypeError, "there is no option")]}  # fmt: skip
BUFFER_OPTIONS = {name: whole(-7) for name in (
    "max_tokens", "max_row_bytes", "max_topk", "max_experts", "max_scales", "num_channels", "ring_slots",
    "num_threads", "pool_bytes", "pool_limit_bytes")}  # fmt: skip
BUFFER_OPTIONS["num_sms"] = whole(-7)
BUFFER_OPTIONS["device"] = DEVICE
LL_SHAPE = {name: whole(-7, 0) for name in ("max_tokens", "hidden", "num_topk", "num_experts")}
LL_OPTIONS = {name: whole(-7) for name in ("max_element_bytes", "sums", "num_threads", "masking", "unmapped")}
LL_OPTIONS["num_sms"] = whole(-7)
LL_OPTIONS["device"] = DEVICE
PE = whole(-1, 1, 99)
COMPARED = {"cmp": choice("Cmp"), "value": NO_NUMBERS + whole(-1, error=ValueError)}
# What the library calls an argument that has another name here.
IN_C = {"columns": "x_range", "num_threads": "num_sms", "data": "bytes", "mine": "bytes"}

Call = tuple[Callable[[World], Callable[..., Any]], Callable[[World], dict[str, Any]], dict[str, list[Wrong]]]


def of_group(name: str, good: Callable[[World], dict[str, Any]], wrong: dict[str, list[Wrong]]) -> Call:
    return lambda w: getattr(w.group, name), good, wrong


def of_team(name: str, good: Callable[[World], dict[str, Any]], wrong: dict[str, list[Wrong]]) -> Call:
    return lambda w: getattr(w.team, name), good, wrong


def moves(name: str, dest: list[Wrong], source: list[Wrong]) -> Call:
    remote = {"dest": lambda w: w.block, "source": lambda w: w.own}
    if name.startswith("get"):
        remote = {"dest": lambda w: w.own, "source": lambda w: w.block}
    return of_group(
        name, lambda w: {**{k: v(w) for k, v in remote.items()}, "pe": 0}, {"dest": dest, "source": source, "pe": PE}
    )


def atomic(name: str, *values: str) -> Call:
    wrong = {"word": word("uint64"), "pe": PE, **{value: NO_NUMBERS + whole(-1, error=ValueError) for value in values}}
    return of_group(name, lambda w: {"word": w.flag, "pe": 0, **{value: 1 for value in values}}, wrong)


ROUTED = {
    "topk_idx": tensor((6, 2), "int64", optional=False)
    + [(filled((6, 2), "float32"), Error, "dtype is f32; expected i64 or i32"),
       (filled((6, 2), "int64"), Error, f"{SENTINEL}.*expected|out of")],
    "num_experts": whole(-1, 0, 1 << 30, text="{}.*(expected|was created for)"),
    "token_in_rank": tensor((6, 1), "uint8")[:-1],
    "tokens_per_expert": sequence("num_experts"),
    "expert_alignment": whole(-1),
    "num_worst_tokens": whole(-1),
    "keep_slots": FLAG,
    "recv_counts": object_of("RecvCounts", optional=True),
    "stream": STREAM,
    "wait_event": object_of("Event", optional=True),
}  # fmt: skip
DISPATCHED = {
    **ROUTED,
    "x": tensor((6, 64), "float32", optional=False)
    + [(filled((6, 64), "int32"), Error, "dtype is i32; expected bf16")],
    "topk_weights": tensor((6, 2), "float32")
    + [(filled((5, 2), "float32"), Error, r"has shape \[5\]\[2\]; expected \[6\]\[2\]"),
       (filled((6, 2), "int32"), Error, "dtype is i32; expected f32")],
    "handle": object_of("Handle", optional=True),
    "x_scales": NO_TENSORS + [(filled((6, 1), "float32"), Error, "with x of f32; expected f8e4m3")],
    "expert_major": FLAG, "zero_padding": FLAG, "src_tokens": FLAG, "global_experts": FLAG, "async_finish": FLAG,
    "row_weights": FLAG + [(True, Error, "without expert_major")],
    "path": choice("Path"),
    "out_x": tensor((6, 64), "float32", written=True)
    + [(filled((5, 64), "float32"), Error, "has 5 rows; 6 are received")],
    "out_scales": NO_TENSORS + [(filled((6, 1), "float32"), Error, "without x_scales; expected both")],
    "out_topk_idx": tensor((6, 2), "int64", written=True),
    "out_topk_weights": tensor((6, 2), "float32", written=True),
    "out_row_map": NO_TENSORS + [(filled((6, 2), "int32"), Error, "without expert_major; expected both")],
    "column_scales": FLAG + [(True, Error, "without x_scales")],
    "src_stride": whole(-1, 5),
    "out_src_metadata": NO_TENSORS + [(filled((6, 4), "int32"), Error, "without src_stride; expected both")],
    "topk_idx_copy": tensor((6, 2), "int64", written=True)
    + [(filled((6, 2), "int32"), Error, "dtype is i32; expected i64")],
    "out_row_weights": NO_TENSORS + [(filled(6, "float32"), Error, "without expert_major; expected both")],
    "out_src_token": NO_TENSORS + [(filled((6, 2), "int32"), Error, "has 2 dimensions; expected 1"),
                                   (read_only(6, "int32"), TypeError, "the array is read only")],
    "num_threads": whole(-1, 5000),
    "num_sms": whole(-1, 8, error=ValueError),
}  # fmt: skip
COMBINED = {
    "x": tensor((6, 64), "float32", optional=False)
    + [(filled((5, 64), "float32"), Error, "has 5 rows; expected the 6")],
    "handle": object_of("Handle", optional=False),
    "topk_weights": tensor((6, 2), "float32"),
    "y": tensor((6, 64), "float32", written=True) + [(filled((6, 64), "int32"), Error, "dtype is i32; expected f32")],
    "out_topk_weights": tensor((6, 2), "float32", written=True),
    "bias": tensor((6, 64), "float32")[1:] + [((1, 2, 3), ValueError, "has 3 tensors: expected one, or a pair")],
    "expert_major": FLAG, "async_finish": FLAG,
    "expert_weights": NO_TENSORS + [(filled((6, 2), "float32"), Error, "is given; expected expert_major")],
    "sum_order": choice("SumOrder"), "weights_of": choice("WeightsOf"), "path": choice("Path"),
    "wait_event": object_of("Event", optional=True),
    "num_threads": whole(-1, 5000), "num_sms": whole(-1, 8, error=ValueError), "stream": STREAM,
}  # fmt: skip
LL_CALL = {"num_sms": whole(-1, 8, error=ValueError), "stream": STREAM,
           "hook": FLAG, "async_finish": FLAG, "wait_event": object_of("Event", optional=True),
           "wait_ns": NO_TENSORS + [(filled(1, "int32"), Error, "dtype is i32; expected i64"),
                                    (read_only(1, "int64"), TypeError, "the array is read only")]}  # fmt: skip
LL_DISPATCHED = {
    **LL_CALL,
    "x": tensor((6, 128), "float16", optional=False)
    + [(filled((7, 128), "float16"), Error, r"has shape \[7\]|7 .*(expected|was created for)|expected \[7\]")],
    "topk_idx": tensor((6, 2), "int64", optional=False),
    "topk_weights": tensor((6, 2), "float32"),
    "format": choice("LlFormat"),
    "out_x": NO_TENSORS + [(filled((6, 128), "float16"), Error, "has 2 dimensions; expected 3")],
    "out_scales": NO_TENSORS + [(filled((6, 1), "float32"), Error, "format 0 has no scales; expected none")],
    "out_count": NO_TENSORS + [(filled(2, "int64"), Error, "dtype is i64; expected i32")],
    "expert_recv_stats": NO_TENSORS + [(filled(2, "int64"), Error, "dtype is i64; expected i32")],
}  # fmt: skip
LL_COMBINED = {
    **LL_CALL,
    "x": tensor((2, 6, 128), "float16", optional=False),
    "topk_idx": tensor((6, 2), "int64", optional=False),
    "topk_weights": tensor((6, 2), "float32", optional=False),
    "handle": object_of("LowLatencyHandle", optional=False),
    "sum": choice("LlSum"), "format": choice("LlFormat"),
    "out": tensor((6, 128), "float16", written=True)
    + [(filled((6, 128), "float32"), Error, "dtype is f32; expected f16")],
}  # fmt: skip
SIZE = whole(-1, 0, 5000)
CALLS: dict[str, Call] = {
    "log_to": (lambda _: expar.log_to, lambda _: {}, {"logger": [(5, TypeError, "is 5: expected a logging.Logger")]}),
    "UniqueId": (lambda _: expar.UniqueId, lambda _: {}, {"interface": INTERFACE}),
    "View": (lambda _: expar.View, lambda w: {"value": w.own, "dtype": "i32"}, {"value": [], "dtype": DTYPE}),
    "Group.from_env": (lambda _: expar.Group.from_env, lambda _: {}, {"options": [], **GROUP_OPTIONS}),
    "Group.from_id": (
        lambda _: expar.Group.from_id,
        lambda _: {"unique_id": bytes(128), "rank": 0, "size": 1},
        {"unique_id": [*BYTES[:3], (b"short", ValueError, "has 5 bytes: expected 128")],
         "rank": whole(-1, 1), "size": whole(-1), "options": [], **GROUP_OPTIONS}),
    "Group.from_mpi4py": (
        lambda _: expar.Group.from_mpi4py,
        lambda _: {"comm": Comm()},
        {"comm": [(None, TypeError, "is None: expected a communicator"), (5, TypeError, "is 5: expected")],
         "interface": INTERFACE, "options": [], **GROUP_OPTIONS}),
    "Group.threads": (lambda _: expar.Group.threads, lambda _: {"size": 1}, {
        "size": SIZE, "options": [], **GROUP_OPTIONS}),
    "Group.team": of_group("team", lambda _: {"start": 0, "stride": 1, "size": 1}, {
        "start": whole(-1, 5), "stride": NO_NUMBERS, "size": whole(-1, 5)}),
    "Group.allgather": of_group("allgather", lambda _: {"mine": b"x"}, {"mine": BYTES}),
    "Group.broadcast": of_group("broadcast", lambda _: {"data": b"x"}, {"data": BYTES, "root": whole(-1, 5)}),
    "Group.empty": of_group("empty", lambda _: {"shape": 3}, {"shape": shapes(1), "dtype": DTYPE}),
    "Group.zeros": of_group("zeros", lambda _: {"shape": 3}, {"shape": shapes(1), "dtype": DTYPE}),
    "Group.put": moves("put", array(4, "int32", symmetric=True), array(4, "int32")),
    "Group.put_nbi": moves("put_nbi", array(4, "int32", symmetric=True), array(4, "int32")),
    "Group.get": moves("get", array(4, "int32", written=True), array(4, "int32", symmetric=True)),
    "Group.get_nbi": moves("get_nbi", array(4, "int32", written=True), array(4, "int32", symmetric=True)),
    "Group.put_signal": of_group(
        "put_signal",
        lambda w: {"dest": w.block, "source": w.own, "signal": w.flag, "value": 1, "pe": 0},
        {"dest": array(4, "int32", symmetric=True), "source": array(4, "int32"), "signal": word("uint64"),
         "value": NO_NUMBERS + whole(-1, error=ValueError), "pe": PE, "op": choice("SignalOp")}),
    "Group.signal_fetch": of_group("signal_fetch", lambda w: {"signal": w.flag}, {"signal": word("uint64")}),
    "Group.wait_until": of_group("wait_until", lambda w: {"word": w.flag, "cmp": expar.Cmp.NE, "value": 0}, {
        "word": word("uint64"), **COMPARED}),
    "Group.test": of_group("test", lambda w: {"word": w.flag, "cmp": expar.Cmp.NE, "value": 0}, {
        "word": word("uint64"), **COMPARED}),
    "Group.wait_until_all": of_group("wait_until_all", lambda w: {"words": w.four, "cmp": expar.Cmp.NE, "value": 0}, {
        "words": words("uint64"), **COMPARED}),
    "Group.wait_until_any": of_group("wait_until_any", lambda w: {"words": w.four, "cmp": expar.Cmp.NE, "value": 0}, {
        "words": words("uint64"), **COMPARED,
        "skip": [(5, TypeError, "is 5: expected a list of one a word"), ("abcd", TypeError, "is 'abcd': expected"),
                 ([True], ValueError, "has 1 entries: expected one a word, 4"), ([None] * 4, TypeError, "is None"),
                 ([NAN] * 4, TypeError, "is nan: expected True or False")]}),
    "Group.atomic_fetch": atomic("atomic_fetch"),
    "Group.atomic_set": atomic("atomic_set", "value"),
    "Group.atomic_swap": atomic("atomic_swap", "value"),
    "Group.atomic_compare_swap": atomic("atomic_compare_swap", "expected", "desired"),
    "Group.atomic_add": atomic("atomic_add", "value"),
    **{f"Group.atomic_fetch_{each}": atomic(f"atomic_fetch_{each}", "value") for each in ("add", "and", "or", "xor")},
    "Group.lock": of_group("lock", lambda w: {"word": w.flag}, {"word": word("uint64")[:-1]}),
    "Lock.acquire": (lambda w: w.group.lock(w.flag).acquire, lambda _: {}, {"blocking": FLAG}),
    "Symmetric.numpy": (lambda w: w.block.numpy, lambda _: {}, {
        "pe": [*NO_NUMBERS[1:], (-1, ValueError, "-1: the memory of rank -1 is out of reach: expected"),
               (99, ValueError, "99: the memory of rank 99 is out of reach: expected")]}),
    "Team.translate": of_team("translate", lambda w: {"member": 0, "to": w.team}, {
        "member": whole(-1, 5), "to": object_of("Team", optional=False)}),
    "Team.split": of_team("split", lambda _: {"start": 0, "stride": 1, "size": 1}, {
        "start": whole(-1, 5), "stride": NO_NUMBERS, "size": whole(-1, 5)}),
    "Team.split_2d": of_team("split_2d", lambda _: {"columns": 1}, {"columns": whole(-1, 0)}),
    "Team.broadcast": of_team("broadcast", lambda w: {"dest": w.block, "source": w.own}, {
        "dest": array(4, "int32", symmetric=True), "source": array(4, "int32"), "root": whole(-1, 5)}),
    **{f"Team.{name}": of_team(name, lambda w: {"dest": w.block, "source": w.own}, {
        "dest": array(4, "int32", symmetric=True), "source": array(4, "int32")})
       for name in ("fcollect", "collect", "alltoall")},
    "Team.reduce": of_team("reduce", lambda w: {"dest": w.block, "source": w.own}, {
        "dest": array(4, "int32", symmetric=True), "source": array(4, "int32"),
        "operation": [(each, ValueError, f"is {each!r}: expected one of sum, ") for each in (None, 5, "mean")]}),
    "Buffer": (lambda _: expar.Buffer, lambda w: {"group": w.group}, {
        "group": object_of("Group", optional=False), "options": [], **BUFFER_OPTIONS,
        "allocator": [(5, TypeError, "is 5: expected a callable"), ("malloc", TypeError, "is 'malloc': expected")]}),
    "Buffer.bytes_needed": (lambda _: expar.Buffer.bytes_needed, lambda _: {"num_ranks": 2}, {
        "num_ranks": whole(-1, 0, 1 << 30), "options": [], **BUFFER_OPTIONS}),
    "Buffer.layout": (lambda w: w.buffer.layout, lambda w: {"topk_idx": w.idx, "num_experts": 2}, {
        "num_experts": whole(-1, 0, 1 << 30), "stream": STREAM,
        "topk_idx": NO_TENSORS + NONE_TENSOR + [
            (OnGpu(filled((6, 2), "int64")), Error, "device type 2: expected the CPU"),
            (filled(6, "int64"), Error, "has 1 dimensions; expected 2"),
            (filled((6, 2), "float32"), Error, "dtype is f32; expected i64 or i32")]}),
    "Buffer.route": (lambda w: w.buffer.route, lambda w: {"topk_idx": w.idx, "num_experts": 2}, ROUTED),
    "Buffer.dispatch": (
        lambda w: w.buffer.dispatch,
        lambda w: {"x": w.x, "topk_idx": w.idx, "topk_weights": w.weights, "num_experts": 2}, DISPATCHED),
    "Buffer.combine": (
        lambda w: w.buffer.combine,
        lambda w: {"x": w.x, "handle": w.rows.handle, "topk_weights": w.weights}, COMBINED),
    "Buffer.alloc": (lambda w: w.buffer.alloc, lambda _: {"shape": 3, "dtype": "f32"}, {
        "shape": shapes(0), "dtype": DTYPE, "stream": STREAM}),
    "RecvCounts": (lambda w: lambda **counts: w.buffer.route(w.idx, 2, recv_counts=expar.RecvCounts(**counts)),
                   lambda _: {}, {
        name: NO_TENSORS + [(filled(length + 1, dtype), ValueError, f"{length + 1},.*expected {length} elements"),
                            (read_only(length, dtype), TypeError, "the array is read only"),
                            (filled(length, "float32"), TypeError, "expected elements of"),
                            (OnGpu(filled(length, dtype)), TypeError, "expected elements of .* on the CPU")]
        for name, length, dtype in (("tokens_per_expert", 2, "int32"), ("expert_prefix", 3, "int32"),
                                    ("rank_prefix", 1, "int32"), ("num_recv_tokens", 1, "int64"),
                                    ("expert_ends", 2, "int32"))}),
    "LowLatencyBuffer": (
        lambda _: expar.LowLatencyBuffer,
        lambda w: {"group": w.group, "max_tokens": 2, "hidden": 128, "num_topk": 2, "num_experts": 2},
        {"group": object_of("Group", optional=False), "options": [], **LL_SHAPE, **LL_OPTIONS}),
    "LowLatencyBuffer.bytes_needed": (
        lambda _: expar.LowLatencyBuffer.bytes_needed,
        lambda _: {"num_ranks": 2, "max_tokens": 2, "hidden": 128, "num_topk": 2, "num_experts": 2},
        {"num_ranks": whole(-1, 0, 1 << 30), "options": [], **LL_SHAPE, **LL_OPTIONS}),
    "LowLatencyBuffer.dispatch": (
        lambda w: w.low.dispatch,
        lambda w: {"x": w.ll_x, "topk_idx": w.idx, "topk_weights": w.weights}, LL_DISPATCHED),
    "LowLatencyBuffer.combine": (
        lambda w: w.low.combine,
        lambda w: {"x": w.sent, "topk_idx": w.idx, "topk_weights": w.weights, "handle": w.ll_rows.handle}, LL_COMBINED),
    "LowLatencyBuffer.combine_buffer": (
        lambda w: w.low.combine_buffer, lambda w: {"handle": w.ll_rows.handle, "dtype": "f16"},
        {"handle": object_of("LowLatencyHandle", optional=False),
         "dtype": [*DTYPE, ("i64", Error, "dtype is i64; expected bf16")]}),
    "LowLatencyBuffer.mask_set": (lambda w: w.low.mask_set, lambda _: {"rank": 0}, {
        "rank": whole(-1, 0, 99), "masked": FLAG}),
    "LowLatencyBuffer.mask_query": (lambda w: w.low.mask_query, lambda _: {}, {
        "status": NO_TENSORS + [(read_only(1, "int32"), TypeError, "the array is read only"),
                                (OnGpu(filled(1, "int32")), Error, "of type 2; expected 0 of type 1"),
                                (filled(2, "int32"), Error, "expected 1"),
                                (filled(1, "int64"), Error, "dtype is i64; expected i32")],
        "stream": STREAM}),
}  # fmt: skip
# Tested elsewhere, for what is said there.
ELSEWHERE = {
    "Event.record": "on GPUs: test_python_gpu",
    "Event.stream_wait": "on GPUs: test_python_gpu",
    "Group.from_torch": "needs PyTorch: below",
    "Symmetric.torch": "as numpy, with PyTorch: below",
    "Group.lend": "of the package's own",
    "Handle.serve": "of the package's own",
    "LowLatencyHandle.serve": "of the package's own",
    "Handle.export": "of the package's own",
    "LowLatencyHandle.export": "of the package's own",
    "RecvCounts.struct": "of the package's own",
}
# Made by other calls, which give them what their constructors take; errors and enumerations.
MADE = {"DroppedError", "Error", "Event", "Group", "Handle", "Hook", "Lock", "LowLatencyHandle", "Symmetric", "Team",
        "Tensor", "Combined", "Dispatched", "Layout", "Route", "LowLatencyCombined", "LowLatencyDispatched",
        "Cmp", "Dtype", "HeapKind", "HeapPages", "LlFormat", "LlSum", "Path", "SignalOp", "Status", "SumOrder",
        "WeightsOf"}  # fmt: skip


def public_calls() -> Iterator[tuple[str, list[str]]]:
    """Name and arguments of what takes any."""
    for name in expar.__all__:
        thing = getattr(expar, name)
        if not (inspect.isclass(thing) and name in MADE):
            yield name, list(inspect.signature(thing).parameters)
        if not inspect.isclass(thing) or issubclass(thing, (int, BaseException)):
            continue
        for base in thing.__mro__:
            if not base.__module__.startswith("expar"):
                continue
            for member, value in vars(base).items():
                if member.startswith("_") or not callable(getattr(thing, member)) or isinstance(value, type):
                    continue
                parameters = inspect.signature(getattr(thing, member)).parameters
                yield f"{name}.{member}", [each for each in parameters if each != "self"]


class Table(unittest.TestCase):
    def test_is_whole(self) -> None:
        """Each public call and each of its arguments."""
        found = 0
        for name, arguments in public_calls():
            if not arguments or name in ELSEWHERE:
                continue
            self.assertIn(name, CALLS, "there is no wrong argument for it")
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
        """What leaves the block of one rank, before the library was called, ends the calls of the others."""
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
        """What needs PyTorch says so where there is none, and a GPU that is not there is no CPU."""
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
