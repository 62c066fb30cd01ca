# SPDX-License-Identifier: Apache-2.0
"""A training step of an MoE layer whose experts are computed together: one grouped GEMM over all of a rank's experts.

    torchrun --nproc-per-node 4 grouped_gemm.py

Expanded rows of an `ElasticBuffer` lie as a grouped GEMM needs them, expert after expert. The handle says where the
rows of each one end. The step is compared with the same layer of all experts and tokens, computed densely in float64.

Letters in shapes: T tokens of this rank, H hidden, F hidden inside of an expert, K top-k, E experts, L local experts, X
rows of this rank's experts.
"""

from __future__ import annotations

import sys

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    import deep_ep
    from deep_ep import operators
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

T, H, F, K, EXPERTS_PER_RANK = 48, 64, 32, 2, 3
CLOSE = 0.02  # the bound of BF16's error compared with float64


def has_kernel(x: Tensor) -> bool:
    """Returns whether PyTorch has one call for the products of all groups. Recent versions have it, on GPUs for BF16,
    since Ampere."""
    if not hasattr(nn.functional, "grouped_mm") or x.shape[0] == 0:
        return False
    if x.is_cuda:
        return x.dtype is torch.bfloat16 and torch.cuda.get_device_capability(x.device) >= (8, 0)
    return x.dtype in (torch.bfloat16, torch.float32)


def grouped_mm(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiplies x [X, H], ordered by expert, by the matrix of each row's expert, weight [L, H, F]. Returns [X, F].

    ends: int32 [L], where the rows of each expert end. Without such a call there is one product for each expert, and
    the host waits for `ends`."""
    if has_kernel(x):
        return nn.functional.grouped_mm(x, weight, offs=ends)
    starts = [0, *ends.tolist()]
    return torch.cat([x[start:end] @ matrix for start, end, matrix in zip(starts, starts[1:], weight)])


class Layer(nn.Module):
    """x [T, H] -> [T, H]: the weighted sum of down(silu(up(x))) of each token's experts."""

    def __init__(self, buffer: deep_ep.ElasticBuffer, up: Tensor, down: Tensor) -> None:
        super().__init__()
        self.number, self.ranks = operators.number_of(buffer), buffer.num_ranks
        self.up, self.down = nn.Parameter(up.clone()), nn.Parameter(down.clone())  # [L, H, F], [L, F, H]

    def forward(self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Tensor:
        experts = self.ranks * self.up.shape[0]
        rows, _, gates, ends, handle = operators.dispatch(
            self.number, x, topk_idx, topk_weights, experts, T, do_expand=True, do_cpu_sync=True
        )
        out = grouped_mm(nn.functional.silu(grouped_mm(rows, self.up, ends)), self.down, ends)
        return operators.combine(self.number, (out * gates[:, None]).to(x.dtype), handle)


def dense(x: Tensor, topk_idx: Tensor, topk_weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Computes the same layer with all experts."""
    y = torch.zeros_like(x)
    for expert in range(up.shape[0]):
        gate = torch.where(topk_idx == expert, topk_weights, 0.0).sum(-1, keepdim=True)
        y = y + gate * (nn.functional.silu(x @ up[expert]) @ down[expert])
    return y


def make(ranks: int) -> tuple[Tensor, ...]:
    """Makes x and its expected sums [N, T, H], topk_idx and topk_weights [N, T, K], up and down of all experts. Any
    rank can make them, to compare with."""
    random = torch.Generator().manual_seed(7)
    experts = ranks * EXPERTS_PER_RANK

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).bfloat16()

    topk_idx = torch.rand((ranks, T, experts), generator=random).argsort(-1)[..., :K].contiguous()
    topk_weights = torch.rand((ranks, T, K), generator=random)
    up, down = normal(experts, H, F) / H**0.5, normal(experts, F, H) / F**0.5
    return normal(ranks, T, H), normal(ranks, T, H), topk_idx, topk_weights, up, down


def off_by(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def step(buffer: deep_ep.ElasticBuffer, device: torch.device) -> dict[str, float]:
    """Returns the errors of the result and of the gradients of tokens, weights and experts."""
    rank, everything = buffer.rank_idx, make(buffer.num_ranks)
    own = slice(rank * EXPERTS_PER_RANK, (rank + 1) * EXPERTS_PER_RANK)
    x, target, topk_idx, topk_weights = (each[rank].to(device) for each in everything[:4])
    layer = Layer(buffer, *(each[own].to(device) for each in everything[4:]))
    x.requires_grad_(), topk_weights.requires_grad_()
    y = layer(x, topk_idx, topk_weights)
    (0.5 * (y.float() - target.float()) ** 2).sum().backward()

    wide = [each if each.dtype is torch.int64 else each.double().requires_grad_() for each in everything]
    wanted = dense(wide[0].flatten(0, 1), wide[2].flatten(0, 1), wide[3].flatten(0, 1), *wide[4:]).view(wide[0].shape)
    (0.5 * (wanted - wide[1].detach()) ** 2).sum().backward()
    found = {"y": (y, wanted[rank])}
    for name, one, all_ranks, part in (
        ("x", x, wide[0], rank),
        ("the weights", topk_weights, wide[3], rank),
        ("up", layer.up, wide[4], own),
        ("down", layer.down, wide[5], own),
    ):
        assert one.grad is not None and all_ranks.grad is not None
        found[f"gradient of {name}"] = (one.grad, all_ranks.grad[part])
    return {name: off_by(one.detach().cpu(), other.detach()) for name, (one, other) in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, device = dist.get_rank(), torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    buffer = deep_ep.ElasticBuffer(
        dist.group.WORLD, num_max_tokens_per_rank=T, hidden=H, num_topk=K, explicitly_destroy=True
    )
    off = step(buffer, device)
    buffer.destroy()
    dist.destroy_process_group()
    for name, much in off.items():
        if not much < CLOSE:
            sys.exit(f"rank {rank}: WRONG {name}: off by {much:.3f}")
    if rank == 0:
        print(f"{buffer.num_ranks} ranks: a step by grouped GEMMs is that of the dense layer")


if __name__ == "__main__":
    main()
