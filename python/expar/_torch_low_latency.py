# SPDX-License-Identifier: Apache-2.0
"""Low-latency dispatch and combine as PyTorch operators: expar.torch has what programs call.

The backward of a dispatch is a combine with weights of 1. The backward of a combine makes two dispatches and a combine.
The dispatches carry the gradients, weights and slots of tokens to the ranks of their experts. The combine carries the
gradients of weights back, as bytes.

Letters in shapes: B maximum of tokens a rank, T tokens of this rank, H hidden, K top-k, E experts, N ranks, L = E/N.
"""

# No annotations from the future: PyTorch reads schemas from the types, and 2.4 does not accept them as strings.
from typing import Any, NamedTuple, Tuple

import torch
from torch import Tensor

from . import _numbered, _torch_handles
from ._low_latency import LowLatencyBuffer, LowLatencyHandle
from ._torch_handles import NUMBER_BYTES
from ._torch_operators import fake_of, operator
from ._values import shown

_WEIGHT_BYTES = 4


class LowLatencyRows(NamedTuple):
    """The rows that a rank has received. Gradients go through x.

    x: [L, N*B, H], dtype of the dispatch's x: rows of expert e start at x[e, 0], without gaps; the others are zero.
    tokens_per_expert: [L] i32: rows of each local expert.
    handle: the sources of the rows, for `low_latency_combine`: an opaque uint8 tensor.
    """

    x: Tensor
    tokens_per_expert: Tensor
    handle: Tensor


def _find(handle: Tensor) -> LowLatencyHandle:
    found = _torch_handles.find(handle) if isinstance(handle, Tensor) and handle.dtype == torch.uint8 else None
    if not isinstance(found, LowLatencyHandle):
        what = f"a tensor of {handle.dtype}" if isinstance(handle, Tensor) else shown(handle)
        raise TypeError(f"handle is {what}: expected the tensor that expar.torch.low_latency_dispatch returned")
    return found


def _buffer(number: int) -> LowLatencyBuffer:
    buffer = _numbered.find(number)
    if buffer is None:
        raise ValueError(f"buffer {number} was freed: expected one that is kept as long as the code compiled with it")
    assert isinstance(buffer, LowLatencyBuffer)
    return buffer


def _ones(topk_idx: Tensor) -> Tensor:
    return torch.ones(topk_idx.shape, dtype=torch.float32, device=topk_idx.device)


# ---- which row is which ----------------------------------------------------------------------------------------------


def _sources(handle: LowLatencyHandle, batch: int) -> Tensor:
    """Returns [L, N*B] i64: source rank * B + token of each row; N*B for rows that did not come."""
    info, ranges = handle.src_info.torch(), handle.range.torch()
    begin, count = (ranges >> 32)[..., None], (ranges & 0xFFFFFFFF)[..., None]
    rows = torch.arange(info.shape[1], device=info.device)
    within = (rows >= begin) & (rows < begin + count)  # [L, N, N*B]
    source = within.long().argmax(1) * batch + info
    return torch.where(within.any(1), source, info.shape[1])


def _in_order(rows: Tensor, sources: Tensor, wanted: Tensor) -> Tensor:
    """Returns rows [L, N*B, H] of these sources in the order of the wanted ones. Dispatches with one routing bring the
    same rows, but a GPU may place them in another order."""
    places = torch.zeros((sources.shape[0], sources.shape[1] + 1), dtype=torch.int64, device=sources.device)
    here = torch.arange(sources.shape[1], device=sources.device).expand_as(sources)
    taken = places.scatter(1, sources, here).gather(1, wanted)
    return rows.gather(1, taken[..., None].expand_as(rows))


# ---- dispatch --------------------------------------------------------------------------------------------------------


