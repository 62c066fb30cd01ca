# SPDX-License-Identifier: Apache-2.0
"""`HybridEPBuffer`: dispatch and combine with the interface of DeepEP's branch hybrid-ep.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, G ranks of a node, L = E/N local
experts. R tokens that this rank receives, P permuted rows. pad(v) is v rounded up to a multiple of pad_multiple.

Wrong use that is found here raises AssertionError, and the other ranks get a RuntimeError. Errors that the library
reports raise RuntimeError with its text.
"""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace
from typing import Any

import torch
from expar._copies import Shared

from . import _hybrid_checks as checks
from . import _place
from ._checks import whole
from ._elastic_sizes import group_for
from ._hybrid import as_rows, contiguous, HybridMode, Slots, without_padding
from ._hybrid_handle import find, HybridEpConfigInstance, Routing, wrap_permuted, wrap_plain
from .buffers.legacy import Runtime
from .utils.math import align

__all__ = ["HybridEPBuffer", "HybridEpConfigInstance", "indices_to_map"]

_FEWEST_TOKENS, _UNIT_TOKENS = 512, 64  # of max_num_of_tokens_per_rank
_DOMAIN = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
_FP8: Any = getattr(torch, "float8_e4m3fn", None)


def indices_to_map(
    topk_idx: Any, topk_weights: Any, num_of_tokens: int, num_of_experts: int
) -> tuple[Any, Any]:
    """Returns (routing map bool [T, E], probs float32 [T, E]) of topk_idx [T, K] and topk_weights [T, K]. Without
    weights probs is None. -1 stands for no expert. The probs are differentiable in the weights."""
    shape = (num_of_tokens, num_of_experts + 1)  # slots of -1 go to the last column
    where = torch.where(topk_idx < 0, num_of_experts, topk_idx).long()
    routing_map = torch.zeros(shape, dtype=torch.bool, device=topk_idx.device)
    routing_map = routing_map.scatter(1, where, True)[:, :-1].contiguous()
    if topk_weights is None:
        return routing_map, None
    probs = torch.zeros(shape, dtype=torch.float32, device=topk_idx.device)
    return routing_map, probs.scatter(1, where, topk_weights.to(torch.float32))[:, :-1].contiguous()


