# SPDX-License-Identifier: Apache-2.0
"""An MoE layer whose experts live on many ranks: router, dispatch, experts, combine, and the gradients of all of them.

Letters in shapes: T tokens of this rank, H hidden, F hidden inside of an expert, K top-k, E experts, N ranks. There are
L = E/N local experts, and R rows that this rank receives.
"""

from __future__ import annotations

from typing import Any

try:
    import torch
    from torch import Tensor, nn
    import deep_ep
    from grouped_gemm import grouped_mm
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None


class Dispatch(torch.autograd.Function):
    """Rows go to their experts; their gradients come back by a combine with the same handle."""

    @staticmethod
    def forward(
        ctx: Any, buffer: deep_ep.Buffer, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, num_experts: int
    ) -> tuple[Any, ...]:
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, num_experts)
        recv_x, recv_idx, recv_weights, counts, handle, _ = buffer.dispatch(
            x,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
        )
        ctx.buffer = buffer
        ctx.save_for_backward(*handle)  # a handle is a tuple of tensors, so it can be saved
        ctx.mark_non_differentiable(recv_idx)
        return recv_x, recv_idx, recv_weights, counts, handle

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor, _: Any, grad_weights: Tensor, *__: Any) -> tuple[Any, ...]:
        handle = tuple(ctx.saved_tensors)
        dx, dweights, _ = ctx.buffer.combine(grad_x.contiguous(), handle, grad_weights.contiguous())
        return None, dx, None, dweights, None


class Combine(torch.autograd.Function):
    """Rows come back and are summed; their gradients go out by a dispatch with the same handle."""

    @staticmethod
    def forward(ctx: Any, buffer: deep_ep.Buffer, x: Tensor, handle: tuple[Any, ...]) -> Tensor:
        ctx.buffer, ctx.handle = buffer, handle
        y: Tensor = buffer.combine(x, handle)[0]
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, ctx.buffer.dispatch(grad.contiguous(), handle=ctx.handle)[0], None


# PyTorch gives `apply` no types.
dispatch: Any = Dispatch.apply
combine: Any = Combine.apply


class Experts(nn.Module):
    """A rank's experts: down(silu(up(x))) each, by one grouped GEMM over the rows of all of them."""

    def __init__(self, count: int, hidden: int, inner: int, **kind: Any) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, hidden, inner, **kind) / hidden**0.5)
        self.down = nn.Parameter(torch.randn(count, inner, hidden, **kind) / inner**0.5)

    def forward(self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Tensor:
        """x: [R, H]; topk_idx: [R, K], local experts, -1 for none; gives the weighted sum of each row's experts."""
        rows, slots = torch.nonzero(topk_idx >= 0, as_tuple=True)
        experts, order = torch.sort(topk_idx[rows, slots], stable=True)
        rows, slots = rows[order], slots[order]
        ends = torch.bincount(experts, minlength=self.up.shape[0]).cumsum(0, dtype=torch.int32)
        inner = nn.functional.silu(grouped_mm(x[rows], self.up, ends))
        out = grouped_mm(inner, self.down, ends) * topk_weights[rows, slots, None].to(x.dtype)
        return torch.zeros_like(x).index_add(0, rows, out)


class MoeLayer(nn.Module):
    """x [T, H] -> [T, H]. The router is the same on all ranks; experts are those of this rank."""

    def __init__(
        self, buffer: deep_ep.Buffer, hidden: int, inner: int, num_experts: int, num_topk: int, **kind: Any
    ) -> None:
        super().__init__()
        self.buffer = buffer
        self.num_experts, self.num_topk = num_experts, num_topk
        self.router = nn.Linear(hidden, num_experts, bias=False, **kind)
        self.experts = Experts(num_experts // buffer.group_size, hidden, inner, **kind)

    def forward(self, x: Tensor) -> Tensor:
        weights, experts = torch.topk(torch.softmax(self.router(x).float(), dim=-1), self.num_topk)
        rows, local, row_weights, _, handle = dispatch(self.buffer, x, experts, weights, self.num_experts)
        y: Tensor = combine(self.buffer, self.experts(rows, local, row_weights), handle)
        return y
