#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of `deep_ep` beside the library: calls with one token on one rank, as engines make them and bare.

Bare is the same call of the library by ctypes, with the same arguments, in ready structs. Its results go to memory of
one's own, or are given back at once; on a GPU it says, too, which stream reads the rows. So the rest is the module's
own: looking at tensors, making results and handles, and taking them apart again. Figures are the least of all rounds,
in microseconds, which other work on the machine changes little. It needs PyTorch (scripts/torch.sh). With --device cuda
the tensors lie on the current GPU, which has nothing to do when a call is made. With --profile there is no table but,
for each call, a profile by cProfile. With --steps the table has the steps of each call of the module
(deep_ep_steps.py), the library's by itself among them.
With --only TEXT it makes only calls whose names contain the text.
usage: PYTHONPATH=python bench/python/deep_ep_overhead.py [--device cpu|cuda] [--profile | --steps] [--only TEXT] [ROUNDS]
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import os
import time
from typing import Any, Callable

from overhead import CALLS, import_milliseconds, microseconds, sized

try:
    import torch

    import deep_ep
    import deep_ep_steps
    import deep_ep_third
    import expar
    from deep_ep import _handles, _place
    from deep_ep._call import put
    from expar import _abi
    from expar._library import lib
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

HIDDEN, TOPK, EXPERTS, TOKENS = 128, 8, 64, 16
LEGACY = 1  # CUDA's name for the default stream
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def view(tensor: Any) -> Any:
    made = _abi.Tensor()
    put(made, 0, tensor, "tensor")
    return made


