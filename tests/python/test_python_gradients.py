# SPDX-License-Identifier: Apache-2.0
"""Gradients through expar.torch equal those of the layer in one piece, which PyTorch computes in float64.

The library has no sums in float64. So the exact tests use numbers whose sums and products float32 holds without
rounding: there every value and gradient must equal that of float64 to the bit. Random numbers are compared within the
rounding of their type.
"""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
import warnings
from typing import Any, Callable

import numpy

import expar
import ranks

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError:
    if os.environ.get("EXPAR_REQUIRE_TORCH") == "1":
        raise
    print("test_python_gradients: there is no PyTorch", file=sys.stderr)
    sys.exit(77)

import expar.torch
from expar import _tensor

H, F, K, LOCAL = 16, 8, 3, 2


class Layer:
    """The data of all ranks, and the layer: the sum over slots of weight * down(relu(up(x)))."""

    def __init__(self, size: int, exact: bool, seed: int = 5, hidden: int = H) -> None:
        random = torch.Generator().manual_seed(seed)
        self.experts = size * LOCAL
        # Uneven ranks. The second one has no tokens.
        self.tokens = [0 if rank == 1 else 5 + 3 * rank for rank in range(size)]
        total = sum(self.tokens)
        whole = lambda most, *shape: torch.randint(-most, most + 1, shape, generator=random).double()  # noqa: E731
        normal = lambda *shape: torch.randn(*shape, generator=random).float().double()  # noqa: E731
        self.x = whole(4, total, hidden) if exact else normal(total, hidden)
        self.up = whole(1, self.experts, hidden, F) if exact else normal(self.experts, hidden, F) / 4
        self.down = whole(1, self.experts, F, hidden) if exact else normal(self.experts, F, hidden) / 4
        self.weights = whole(4, total, K) / 4 if exact else torch.rand(total, K, generator=random).float().double()
        self.grad = whole(3, total, hidden) if exact else normal(total, hidden)
        topk = min(K, self.experts)
        self.idx = torch.rand(total, self.experts, generator=random).argsort(1)[:, :topk].contiguous()
        self.weights = self.weights[:, :topk].contiguous()
        self.idx[torch.rand(self.idx.shape, generator=random) < 0.2] = -1

    def part(self, rank: int) -> slice:
        begin = sum(self.tokens[:rank])
        return slice(begin, begin + self.tokens[rank])

    def dense(self, x: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for expert in range(len(up)):
            rows, slots = torch.nonzero(self.idx == expert, as_tuple=True)
            out = torch.relu(x[rows] @ up[expert]) @ down[expert]
            y = y.index_add(0, rows, out * weights[rows, slots, None])
        return y

    def expected(self) -> list[Tensor]:
        """y, and the gradients of x, weights, up and down, in float64."""
        own = [each.clone().requires_grad_() for each in (self.x, self.weights, self.up, self.down)]
        y = self.dense(*own)
        y.backward(self.grad)
        return [y.detach(), *(each.grad for each in own if each.grad is not None)]


def experts(x: Tensor, idx: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """The weighted sum of each row's local experts."""
    y = torch.zeros_like(x)
    for expert in range(len(up)):
        chosen = torch.where(idx == expert, weights, 0.0).sum(1, keepdim=True).to(x.dtype)
        y = y + torch.relu(x @ up[expert]) @ down[expert] * chosen
    return y


def grouped(rows: expar.torch.Rows, up: Tensor, down: Tensor) -> Tensor:
    """Experts on expert-major rows."""
    starts = rows.expert_prefix.tolist()
    assert rows.topk_weights is not None
    parts = [
        torch.relu(rows.x[begin:end] @ up[e]) @ down[e] * rows.topk_weights[begin:end, None].to(rows.x.dtype)
        for e, (begin, end) in enumerate(zip(starts, starts[1:]))
    ]
    return torch.cat([*parts, rows.x[starts[-1] :] * 0])


class Step:
    """A step of one rank, forward and backward, in two parts."""

    def __init__(self, buffer: expar.Buffer, layer: Layer, dtype: Any = torch.float32, **options: Any) -> None:
        rank = buffer.group.rank
        self.buffer, self.layer, self.options = buffer, layer, options
        self.mine, self.local = layer.part(rank), slice(rank * LOCAL, (rank + 1) * LOCAL)
        given = (layer.x[self.mine], layer.up[self.local], layer.down[self.local])
        self.x, self.up, self.down = (each.to(dtype).requires_grad_() for each in given)
        self.weights = layer.weights[self.mine].float().requires_grad_()
        self.runs = 0

    def forward(self) -> None:
        self.y = self.run(self.x, self.weights, self.up, self.down)

    def run(self, x: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
        self.runs += 1
        rows = expar.torch.dispatch(
            self.buffer, x, self.layer.idx[self.mine], weights, self.layer.experts, **self.options
        )
        major = self.options.get("expert_major", False)
        assert rows.topk_weights is not None
        made = grouped(rows, up, down) if major else experts(rows.x, rows.topk_idx, rows.topk_weights, up, down)
        return expar.torch.combine(self.buffer, made, rows.handle, expert_major=major)

    def backward(self) -> None:
        self.y.backward(self.layer.grad[self.mine].to(self.y.dtype))

    def check(self, tolerance: float = 0) -> None:
        """tolerance: relative to the largest value. With 0 all bits must be equal."""
        expected = self.layer.expected()
        parts = (self.mine, self.mine, self.mine, self.local, self.local)
        got = (self.y.detach(), self.x.grad, self.weights.grad, self.up.grad, self.down.grad)
        for name, is_, should, part in zip(("y", "x", "weights", "up", "down"), got, expected, parts):
            assert is_ is not None, name
            most = float(should.abs().max())
            assert most > 0, f"{name} tests nothing"
            off = float((is_.double() - should[part]).abs().max()) if is_.numel() else 0.0
            assert off <= tolerance * most, f"{name} is off by {off}, of {most}"


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"num_worst_tokens": 80},
    {"expert_major": True, "expert_alignment": 4},
    {"expert_major": True, "expert_alignment": 4, "num_worst_tokens": 80},
)


def exact_steps(group: expar.Group) -> None:
    with expar.Buffer(group) as buffer:
        for options in OPTIONS:
            step = Step(buffer, Layer(group.size, True), **options)
            step.forward()
            step.backward()
            step.check()


def random_steps(group: expar.Group) -> None:
    with expar.Buffer(group) as buffer:
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)):
            for options in OPTIONS:
                step = Step(buffer, Layer(group.size, False, 8), dtype, **options)
                step.forward()
                step.backward()
                step.check(tolerance)