@operator("expar::low_latency_dispatch")
def _dispatch(x: Tensor, topk_idx: Tensor, buffer: int, num_ranks: int, max_tokens: int, num_local_experts: int) -> Tuple[
    Tensor, Tensor, Tensor
]:
    found = _buffer(buffer).dispatch(x.contiguous(), topk_idx.contiguous())
    rows, count = found.x.torch(), found.count.torch()
    came = torch.arange(rows.shape[1], device=rows.device) < count[:, None]
    return rows.masked_fill(~came[..., None], 0), count, _torch_handles.wrap(found.handle, x.shape[0])


@fake_of(_dispatch)
def _(x: Tensor, topk_idx: Tensor, buffer: int, num_ranks: int, max_tokens: int, num_local_experts: int) -> Tuple[
    Tensor, Tensor, Tensor
]:
    return (
        x.new_empty((num_local_experts, num_ranks * max_tokens, x.shape[1])),
        x.new_empty((num_local_experts,), dtype=torch.int32),
        x.new_empty((x.shape[0] + NUMBER_BYTES,), dtype=torch.uint8, device="cpu"),
    )


@operator("expar::low_latency_dispatch_backward")
def _dispatch_backward(grad: Tensor, topk_idx: Tensor, handle: Tensor, buffer: int) -> Tensor:
    """Returns the gradients of tokens, [T, H]."""
    y: Tensor = _buffer(buffer).combine(grad, topk_idx, _ones(topk_idx), _find(handle)).y.torch()
    return y


@fake_of(_dispatch_backward)
def _(grad: Tensor, topk_idx: Tensor, handle: Tensor, buffer: int) -> Tensor:
    return grad.new_empty((topk_idx.shape[0], grad.shape[2]))