class Arguments:
    """The arguments of calls with one token, whose experts are all on this rank."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.x = torch.ones((1, HIDDEN), dtype=torch.bfloat16, device=device)
        self.topk_idx = torch.arange(TOPK, dtype=torch.int64, device=device).view(1, TOPK)
        self.weights = torch.ones((1, TOPK), dtype=torch.float32, device=device)
        self.y = torch.empty_like(self.x)
        self.out_weights = torch.empty_like(self.weights)
        self.place = _place.of(self.x, "x")
        self.counts = torch.empty(3 * EXPERTS, dtype=torch.int32, device=device)

    def microseconds(self, call: Callable[[], Any]) -> float:
        """Returns the time that the call takes on the host. On a GPU the work of many calls would queue up and delay
        the host, too."""
        if not self.on_gpu:
            return microseconds(call)
        total_ns = 0
        for _ in range(CALLS):
            torch.cuda.synchronize()
            begin_ns = time.perf_counter_ns()
            call()
            total_ns += time.perf_counter_ns() - begin_ns
        return total_ns / CALLS / 1000

    def later(self, **more: Any) -> dict[str, Any]:
        """Adds async_finish on a GPU, as the module does. The host then need not wait, because it needs no counts."""
        return dict(async_finish=1, **more) if self.on_gpu else {}

    def give_back(self, result: Any, handle: bool = True) -> None:
        """Releases the results of a dispatch."""
        if self.on_gpu:
            lib.expar_ep_output_read_on(result.output, LEGACY)
        lib.expar_ep_output_release(result.output)
        if handle:
            lib.expar_ep_handle_release(result.handle)
        lib.expar_event_release(result.event)

    def bare(self, ep: Any, args: Any, handle: bool = True) -> Callable[[], None]:
        """Returns a dispatch with these arguments. handle: it is fresh, and returns a handle."""
        result = sized(_abi.EpDispatchResult)

        def call() -> None:
            lib.expar_ep_dispatch(ep.pointer, ctypes.byref(args), ctypes.byref(result))
            self.give_back(result, handle)

        return call

    def bare_combine(self, ep: Any, args: Any) -> Callable[[], None]:
        result = sized(_abi.EpCombineResult)

        def call() -> None:
            lib.expar_ep_combine(ep.pointer, ctypes.byref(args), ctypes.byref(result))
            lib.expar_event_release(result.event)

        return call


def normal(buffer: Any, own: Arguments) -> dict[str, Pair]:
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(own.topk_idx, EXPERTS)
    routing = (per_rank, None, in_rank, per_expert, own.topk_idx, own.weights)
    recv_x, _, recv_weights, _, handle, _ = buffer.dispatch(own.x, None, *routing)
    ep, group, found = buffer._at(own.place)[0].ep, buffer._group, _handles.find(handle)
    layout = _abi.EpLayout(
        ctypes.sizeof(_abi.EpLayout), per_rank.data_ptr(), None, per_expert.data_ptr(), in_rank.data_ptr()
    )
    topk, workers = view(own.topk_idx), dict(num_sms=buffer._workers(None, own.place))
    counts = sized(_abi.EpRecvCounts, rank_prefix=own.counts.data_ptr())
    args = sized(
        _abi.EpDispatchArgs,
        x=view(own.x),
        topk_idx=topk,
        topk_weights=view(own.weights),
        token_in_rank=view(in_rank),
        num_experts=EXPERTS,
        expert_alignment=1,
        recv_counts=ctypes.addressof(counts) if own.on_gpu else None,
        **workers,
    )
    args.kept = counts
    cached = sized(_abi.EpDispatchArgs, x=view(own.x), handle=found.pointer, **own.later(), **workers)
    rows = {"handle": found.pointer, "x": view(recv_x), "out_y": view(own.y)}
    rows.update(own.later(), **workers)
    back = sized(_abi.EpCombineArgs, **rows)
    weighted = sized(
        _abi.EpCombineArgs, **rows, topk_weights=view(recv_weights), out_topk_weights=view(own.out_weights)
    )

    def bare_layout() -> None:
        lib.expar_ep_get_layout(group.pointer, ctypes.byref(topk), EXPERTS, ctypes.byref(layout))

    return {
        "get_dispatch_layout": (lambda: buffer.get_dispatch_layout(own.topk_idx, EXPERTS), bare_layout),
        "dispatch": (lambda: buffer.dispatch(own.x, None, *routing), own.bare(ep, args)),
        "dispatch with a handle": (lambda: buffer.dispatch(own.x, handle), own.bare(ep, cached, False)),
        "combine": (lambda: buffer.combine(recv_x, handle), own.bare_combine(ep, back)),
        "combine with weights": (
            lambda: buffer.combine(recv_x, handle, recv_weights),
            own.bare_combine(ep, weighted),
        ),
    }


def elastic(buffer: Any, own: Arguments) -> dict[str, Pair]:
    hint = buffer.get_buffer_size_hint
    calls: dict[str, Pair] = {
        "get_buffer_size_hint": (lambda: hint(buffer.group, TOKENS, HIDDEN, TOPK), lambda: None)
    }
    ep, at = buffer._at(own.place).ep, own.counts.data_ptr()
    workers = dict(num_sms=buffer._workers(buffer.get_theoretical_num_sms(EXPERTS, TOPK), own.place))
    for expand in (False, True):
        counts = sized(_abi.EpRecvCounts, tokens_per_expert=at, rank_prefix=at + 4 * EXPERTS)
        name = "expert_ends" if expand else "expert_prefix"
        setattr(counts, name, at + 4 * EXPERTS + 4)
        rows, _, weights, handle, _ = buffer.dispatch(
            own.x, own.topk_idx, own.weights, num_experts=EXPERTS, do_expand=expand
        )
        routed = dict(topk_idx=view(own.topk_idx), topk_weights=view(own.weights), expert_major=expand)
        routed.update(workers, row_weights=expand)
        args = sized(
            _abi.EpDispatchArgs,
            x=view(own.x),
            num_experts=EXPERTS,
            expert_alignment=1,
            keep_slots=1,
            src_stride=TOKENS,
            recv_counts=ctypes.addressof(counts),
            **routed,
        )
        args.kept = counts
        cached = sized(_abi.EpDispatchArgs, x=view(own.x), handle=handle._routing.pointer, **routed, **own.later())
        back = sized(
            _abi.EpCombineArgs,
            handle=handle._routing.pointer,
            x=view(rows),
            out_y=view(own.y),
            expert_major=expand,
            sum_order=expar.EpSumOrder.BY_SLOT,
            **own.later(),
            **workers,
        )

        def dispatch(expand: bool = expand) -> Any:
            return buffer.dispatch(own.x, own.topk_idx, own.weights, num_experts=EXPERTS, do_expand=expand)

        def again(expand: bool = expand, handle: Any = handle) -> Any:
            return buffer.dispatch(own.x, topk_weights=own.weights, handle=handle, do_expand=expand)

        def combine(rows: Any = rows, handle: Any = handle) -> Any:
            return buffer.combine(rows, handle)

        what = ", expanded" if expand else ""
        calls["elastic dispatch" + what] = (dispatch, own.bare(ep, args))
        calls["elastic, handle" + what] = (again, own.bare(ep, cached, False))
        calls["elastic combine" + what] = (combine, own.bare_combine(ep, back))
    return calls


def low_latency(buffer: Any, own: Arguments) -> dict[str, Pair]:
    calls: dict[str, Pair] = {}
    for use_fp8, format in ((False, expar.LlFormat.PLAIN), (True, expar.LlFormat.FP8)):
        rows, _, handle, _, _ = buffer.low_latency_dispatch(own.x, own.topk_idx, TOKENS, EXPERTS, use_fp8=use_fp8)
        (ll,) = buffer._at(own.place)[1].buffers()
        args = sized(_abi.LlDispatchArgs, x=view(own.x), topk_idx=view(own.topk_idx), format=format)
        result = sized(_abi.LlDispatchResult)

        def bare_dispatch(args: Any = args, result: Any = result) -> None:
            lib.expar_ll_dispatch(ll.pointer, ctypes.byref(args), ctypes.byref(result))
            lib.expar_ep_output_release(result.output)
            lib.expar_ll_handle_release(result.handle)

        def dispatch(use_fp8: bool = use_fp8) -> Any:
            return buffer.low_latency_dispatch(own.x, own.topk_idx, TOKENS, EXPERTS, use_fp8=use_fp8)

        calls["low_latency_dispatch" + (", FP8" if use_fp8 else "")] = (dispatch, bare_dispatch)
        if not use_fp8:
            back = sized(
                _abi.LlCombineArgs,
                handle=_handles.find_low_latency(handle).pointer,
                x=view(rows),
                topk_idx=view(own.topk_idx),
                topk_weights=view(own.weights),
                out_y=view(own.y),
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
        module, bare = (min(each) for each in zip(*both))
        print(f"{name:37}{module:9.1f}{bare:9.1f}{module - bare:9.1f}", flush=True)


def profile(own: Arguments, calls: dict[str, Pair], rounds: int) -> None:
    """Prints six lines for each call: how often each function is called, and its own time, including cProfile's."""
    for name, (call, _) in calls.items():
        profiler = cProfile.Profile()
        for _ in range(rounds * CALLS):
            own.place.settle()
            profiler.enable()
            call()
            profiler.disable()
        print(name)
        each = rounds * CALLS
        for one in sorted(profiler.getstats(), key=lambda one: -one.inlinetime)[:6]:
            code: Any = one.code
            what = code if isinstance(code, str) else f"{os.path.basename(code.co_filename)}: {code.co_name}"
            print(f"{one.callcount / each:6.1f} times {one.inlinetime / each * 1e6:6.1f} us  {what}", flush=True)


