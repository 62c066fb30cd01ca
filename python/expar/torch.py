# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine as PyTorch operators: differentiable, and known to torch.compile.

    rows = expar.torch.dispatch(buffer, x, topk_idx, topk_weights, num_experts)
    y = expar.torch.combine(buffer, experts(rows.x, rows.topk_idx, rows.topk_weights), rows.handle)
    loss(y).backward()

The backward of a dispatch is a combine with the same handle, and that of a combine is a dispatch. So it is collective:
all ranks run the same backward calls in the same order, also for recomputed layers and for several micro-batches. Rows
that did not come and padding rows are zero, so that they add nothing to gradients.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts.
R rows that this rank receives. Expert e is local expert e % L of rank e // L.
"""

# No annotations from the future: PyTorch reads schemas from the types, and 2.4 does not accept them as strings.
from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from . import _numbered, _torch_handles
from ._buffer import Buffer
from ._results import Handle, RecvCounts
from ._torch_handles import NUMBER_BYTES
from ._torch_low_latency import low_latency_combine, low_latency_dispatch, LowLatencyRows
from ._torch_operators import fake_of, operator
from ._values import shown

__all__ = ["combine", "dispatch", "low_latency_combine", "low_latency_dispatch", "LowLatencyRows", "Rows"]
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Rows(NamedTuple):
    """The rows that a rank has received. Gradients go through x and topk_weights.

    x: [R, H], dtype of the dispatch's x. With num_worst_tokens it has that many rows. With expert_major it has a row
        for each (token, local expert), sorted by expert.
    topk_idx: [R, K], dtype of the dispatch's topk_idx: the local expert, -1 for experts of other ranks.
    topk_weights: [R, K] f32, 0 where topk_idx is -1. With expert_major [rows of x], the weight of each row. None
        without.
    row_map: with expert_major [R, K] i32: the row of x of each slot, or -1. Else it is empty.
    tokens_per_expert: [L] i32 on the device of x: the rows of each local expert, without padding.
    expert_prefix: [L + 1] i32 on the device of x: the first row of each expert with expert_major, then the number of
        rows.
    handle: the routing, for `combine`: an opaque uint8 tensor.
    """

    x: Tensor
    topk_idx: Tensor
    topk_weights: Optional[Tensor]
    row_map: Tensor
    tokens_per_expert: Tensor
    expert_prefix: Tensor
    handle: Tensor


def _find(handle: Tensor) -> Handle:
    found = _torch_handles.find(handle) if isinstance(handle, Tensor) and handle.dtype == torch.uint8 else None
    if not isinstance(found, Handle):
        what = f"a tensor of {handle.dtype}" if isinstance(handle, Tensor) else shown(handle)
        raise TypeError(f"handle is {what}: expected the tensor that expar.torch.dispatch returned in this process")
    return found


def _buffer(number: int) -> Buffer:
    buffer = _numbered.find(number)
    if buffer is None:
        raise ValueError(f"buffer {number} was freed: expected one that is kept as long as the code compiled with it")
    assert isinstance(buffer, Buffer)
    return buffer


def _rows_of(x: Tensor, name: str) -> Tensor:
    """Returns the tensor with contiguous rows. TypeError for an element type that has no sums."""
    if x.dtype not in _DTYPES:
        fit = "pass x.float()" if x.dtype == torch.float64 else "use Buffer.dispatch, which has no gradients"
        raise TypeError(f"{name} is a tensor of {x.dtype}: expected bfloat16, float16 or float32; {fit}")
    return x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous()


class _Counts:
    """The counts of a call on the device of its tensors."""

    def __init__(self, like: Tensor, local: int) -> None:
        def empty(length: int, dtype: Any) -> Tensor:
            return torch.empty(length, dtype=dtype, device=like.device)

        self.tokens_per_expert = empty(local, torch.int32)
        self.expert_prefix = empty(local + 1, torch.int32)
        self._num_recv_tokens = empty(1, torch.int64)

    def wanted(self) -> RecvCounts:
        return RecvCounts(self.tokens_per_expert, self.expert_prefix, num_recv_tokens=self._num_recv_tokens)

    def clear(self, rows: Tensor, expert_major: bool) -> Tensor:
        """Sets the rows after those that came to zero, without a wait of the host."""
        came = self.expert_prefix[-1] if expert_major else self._num_recv_tokens[0]
        if rows.is_cpu:
            rows[int(came) :].zero_()
        else:
            behind = torch.arange(rows.shape[0], device=rows.device) >= came
            rows.masked_fill_(behind.view(-1, *(1,) * (rows.dim() - 1)), 0)
        return rows


# ---- dispatch --------------------------------------------------------------------------------------------------------


@operator("expar::dispatch")
def _dispatch(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Optional[Tensor],
    buffer: int,
    num_experts: int,
    num_local_experts: int,
    num_worst_tokens: int,
    expert_alignment: int,
    expert_major: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    counts = _Counts(x, num_local_experts)
    found = _buffer(buffer).dispatch(
        _rows_of(x, "x"),
        topk_idx.contiguous(),
        topk_weights if topk_weights is None else topk_weights.contiguous(),
        num_experts,
        expert_alignment=expert_alignment,
        num_worst_tokens=num_worst_tokens,
        expert_major=expert_major,
        zero_padding=expert_major,
        row_weights=expert_major and topk_weights is not None,
        recv_counts=counts.wanted() if num_local_experts else None,  # the library rejects a wrong num_experts
    )
    rows, weights = found.x.torch(), x.new_empty((0,), dtype=torch.float32)
    if topk_weights is not None:
        weights = (found.row_weights if expert_major else found.topk_weights).torch()
    if num_worst_tokens:
        counts.clear(rows, expert_major)
        if topk_weights is not None:
            counts.clear(weights, expert_major)
    row_map = found.row_map.torch() if expert_major else topk_idx.new_empty((0,), dtype=torch.int32)
    handle = _torch_handles.wrap(found.handle, x.shape[0])
    return rows, found.topk_idx.torch(), weights, row_map, counts.tokens_per_expert, counts.expert_prefix, handle


@fake_of(_dispatch)
def _(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Optional[Tensor],
    buffer: int,
    num_experts: int,
    num_local_experts: int,
    num_worst_tokens: int,
    expert_alignment: int,
    expert_major: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    topk = topk_idx.shape[1]
    dynamic: Callable[[], Any] = lambda: torch.library.get_ctx().new_dynamic_size()  # noqa: E731
    tokens = num_worst_tokens or dynamic()
    rows = tokens
    if expert_major:
        most = num_worst_tokens * topk + max(expert_alignment - 1, 0) * num_local_experts
        rows = most if num_worst_tokens else dynamic()
    weights: Any = (0,) if topk_weights is None else (rows,) if expert_major else (tokens, topk)
    return (
        x.new_empty((rows, x.shape[1])),
        topk_idx.new_empty((tokens, topk)),
        x.new_empty(weights, dtype=torch.float32),
        topk_idx.new_empty((tokens, topk) if expert_major else (0,), dtype=torch.int32),
        x.new_empty((num_local_experts,), dtype=torch.int32),
        x.new_empty((num_local_experts + 1,), dtype=torch.int32),
        x.new_empty((x.shape[0] + NUMBER_BYTES,), dtype=torch.uint8, device="cpu"),
    )


@operator("expar::dispatch_backward")
def _dispatch_backward(
    grad: Tensor, grad_weights: Optional[Tensor], where: Tensor, handle: Tensor, buffer: int, expert_major: bool
) -> Tuple[Tensor, Tensor]:
    """Returns the gradients of tokens [T, H] and of their weights [T, K]. where: topk_idx, or row_map of expert-major
    rows. Slots where it is -1 are constants on this rank."""
    weights = None
    if grad_weights is not None:
        weights = grad_weights[where.clamp(min=0).long()] if expert_major and len(grad_weights) else grad_weights
        weights = torch.where(where >= 0, weights, 0.0) if where.numel() else weights.new_zeros(where.shape)
    sums = _buffer(buffer).combine(_rows_of(grad, "grad"), _find(handle), weights, expert_major=expert_major)
    return sums.y.torch(), grad.new_empty((0,)) if weights is None else sums.topk_weights.torch()


@fake_of(_dispatch_backward)
def _(
    grad: Tensor, grad_weights: Optional[Tensor], where: Tensor, handle: Tensor, buffer: int, expert_major: bool
) -> Tuple[Tensor, Tensor]:
    tokens = handle.shape[0] - NUMBER_BYTES
    own = grad.new_empty((tokens, grad.shape[1]))
    if grad_weights is None:
        return own, grad.new_empty((0,))
    return own, grad_weights.new_empty((tokens, where.shape[1]))


def _keep_dispatch(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.buffer, ctx.expert_major, ctx.weighted = inputs[3], inputs[8], inputs[2] is not None
    ctx.save_for_backward(output[3] if ctx.expert_major else output[1], output[6])


def _dispatch_gradients(ctx: Any, grad: Tensor, _idx: Any, grad_weights: Tensor, *_: Any) -> Tuple[Any, ...]:
    where, handle = ctx.saved_tensors
    weights = grad_weights.contiguous() if ctx.weighted else None
    own, own_weights = _dispatch_backward(grad.contiguous(), weights, where, handle, ctx.buffer, ctx.expert_major)
    return own, None, own_weights if ctx.weighted else None, None, None, None, None, None, None


_dispatch.register_autograd(_dispatch_gradients, setup_context=_keep_dispatch)


# ---- combine ---------------------------------------------------------------------------------------------------------


@operator("expar::combine")
def _combine(x: Tensor, handle: Tensor, bias: Optional[Tensor], buffer: int, expert_major: bool) -> Tensor:
    sums = _buffer(buffer).combine(_rows_of(x, "x"), _find(handle), bias=bias, expert_major=expert_major)
    y: Tensor = sums.y.torch()
    return y


@fake_of(_combine)
def _(x: Tensor, handle: Tensor, bias: Optional[Tensor], buffer: int, expert_major: bool) -> Tensor:
    return x.new_empty((handle.shape[0] - NUMBER_BYTES, x.shape[1]))


@operator("expar::combine_backward")
def _combine_backward(grad: Tensor, handle: Tensor, buffer: int, rows: int, expert_major: bool) -> Tensor:
    """Returns the gradients of the rows that the dispatch returned."""
    of, found = _buffer(buffer), _find(handle)
    counts = _Counts(grad, found.num_experts // of._num_ranks)
    wanted, rows_of = counts.wanted(), _rows_of(grad, "grad")
    made = of.dispatch(
        rows_of, handle=found, recv_counts=wanted, expert_major=expert_major, zero_padding=expert_major
    )
    return counts.clear(made.x.torch(), expert_major)


@fake_of(_combine_backward)
def _(grad: Tensor, handle: Tensor, buffer: int, rows: int, expert_major: bool) -> Tensor:
    return grad.new_empty((rows, grad.shape[1]))


def _keep_combine(ctx: Any, inputs: Any, output: Any) -> None:
    x, handle, bias, ctx.buffer, ctx.expert_major = inputs
    ctx.save_for_backward(handle)
    ctx.rows, ctx.biased = x.shape[0], bias is not None


def _combine_gradients(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
    (handle,) = ctx.saved_tensors
    own = _combine_backward(grad.contiguous(), handle, ctx.buffer, ctx.rows, ctx.expert_major)
    return own, None, grad if ctx.biased else None, None, None


_combine.register_autograd(_combine_gradients, setup_context=_keep_combine)


# ---- for programs ----------------------------------------------------------------------------------------------------


def dispatch(
    buffer: Buffer,
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Optional[Tensor] = None,
    num_experts: int = 0,
    *,
    num_worst_tokens: int = 0,
    expert_alignment: int = 0,
    expert_major: bool = False,
) -> Rows:
    """Carries each token to the ranks that hold its experts, as `Buffer.dispatch` does. Collective, as its backward is.

    x: [T, H] bf16, f16 or f32. topk_idx: [T, K] int32 or int64, -1 for none. topk_weights: [T, K] f32, or none.
    num_experts: E.
    num_worst_tokens: outputs always have this number of rows, whatever comes, as compilers prefer. With 0 they have the
        rows that come; torch.compile then needs torch._dynamo.config.capture_dynamic_output_shape_ops.
    expert_alignment: with expert_major, counts of experts are rounded up to multiples of it.
    expert_major: a row for each (token, local expert), sorted by expert, for grouped GEMMs.
    """
    if not isinstance(buffer, Buffer):
        raise TypeError(f"buffer is {shown(buffer)}: expected an expar.Buffer")
    local = max(num_experts // buffer._num_ranks, 0)
    numbers = (num_experts, local, num_worst_tokens, expert_alignment, expert_major)
    rows, idx, weights, *others = _dispatch(x, topk_idx, topk_weights, buffer._number, *numbers)
    return Rows(rows, idx, None if topk_weights is None else weights, *others)


def combine(
    buffer: Buffer, x: Tensor, handle: Tensor, *, bias: Optional[Tensor] = None, expert_major: bool = False
) -> Tensor:
    """Returns y, [T, H]: the rows of each token, summed in FP32 in the order of ranks, and rounded once. Collective, as
    its backward is.

    x: [R, H] bf16, f16 or f32, weighted and summed over local experts by the program. With expert_major it has the rows
        of the dispatch's x.
    handle: `Rows.handle`. bias: [T, H], dtype of x, added before all rows.
    """
    if not isinstance(buffer, Buffer):
        raise TypeError(f"buffer is {shown(buffer)}: expected an expar.Buffer")
    y: Tensor = _combine(x, handle, bias, buffer._number, expert_major)
    return y
