# SPDX-License-Identifier: Apache-2.0
"""Steps of training an MoE layer in NumPy: forward, backward and update, with the experts spread over the ranks.

    expar run -n 4 -- python3 training_step.py

The gradient of a combine is a dispatch with the same handle, and that of a dispatch a combine. The first step's
gradients are held against the layer computed in one piece.

Letters in shapes: T tokens of this rank, H hidden, F hidden inside of an expert, K top-k, E experts, N ranks. There are
L = E/N local experts, and R rows that this rank receives.
"""

from __future__ import annotations

import sys
from typing import Any

try:
    import numpy
    import expar
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

T, H, F, K, EXPERTS_PER_RANK = 48, 64, 32, 2, 2
STEPS, RATE = 4, 0.002


class Experts:
    """f(x) = relu(x up) down each. up: [L, H, F], down: [L, F, H]."""

    def __init__(self, up: Any, down: Any) -> None:
        self.up, self.down = up, down

    def forward(self, x: Any, topk_idx: Any, topk_weights: Any) -> Any:
        """x: [R, H]; topk_idx: [R, K] local experts, -1 for none. Gives the weighted sum of each row's experts."""
        self.kept = []
        y = numpy.zeros_like(x)
        for expert in range(len(self.up)):
            rows, slots = numpy.nonzero(topk_idx == expert)
            inner = numpy.maximum(x[rows] @ self.up[expert], 0)
            out = inner @ self.down[expert]
            weights = topk_weights[rows, slots, None]
            y[rows] += weights * out
            self.kept.append((rows, slots, x[rows], inner, out, weights))
        return y

    def backward(self, grad: Any, num_topk: int) -> tuple[Any, Any]:
        """grad: [R, H] of y. Gives those of x and of topk_weights, and keeps those of the experts."""
        grad_x = numpy.zeros_like(grad)
        grad_weights = numpy.zeros((len(grad), num_topk), "float32")
        self.grad_up, self.grad_down = numpy.zeros_like(self.up), numpy.zeros_like(self.down)
        for expert, (rows, slots, x, inner, out, weights) in enumerate(self.kept):
            grad_weights[rows, slots] = (grad[rows] * out).sum(1)
            grad_out = weights * grad[rows]
            grad_inner = (grad_out @ self.down[expert].T) * (inner > 0)
            self.grad_down[expert] = inner.T @ grad_out
            self.grad_up[expert] = x.T @ grad_inner
            grad_x[rows] += grad_inner @ self.up[expert].T
        return grad_x, grad_weights


class Layer:
    """The experts of all ranks, as one function of this rank's tokens."""

    def __init__(self, buffer: expar.Buffer, experts: Experts, num_experts: int) -> None:
        self.buffer, self.experts, self.num_experts = buffer, experts, num_experts

    def forward(self, x: Any, topk_idx: Any, topk_weights: Any) -> Any:
        rows = self.buffer.dispatch(x, topk_idx, topk_weights, self.num_experts)
        self.handle = rows.handle
        y = self.experts.forward(rows.x.numpy(), rows.topk_idx.numpy(), rows.topk_weights.numpy())
        return self.buffer.combine(y, self.handle).y.numpy()

    def backward(self, grad: Any) -> tuple[Any, Any]:
        """Returns the gradients of x and of topk_weights."""
        assert self.handle is not None
        rows = self.buffer.dispatch(grad, handle=self.handle)
        grad_x, grad_weights = self.experts.backward(rows.x.numpy(), K)
        sums = self.buffer.combine(grad_x, self.handle, grad_weights)
        return sums.y.numpy(), sums.topk_weights.numpy()


def make(size: int) -> dict[str, Any]:
    """Makes tokens and routing of all ranks, and all experts. Any rank can make them, to compare with."""
    random = numpy.random.default_rng(7)
    experts = size * EXPERTS_PER_RANK

    def normal(*shape: int) -> Any:
        return random.standard_normal(shape).astype("float32")

    return {
        "x": normal(size, T, H),
        "target": normal(size, T, H),
        "topk_idx": random.random((size, T, experts)).argsort(2)[:, :, :K].astype("int64"),
        "topk_weights": random.random((size, T, K)).astype("float32"),
        "up": normal(experts, H, F) / 8,
        "down": normal(experts, F, H) / 6,
    }


def check(rank: int, data: dict[str, Any], layer: Layer, y: Any, grad_x: Any, grad_weights: Any) -> None:
    """Compares the results with those of all experts and the tokens of all ranks, computed in one piece."""
    whole = Experts(data["up"], data["down"])
    expected = whole.forward(*(data[name].reshape(-1, data[name].shape[2]) for name in ("x", "topk_idx", "topk_weights")))
    expected_x, expected_weights = whole.backward(expected - data["target"].reshape(-1, H), K)
    mine, local = slice(rank * T, (rank + 1) * T), slice(rank * EXPERTS_PER_RANK, (rank + 1) * EXPERTS_PER_RANK)
    for name, is_, should in (
        ("y", y, expected[mine]),
        ("gradient of x", grad_x, expected_x[mine]),
        ("gradient of the weights", grad_weights, expected_weights[mine]),
        ("gradient of up", layer.experts.grad_up, whole.grad_up[local]),
        ("gradient of down", layer.experts.grad_down, whole.grad_down[local]),
    ):
        if not numpy.allclose(is_, should, rtol=1e-3, atol=1e-3):
            sys.exit(f"rank {rank}: WRONG {name}: off by {abs(is_ - should).max()}")


def main() -> None:
    with expar.Group.from_env() as group, expar.Buffer(group) as buffer:
        data, rank = make(group.size), group.rank
        local = slice(rank * EXPERTS_PER_RANK, (rank + 1) * EXPERTS_PER_RANK)
        experts = Experts(data["up"][local].copy(), data["down"][local].copy())
        layer = Layer(buffer, experts, len(data["up"]))
        losses = []
        for step in range(STEPS):
            y = layer.forward(data["x"][rank], data["topk_idx"][rank], data["topk_weights"][rank])
            grad = y - data["target"][rank]
            grad_x, grad_weights = layer.backward(grad)
            if step == 0:
                check(rank, data, layer, y, grad_x, grad_weights)
            experts.up -= RATE * experts.grad_up
            experts.down -= RATE * experts.grad_down
            parts = group.allgather(numpy.array(0.5 * (grad**2).sum(), "float64").tobytes())
            losses.append(sum(numpy.frombuffer(part)[0] for part in parts) / (group.size * T))
            if rank == 0:
                print(f"step {step}: loss {losses[-1]:.4f}")
        if losses != sorted(losses, reverse=True):
            sys.exit(f"WRONG: the loss does not fall: {losses}")
        if rank == 0:
            print(f"{group.size} ranks: gradients are those of the layer in one piece")


if __name__ == "__main__":
    main()
