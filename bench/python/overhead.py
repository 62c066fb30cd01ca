#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of the Python package beside the library: calls without tokens on one rank, as the package makes them and
bare.

Bare is the same call of the library by ctypes with ready structs, and the release of its results. So the rest is the
package's own: looking at tensors, filling structs, making results, and taking them apart again. Figures are the least
of all rounds, in microseconds. usage: PYTHONPATH=python bench/python/overhead.py [--torch] [ROUNDS]
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import time
from typing import Any, Callable

try:
    import numpy
    import expar
    from expar import _abi
    from expar._library import lib
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

HIDDEN, TOPK, EXPERTS = 64, 8, 64
CALLS = 20  # a round


def view(array: Any, dtype: expar.Dtype) -> _abi.Tensor:
    tensor = _abi.Tensor(data=array.ctypes.data, dtype=dtype, ndim=array.ndim)
    tensor.shape[: array.ndim] = array.shape
    tensor.strides[: array.ndim] = [array.shape[1], 1]
    tensor.device.type = _abi.DeviceType.CPU
    return tensor


def sized(kind: Any, **values: Any) -> Any:
    return kind(struct_size=ctypes.sizeof(kind), **values)


class Arguments:
    """The arguments of calls, as NumPy arrays or PyTorch tensors, and as tensors of the library."""

    def __init__(self, of_torch: bool) -> None:
        self.of_torch = of_torch
        self.x = numpy.zeros((0, HIDDEN), "float32")
        self.topk_idx = numpy.zeros((0, TOPK), "int64")
        self.weights = numpy.zeros((0, TOPK), "float32")
        self.y = numpy.zeros((0, HIDDEN), "float32")
        self.out_weights = numpy.zeros((0, TOPK), "float32")
        self.views: dict[str, Any] = {
            "x": view(self.x, expar.Dtype.F32),
            "topk_idx": view(self.topk_idx, expar.Dtype.I64),
            "topk_weights": view(self.weights, expar.Dtype.F32),
        }
        self.written = {
            "out_y": view(self.y, expar.Dtype.F32),
            "out_topk_weights": view(self.out_weights, expar.Dtype.F32),
        }
        if of_torch:
            import torch

            for name in ("x", "topk_idx", "weights", "y", "out_weights"):
                setattr(self, name, torch.from_numpy(getattr(self, name)))


def normal(group: expar.Group, own: Arguments) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    buffer = expar.Buffer(group, max_tokens=64, max_row_bytes=4 * HIDDEN, max_topk=TOPK, max_experts=EXPERTS)
    held = buffer.dispatch(own.x, own.topk_idx, own.weights, EXPERTS)
    assert held.handle is not None
    handle = held.handle
    args = sized(_abi.EpDispatchArgs, num_experts=EXPERTS, **own.views)
    result = sized(_abi.EpDispatchResult)
    cached = sized(_abi.EpDispatchArgs, handle=handle.pointer, **own.views)
    rows = {name: own.views[name] for name in ("x", "topk_weights")}
    back = sized(_abi.EpCombineArgs, handle=handle.pointer, **rows, **own.written)

    def bare_dispatch() -> None:
        lib.expar_ep_dispatch(buffer.pointer, ctypes.byref(args), ctypes.byref(result))
        lib.expar_ep_output_release(result.output)
        lib.expar_ep_handle_release(result.handle)

    def bare_cached() -> None:
        lib.expar_ep_dispatch(buffer.pointer, ctypes.byref(cached), ctypes.byref(result))
        lib.expar_ep_output_release(result.output)

    def bare_combine() -> None:
        lib.expar_ep_combine(buffer.pointer, ctypes.byref(back), None)

    only_rows = sized(_abi.EpDispatchArgs, handle=handle.pointer, x=own.views["x"])
    only_sums = sized(_abi.EpCombineArgs, handle=handle.pointer, x=own.views["x"], out_y=own.written["out_y"])

    def bare_rows() -> None:
        lib.expar_ep_dispatch(buffer.pointer, ctypes.byref(only_rows), ctypes.byref(result))
        lib.expar_ep_output_release(result.output)

    def bare_sums() -> None:
        lib.expar_ep_combine(buffer.pointer, ctypes.byref(only_sums), None)

    def bare_layer() -> None:
        bare_rows()
        bare_sums()

    # Engines take the results as PyTorch's tensors.
    of_torch = {
        "handle, x.torch()": (lambda: buffer.dispatch(own.x, handle=handle).x.torch(), bare_rows),
        "combine, y.torch()": (lambda: buffer.combine(own.x, handle).y.torch(), bare_sums),
        "both": (
            lambda: buffer.combine(buffer.dispatch(own.x, handle=handle).x.torch(), handle).y.torch(),
            bare_layer,
        ),
    }
    return {
        "dispatch": (lambda: buffer.dispatch(own.x, own.topk_idx, own.weights, EXPERTS), bare_dispatch),
        "dispatch with a handle": (
            lambda: buffer.dispatch(own.x, own.topk_idx, own.weights, handle=handle),
            bare_cached,
        ),
        "combine": (lambda: buffer.combine(own.x, handle, own.weights), bare_combine),
        "combine to one's own memory": (
            lambda: buffer.combine(own.x, handle, own.weights, out_y=own.y, out_topk_weights=own.out_weights),
            bare_combine,
        ),
        **(of_torch if own.of_torch else {}),
    }


