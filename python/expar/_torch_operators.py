# SPDX-License-Identifier: Apache-2.0
"""Typed decorators for PyTorch's operators. Those of PyTorch have no types if it is not installed, as for a type
checker."""

from __future__ import annotations

from typing import Any, Callable

import torch


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Returns a decorator that makes an operator of that name, "expar::dispatch"."""
    made: Callable[[Callable[..., Any]], Any] = torch.library.custom_op(name, mutates_args=())
    return made


def fake_of(operator: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that registers the operator's output shapes, for use without a call."""
    made: Callable[[Callable[..., Any]], Callable[..., Any]] = operator.register_fake
    return made
