#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `deep_ep` costs beside the library: calls with one token on one rank, as engines make them and bare.

Bare is the same call of the library by ctypes with structs that are ready and results in memory of one's own, or given
back at once; so the rest is the module's own: looking at tensors, making results and handles, and taking them apart
again. Medians over rounds, in microseconds; needs PyTorch (scripts/torch.sh). With --device cuda the tensors lie on the
current GPU, which has nothing to do when a call is made; calls of `ElasticBuffer` are left out there.
usage: PYTHONPATH=python bench/python/deep_ep_overhead.py [--device cpu|cuda] [ROUNDS]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from typing import Any, Callable

import torch
from overhead import CALLS, import_milliseconds, microseconds, sized

import deep_ep
import expar
from deep_ep import _handles, _place
from deep_ep._call import put
from expar import _abi
from expar._library import lib

HIDDEN, TOPK, EXPERTS = 128, 8, 64
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def view(tensor: Any) -> _abi.Tensor:
    made = _abi.Tensor()
    put(made, 0, tensor, "tensor")
    return made


class Arguments:
    """One token, whose experts are all here."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.x = torch.ones((1, HIDDEN), dtype=torch.bfloat16, device=device)
        self.topk_idx = torch.arange(TOPK, dtype=torch.int64, device=device).view(1, TOPK)
        self.weights = torch.ones((1, TOPK), dtype=torch.float32, device=device)
        self.y = torch.empty_like(self.x)
        self.out_weights = torch.empty_like(self.weights)

    def microseconds(self, call: Callable[[], Any]) -> float:
        """How long the call holds the host. On a GPU work of many calls would stand in line, and hold it, too."""
        if not self.on_gpu:
            return microseconds(call)
        total_ns = 0
        for _ in range(CALLS):
            torch.cuda.synchronize()
            begin_ns = time.perf_counter_ns()
            call()
            total_ns += time.perf_counter_ns() - begin_ns
        return total_ns / CALLS / 1000


def forget(event: Any) -> None:
    """Of a call on a GPU: nobody waits for it."""
    if event:
        lib.expar_event_destroy(event)


def normal(buffer: Any, own: Arguments) -> dict[str, Pair]:
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(own.topk_idx, EXPERTS)
    routing = (per_rank, None, in_rank, per_expert, own.topk_idx, own.weights)
    recv_x, _, recv_weights, _, handle, _ = buffer.dispatch(own.x, None, *routing)
    ep, group, found = buffer._at(_place.of(own.x, "x"))[0].ep, buffer._group, _handles.find(handle)
    counts = _abi.Layout(
        ctypes.sizeof(_abi.Layout), per_rank.data_ptr(), None, per_expert.data_ptr(), in_rank.data_ptr()
    )
    topk = view(own.topk_idx)
    args = sized(
        _abi.DispatchArgs,
        x=view(own.x),
        topk_idx=topk,
        topk_weights=view(own.weights),
        token_in_rank=view(in_rank),
        num_experts=EXPERTS,
    )
    later = dict(async_finish=1) if own.on_gpu else {}  # as the module does where nothing is to be known
    cached = sized(_abi.DispatchArgs, x=view(own.x), handle=found.pointer, **later)
    result, event = sized(_abi.DispatchResult), ctypes.c_void_p()
    if own.on_gpu:
        later["event"] = ctypes.addressof(event)
    rows = {"handle": found.pointer, "x": view(recv_x), "y": view(own.y)}
    back = sized(_abi.CombineArgs, **rows, **later)
    weighted = sized(
        _abi.CombineArgs, **rows, **later, topk_weights=view(recv_weights), out_topk_weights=view(own.out_weights)
    )

    def bare_layout() -> None:
        lib.expar_ep_layout(group.pointer, ctypes.byref(topk), EXPERTS, ctypes.byref(counts))

    def bare_dispatch() -> None:
        lib.expar_dispatch(ep.pointer, ctypes.byref(args), ctypes.byref(result))
        lib.expar_ep_output_release(result.output)
        lib.expar_ep_handle_destroy(result.handle)

    def bare_cached() -> None:
        lib.expar_dispatch(ep.pointer, ctypes.byref(cached), ctypes.byref(result))
        lib.expar_ep_output_release(result.output)
        forget(result.event)

    def bare_combine(args: Any = back) -> None:
        lib.expar_combine(ep.pointer, ctypes.byref(args))
        forget(event.value)

    return {
        "get_dispatch_layout": (lambda: buffer.get_dispatch_layout(own.topk_idx, EXPERTS), bare_layout),
        "dispatch": (lambda: buffer.dispatch(own.x, None, *routing), bare_dispatch),
        "dispatch with a handle": (lambda: buffer.dispatch(own.x, handle), bare_cached),
        "combine": (lambda: buffer.combine(recv_x, handle), bare_combine),
        "combine with weights": (
            lambda: buffer.combine(recv_x, handle, recv_weights),
            lambda: bare_combine(weighted),
        ),
    }


def elastic(buffer: Any, own: Arguments) -> dict[str, Pair]:
    calls: dict[str, Pair] = {}
    ep = buffer._at(_place.CPU).ep
    memory = torch.empty(3 * EXPERTS + 2, dtype=torch.int32)
    counts = sized(_abi.RecvCounts, tokens_per_expert=memory.data_ptr(), expert_ends=memory.data_ptr() + 4 * EXPERTS)
    for expand in (False, True):
        rows, _, weights, handle, _ = buffer.dispatch(
            own.x, own.topk_idx, own.weights, num_experts=EXPERTS, do_expand=expand
        )
        routed = dict(topk_idx=view(own.topk_idx), topk_weights=view(own.weights), expert_major=expand)
        args = sized(
            _abi.DispatchArgs,
            x=view(own.x),
            num_experts=EXPERTS,
            keep_slots=1,
            src_stride=16,
            row_weights=expand,
            recv_counts=ctypes.addressof(counts),
            **routed,
        )
        cached = sized(_abi.DispatchArgs, x=view(own.x), handle=handle._routing.pointer, **routed)
        back = sized(
            _abi.CombineArgs,
            handle=handle._routing.pointer,
            x=view(rows),
            y=view(own.y),
            expert_major=expand,
            sum_order=expar.SumOrder.BY_SLOT,
        )
        result = sized(_abi.DispatchResult)

        def bare_dispatch(args: Any = args, result: Any = result, kept: Any = (counts, memory)) -> None:
            lib.expar_dispatch(ep.pointer, ctypes.byref(args), ctypes.byref(result))
            lib.expar_ep_output_release(result.output)
            lib.expar_ep_handle_destroy(result.handle)

        def bare_combine(back: Any = back) -> None:
            lib.expar_combine(ep.pointer, ctypes.byref(back))

        def dispatch(expand: bool = expand) -> Any:
            return buffer.dispatch(own.x, own.topk_idx, own.weights, num_experts=EXPERTS, do_expand=expand)

        def again(expand: bool = expand, handle: Any = handle) -> Any:
            return buffer.dispatch(own.x, topk_weights=own.weights, handle=handle, do_expand=expand)

        def combine(rows: Any = rows, handle: Any = handle) -> Any:
            return buffer.combine(rows, handle)

        def bare_again(cached: Any = cached, result: Any = result) -> None:
            lib.expar_dispatch(ep.pointer, ctypes.byref(cached), ctypes.byref(result))
            lib.expar_ep_output_release(result.output)

        what = ", expanded" if expand else ""
        calls["elastic dispatch" + what] = (dispatch, bare_dispatch)
        calls["elastic, handle" + what] = (again, bare_again)
        calls["elastic combine" + what] = (combine, bare_combine)
    return calls


def low_latency(buffer: Any, own: Arguments) -> dict[str, Pair]:
    calls: dict[str, Pair] = {}
    for use_fp8, format in ((False, expar.LlFormat.PLAIN), (True, expar.LlFormat.FP8)):
        rows, _, handle, _, _ = buffer.low_latency_dispatch(own.x, own.topk_idx, 16, EXPERTS, use_fp8=use_fp8)
        (ll,) = buffer._at(_place.of(own.x, "x"))[1].buffers()
        args = sized(_abi.LlDispatchArgs, x=view(own.x), topk_idx=view(own.topk_idx), format=format)
        result = sized(_abi.LlDispatchResult)

        def bare_dispatch(args: Any = args, result: Any = result) -> None:
            lib.expar_ll_dispatch(ll.pointer, ctypes.byref(args), ctypes.byref(result))
            lib.expar_ep_output_release(result.output)
            lib.expar_ll_handle_destroy(result.handle)

        def dispatch(use_fp8: bool = use_fp8) -> Any:
            return buffer.low_latency_dispatch(own.x, own.topk_idx, 16, EXPERTS, use_fp8=use_fp8)

        calls["low_latency_dispatch" + (", FP8" if use_fp8 else "")] = (dispatch, bare_dispatch)
        if not use_fp8:
            back = sized(
                _abi.LlCombineArgs,
                handle=_handles.find_low_latency(handle).pointer,
                x=view(rows),
                topk_idx=view(own.topk_idx),
                topk_weights=view(own.weights),
                out=view(own.y),
            )
            summed = sized(_abi.LlCombineResult)

            def bare_combine(back: Any = back, summed: Any = summed) -> None:
                lib.expar_ll_combine(ll.pointer, ctypes.byref(back), ctypes.byref(summed))

            def combine(rows: Any = rows, handle: Any = handle) -> Any:
                return buffer.low_latency_combine(rows, own.topk_idx, own.weights, handle)

            calls["low_latency_combine"] = (combine, bare_combine)
    return calls


def show(own: Arguments, calls: dict[str, Pair], rounds: int) -> None:
    for name, pair in calls.items():
        both = [[own.microseconds(call) for call in pair] for _ in range(rounds)]
        module, bare = (statistics.median(each) for each in zip(*both))
        print(f"{name:28}{module:9.1f}{bare:9.1f}{module - bare:9.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What deep_ep costs beside the library.")
    parser.add_argument("rounds", type=int, nargs="?", default=200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    world, own = torch.distributed.group.WORLD, Arguments(options.device)
    if not own.on_gpu:
        beyond = import_milliseconds("deep_ep", "torch.distributed", min(options.rounds, 5))
        print(f"import deep_ep, beyond PyTorch: {beyond:.0f} ms")
    print(f"{'T 1, one rank, us':28}{'deep_ep':>9}{'bare':>9}{'between':>9}")
    buffer = deep_ep.Buffer(world, explicitly_destroy=True)
    show(own, normal(buffer, own), options.rounds)
    if not own.on_gpu:
        second = deep_ep.ElasticBuffer(world, num_max_tokens_per_rank=16, hidden=HIDDEN, explicitly_destroy=True)
        show(own, elastic(second, own), options.rounds)
        second.destroy()
    show(own, low_latency(buffer, own), options.rounds)
    buffer.destroy()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