def steps(own: Arguments, calls: dict[str, Pair], rounds: int) -> None:
    of_module = {name: call for name, (call, _) in calls.items() if name != "get_buffer_size_hint"}
    for line in deep_ep_steps.table(of_module, own.place.settle, rounds):
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What deep_ep costs beside the library.")
    parser.add_argument("rounds", type=int, nargs="?", default=200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--profile", action="store_true", help="what calls spend their time in, instead of the table")
    parser.add_argument("--steps", action="store_true", help="a table of the steps of each call")
    parser.add_argument("--only", default="", metavar="TEXT", help="only calls whose names contain this")
    options = parser.parse_args()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    world, own = torch.distributed.group.WORLD, Arguments(options.device)
    if not own.on_gpu and not options.profile and not options.steps:
        beyond = import_milliseconds("deep_ep", "torch.distributed", min(options.rounds, 5))
        print(f"import deep_ep, beyond PyTorch: {beyond:.0f} ms")
    if options.steps:
        print(deep_ep_steps.heading())
    elif not options.profile:
        print(f"{'T 1, one rank, us':37}{'deep_ep':>9}{'bare':>9}{'between':>9}")
    table = profile if options.profile else steps if options.steps else show

    def told(own: Arguments, calls: dict[str, Pair], rounds: int) -> None:
        table(own, {name: pair for name, pair in calls.items() if options.only in name}, rounds)

    buffer = deep_ep.Buffer(world, explicitly_destroy=True)
    second = deep_ep.ElasticBuffer(world, num_max_tokens_per_rank=TOKENS, hidden=HIDDEN, explicitly_destroy=True)
    told(own, normal(buffer, own), options.rounds)
    told(own, low_latency(buffer, own), options.rounds)
    told(own, elastic(second, own), options.rounds)
    third = deep_ep.EPBuffer(world, num_max_tokens_per_rank=TOKENS, hidden=HIDDEN, explicitly_destroy=True)
    told(own, deep_ep_third.third(third, own, view, EXPERTS), options.rounds)
    hybrid = deep_ep.HybridEPBuffer(world, HIDDEN, TOKENS, EXPERTS)
    told(own, deep_ep_third.hybrid(hybrid, own, view, EXPERTS), options.rounds)
    third.destroy()
    second.destroy()
    buffer.destroy()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