def micro_batches(group: expar.Group) -> None:
    """Two steps in flight: both forward parts, then both backward parts, in either order."""
    with expar.Buffer(group) as buffer:
        for order in (1, -1):
            steps = [Step(buffer, Layer(group.size, True, seed), **OPTIONS[seed % 4]) for seed in (1, 2)]
            for step in steps:
                step.forward()
            for step in steps[::order]:
                step.backward()
            for step in steps:
                step.check()


def recomputed(group: expar.Group) -> None:
    """The backward part makes the forward calls again, with a handle of its own."""
    from torch.utils.checkpoint import checkpoint

    with expar.Buffer(group) as buffer:
        for reentrant in (False, True):
            for options in OPTIONS:
                step = Step(buffer, Layer(group.size, True), **options)
                step.y = checkpoint(step.run, step.x, step.weights, step.up, step.down, use_reentrant=reentrant)
                step.backward()
                step.check()
                assert step.runs == 2


def parts_alone(group: expar.Group) -> None:
    """Without weights; only weights; a bias; a result that nobody uses."""
    layer = Layer(group.size, True)
    mine = layer.part(group.rank)
    idx, grad = layer.idx[mine], layer.grad[mine].float()
    in_ranks = torch.stack([(idx // LOCAL == rank).where(idx >= 0, torch.tensor(False)).any(1) for rank in range(group.size)])
    with expar.Buffer(group) as buffer:
        x, bias = layer.x[mine].float().requires_grad_(), layer.grad[mine].float().requires_grad_()
        rows = expar.torch.dispatch(buffer, x, idx, None, layer.experts)
        assert rows.topk_weights is None and rows.row_map.numel() == 0
        y = expar.torch.combine(buffer, rows.x * 2, rows.handle, bias=bias)
        y.backward(grad)
        count = in_ranks.sum(0).float()[:, None]
        assert torch.equal(y, bias + 2 * count * x) and bias.grad is not None and x.grad is not None
        assert torch.equal(bias.grad, grad) and torch.equal(x.grad, 2 * count * grad)

        weights = layer.weights[mine].float().requires_grad_()
        for options in OPTIONS:
            rows = expar.torch.dispatch(buffer, x.detach(), idx, weights, layer.experts, **options)
            assert rows.topk_weights is not None and rows.topk_weights.requires_grad
            (rows.topk_weights * 3).sum().backward()
            assert weights.grad is not None
            # A gradient at a slot of another rank's expert is that of a constant.
            assert torch.equal(weights.grad, torch.where(idx >= 0, 3.0, 0.0)), options
            weights.grad = None
        assert torch.equal(rows.tokens_per_expert, counts_of(layer, group.rank))


def counts_of(layer: Layer, rank: int) -> Tensor:
    return torch.tensor([int((layer.idx == rank * LOCAL + e).sum()) for e in range(LOCAL)], dtype=torch.int32)


def lifetimes(group: expar.Group) -> None:
    """A handle lives as long as its tensor; the graph keeps it; a buffer that is closed is named."""
    layer = Layer(group.size, True)
    buffer = expar.Buffer(group)
    step = Step(buffer, layer)
    step.forward()
    step.backward()
    step.check()
    rows = expar.torch.dispatch(buffer, step.x.detach(), layer.idx[step.mine], None, layer.experts)
    again = rows.handle.clone()
    assert torch.equal(
        expar.torch.combine(buffer, rows.x, again), expar.torch.combine(buffer, rows.x, rows.handle)
    )
    for wrong in (torch.zeros(40, dtype=torch.uint8), rows.x):
        try:
            expar.torch.combine(buffer, rows.x, wrong)
        except TypeError as error:
            assert "handle is a tensor of torch." in str(error), error
        else:
            raise AssertionError("no error for a wrong handle")
    buffer.close()
    try:
        expar.torch.combine(buffer, rows.x, rows.handle)
    except ValueError as error:
        assert "the buffer is closed" in str(error)
    else:
        raise AssertionError("no error for a closed buffer")


class LowLatencyStep(Step):
    """The same layer by low-latency calls."""

    def __init__(self, buffer: expar.LowLatencyBuffer, layer: Layer, dtype: Any = torch.float32) -> None:
        super().__init__(buffer, layer, dtype)  # type: ignore[arg-type]
        self.low = buffer

    def run(self, x: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
        self.runs += 1
        idx = self.layer.idx[self.mine]
        rows = expar.torch.low_latency_dispatch(self.low, x, idx, self.layer.experts)
        assert not any(part[int(count) :].any() for part, count in zip(rows.x, rows.tokens_per_expert))
        made = torch.relu(rows.x @ up) @ down
        return expar.torch.low_latency_combine(self.low, made, idx, weights, rows.handle)


def low_latency(group: expar.Group) -> None:
    """Exact steps, random ones in each type, two in flight, and recompute."""
    from torch.utils.checkpoint import checkpoint

    layer, hidden = Layer(group.size, True, hidden=128), 128
    topk = layer.idx.shape[1]
    with expar.LowLatencyBuffer(group, 32, hidden, topk, layer.experts, max_row_bytes=4 * hidden) as buffer:
        steps = [LowLatencyStep(buffer, layer), LowLatencyStep(buffer, Layer(group.size, True, 6, hidden=hidden))]
        for step in steps:
            step.forward()
        for step in steps:
            step.backward()
            step.check()
        for reentrant in (False, True):
            again = LowLatencyStep(buffer, layer)
            again.y = checkpoint(again.run, again.x, again.weights, again.up, again.down, use_reentrant=reentrant)
            again.backward()
            again.check()
            assert again.runs == 2
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)):
            step = LowLatencyStep(buffer, Layer(group.size, False, 8, hidden=hidden), dtype)
            step.forward()
            step.backward()
            step.check(tolerance)


def compiled_low_latency(group: expar.Group) -> None:
    layer = Layer(group.size, True, hidden=128)
    layer.idx, layer.x, layer.weights, layer.grad = (
        each[: group.size * 4] for each in (layer.idx, layer.x, layer.weights, layer.grad)
    )
    layer.tokens = [4] * group.size
    with expar.LowLatencyBuffer(group, 8, 128, layer.idx.shape[1], layer.experts, max_row_bytes=512) as buffer:
        step = LowLatencyStep(buffer, layer)
        idx = layer.idx[step.mine]

        def run(x: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
            rows = expar.torch.low_latency_dispatch(buffer, x, idx, layer.experts)
            made = torch.relu(rows.x @ up) @ down
            return expar.torch.low_latency_combine(buffer, made, idx, weights, rows.handle)

        made = torch.compile(run, backend="aot_eager", fullgraph=True)
        step.y = made(step.x, step.weights, step.up, step.down)
        step.backward()
        step.check()


def compiled(group: expar.Group) -> None:
    """A compiled layer in one graph equals the plain one, which equals float64."""
    import torch._dynamo

    for options in OPTIONS:
        torch._dynamo.reset()
        torch._dynamo.config.capture_dynamic_output_shape_ops = "num_worst_tokens" not in options
        compiled_layer(group, options)
    torch._dynamo.reset()
    compiled_low_latency(group)


def compiled_layer(group: expar.Group, options: dict[str, Any]) -> None:
    with expar.Buffer(group) as buffer:
        layer = Layer(group.size, True)
        # Shapes with 0 tokens compile apart. So all ranks have some here.
        layer.tokens = [sum(layer.tokens) // group.size] * group.size
        count = sum(layer.tokens)
        for each in ("x", "weights", "grad", "idx"):
            setattr(layer, each, getattr(layer, each)[:count])
        step = Step(buffer, layer, **options)
        major = options.get("expert_major", False)

        def run(x: Tensor, weights: Tensor) -> Tensor:
            rows = expar.torch.dispatch(buffer, x, layer.idx[step.mine], weights, layer.experts, **options)
            assert rows.topk_weights is not None
            sent = rows.x * rows.topk_weights[:, None] if major else rows.x * rows.topk_weights.sum(1, keepdim=True)
            return expar.torch.combine(buffer, sent, rows.handle, expert_major=major)

        plain = [each.detach().clone().requires_grad_() for each in (step.x, step.weights)]
        expected = run(*plain)
        expected.backward(layer.grad[step.mine].float())
        made = torch.compile(run, backend="aot_eager", fullgraph=True)
        for _ in range(2):
            own = [each.detach().clone().requires_grad_() for each in (step.x, step.weights)]
            y = made(*own)
            y.backward(layer.grad[step.mine].float())
            assert torch.equal(y, expected)
            for got, should in zip(own, plain):
                assert got.grad is not None and should.grad is not None and torch.equal(got.grad, should.grad)
        scale = torch.where(layer.idx >= 0, layer.weights, 0).sum(1, keepdim=True)[step.mine]
        assert torch.equal(expected.double(), scale * layer.x[step.mine])


class Gradients(unittest.TestCase):
    def test_dense_layer(self) -> None:
        """The reference itself has the derivatives of its function."""
        layer = Layer(2, False)
        own = [each.clone().requires_grad_() for each in (layer.x, layer.weights, layer.up, layer.down)]
        self.assertTrue(torch.autograd.gradcheck(layer.dense, own))

    def test_exact(self) -> None:
        for size in (1, 2, 4):
            ranks.on_threads(size, exact_steps)

    def test_random(self) -> None:
        ranks.on_threads(3, random_steps)

    def test_across_nodes(self) -> None:
        ranks.on_threads(4, exact_steps, ranks_per_node=2)

    def test_micro_batches(self) -> None:
        ranks.on_threads(2, micro_batches)

    def test_recompute(self) -> None:
        ranks.on_threads(2, recomputed)

    def test_low_latency(self) -> None:
        for size in (1, 3):
            ranks.on_threads(size, low_latency)

    def test_parts_alone(self) -> None:
        ranks.on_threads(3, parts_alone)

    def test_lifetimes(self) -> None:
        ranks.on_threads(1, lifetimes)

    def test_compile(self) -> None:
        ranks.on_processes(2, "test_python_gradients", "compiled")

    def test_float64(self) -> None:
        """The error says what to pass."""
        group = expar.Group.threads(1)[0]
        with group, expar.Buffer(group) as buffer:
            idx = torch.zeros(2, 1, dtype=torch.int64)
            with self.assertRaisesRegex(TypeError, r"x is a tensor of torch.float64: expected .*; pass x.float\(\)"):
                expar.torch.dispatch(buffer, torch.zeros(2, 8, dtype=torch.float64), idx, None, 1)
            with self.assertRaisesRegex(TypeError, "buffer is 5: expected an expar.Buffer"):
                expar.torch.dispatch(5, torch.zeros(2, 8), idx, None, 1)  # type: ignore[arg-type]
            with self.assertRaisesRegex(expar.Error, "num_experts"):
                expar.torch.dispatch(buffer, torch.zeros(2, 8), idx, None, -3)


class Warnings(unittest.TestCase):
    def caught(self, call: Callable[[], Any]) -> list[warnings.WarningMessage]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            call()
        return found

    def setUp(self) -> None:
        _tensor._warned_of_gradients = False

    def test_plain_calls(self) -> None:
        """The first call warns at its line, once, and names what to use."""
        group = expar.Group.threads(1)[0]
        x, idx = torch.zeros(2, 8, requires_grad=True), torch.zeros(2, 1, dtype=torch.int64)
        with group, expar.Buffer(group) as buffer:
            handle = buffer.dispatch(x.detach(), idx, None, 1).handle
            low = expar.LowLatencyBuffer(group, 4, 128, 1, 1, max_row_bytes=512)
            wide = torch.zeros(2, 128, requires_grad=True)
            weights = torch.ones(2, 1, requires_grad=True)
            sent = low.dispatch(wide.detach(), idx)
            for name, call in (
                ("x", lambda: buffer.dispatch(x, idx, None, 1)),
                ("topk_weights", lambda: buffer.dispatch(x.detach(), idx, weights, 1)),
                ("x", lambda: buffer.combine(x, handle)),
                ("x", lambda: low.dispatch(wide, idx)),
                ("topk_weights", lambda: low.combine(sent.x, idx, weights, sent.handle)),
            ):
                _tensor._warned_of_gradients = False
                found = self.caught(call) + self.caught(call)
                self.assertEqual(len(found), 1, name)
                text = str(found[0].message)
                self.assertIn(f"{name} requires gradients", text)
                self.assertIn("use expar.torch.dispatch and expar.torch.combine", text)
                self.assertEqual(found[0].filename, __file__)
            low.close()

    def test_no_warning(self) -> None:
        """Neither without gradients, nor within a function of autograd, nor from expar.torch."""
        group = expar.Group.threads(1)[0]
        x, idx = torch.ones(2, 8, requires_grad=True), torch.zeros(2, 1, dtype=torch.int64)
        with group, expar.Buffer(group) as buffer:

            class Own(torch.autograd.Function):
                @staticmethod
                def forward(ctx: Any, x: Tensor) -> Tensor:
                    return buffer.dispatch(x, idx, None, 1).x.torch()

            def all_of_it() -> None:
                with torch.no_grad():
                    buffer.dispatch(x, idx, None, 1)
                Own.apply(x)
                rows = expar.torch.dispatch(buffer, x, idx, None, 1)
                expar.torch.combine(buffer, rows.x, rows.handle).sum().backward()

            self.assertEqual([str(each.message) for each in self.caught(all_of_it)], [])


class Import(unittest.TestCase):
    def test_without_torch(self) -> None:
        """Importing expar loads neither PyTorch nor expar.torch; the attribute does."""
        code = "import sys, expar; print('torch' in sys.modules, 'expar.torch' in sys.modules); expar.torch.dispatch; print('torch' in sys.modules)"
        ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(ended.stdout.split(), ["False", "False", "True"])


if __name__ == "__main__":
    unittest.main()
