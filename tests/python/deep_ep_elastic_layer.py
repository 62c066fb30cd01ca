# SPDX-License-Identifier: Apache-2.0
"""An MoE layer on the operators of deep_ep.operators, its training step, and the same computed densely."""

from __future__ import annotations

from typing import Any

import torch
from deep_ep_elastic_reference import Elastic
from deep_ep_reference import here

from deep_ep import operators

Tensors = tuple[torch.Tensor, ...]


def layer(number: int, e: Elastic, expand: bool, synced: bool, x: Any, idx: Any, weights: Any, experts: Any) -> Any:
    """x plus the weighted sum of tanh(x @ experts[i]) over the token's experts; experts: [L, H, H] of this rank."""
    world = e.world
    rows, chosen, given, ends, handle = operators.dispatch(
        number, x, idx, weights, world.experts, world.most, world.alignment, expand, synced
    )
    out = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
    if expand:
        place = torch.arange(rows.shape[0], dtype=torch.int32, device=rows.device)
        expert = torch.searchsorted(ends, place, right=True).clamp(max=e.local - 1)
    for i in range(e.local):
        mine = given * (expert == i) if expand else (given * (chosen == i)).sum(dim=1)
        out = out + mine[:, None] * torch.tanh(rows.float() @ experts[i])
    return operators.combine(number, out.to(x.dtype), handle, x)


def experts_of(e: Elastic) -> torch.Tensor:
    """[E, H, H]"""
    random = torch.Generator().manual_seed(77)
    hidden = e.world.hidden
    return torch.randn((e.world.experts, hidden, hidden), generator=random, dtype=torch.float32) / hidden**0.5


def gradients_of(e: Elastic) -> list[torch.Tensor]:
    """Gradients of y on each rank."""
    random = torch.Generator().manual_seed(78)
    return [torch.randn(x.shape, generator=random, dtype=torch.float32).bfloat16() for x in e.x]


def step(run: Any, number: int, e: Elastic, rank: int, expand: bool, synced: bool) -> Tensors:
    """y, and the gradients of tokens, weights and this rank's experts."""
    x, weights = here(e.x[rank]).clone().requires_grad_(), here(e.weights[rank]).clone().requires_grad_()
    experts = here(experts_of(e)[rank * e.local : (rank + 1) * e.local]).clone().requires_grad_()
    y = run(number, e, expand, synced, x, here(e.topk_idx[rank]), weights, experts)
    y.backward(here(gradients_of(e)[rank]))
    assert x.grad is not None and weights.grad is not None and experts.grad is not None
    return y.detach(), x.grad, weights.grad, experts.grad


def dense(e: Elastic, rank: int) -> Tensors:
    """The same in double, without any communication."""
    xs = [x.double().requires_grad_() for x in e.x]
    weights = [each.double().requires_grad_() for each in e.weights]
    experts = experts_of(e).double().requires_grad_()
    ys = []
    for x, idx, weight in zip(xs, e.topk_idx, weights):
        y = x
        for i in range(e.world.experts):
            y = y + (weight * (idx == i)).sum(dim=1, keepdim=True) * torch.tanh(x @ experts[i])
        ys.append(y)
    torch.autograd.backward(ys, [grad.double() for grad in gradients_of(e)])
    own = slice(rank * e.local, (rank + 1) * e.local)
    found = (ys[rank].detach(), xs[rank].grad, weights[rank].grad, experts.grad)
    assert all(each is not None for each in found)
    return found[0], found[1], found[2], found[3][own]  # type: ignore[index, return-value]
