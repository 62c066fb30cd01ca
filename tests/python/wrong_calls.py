# SPDX-License-Identifier: Apache-2.0
"""Every public call of expar's: how it is called rightly, and what is wrong with each of its arguments."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Iterator

import numpy
from wrong_values import (
    BYTES, DEVICE, DTYPE, FLAG, INTERFACE, NAN, NO_NUMBERS, NO_TENSORS, NONE_TENSOR, SENTINEL, STREAM, array, choice,
    filled, object_of, OnGpu, read_only, sequence, shapes, tensor, whole, word, words, Wrong,
)

import expar
from expar import Error


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
        self.early = expar.LowLatencyBuffer(self.group, 0, 0, 0, 0, masking=1, reserve_bytes=1 << 20)
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
                 "late_limit_ms": whole(-7), "nothing": [(1, TypeError, "an unexpected keyword argument")]}  # fmt: skip
BUFFER_OPTIONS = {name: whole(-7) for name in (
    "max_tokens", "max_row_bytes", "max_topk", "max_experts", "max_scales", "num_channels", "ring_slots",
    "num_threads", "pool_bytes", "pool_limit_bytes")}  # fmt: skip
BUFFER_OPTIONS["num_sms"] = whole(-7)
BUFFER_OPTIONS["device"] = DEVICE
LL_SHAPE = {name: whole(-7, 0) for name in ("max_tokens", "hidden", "max_topk", "num_experts")}
LL_OPTIONS = {name: whole(-7) for name in ("max_row_bytes", "sums", "num_threads", "masking", "unmapped")}
LL_PARTS = {**LL_SHAPE, **{name: LL_OPTIONS[name] for name in ("max_row_bytes", "sums")}}
LL_OPTIONS["late_limit_ms"] = whole(-7)
LL_OPTIONS["reserve_bytes"] = whole(1 << 61)
LL_OPTIONS["num_sms"] = whole(-7)
LL_OPTIONS["device"] = DEVICE
PE = whole(-1, 1, 99)
COMPARED = {"cmp": choice("Cmp"), "value": NO_NUMBERS + whole(-1, error=ValueError)}
# The library's names of arguments that have other names here.
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
    "num_expert_rows": whole(-1),
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
    "path": choice("EpPath"),
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
    "out_y": tensor((6, 64), "float32", written=True)
    + [(filled((6, 64), "int32"), Error, "dtype is i32; expected f32")],
    "out_topk_weights": tensor((6, 2), "float32", written=True),
    "bias": tensor((6, 64), "float32")[1:] + [((1, 2, 3), ValueError, "has 3 tensors: expected one, or a pair")],
    "expert_major": FLAG, "async_finish": FLAG,
    "expert_weights": NO_TENSORS + [(filled((6, 2), "float32"), Error, "is given; expected expert_major")],
    "sum_order": choice("EpSumOrder"), "weights_of": choice("EpWeightsOf"), "path": choice("EpPath"),
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
    "out_scales": NO_TENSORS + [(filled((6, 1), "float32"), Error, "format PLAIN has no scales; expected none")],
    "out_count": NO_TENSORS + [(filled(2, "int64"), Error, "dtype is i64; expected i32")],
    "expert_recv_stats": NO_TENSORS + [(filled(2, "int64"), Error, "dtype is i64; expected i32")],
    "global_scale": NO_TENSORS + [(filled(1, "float32"), Error, "format is PLAIN; expected none, or NVFP4")],
}  # fmt: skip
LL_COMBINED = {
    **LL_CALL,
    "x": tensor((2, 6, 128), "float16", optional=False),
    "topk_idx": tensor((6, 2), "int64", optional=False),
    "topk_weights": tensor((6, 2), "float32", optional=False),
    "handle": object_of("LowLatencyHandle", optional=False),
    "sum": choice("LlSum"), "format": choice("LlFormat"),
    "out_y": tensor((6, 128), "float16", written=True)
    + [(filled((6, 128), "float32"), Error, "dtype is f32; expected f16")],
}  # fmt: skip
SIZE = whole(-1, 0, 5000)
CALLS: dict[str, Call] = {
    "log_to": (lambda _: expar.log_to, lambda _: {}, {"logger": [(5, TypeError, "is 5: expected a logging.Logger")]}),
    "UniqueId": (lambda _: expar.UniqueId, lambda _: {}, {"interface": INTERFACE}),
    "View": (lambda _: expar.View, lambda w: {"value": w.own, "dtype": "i32"}, {"value": [], "dtype": DTYPE}),
    "Group.from_env": (lambda _: expar.Group.from_env, lambda _: {}, {**GROUP_OPTIONS}),
    "Group.from_id": (
        lambda _: expar.Group.from_id,
        lambda _: {"unique_id": bytes(128), "rank": 0, "size": 1},
        {"unique_id": [*BYTES[:3], (b"short", ValueError, "has 5 bytes: expected 128")],
         "rank": whole(-1, 1), "size": whole(-1), **GROUP_OPTIONS}),
    "Group.from_mpi4py": (
        lambda _: expar.Group.from_mpi4py,
        lambda _: {"comm": Comm()},
        {"comm": [(None, TypeError, "is None: expected a communicator"), (5, TypeError, "is 5: expected")],
         "interface": INTERFACE, **GROUP_OPTIONS}),
    "Group.threads": (lambda _: expar.Group.threads, lambda _: {"size": 1}, {
        "size": SIZE, **GROUP_OPTIONS}),
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
        "group": object_of("Group", optional=False), **BUFFER_OPTIONS,
        "allocator": [(5, TypeError, "is 5: expected a callable"), ("malloc", TypeError, "is 'malloc': expected")]}),
    "Buffer.bytes_needed": (lambda _: expar.Buffer.bytes_needed, lambda _: {"num_ranks": 2}, {
        "num_ranks": whole(-1, 0, 1 << 30), "ranks_per_node": whole(-7, 3), **BUFFER_OPTIONS}),
    "Buffer.layout": (lambda w: w.buffer.layout, lambda w: {"topk_idx": w.idx, "num_experts": 2}, {
        "num_experts": whole(-1, 0, 1 << 30), "stream": STREAM,
        "topk_idx": NO_TENSORS + NONE_TENSOR + [
            (OnGpu(filled((6, 2), "int64")), Error, "lies on GPU 0: expected the CPU"),
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
        lambda w: {"group": w.group, "max_tokens": 2, "hidden": 128, "max_topk": 2, "num_experts": 2},
        {"group": object_of("Group", optional=False), **LL_SHAPE, **LL_OPTIONS}),
    "LowLatencyBuffer.bytes_needed": (
        lambda _: expar.LowLatencyBuffer.bytes_needed,
        lambda _: {"num_ranks": 2, "max_tokens": 2, "hidden": 128, "max_topk": 2, "num_experts": 2},
        {"num_ranks": whole(-1, 0, 1 << 30), **LL_SHAPE, **LL_OPTIONS}),
    "LowLatencyBuffer.set_shape": (
        lambda w: w.early.set_shape,
        lambda _: {"max_tokens": 2, "hidden": 128, "max_topk": 2, "num_experts": 2}, LL_PARTS),
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
                                (OnGpu(filled(1, "int32")), Error, "on CUDA device 0; expected CPU device 0"),
                                (filled(2, "int32"), Error, "expected 1"),
                                (filled(1, "int64"), Error, "dtype is i64; expected i32")],
        "stream": STREAM}),
}  # fmt: skip
# Tested elsewhere, for what is said there.
ELSEWHERE = {
    "spawn": "test_python_spawn",
    "SpawnError": "made by spawn alone",
    "Event.record": "on GPUs: test_python_gpu",
    "Event.stream_wait": "on GPUs: test_python_gpu",
    "Group.from_torch": "needs PyTorch: test_python_arguments",
    "Symmetric.torch": "as numpy, with PyTorch: test_python_arguments",
    "Group.lend": "of the package's own",
    "Handle.fill_on": "of the package's own",
    "LowLatencyHandle.fill_on": "of the package's own",
    "Handle.serve": "of the package's own",
    "LowLatencyHandle.serve": "of the package's own",
    "Handle.export": "of the package's own",
    "LowLatencyHandle.export": "of the package's own",
    "RecvCounts.struct": "of the package's own",
}
# Made by other calls, which give them what their constructors take; errors and enumerations.
MADE = {"DroppedError", "Error", "Event", "Group", "Handle", "Hook", "Lock", "LowLatencyHandle", "Symmetric", "Team",
        "Tensor", "Combined", "Dispatched", "Layout", "Route", "LowLatencyCombined", "LowLatencyDispatched",
        "Cmp", "Dtype", "HeapKind", "HeapPages", "LlFormat", "LlSum", "EpPath", "SignalOp", "Status", "EpSumOrder",
        "EpWeightsOf"}  # fmt: skip


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
