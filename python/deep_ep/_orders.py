# SPDX-License-Identifier: Apache-2.0
"""Positional arguments of low-latency calls in the orders of other branches of DeepEP.

Each of these branches has put arguments of its own in the middle. A call by keywords means the same everywhere. Of a
call by position the types tell the order.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar, cast

import torch

_Call = TypeVar("_Call", bound=Callable[..., Any])
_SHARED = 4  # arguments that begin every order, without self

# hybrid-ep: topk_weights comes fifth.
_DISPATCH = (
    "topk_weights",
    "cumulative_local_expert_recv_stats",
    "dispatch_wait_recv_cost_stats",
    "x_global_scale",
    "use_fp8",
    "round_scale",
    "use_ue8m0",
    "use_nvfp4",
    "use_ue8m0_for_sf",
    "async_finish",
    "return_recv_hook",
)
# Another branch: signals come before use_logfmt.
_COMBINE = (
    "overlap",
    "packed_recv_count",
    "comp_signal",
    "block_m",
    "threshold",
    "num_sms",
    "use_logfmt",
    "zero_copy",
    "async_finish",
    "return_recv_hook",
    "out",
    "combine_wait_recv_cost_stats",
)


def _is_weights(given: tuple[Any, ...]) -> bool:
    """The fifth argument of a dispatch is float32 [T, K]; other orders have int32 [L] there."""
    fifth = given[0]
    return isinstance(fifth, torch.Tensor) and fifth.dtype is torch.float32 and fifth.dim() == 2


def _is_overlap(given: tuple[Any, ...]) -> bool:
    """The sixth argument of a combine is a tensor, or None; other orders have a bool there."""
    return len(given) > 1 and (given[1] is None or isinstance(given[1], torch.Tensor))


def _either(call: _Call, names: tuple[str, ...], is_other: Callable[[tuple[Any, ...]], bool]) -> _Call:
    @functools.wraps(call)
    def ordered(self: Any, *arguments: Any, **options: Any) -> Any:
        given = arguments[_SHARED:]
        if given and is_other(given):
            if len(given) > len(names):
                raise TypeError(f"{call.__name__} got {len(arguments)} arguments: expected at most {_SHARED + len(names)}")
            for name, value in zip(names, given):
                if name in options:
                    raise TypeError(f"{call.__name__} got {name} by position and by keyword: expected it once")
                options[name] = value
            arguments = arguments[:_SHARED]
        return call(self, *arguments, **options)

    return cast(_Call, ordered)


def dispatch_in_either_order(call: _Call) -> _Call:
    """Decorates low_latency_dispatch."""
    return _either(call, _DISPATCH, _is_weights)


def combine_in_either_order(call: _Call) -> _Call:
    """Decorates low_latency_combine."""
    return _either(call, _COMBINE, _is_overlap)
