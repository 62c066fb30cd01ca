# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine of an `ElasticBuffer` as PyTorch operators, differentiable and known to torch.compile.

`dispatch` and `combine` return the same whether they are compiled or not. Operators take and return tensors. So a
buffer is passed by its number, and a handle is a tensor of bytes whose memory owns it. Rows that did not come are zero,
so that they add nothing to gradients.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts.
M num_max_tokens_per_rank.
"""

# No annotations from the future: PyTorch reads schemas from the types, and 2.4 does not accept them as strings.
import weakref
from typing import Any, Optional, Tuple, Union

import torch
from expar import _numbered, _torch_handles
from expar._torch_handles import NUMBER_BYTES
from expar._torch_operators import fake_of, operator
from torch import Tensor

from . import _place
from ._elastic import Form
from ._elastic_handle import EPHandle, Routing
from .buffers.elastic import ElasticBuffer

_numbers: weakref.WeakKeyDictionary[ElasticBuffer, int] = weakref.WeakKeyDictionary()


def _wrap(handle: EPHandle) -> Tensor:
    """Returns the tensor of a handle: uint8 [T + 8]."""
    tensor: Tensor = _torch_handles.wrap(handle, handle._routing.num_tokens)
    return tensor


def _find(handle: Tensor) -> EPHandle:
    """Returns the handle of that tensor, or of a copy while the tensor is alive."""
    found: Optional[EPHandle] = _torch_handles.find(handle)
    if found is None:
        raise AssertionError("handle is of no dispatch of this process: expected the tensor that dispatch gave")
    return found


def _buffer(number: int) -> ElasticBuffer:
    buffer: Optional[ElasticBuffer] = _numbered.find(number)
    if buffer is None:
        raise AssertionError(f"buffer {number} was freed: expected one that is kept as long as what was compiled with it")
    return buffer


def number_of(buffer: ElasticBuffer) -> int:
    """Returns the number by which operators name the buffer."""
    number = _numbers.get(buffer)
    if number is None:
        number = _numbers[buffer] = _numbered.add(buffer)
    return number


# ---- dispatch --------------------------------------------------------------------------------------------------------


@operator("deep_ep::elastic_dispatch")
def _dispatch(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    buffer: int,
    num_experts: int,
    max_tokens: int,
    alignment: int,
    expand: bool,
    synced: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    of = _buffer(buffer)
    rows, idx, weights, handle, _ = of.dispatch(
        x,
        topk_idx,
        topk_weights,
        num_experts=num_experts,
        num_max_tokens_per_rank=max_tokens,
        expert_alignment=alignment,
        do_cpu_sync=synced,
        do_expand=expand,
        do_zero_padding=expand,
    )
    _clear(rows, handle, expand)
    _clear(weights, handle, expand)
    if expand:
        idx = topk_idx.new_empty((0, topk_idx.shape[1]))
    return rows, idx, weights, handle.psum_num_recv_tokens_per_expert.clone(), _wrap(handle)


def _clear(rows: Tensor, handle: EPHandle, expand: bool) -> None:
    """Sets the rows after those that came to zero."""
    if handle._counted:
        rows[handle._rows_of_library if expand else handle._routing.num_rows :].zero_()
        return
    came = (handle.psum_num_recv_tokens_per_expert if expand else handle.psum_num_recv_tokens_per_scaleup_rank)[-1]
    if expand:  # padding rows are zero already
        came = (came + handle.expert_alignment - 1) // handle.expert_alignment * handle.expert_alignment
    behind = torch.arange(rows.shape[0], device=rows.device) >= came
    rows.masked_fill_(behind.view(-1, *(1,) * (rows.dim() - 1)), 0)


@fake_of(_dispatch)
def _(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    buffer: int,
    num_experts: int,
    max_tokens: int,
    alignment: int,
    expand: bool,
    synced: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    routing = Routing(topk_idx.shape[1], num_experts, max_tokens, alignment, _buffer(buffer).num_ranks)
    rows: Any = routing.num_expanded_tokens if expand else routing.num_recv_tokens
    if synced:
        rows = torch.library.get_ctx().new_dynamic_size()
    topk = topk_idx.shape[1]
    return (
        x.new_empty((rows, x.shape[1])),
        topk_idx.new_empty((0 if expand else rows, topk)),
        topk_weights.new_empty((rows,) if expand else (rows, topk)),
        topk_idx.new_empty((routing.local,), dtype=torch.int32),
        x.new_empty((x.shape[0] + NUMBER_BYTES,), dtype=torch.uint8, device="cpu"),
    )


@operator("deep_ep::elastic_dispatch_backward")
def _dispatch_backward(
    grad: Tensor, grad_weights: Tensor, handle: Tensor, buffer: int, topk: int
) -> Tuple[Tensor, Tensor]:
    """Returns the gradients of tokens [T, H] and of their weights [T, K]. Expanded rows are always summed on their rank
    first."""
    of, found = _buffer(buffer), _find(handle)
    place = _place.of(grad, "grad")
    workers, turn = of._workers(found.num_sms, place), place.turn(None, False)
    y, weights, _ = of._at(place).combine(grad, found, grad_weights, (), False, of._one_order, workers, turn, False)
    of._settle(wait=True)
    return y, weights


@fake_of(_dispatch_backward)
def _(grad: Tensor, grad_weights: Tensor, handle: Tensor, buffer: int, topk: int) -> Tuple[Tensor, Tensor]:
    tokens = handle.shape[0] - NUMBER_BYTES
    return grad.new_empty((tokens, grad.shape[1])), grad_weights.new_empty((tokens, topk))


def _keep_dispatch(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output[4])
    ctx.buffer, ctx.topk = inputs[3], inputs[1].shape[1]


def _dispatch_gradients(ctx: Any, grad: Tensor, _idx: Any, grad_weights: Tensor, *_: Any) -> Tuple[Any, ...]:
    (handle,) = ctx.saved_tensors
    own, own_weights = _dispatch_backward(grad.contiguous(), grad_weights.contiguous(), handle, ctx.buffer, ctx.topk)
    return own, None, own_weights, None, None, None, None, None, None


_dispatch.register_autograd(_dispatch_gradients, setup_context=_keep_dispatch)


# ---- combine ---------------------------------------------------------------------------------------------------------


@operator("deep_ep::elastic_combine")
def _combine(x: Tensor, handle: Tensor, bias0: Optional[Tensor], bias1: Optional[Tensor], buffer: int) -> Tensor:
    y: Tensor = _buffer(buffer).combine(x, _find(handle), bias=(bias0, bias1))[0]
    return y


@fake_of(_combine)
def _(x: Tensor, handle: Tensor, bias0: Optional[Tensor], bias1: Optional[Tensor], buffer: int) -> Tensor:
    return x.new_empty((handle.shape[0] - NUMBER_BYTES, x.shape[1]))


@operator("deep_ep::elastic_combine_backward")
def _combine_backward(grad: Tensor, handle: Tensor, buffer: int, rows: int) -> Tensor:
    """Returns the gradients of the rows that the dispatch returned."""
    of, found = _buffer(buffer), _find(handle)
    expand, place = found.do_expand, _place.of(grad, "grad")
    form = Form(found.num_experts, expand, expand, workers=of._workers(found.num_sms, place))
    x: Tensor = of._at(place).again((grad, None, None), found, form, place.turn(None, False))
    of._settle(wait=True)
    _clear(x, found, expand)
    return x


@fake_of(_combine_backward)
def _(grad: Tensor, handle: Tensor, buffer: int, rows: int) -> Tensor:
    return grad.new_empty((rows, grad.shape[1]))


def _keep_combine(ctx: Any, inputs: Any, output: Any) -> None:
    x, handle, bias0, bias1, ctx.buffer = inputs
    ctx.save_for_backward(handle)
    ctx.rows, ctx.biases = x.shape[0], [bias is not None for bias in (bias0, bias1)]


def _combine_gradients(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
    (handle,) = ctx.saved_tensors
    own = _combine_backward(grad.contiguous(), handle, ctx.buffer, ctx.rows)
    return own, None, *(grad if given else None for given in ctx.biases), None


_combine.register_autograd(_combine_gradients, setup_context=_keep_combine)


# ---- for programs ----------------------------------------------------------------------------------------------------


def dispatch(
    buffer: int,
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    num_experts: int,
    num_max_tokens_per_rank: int,
    expert_alignment: int = 1,
    do_expand: bool = False,
    do_cpu_sync: bool = False,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns (recv_x, recv_topk_idx, recv_topk_weights, psum_num_recv_tokens_per_expert, handle) as
    `ElasticBuffer.dispatch` does. Collective, as its backward is.

    buffer: the number that `number_of` returned. The caller must keep the buffer alive.
    x: bf16 [T, H]. topk_idx: int64 [T, K]. topk_weights: float32 [T, K].
    do_expand: rows are expanded, and recv_topk_idx is empty.
    do_cpu_sync: with False, outputs always have the same shapes, as compilers prefer. With True they have the rows that
        come. This needs torch._dynamo.config.capture_dynamic_output_shape_ops, and with gradients PyTorch 2.5 or later.

    The handle is an opaque uint8 tensor."""
    found: Tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _dispatch(
        x,
        topk_idx,
        topk_weights,
        buffer,
        num_experts,
        num_max_tokens_per_rank,
        expert_alignment,
        do_expand,
        do_cpu_sync,
    )
    return found


def combine(
    buffer: int, x: Tensor, handle: Tensor, bias: Union[Tensor, Tuple[Optional[Tensor], Optional[Tensor]], None] = None
) -> Tensor:
    """Returns y of `ElasticBuffer.combine`, bf16 [T, H]. x: bf16 [rows, H]. handle: the tensor that `dispatch`
    returned. bias: bf16 [T, H], or a tuple of two. Collective, as its backward is."""
    biases = bias if isinstance(bias, tuple) else (bias, None)
    y: Tensor = _combine(x, handle, biases[0], biases[1], buffer)
    return y
