# SPDX-License-Identifier: Apache-2.0
"""A training step of an MoE layer in PyTorch, whose gradients go through `expar.torch.dispatch` and `combine`.

    expar run -n 4 -- python3 training_step_torch.py

Tensors go in as they are and come out by DLPack, without copies. `moe.py` is the same over the module deep_ep.
Letters in shapes: as in training_step.py.
"""

from __future__ import annotations

import sys
from typing import Callable

try:
    import torch
    from torch import Tensor, nn
    import expar
    import expar.torch
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

T, H, F, K, EXPERTS_PER_RANK = 48, 64, 32, 2, 2


class Experts(nn.Module):
    """down(relu(up(x))) each."""

    def __init__(self, up: Tensor, down: Tensor) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(up.clone()), nn.Parameter(down.clone())

    def forward(self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Tensor:
        """x: [R, H]; topk_idx: [R, K] local experts, -1 for none. Gives the weighted sum of each row's experts."""
        y = torch.zeros_like(x)
        for expert in range(self.up.shape[0]):
            rows, slots = torch.nonzero(topk_idx == expert, as_tuple=True)
            out = torch.relu(x[rows] @ self.up[expert]) @ self.down[expert]
            y = y.index_add(0, rows, out * topk_weights[rows, slots, None])
        return y


def make(size: int) -> dict[str, Tensor]:
    """Makes tokens and routing of all ranks, and all experts. Any rank can make them, to compare with."""
    random = torch.Generator().manual_seed(7)
    experts = size * EXPERTS_PER_RANK

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    return {
        "x": normal(size * T, H),
        "target": normal(size * T, H),
        "topk_idx": torch.rand(size * T, experts, generator=random).argsort(1)[:, :K].contiguous(),
        "topk_weights": torch.rand(size * T, K, generator=random),
        "up": normal(experts, H, F) / 8,
        "down": normal(experts, F, H) / 6,
    }


def step(experts: Experts, x: Tensor, weights: Tensor, target: Tensor, layer: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    """Returns the result and the gradients of tokens, weights and experts."""
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    y = layer(x, weights)
    ((y - target) ** 2).sum().backward()
    grads = [x.grad, weights.grad, experts.up.grad, experts.down.grad]
    return [y.detach(), *(grad for grad in grads if grad is not None)]


def main() -> None:
    with expar.Group.from_env() as group, expar.Buffer(group) as buffer:
        data, rank = make(group.size), group.rank
        mine, local = slice(rank * T, (rank + 1) * T), slice(rank * EXPERTS_PER_RANK, (rank + 1) * EXPERTS_PER_RANK)
        experts, whole = Experts(data["up"][local], data["down"][local]), Experts(data["up"], data["down"])
        topk_idx = data["topk_idx"]

        def spread(x: Tensor, weights: Tensor) -> Tensor:
            rows = expar.torch.dispatch(buffer, x, topk_idx[mine], weights, len(whole.up))
            assert rows.topk_weights is not None
            return expar.torch.combine(buffer, experts(rows.x, rows.topk_idx, rows.topk_weights), rows.handle)

        made = step(experts, data["x"][mine], data["topk_weights"][mine], data["target"][mine], spread)
        expected = step(
            whole, data["x"], data["topk_weights"], data["target"], lambda x, weights: whole(x, topk_idx, weights)
        )
        parts = [mine, mine, mine, local, local]
        names = ["y", "gradient of x", "gradient of the weights", "gradient of up", "gradient of down"]
        for name, is_, should, part in zip(names, made, expected, parts):
            if not torch.allclose(is_, should[part], rtol=1e-3, atol=1e-3):
                sys.exit(f"rank {rank}: WRONG {name}: off by {(is_ - should[part]).abs().max()}")
        if rank == 0:
            print(f"{group.size} ranks: autograd's gradients are those of the layer in one piece")


if __name__ == "__main__":
    main()
