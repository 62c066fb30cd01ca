# SPDX-License-Identifier: Apache-2.0
"""An MoE layer on `HybridEPBuffer` as Megatron builds it, its training step, and the same computed densely."""

from __future__ import annotations

from typing import Any

import torch
from deep_ep_hybrid_reference import Hybrid
from deep_ep_reference import here

Tensors = tuple[torch.Tensor, ...]
# The most that a result may differ from the dense one in double, in parts of 1 + its value. Rows, sums and gradients
# are bf16 with 2^-9 of relative error each; a token has at most 6 experts here, and a step rounds some 4 times.
BOUND = 2.0**-5


class Permuting(torch.autograd.Function):
    """dispatch_with_permute; the handle is one of its results."""

    @staticmethod
    def forward(ctx: Any, buffer: Any, x: Any, routing_map: Any, probs: Any, options: dict[str, Any]) -> Any:
        rows, weights, scales, per_expert, handle = buffer.dispatch_with_permute(
            hidden=x, routing_map=routing_map, probs=probs, scaling_factor=None, **options
        )
        assert scales is None
        ctx.buffer, ctx.handle, ctx.pad = buffer, handle, options["pad_multiple"]
        return rows, weights, per_expert, handle

    @staticmethod
    def backward(ctx: Any, grad_rows: Any, grad_probs: Any, *others: Any) -> Any:
        grad, of_probs = ctx.buffer.combine_with_unpermute(
            hidden=grad_rows, probs=grad_probs, handle=ctx.handle, pad_multiple=ctx.pad
        )
        return None, grad, None, of_probs, None


class Unpermuting(torch.autograd.Function):
    """combine_with_unpermute"""

    @staticmethod
    def forward(ctx: Any, buffer: Any, rows: Any, handle: Any, pad: Any) -> Any:
        ctx.buffer, ctx.handle, ctx.pad, ctx.rows = buffer, handle, pad, rows.shape[0]
        return buffer.combine_with_unpermute(hidden=rows, handle=handle, pad_multiple=pad)[0]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        rows, *_ = ctx.buffer.dispatch_with_permute(
            hidden=grad,
            scaling_factor=None,
            handle=ctx.handle,
            num_permuted_tokens=ctx.rows,
            pad_multiple=ctx.pad,
        )
        return None, rows, None, None


class Dispatching(torch.autograd.Function):
    """dispatch, without permutation."""

    @staticmethod
    def forward(ctx: Any, buffer: Any, x: Any, routing_map: Any, probs: Any) -> Any:
        rows, weights, _, handle = buffer.dispatch(hidden=x, routing_map=routing_map, probs=probs)
        ctx.buffer, ctx.handle = buffer, handle
        return rows, weights, handle

    @staticmethod
    def backward(ctx: Any, grad_rows: Any, grad_probs: Any, *others: Any) -> Any:
        grad, of_probs = ctx.buffer.combine(hidden=grad_rows, probs=grad_probs, handle=ctx.handle)
        return None, grad, None, of_probs


class Combining(torch.autograd.Function):
    """combine"""

    @staticmethod
    def forward(ctx: Any, buffer: Any, rows: Any, handle: Any, experts: int) -> Any:
        ctx.buffer, ctx.handle, ctx.experts = buffer, handle, experts
        return buffer.combine(hidden=rows, handle=handle)[0]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        rows, *_ = ctx.buffer.dispatch(grad, handle=ctx.handle, num_of_experts=ctx.experts)
        return None, rows, None, None


def permuted(buffer: Any, h: Hybrid, x: Any, probs: Any, experts: Any, options: dict[str, Any]) -> Any:
    """x plus the sum of prob * tanh(x @ experts[i]) over a token's experts; experts: [L, H, H] of this rank."""
    rows, weights, per_expert, handle = Permuting.apply(buffer, x, here(h.maps[buffer.rank]), probs, options)
    parts, begin = [], 0
    for i, count in enumerate(per_expert.tolist()):
        part = slice(begin, begin + count)
        parts.append(weights[part, None] * torch.tanh(rows[part].float() @ experts[i]))
        begin += count
    parts.append(torch.zeros((rows.shape[0] - begin, rows.shape[1]), device=rows.device))
    return x + Unpermuting.apply(buffer, torch.cat(parts).to(x.dtype), handle, options["pad_multiple"])