def low_latency(group: expar.Group, own: Arguments) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    buffer = expar.LowLatencyBuffer(group, 16, HIDDEN, TOPK, EXPERTS, max_row_bytes=4 * HIDDEN)
    held = buffer.dispatch(own.x, own.topk_idx)
    args = sized(_abi.LlDispatchArgs, **own.views)
    result = sized(_abi.LlDispatchResult)
    back = sized(_abi.LlCombineArgs, handle=held.handle.pointer, **{**own.views, "x": held.x._view})
    back.out_y = own.written["out_y"]
    summed = sized(_abi.LlCombineResult)

    def bare_dispatch() -> None:
        lib.expar_ll_dispatch(buffer.pointer, ctypes.byref(args), ctypes.byref(result))
        lib.expar_ep_output_release(result.output)
        lib.expar_ll_handle_release(result.handle)

    def bare_combine() -> None:
        lib.expar_ll_combine(buffer.pointer, ctypes.byref(back), ctypes.byref(summed))

    def pair_of_torch() -> None:
        made = buffer.dispatch(own.x, own.topk_idx)
        rows = made.x.torch(), made.count.torch()
        buffer.combine(rows[0], own.topk_idx, own.weights, made.handle).y.torch()

    def bare_pair() -> None:
        bare_dispatch()
        lib.expar_ll_combine(buffer.pointer, ctypes.byref(alone), ctypes.byref(summed))
        lib.expar_ep_output_release(summed.output)

    alone = sized(_abi.LlCombineArgs, handle=held.handle.pointer, **{**own.views, "x": held.x._view})
    of_torch = {"low-latency pair, torch()": (pair_of_torch, bare_pair)}
    return {
        "low-latency dispatch": (lambda: buffer.dispatch(own.x, own.topk_idx, own.weights), bare_dispatch),
        "low-latency combine": (
            lambda: buffer.combine(held.x, own.topk_idx, own.weights, held.handle, out_y=own.y),
            bare_combine,
        ),
        **(of_torch if own.of_torch else {}),
    }


def microseconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - begin) / CALLS / 1000


def import_milliseconds(module: str, before: str = "sys", repeats: int = 5) -> float:
    """Returns the time of a module's import in addition to another one, in fresh interpreters. As after an
    installation, the first one compiles it."""
    code = f"import time, {before}; begin = time.perf_counter(); import {module}; print(time.perf_counter() - begin)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run() -> float:
        ended = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, check=True)
        return 1000 * float(ended.stdout)

    if repeats > 1:
        run()
    return statistics.median(run() for _ in range(repeats))


def main() -> None:
    numbers = [word for word in sys.argv[1:] if word != "--torch"]
    rounds = int(numbers[0]) if numbers else 200
    print(f"import expar: {import_milliseconds('expar'):.0f} ms")
    print(f"{'T 0, one rank, us':28}{'package':>9}{'bare':>9}{'between':>9}")
    with expar.Group.from_env() as group:
        own = Arguments("--torch" in sys.argv)
        for calls in (normal(group, own), low_latency(group, own)):
            for name, pair in calls.items():
                both = [[microseconds(call) for call in pair] for _ in range(rounds)]
                package, bare = (min(each) for each in zip(*both))
                print(f"{name:28}{package:9.1f}{bare:9.1f}{package - bare:9.1f}")
            del calls, pair


if __name__ == "__main__":
    main()