class HybridEPBuffer(Shared):
    """The buffer with which the ranks of a group dispatch and combine rows that are permuted by expert. Creating it is
    collective. All calls are collective, and run on the current stream.

    group: a process group of torch.distributed, or an mpi4py communicator.
    hidden_dim, max_num_of_tokens_per_rank, num_local_experts: the expected sizes. Larger calls raise them.
    use_fp8: dispatches carry rows of one byte an element, with scales.

    The other arguments are hints without effect. There is no `destroy`: the garbage collector releases the buffer.
    """

    _no_pickle = "make one in each process"

    def __init__(
        self,
        group: Any,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_dispatch_api: int | None = None,
        num_sms_combine_api: int | None = None,
        num_sms_preprocessing_api: int | None = None,
        num_blocks_permute: int | None = None,
        num_blocks_unpermute: int | None = None,
        load_cached_kernels: bool = False,
        use_shared_buffer: bool = True,
        enable_custom_allgather: bool = False,
        num_of_hybrid_ep_ranks_per_nvlink_domain: int | None = None,
        use_mnnvl: bool | None = None,
    ) -> None:
        sizes = dict(
            hidden_dim=hidden_dim,
            max_num_of_tokens_per_rank=max_num_of_tokens_per_rank,
            num_local_experts=num_local_experts,
        )
        for name, size in sizes.items():
            if whole(size, name) < (0 if name == "max_num_of_tokens_per_rank" else 1):
                raise AssertionError(f"{name} is {size}: expected a number of at least 1")
        try:
            self._group = group_for(group)
        except TypeError as error:
            raise AssertionError(str(error)) from None
        self.group = group
        self.rank, self.group_size = self._group.rank, self._group.size
        each = self._domain(self._group.ranks_per_node)
        self.num_of_hybrid_ep_ranks_per_nvlink_domain = each
        self.local_rank, self.node_rank = self.rank % each, self.rank // each
        self.num_of_nodes = self.group_size // each
        self.use_fp8 = bool(use_fp8)
        self.configurer = SimpleNamespace(
            buffer_config=HybridEpConfigInstance(hidden_dim, 0, num_local_experts, each, self.num_of_nodes)
        )
        self._raise_sizes(tokens=max(max_num_of_tokens_per_rank, _FEWEST_TOKENS))
        self.runtime = Runtime(self._group)
        # One mode for each place of tensors. Where there is a choice, the tensors of the first call decide.
        self._modes: dict[_place.Place, HybridMode] = {}
        usual = _place.usual()
        if not usual.on_gpu:
            self._at(usual)

    def _domain(self, found: int) -> int:
        """Returns G."""
        given = os.environ.get(_DOMAIN)
        if not given:
            return found
        if not given.isdecimal() or int(given) == 0 or self.group_size % int(given):
            raise AssertionError(f"{_DOMAIN} is {given!r}: expected a divisor of the {self.group_size} ranks")
        if int(given) != found:
            warnings.warn(f"{_DOMAIN} is {given}, but nodes have {found} ranks", RuntimeWarning, 3)
        return int(given)

    def _at(self, place: _place.Place) -> HybridMode:
        """Returns the mode for tensors in that place. Collective if it must be created, as calls are."""
        found = self._modes.get(place)
        if found is None:
            found = self._modes[place] = HybridMode(self._group, place)
        return found

    # ---- configuration -----------------------------------------------------------------------------------------------

    def _raise_sizes(self, hidden: int = 0, tokens: int = 0, local: int = 0) -> None:
        """Raises the sizes that the buffer shows to those of a call."""
        known = self.configurer.buffer_config
        if tokens > known.max_num_of_tokens_per_rank:
            known.max_num_of_tokens_per_rank = align(tokens, _UNIT_TOKENS)
        if hidden > known.hidden_dim:
            known.hidden_dim = hidden
        if local > known.num_of_experts_per_rank:
            known.num_of_experts_per_rank = local

    def _config(self, hidden: int, local: int, pad_multiple: int | None, dtype: Any) -> HybridEpConfigInstance:
        known = self.configurer.buffer_config
        return HybridEpConfigInstance(
            hidden,
            known.max_num_of_tokens_per_rank,
            local,
            known.num_of_ranks_per_node,
            known.num_of_nodes,
            pad_multiple,
            dtype,
        )

    def update_template_config(
        self,
        hidden_dim: int | None = None,
        num_of_tokens_per_rank: int | None = None,
        num_local_experts: int | None = None,
        pad_multiple: int | None = None,
        use_fp8: bool | None = None,
        fuse_permute_dispatch: bool = False,
        **kwargs: Any,
    ) -> HybridEpConfigInstance:
        """Returns the configuration of calls with these sizes. Larger sizes raise those of the buffer. None stands for
        the buffer's; other arguments are ignored."""
        known = self.configurer.buffer_config
        given = (hidden_dim, num_of_tokens_per_rank, num_local_experts)
        for name, size in zip(("hidden_dim", "num_of_tokens_per_rank", "num_local_experts"), given):
            if size is not None and whole(size, name) < 0:
                raise AssertionError(f"{name} is {size}: expected 0 or more")
        checks.check_padding(pad_multiple)
        self._raise_sizes(hidden_dim or 0, num_of_tokens_per_rank or 0, num_local_experts or 0)
        fp8 = self.use_fp8 if use_fp8 is None else use_fp8
        local = num_local_experts or known.num_of_experts_per_rank
        dtype = torch.uint8 if fp8 else torch.bfloat16
        return self._config(hidden_dim or known.hidden_dim, local, pad_multiple, dtype)

    def empty_jit_cache(self) -> None:
        """Has no effect: there is no such cache here."""

    # ---- arguments ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _carried(hidden: Any, use_fp8: bool) -> Any:
        """Returns rows of a type that the library carries, with the same bytes."""
        wanted = _FP8 if use_fp8 else torch.bfloat16
        return as_rows(hidden if hidden.dtype in (wanted, torch.float16) else contiguous(hidden).view(wanted))

    @staticmethod
    def _given_back(rows: Any, hidden: Any) -> Any:
        """Returns received rows in the type and with the columns of those that were given."""
        same = rows if rows.dtype is hidden.dtype else rows.view(hidden.dtype)
        return without_padding(same, hidden.shape[1])

    @staticmethod
    def _check_tensors(hidden: Any, others: dict[str, Any]) -> None:
        """AssertionError if one of them is no tensor; others may be None."""
        checks.check_tensor(hidden, "hidden", needed=True)
        for name, tensor in others.items():
            if tensor is not None:
                checks.check_tensor(tensor, name)

    @staticmethod
    def _wrong_rows(hidden: Any, use_fp8: bool, others: dict[str, Any]) -> str | None:
        wrong, device = checks.wrong_hidden(hidden, use_fp8, others["scaling_factor"]), hidden.device
        for name, tensor in others.items():
            if tensor is not None and tensor.device != device:
                wrong = wrong or f"{name} lies on {tensor.device}: expected {device}, as hidden"
        return wrong

    def _wrong_map(self, hidden: Any, routing_map: Any, probs: Any) -> str | None:
        tokens = hidden.shape[0]
        wrong = checks.wrong_map(routing_map, tokens, self.group_size)
        return wrong or checks.wrong_probs(probs, tokens, routing_map.shape[1])

    def _wrong_topk(self, hidden: Any, topk_idx: Any, topk_weights: Any, experts: int) -> str | None:
        wrong = checks.wrong_experts(experts, self.group_size)
        return wrong or checks.wrong_topk(topk_idx, topk_weights, hidden.shape[0])

    def _wrong_again(self, hidden: Any, routing: Routing, probs: Any) -> str | None:
        tokens = hidden.shape[0]
        if tokens != routing.tokens:
            return f"hidden has {tokens} tokens: expected the {routing.tokens} of the handle's dispatch"
        return checks.wrong_probs(probs, tokens, routing.experts)

    @staticmethod
    def _experts_of(num_of_experts: Any) -> int:
        if num_of_experts is None:
            raise AssertionError("num_of_experts is not given: expected it where there is no routing_map")
        return whole(num_of_experts, "num_of_experts")

    # ---- with permutation --------------------------------------------------------------------------------------------

    def dispatch_with_permute(
        self,
        *,
        hidden: Any,
        topk_idx: Any = None,
        topk_weights: Any = None,
        num_of_experts_per_rank: int | None = None,
        num_of_experts: int | None = None,
        use_fp8: bool | None = None,
        routing_map: Any = None,
        probs: Any = None,
        scaling_factor: Any = None,
        num_permuted_tokens: Any = None,
        pad_multiple: int | None = None,
        handle: Any = None,
        non_blocking: bool = False,
        fuse_permute_dispatch: bool = False,
        num_dispatched_tokens: Any = None,
        use_host_meta: bool | None = None,
    ) -> tuple[Any, Any, Any, Any, tuple[Any, ...]]:
        """Carries tokens to the ranks that hold their experts, and permutes them by expert. Collective.

        Returns (rows [P, H], probs float32 [P] or None, scales float32 [P, H/128] or None, tokens_per_expert int64 [L],
        handle). Rows follow each other by local expert, then by source rank, then by token. Expert e begins at the sum
        of pad(count) of those before it; rows after its count up to pad(count) are zero.

        hidden: bf16 [T, H]. With use_fp8 it has one byte an element, and scaling_factor is float32 [T, H/128].
        routing_map: bool [T, E], the experts of each token. probs: float32 [T, E], those where the map is set travel.
        topk_idx: [T, K], -1 for none, with num_of_experts; used if there is no map. topk_weights: float32 [T, K].
        num_permuted_tokens: P, a number or a tensor of one. Without it P is the sum of pad(count).
        non_blocking: the host waits for nothing, and P must be given. Rows whose place is P or more are dropped, and
            the handle's last item is 1 then. tokens_per_expert lies on the device then, else on the CPU.
        handle: the routing of an earlier dispatch, in place of map and topk_idx. Rows have the same places.

        fuse_permute_dispatch has no effect: results are the same. num_dispatched_tokens and use_host_meta are old."""
        if num_dispatched_tokens is not None:
            warnings.warn("num_dispatched_tokens has no effect", DeprecationWarning, 2)
        if use_host_meta is not None:
            warnings.warn("use_host_meta is old: use non_blocking, its opposite", DeprecationWarning, 2)
            non_blocking = not use_host_meta
        fp8 = self.use_fp8 if use_fp8 is None else bool(use_fp8)
        scales = scaling_factor if fp8 else None
        given = dict(
            topk_idx=topk_idx, topk_weights=topk_weights, routing_map=routing_map, probs=probs, scaling_factor=scales
        )
        self._check_tensors(hidden, given)
        alignment = checks.check_padding(pad_multiple)
        rows = None if num_permuted_tokens is None else checks.check_rows(num_permuted_tokens)
        routing = None if handle is None else find(handle, True)
        place = _place.of(hidden, "hidden")
        if routing is not None:
            if pad_multiple and alignment != routing.alignment:
                raise AssertionError(f"pad_multiple is {pad_multiple}: expected the handle's, {routing.alignment}")
            if probs is None and topk_idx is not None and topk_weights is not None:
                probs = indices_to_map(topk_idx, topk_weights, hidden.shape[0], routing.experts)[1]
            mode = self._at(place)
            wrong = self._wrong_rows(hidden, fp8, given)
            wrong = wrong or self._wrong_again(hidden, routing, probs) or self._wrong_capacity(routing, rows)
            if wrong:
                mode.reject_dispatch(wrong)
            return self._dispatch_again(mode, hidden, scales, fp8, routing, probs, rows, handle)
        if routing_map is None and topk_idx is None:
            raise AssertionError("routing_map is not given: expected it, or topk_idx, or a handle")
        experts = routing_map.shape[-1] if routing_map is not None else self._experts_of(num_of_experts)
        if num_of_experts_per_rank is not None and num_of_experts_per_rank * self.group_size != experts:
            raise AssertionError(
                f"num_of_experts_per_rank is {num_of_experts_per_rank}: expected {experts} experts on {self.group_size} ranks"
            )
        if non_blocking and (rows is None or rows % alignment):
            shown = "not given" if rows is None else rows
            raise AssertionError(
                f"num_permuted_tokens is {shown}: expected a multiple of pad_multiple, {alignment}, with non_blocking"
            )
        mode = self._at(place)
        wrong = self._wrong_rows(hidden, fp8, given)
        if routing_map is not None:
            wrong = wrong or self._wrong_map(hidden, routing_map, probs)
        else:
            wrong = wrong or self._wrong_topk(hidden, topk_idx, topk_weights, experts)
        if wrong:
            mode.reject_dispatch(wrong)
        if routing_map is not None:
            slots = mode.slots_of_map(routing_map, probs)
        else:
            slots = mode.slots_of_topk(topk_idx, topk_weights, experts)
        return self._dispatch(mode, hidden, scales, fp8, slots, pad_multiple, rows, non_blocking)

    def _dispatch(
        self,
        mode: HybridMode,
        hidden: Any,
        scales: Any,
        fp8: bool,
        slots: Slots,
        pad_multiple: int | None,
        rows: int | None,
        non_blocking: bool,
    ) -> tuple[Any, Any, Any, Any, tuple[Any, ...]]:
        local = slots.experts // self.group_size
        self._raise_sizes(hidden.shape[1], hidden.shape[0], local)
        worst = None
        if non_blocking:
            worst = self.group_size * self.configurer.buffer_config.max_num_of_tokens_per_rank
        carried = self._carried(hidden, fp8)
        found, routing, dispatched, owner = mode.dispatch(
            carried, contiguous(scales), slots, max(pad_multiple or 1, 1), rows, worst
        )
        counts = routing.counts
        assert counts is not None
        if not non_blocking and rows is not None and counts.rows > rows:
            raise AssertionError(f"num_permuted_tokens is {rows}: expected at least the {counts.rows} rows that came")
        config = self._config(hidden.shape[1], local, pad_multiple, hidden.dtype)
        handle = wrap_permuted(routing, owner, mode.place.opaque(), dispatched, config)
        if found[0].shape[0] != routing.capacity:
            found = [None if each is None else _with_rows(each, routing.capacity) for each in found]
        return self._given_back(found[0], hidden), found[2], found[1], counts.padded, handle

    @staticmethod
    def _wrong_capacity(routing: Routing, rows: int | None) -> str | None:
        """Checks the number of rows that a dispatch with a handle is to return, if the host knows what is needed."""
        assert routing.counts is not None
        known = routing.counts.rows
        if rows is None or rows >= known:
            return None
        return f"num_permuted_tokens is {rows}: expected at least the {known} rows of the handle's dispatch"

    def _dispatch_again(
        self,
        mode: HybridMode,
        hidden: Any,
        scales: Any,
        fp8: bool,
        routing: Routing,
        probs: Any,
        rows: int | None,
        handle: Any,
    ) -> tuple[Any, Any, Any, Any, tuple[Any, ...]]:
        self._raise_sizes(hidden.shape[1], hidden.shape[0])
        slots = mode.slots_again(routing, probs)
        found = mode.dispatch_again(self._carried(hidden, fp8), contiguous(scales), slots, routing, True)
        wanted = routing.capacity if rows is None else rows
        cut = [None if each is None else _with_rows(each, wanted) for each in found]
        counts = routing.counts
        assert counts is not None
        return self._given_back(cut[0], hidden), cut[2], cut[1], counts.padded.clone(), handle

    def combine_with_unpermute(
        self,
        *,
        hidden: Any,
        probs: Any = None,
        handle: Any = None,
        pad_multiple: int | None = None,
        fuse_unpermute_combine: bool = False,
        num_dispatched_tokens: Any = None,
    ) -> tuple[Any, Any]:
        """Brings permuted rows back and sums them. Collective. Returns (y bf16 [T, H], probs float32 [T, E] or None).

        hidden: bf16 [P, H]. Only rows that the handle names are read.
        probs: float32 [P]. Each goes back to its token and expert, and others are 0.
        handle: what dispatch_with_permute returned.

        Sums are FP32. Each rank first sums a token's rows by ascending expert, and rounds to bf16. Then ranks are added
        in ascending order, and the sum is rounded. Across nodes the token's own node comes first, then the rounded sums
        of the nodes before it. pad_multiple and fuse_unpermute_combine have no effect."""
        if num_dispatched_tokens is not None:
            warnings.warn("num_dispatched_tokens has no effect", DeprecationWarning, 2)
        mode, routing = self._answered(hidden, probs, handle, True)
        wrong = checks.wrong_answers(hidden, probs)
        assert routing.counts is not None
        if not wrong and hidden.shape[0] < routing.counts.rows:
            wrong = f"hidden has {hidden.shape[0]} rows: expected at least the {routing.counts.rows} that came"
        if wrong:
            mode.reject_combine(wrong)
        y, weights = mode.combine(as_rows(hidden), contiguous(probs), routing, True)
        return without_padding(y, hidden.shape[1]), mode.by_expert(routing, weights)

    def _answered(self, hidden: Any, probs: Any, handle: Any, permuted: bool) -> tuple[HybridMode, Routing]:
        """Checks the arguments of a combine that all ranks give alike."""
        checks.check_tensor(hidden, "hidden", needed=True)
        checks.check_tensor(probs, "probs")
        if handle is None:
            raise AssertionError("handle is not given: expected that of the dispatch")
        routing = find(handle, permuted)
        return self._at(_place.of(hidden, "hidden")), routing

    # ---- without permutation -----------------------------------------------------------------------------------------

    def dispatch(
        self,
        hidden: Any,
        scaling_factor: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        num_of_experts: int | None = None,
        probs: Any = None,
        routing_map: Any = None,
        num_dispatched_tokens_tensor: Any = None,
        num_dispatched_tokens: Any = None,
        handle: Any = None,
    ) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        """Carries tokens to the ranks that hold their experts. Collective. The host waits.

        Returns (rows [R, H], probs float32 [R, L*G] or None, scales float32 [R, H/128] or None, handle). There is one
        row for each token that has an expert here, by source rank, then token. Probs are those for the experts of this
        node. Arguments are as in dispatch_with_permute. num_dispatched_tokens… are hints without effect."""
        scales = scaling_factor if self.use_fp8 else None
        given = dict(
            topk_idx=topk_idx, topk_weights=topk_weights, routing_map=routing_map, probs=probs, scaling_factor=scales
        )
        self._check_tensors(hidden, given)
        routing = None if handle is None else find(handle, False)
        place = _place.of(hidden, "hidden")
        if routing is None and routing_map is None and topk_idx is None:
            raise AssertionError("routing_map is not given: expected it, or topk_idx, or a handle")
        experts = routing_map.shape[-1] if routing_map is not None else self._experts_of(num_of_experts)
        mode = self._at(place)
        wrong = self._wrong_rows(hidden, self.use_fp8, given)
        if routing is None and routing_map is None:
            wrong = wrong or self._wrong_topk(hidden, topk_idx, topk_weights, experts)
            if not wrong:
                routing_map, probs = indices_to_map(topk_idx, topk_weights, hidden.shape[0], experts)
        if routing is None:
            wrong = wrong or self._wrong_map(hidden, routing_map, probs)
        else:
            wrong = wrong or self._wrong_again(hidden, routing, probs)
        if wrong:
            mode.reject_dispatch(wrong)
        return self._dispatch_plain(mode, hidden, scales, routing_map, probs, routing, handle)

    def _dispatch_plain(
        self, mode: HybridMode, hidden: Any, scales: Any, routing_map: Any, probs: Any, routing: Routing | None, handle: Any
    ) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        carried, scales = self._carried(hidden, self.use_fp8), contiguous(scales)
        named = None
        if routing is None:
            named = routing_map
            slots = mode.slots_of_map(routing_map, None)
            local = slots.experts // self.group_size
            self._raise_sizes(hidden.shape[1], hidden.shape[0], local)
            found, routing = mode.dispatch_plain(carried, scales, slots)
            here = mode.named(_columns(found[2], self.rank * local, local))
            config = self._config(hidden.shape[1], local, None, hidden.dtype)
            owner, dispatched = mode.place.vector(1, torch.int32), mode._one_on_host(routing.rows)
            handle = wrap_plain(routing, owner, mode.place.opaque(), dispatched, here, config)
        else:
            self._raise_sizes(hidden.shape[1], hidden.shape[0])
            found = mode.dispatch_again(carried, scales, mode.slots_again(routing, None), routing, False)
        received = None
        if probs is not None:
            # A prob goes only with its slot's rank. Those of the whole node come as rows of their own.
            masked = torch.where(mode.named(routing.slots) if named is None else named, probs, mode.nothing)
            sent = mode.dispatch_again(as_rows(masked), None, mode.slots_again(routing, None), routing, False)[0]
            begin, end = self._columns_of_node(routing)
            received = contiguous(_columns(sent, begin, end - begin))
        return self._given_back(found[0], hidden), received, found[1], handle

    def _columns_of_node(self, routing: Routing) -> tuple[int, int]:
        """Returns the first expert of this node, and the one after its last."""
        many = routing.experts // self.num_of_nodes
        return self.node_rank * many, (self.node_rank + 1) * many

    def combine(self, hidden: Any, probs: Any = None, handle: Any = None) -> tuple[Any, Any]:
        """Brings rows of `dispatch` back and sums them. Collective. Returns (y bf16 [T, H], probs float32 [T, E] or
        None).

        hidden: bf16 [R, H]. probs: float32 [R, L*G]; the sums over the node's ranks come back. Sums are as in
        combine_with_unpermute, with one row of each rank."""
        mode, routing = self._answered(hidden, probs, handle, False)
        begin, end = self._columns_of_node(routing)
        wrong = checks.wrong_answers(hidden, probs, end - begin)
        if not wrong and hidden.shape[0] != routing.rows:
            wrong = f"hidden has {hidden.shape[0]} rows: expected the {routing.rows} that the dispatch received"
        if wrong:
            mode.reject_combine(wrong)
        weights = contiguous(probs)
        if weights is not None and end - begin < routing.experts:
            weights = hidden.new_zeros((routing.rows, routing.experts), dtype=torch.float32)
            weights[:, begin:end] = probs
        y, sums = mode.combine(as_rows(hidden), weights, routing, False)
        return without_padding(y, hidden.shape[1]), sums


def _columns(tensor: Any, first: int, count: int) -> Any:
    """Returns these columns of a matrix."""
    return tensor if tensor.shape[1] == count else tensor[:, first : first + count]


def _with_rows(tensor: Any, rows: int) -> Any:
    """Returns the first rows of a tensor. If it has fewer, those after them are not filled."""
    many = tensor.shape[0]
    if rows <= many:
        return tensor if rows == many else tensor[:rows]
    more = tensor.new_empty((rows, *tensor.shape[1:]))
    more[:many] = tensor
    return more