def unpermuted(buffer: Any, h: Hybrid, x: Any, probs: Any, experts: Any, options: dict[str, Any]) -> Any:
    """The same, with one row of each token on a rank."""
    rows, weights, handle = Dispatching.apply(buffer, x, here(h.maps[buffer.rank]), probs)
    own, mine = buffer.local_rank * h.local, handle[4][: rows.shape[0]]
    out = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
    for i in range(h.local):
        weight = torch.where(mine[:, i], weights[:, own + i], 0.0)
        out = out + weight[:, None] * torch.tanh(rows.float() @ experts[i])
    return x + Combining.apply(buffer, out.to(x.dtype), handle, h.world.experts)


def experts_of(h: Hybrid) -> torch.Tensor:
    """[E, H, H]"""
    random = torch.Generator().manual_seed(77)
    hidden = h.world.hidden
    return torch.randn((h.world.experts, hidden, hidden), generator=random) / hidden**0.5


def gradients_of(h: Hybrid) -> list[torch.Tensor]:
    """Gradients of y on each rank."""
    random = torch.Generator().manual_seed(78)
    return [torch.randn(x.shape, generator=random).bfloat16() for x in h.x]


def step(run: Any, buffer: Any, h: Hybrid, options: dict[str, Any]) -> Tensors:
    """y, and the gradients of tokens, probs and this rank's experts."""
    rank = buffer.rank
    x, probs = here(h.x[rank]).clone().requires_grad_(), here(h.probs[rank]).clone().requires_grad_()
    experts = here(experts_of(h)[rank * h.local : (rank + 1) * h.local]).clone().requires_grad_()
    y = run(buffer, h, x, probs, experts, options)
    y.backward(here(gradients_of(h)[rank]))
    assert x.grad is not None and probs.grad is not None and experts.grad is not None
    return y.detach(), x.grad, probs.grad, experts.grad


def dense(h: Hybrid, rank: int, capacity: list[int] | None = None, pad: int = 1) -> Tensors:
    """The same in double, without any communication. capacity: of each rank; rows beyond it are dropped."""
    xs = [x.double().requires_grad_() for x in h.x]
    probs = [each.double().requires_grad_() for each in h.probs]
    experts = experts_of(h).double().requires_grad_()
    kept = [torch.zeros_like(each) for each in h.maps]
    for r in range(h.world.ranks):
        most = len(h.permuted(r, pad)) if capacity is None else capacity[r]
        for row in h.places(r, pad, most):
            kept[row.source][row.token, row.expert] = True
    ys = []
    for x, prob, here_only in zip(xs, probs, kept):
        y = x
        for i in range(h.world.experts):
            y = y + (prob * here_only)[:, i, None] * torch.tanh(x @ experts[i])
        ys.append(y)
    torch.autograd.backward(ys, [grad.double() for grad in gradients_of(h)])
    own = slice(rank * h.local, (rank + 1) * h.local)
    found = (ys[rank].detach(), xs[rank].grad, probs[rank].grad, experts.grad)
    assert all(each is not None for each in found)
    return found[0], found[1], found[2], found[3][own]  # type: ignore[index, return-value]


def check_step(found: Tensors, wanted: Tensors) -> None:
    for one, other in zip(found, wanted):
        difference = (one.cpu().double() - other).abs() / (1 + other.abs())
        assert difference.numel() == 0 or difference.max() <= BOUND, difference.max()


def training_steps(buffer: Any, h: Hybrid) -> None:
    """Fused and not, with padding, with a capacity that fits and with one that does not, and without permutation."""
    rank, ranks = buffer.rank, range(h.world.ranks)
    for fused in (False, True):
        options = dict(num_of_experts_per_rank=h.local, pad_multiple=4, num_permuted_tokens=None)
        check_step(step(permuted, buffer, h, {**options, "fuse_permute_dispatch": fused}), dense(h, rank))
    needed = [len(h.permuted(r, 4)) for r in ranks]
    for capacity in (needed, [count // 8 * 4 for count in needed]):
        options = dict(pad_multiple=4, num_permuted_tokens=capacity[rank], non_blocking=True)
        check_step(step(permuted, buffer, h, options), dense(h, rank, capacity, 4))
    check_step(step(unpermuted, buffer, h, {}), dense(h, rank))