def _keep_dispatch(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.buffer = inputs[2]
    ctx.save_for_backward(inputs[1], output[2])


def _dispatch_gradients(ctx: Any, grad: Tensor, *_: Any) -> Tuple[Any, ...]:
    topk_idx, handle = ctx.saved_tensors
    return _dispatch_backward(grad.contiguous(), topk_idx, handle, ctx.buffer), None, None, None, None, None


_dispatch.register_autograd(_dispatch_gradients, setup_context=_keep_dispatch)


# ---- combine ---------------------------------------------------------------------------------------------------------


@operator("expar::low_latency_combine")
def _combine(x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: Tensor, buffer: int) -> Tensor:
    weights = topk_weights.contiguous()
    y: Tensor = _buffer(buffer).combine(x.contiguous(), topk_idx.contiguous(), weights, _find(handle)).y.torch()
    return y


@fake_of(_combine)
def _(x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: Tensor, buffer: int) -> Tensor:
    return x.new_empty((topk_idx.shape[0], x.shape[2]))


def _with_facts(like: Tensor, topk_idx: Tensor, weights: Tensor) -> Tensor:
    """Returns rows [T, H] whose bytes are the weights and experts of each token's slots."""
    packed = torch.zeros_like(like)
    words = packed.view(torch.int32)
    topk = topk_idx.shape[1]
    words[:, :topk], words[:, topk : 2 * topk] = weights.view(torch.int32), topk_idx
    return packed


def _returned(of: LowLatencyBuffer, values: Tensor, slots: Tensor, hidden: Tensor, topk_idx: Tensor, handle: Any) -> Tensor:
    """Returns values of rows, f32 [L, N*B], on the ranks of their tokens: [T, K].

    slots: bool [L, N*B, K], the slot of each row. hidden: a tensor with the dtype and shape of rows.

    Each byte goes as a number, which every element type has, and no two slots share a column. So the sums are exact."""
    topk = topk_idx.shape[1]
    of_bytes = values.contiguous().view(torch.uint8).view(*values.shape, 1, _WEIGHT_BYTES)
    rows = torch.zeros_like(hidden)
    rows[..., : topk * _WEIGHT_BYTES] = torch.where(slots[..., None], of_bytes, 0).flatten(2).to(rows.dtype)
    y = of.combine(rows, topk_idx, _ones(topk_idx), handle).y.torch()
    back: Tensor = y[:, : topk * _WEIGHT_BYTES].to(torch.uint8).contiguous().view(torch.float32)
    return back


@operator("expar::low_latency_combine_backward")
def _combine_backward(
    grad: Tensor, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: Tensor, buffer: int
) -> Tuple[Tensor, Tensor]:
    """Returns the gradients of rows, [L, N*B, H], and of weights, [T, K]."""
    of, found = _buffer(buffer), _find(handle)
    wanted = _sources(found, of._max_tokens)
    topk, local = topk_idx.shape[1], x.shape[0]

    def carried(rows: Tensor) -> Tensor:
        there = of.dispatch(rows, topk_idx)
        return _in_order(there.x.torch(), _sources(there.handle, of._max_tokens), wanted)

    grads = carried(grad).float()
    words = carried(_with_facts(grad, topk_idx, topk_weights)).view(torch.int32)[..., : 2 * topk]
    expert = of.group.rank * local + torch.arange(local, device=x.device)
    came = wanted < wanted.shape[1]
    slots = (words[..., topk:] == expert[:, None, None]) & came[..., None]
    weights = torch.where(slots, words[..., :topk].contiguous().view(torch.float32), 0.0).sum(-1)
    of_rows = torch.where(came[..., None], grads * weights[..., None], 0.0).to(x.dtype)
    of_weights = torch.where(came, (grads * x.float()).sum(-1), 0.0)
    return of_rows, _returned(of, of_weights, slots, x, topk_idx, found)


@fake_of(_combine_backward)
def _(
    grad: Tensor, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: Tensor, buffer: int
) -> Tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(topk_weights)


def _keep_combine(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.buffer = inputs
    ctx.save_for_backward(*tensors)


def _combine_gradients(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
    x, topk_idx, weights, handle = ctx.saved_tensors
    kept = (x, topk_idx.contiguous(), weights.contiguous(), handle)
    own, own_weights = _combine_backward(grad.contiguous(), *kept, ctx.buffer)
    return own, None, own_weights, None, None


_combine.register_autograd(_combine_gradients, setup_context=_keep_combine)


# ---- for programs ----------------------------------------------------------------------------------------------------


def low_latency_dispatch(buffer: LowLatencyBuffer, x: Tensor, topk_idx: Tensor, num_experts: int) -> LowLatencyRows:
    """Carries each token to the ranks that hold its experts, as `LowLatencyBuffer.dispatch` does without a format.
    Collective, as its backward is, which is one combine.

    x: [T, H] bf16, f16 or f32. topk_idx: [T, K] int32 or int64, -1 for none. num_experts: E of the buffer.
    """
    if not isinstance(buffer, LowLatencyBuffer):
        raise TypeError(f"buffer is {shown(buffer)}: expected an expar.LowLatencyBuffer")
    local = max(num_experts // buffer._num_ranks, 0)
    return LowLatencyRows(*_dispatch(x, topk_idx, buffer._number, buffer._num_ranks, buffer._max_tokens, local))


def low_latency_combine(
    buffer: LowLatencyBuffer, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: Tensor
) -> Tensor:
    """Returns y, [T, H]: the rows of each token times their weights, summed in the order of slots and rounded once.
    Gradients go through x and topk_weights. Collective, as its backward is: two dispatches and a combine, for which H
    must be at least 4 K.

    x: [L, N*B, H], dtype of the dispatch's x. topk_idx: [T, K], the dispatch's. topk_weights: [T, K] f32.
    handle: `LowLatencyRows.handle`.
    """
    if not isinstance(buffer, LowLatencyBuffer):
        raise TypeError(f"buffer is {shown(buffer)}: expected an expar.LowLatencyBuffer")
    y: Tensor = _combine(x, topk_idx, topk_weights, handle, buffer._number)
    return y
