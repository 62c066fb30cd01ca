# SPDX-License-Identifier: Apache-2.0
"""deep_ep.HybridEPBuffer: every combination of options against the reference, training steps, callers, wrong use."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import unittest
import warnings
import weakref
from typing import Any, Callable
from unittest import mock

import torch
from deep_ep_hybrid_calls import (
    buffer_of, combinations, combine, dispatch, exchange, exchange_plain, Options, plain,
)
from deep_ep_hybrid_callers import CALLERS
from deep_ep_hybrid_layer import training_steps
from deep_ep_hybrid_reference import Hybrid, World
from deep_ep_reference import same
from deep_ep_threads import in_turn, on_threads, said
from test_python_group import FakeComm

import deep_ep
import ranks
from deep_ep import hybrid_ep_buffer
from deep_ep._elastic_sizes import group_for
from deep_ep.hybrid_ep_buffer import indices_to_map

SURFACE = {
    "__init__": "group, hidden_dim, max_num_of_tokens_per_rank, num_local_experts, use_fp8=False, "
    "num_sms_dispatch_api=None, num_sms_combine_api=None, num_sms_preprocessing_api=None, num_blocks_permute=None, "
    "num_blocks_unpermute=None, load_cached_kernels=False, use_shared_buffer=True, enable_custom_allgather=False, "
    "num_of_hybrid_ep_ranks_per_nvlink_domain=None, use_mnnvl=None",
    "dispatch_with_permute": "*, hidden, topk_idx=None, topk_weights=None, num_of_experts_per_rank=None, "
    "num_of_experts=None, use_fp8=None, routing_map=None, probs=None, scaling_factor=None, num_permuted_tokens=None, "
    "pad_multiple=None, handle=None, non_blocking=False, fuse_permute_dispatch=False, num_dispatched_tokens=None, "
    "use_host_meta=None",
    "combine_with_unpermute": "*, hidden, probs=None, handle=None, pad_multiple=None, fuse_unpermute_combine=False, "
    "num_dispatched_tokens=None",
    "dispatch": "hidden, scaling_factor=None, topk_idx=None, topk_weights=None, num_of_experts=None, probs=None, "
    "routing_map=None, num_dispatched_tokens_tensor=None, num_dispatched_tokens=None, handle=None",
    "combine": "hidden, probs=None, handle=None",
    "update_template_config": "hidden_dim=None, num_of_tokens_per_rank=None, num_local_experts=None, "
    "pad_multiple=None, use_fp8=None, fuse_permute_dispatch=False, **kwargs",
    "empty_jit_cache": "",
}


def arguments_of(function: Any) -> str:
    given: list[str] = []
    for each in inspect.signature(function).parameters.values():
        if each.kind == each.KEYWORD_ONLY and "*" not in given:
            given.append("*")
        name = f"**{each.name}" if each.kind == each.VAR_KEYWORD else each.name
        given.append(name if each.default is each.empty else f"{name}={each.default!r}")
    return ", ".join(each for each in given if each != "self")


def on_ranks(size: int, body: Callable[[Any], None]) -> None:
    """body(comm) on ranks that are threads. One that fails ends the others' waits."""

    def run(comm: Any) -> None:
        torch.set_num_threads(1)
        try:
            body(comm)
        except BaseException:
            group_for(comm).abort()
            raise

    on_threads(size, run)


def on_nodes(size: int, each: int, body: Callable[[Any], None]) -> None:
    """The same on simulated nodes."""
    ranks.on_threads(size, in_turn, (body,), ranks_per_node=each)


def alone(**options: Any) -> Any:
    return deep_ep.HybridEPBuffer(FakeComm(1).rank(0), **{**dict(hidden_dim=128, max_num_of_tokens_per_rank=9, num_local_experts=3), **options})


class Combinations(unittest.TestCase):
    def test_two_ranks(self) -> None:
        on_ranks(2, combinations)

    def test_four_ranks(self) -> None:
        on_ranks(4, combinations)

    def test_one_rank(self) -> None:
        on_ranks(1, combinations)

    def test_without_permutation(self) -> None:
        for size in (1, 2, 4):
            on_ranks(size, plain)

    def test_no_tokens(self) -> None:
        def body(comm: Any) -> None:
            h = Hybrid(World(2, 4, 128, 9), 5, [0, 0])
            buffer = buffer_of(comm, h)
            for options in (Options(), Options(4, False), Options(8, non_blocking=True, capacity="more")):
                exchange(buffer, h, options, 1)
            exchange_plain(buffer, h, Options())

        on_ranks(2, body)

    def test_any_columns(self) -> None:
        """Rows of any length, which the library's are not; and rows of other types of two bytes."""

        def body(comm: Any) -> None:
            for hidden in (1, 7, 20):
                h = Hybrid(World(2, 4, hidden, 9), hidden)
                exchange(buffer_of(comm, h), h, Options(4, non_blocking=True, capacity="half"), 2)
                exchange_plain(buffer_of(comm, h), h, Options())
            h = Hybrid(World(2, 4, 8, 9), 3)
            rank = group_for(comm).rank
            for dtype in (torch.float16, torch.int16):
                rows, *_ = buffer_of(comm, h).dispatch_with_permute(
                    hidden=h.x[rank].view(dtype), routing_map=h.maps[rank]
                )
                assert rows.dtype is dtype
                there = [row for row in h.permuted(rank, 1) if row is not None]
                same(rows, h.gathered([x.view(dtype) for x in h.x], there))

        on_ranks(2, body)


    def test_bytes(self) -> None:
        """FP8 rows as bytes, by the constructor's use_fp8 and by the call's, which overrides it."""

        def body(comm: Any) -> None:
            h = Hybrid(World(2, 4, 128, 9), 12)
            rank, there = group_for(comm).rank, [row for row in h.permuted(group_for(comm).rank, 1) if row is not None]
            as_bytes = [x.view(torch.uint8) for x in h.fp8]
            for of_buffer, of_call in ((True, None), (False, True), (True, True)):
                rows, _, scales, _, handle = buffer_of(comm, h, use_fp8=of_buffer).dispatch_with_permute(
                    hidden=as_bytes[rank], routing_map=h.maps[rank], scaling_factor=h.scales[rank], use_fp8=of_call
                )
                assert rows.dtype is torch.uint8 and handle[9].token_data_type is torch.uint8
                same(rows, h.gathered(as_bytes, there))
                same(scales, h.gathered(h.scales, there))
            rows, _, scales, _, _ = buffer_of(comm, h, use_fp8=True).dispatch_with_permute(
                hidden=h.x[rank], routing_map=h.maps[rank], scaling_factor=h.scales[rank], use_fp8=False
            )
            same(rows, h.gathered(h.x, there))
            assert scales is None

        on_ranks(2, body)


class Nodes(unittest.TestCase):
    def test_two_nodes(self) -> None:
        self._on(4, 2)

    def test_three_nodes(self) -> None:
        self._on(3, 1)

    def _on(self, size: int, each: int) -> None:
        def body(key: Any) -> None:
            world = World(size, 2 * size, 128, 7, 0, size // each)
            h, few = Hybrid(world, 90), Hybrid(world._replace(topk=3), 91)
            buffer = buffer_of(key, h)
            assert (buffer.num_of_nodes, buffer.num_of_hybrid_ep_ranks_per_nvlink_domain) == (size // each, each)
            assert (buffer.node_rank, buffer.local_rank) == divmod(key.rank(), each)
            exchange(buffer, h, Options(4), 1)
            exchange(buffer, few, Options(None, False, non_blocking=True, capacity="half"), 2)
            exchange(buffer, h, Options(4, fp8=True), 3)
            exchange_plain(buffer, h, Options())
            training_steps(buffer, few)

        on_nodes(size, each, body)


class Training(unittest.TestCase):
    def test_steps(self) -> None:
        for size in (1, 2, 4):

            def body(comm: Any) -> None:
                h = Hybrid(World(size, 2 * size, 32, 9, min(2 * size, 6)), 50 + size)
                training_steps(buffer_of(comm, h), h)

            on_ranks(size, body)

    def test_callers(self) -> None:
        for caller in CALLERS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                ranks.on_threads(2, in_turn, (caller,))


class Surface(unittest.TestCase):
    def test_names_and_arguments(self) -> None:
        for name, wanted in SURFACE.items():
            self.assertEqual(arguments_of(getattr(deep_ep.HybridEPBuffer, name)), wanted, name)
        self.assertIs(hybrid_ep_buffer.HybridEPBuffer, deep_ep.HybridEPBuffer)
        self.assertEqual(arguments_of(indices_to_map), "topk_idx, topk_weights, num_of_tokens, num_of_experts")
        self.assertFalse(hasattr(deep_ep.HybridEPBuffer, "destroy"))

    def test_attributes(self) -> None:
        comm = FakeComm(1).rank(0)
        buffer = deep_ep.HybridEPBuffer(comm, 256, 700, 4, True)
        self.assertIs(buffer.group, comm)
        self.assertEqual((buffer.rank, buffer.group_size, buffer.local_rank, buffer.node_rank), (0, 1, 0, 0))
        self.assertEqual((buffer.num_of_nodes, buffer.num_of_hybrid_ep_ranks_per_nvlink_domain), (1, 1))
        self.assertTrue(buffer.runtime.is_available())
        config = buffer.configurer.buffer_config
        self.assertEqual((config.hidden_dim, config.max_num_of_tokens_per_rank, config.num_of_experts_per_rank), (256, 704, 4))
        self.assertEqual((config.num_of_ranks_per_node, config.num_of_nodes), (1, 1))
        self.assertEqual(alone(max_num_of_tokens_per_rank=1).configurer.buffer_config.max_num_of_tokens_per_rank, 512)
        made = buffer.update_template_config(512, 800, pad_multiple=16, use_fp8=False, anything=3)
        self.assertEqual((made.hidden_dim, made.max_num_of_tokens_per_rank, made.pad_multiple), (512, 832, 16))
        self.assertIs(made.token_data_type, torch.bfloat16)
        self.assertEqual(config.hidden_dim, 512)
        self.assertIs(buffer.update_template_config().token_data_type, torch.uint8)
        self.assertEqual(buffer.update_template_config(num_local_experts=2).num_of_experts_per_rank, 2)
        buffer.empty_jit_cache()

    def test_larger_calls(self) -> None:
        """They raise what the buffer shows."""
        buffer, h = alone(hidden_dim=8, num_local_experts=1), Hybrid(World(1, 5, 32, 1), 3, [520])
        dispatch(buffer, h, Options())
        config = buffer.configurer.buffer_config
        self.assertEqual((config.hidden_dim, config.max_num_of_tokens_per_rank, config.num_of_experts_per_rank), (32, 576, 5))

    def test_domain(self) -> None:
        """The environment says how many ranks a node has."""

        def body(comm: Any) -> None:
            h = Hybrid(World(4, 4, 16, 5), 6)
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                buffer = buffer_of(comm, h)
            assert buffer.num_of_hybrid_ep_ranks_per_nvlink_domain == 2 and buffer.num_of_nodes == 2
            assert (buffer.node_rank, buffer.local_rank) == divmod(buffer.rank, 2)
            assert buffer.configurer.buffer_config.num_of_ranks_per_node == 2
            del heard

        name = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
        with mock.patch.dict(os.environ, {name: "2"}):
            on_ranks(4, body)
        with mock.patch.dict(os.environ, {name: "1"}), warnings.catch_warnings():
            warnings.simplefilter("error")
            alone()
        for wrong in ("2", "0", "many"):
            with mock.patch.dict(os.environ, {name: wrong}):
                self.assertIn(f"{name} is '{wrong}': expected a divisor of the 1 ranks", said(AssertionError, alone))

    def test_domain_warns(self) -> None:
        with mock.patch.dict(os.environ, {"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "1"}):
            buffer = alone()
            with self.assertWarnsRegex(RuntimeWarning, "is 1, but nodes have 8 ranks"):
                buffer._domain(8)

    def test_maps(self) -> None:
        idx = torch.tensor([[2, -1], [0, 3], [-1, -1]])
        weights = torch.tensor([[0.5, 9.0], [1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        routing_map, probs = indices_to_map(idx, weights, 3, 4)
        same(routing_map, torch.tensor([[0, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.bool))
        same(probs.detach(), torch.tensor([[0, 0, 0.5, 0], [1.0, 0, 0, 2.0], [0, 0, 0, 0]]))
        probs.backward(torch.arange(12.0).view(3, 4))
        assert weights.grad is not None
        same(weights.grad, torch.tensor([[2.0, 0], [4.0, 7.0], [0, 0]]))
        self.assertIsNone(indices_to_map(idx, None, 3, 4)[1])
        self.assertTrue(routing_map.is_contiguous() and probs.is_contiguous())

    def test_old_arguments(self) -> None:
        buffer, h = alone(), Hybrid(World(1, 3, 32, 4), 3, [4])
        given = dict(hidden=h.x[0], routing_map=h.maps[0])
        with self.assertWarnsRegex(DeprecationWarning, "num_dispatched_tokens"):
            rows, *_, handle = buffer.dispatch_with_permute(**given, num_dispatched_tokens=3)
        with self.assertWarnsRegex(DeprecationWarning, "use_host_meta"):
            buffer.dispatch_with_permute(**given, use_host_meta=True, non_blocking=True)
        with self.assertWarnsRegex(DeprecationWarning, "num_dispatched_tokens"):
            buffer.combine_with_unpermute(hidden=rows, handle=handle, num_dispatched_tokens=3)


class Handles(unittest.TestCase):
    def test_after_others(self) -> None:
        """Handles are used after other dispatches, by later buffers, and unpacked and packed again."""

        def body(comm: Any) -> None:
            h = Hybrid(World(2, 4, 64, 9), 11)
            buffer = buffer_of(comm, h)
            options = [Options(4), Options(None, False, non_blocking=True, capacity="half"), Options(8)]
            made = [dispatch(buffer, h, each)[1] for each in options]
            before = [[each.clone() for each in handle if isinstance(each, torch.Tensor)] for handle in made]
            later = buffer_of(comm, h)
            for turn in range(2):
                for each, handle in zip(options, made):
                    combine(later, h, each, tuple([*handle]), turn)
            for kept, handle in zip(before, made):
                for one, other in zip(kept, (each for each in handle if isinstance(each, torch.Tensor))):
                    if other is not handle[0]:
                        same(one, other)

        on_ranks(2, body)

    def test_memory(self) -> None:
        """No tensor of a handle shares memory with one of another handle, except the opaque ones."""
        buffer, h = alone(), Hybrid(World(1, 3, 32, 9), 3, [9])
        handles = [dispatch(buffer, h, Options())[1] for _ in range(2)]
        for item in (0, 3, 7, 10):
            self.assertNotEqual(handles[0][item].data_ptr(), handles[1][item].data_ptr())
        storages = {each.untyped_storage().data_ptr() for each in handles[0] if isinstance(each, torch.Tensor)}
        self.assertEqual(len(storages), 9)  # as results of operators need it

    def test_results_outlive_the_buffer(self) -> None:
        comm, h = FakeComm(1).rank(0), Hybrid(World(1, 3, 32, 9), 3, [9])
        buffer = buffer_of(comm, h)
        rows, handle = dispatch(buffer, h, Options())
        kept, gone = rows.clone(), weakref.ref(buffer)
        del buffer
        gc.collect()
        self.assertIsNone(gone())
        same(rows, kept)
        combine(buffer_of(comm, h), h, Options(), handle, 4)

    def test_copies(self) -> None:
        buffer, h = alone(), Hybrid(World(1, 3, 32, 9), 3, [9])
        self.assertIs(copy.deepcopy(buffer), buffer)
        with self.assertRaisesRegex(TypeError, "cannot pickle deep_ep.HybridEPBuffer"):
            pickle.dumps(buffer)
        _, handle = dispatch(buffer, h, Options())
        other = pickle.loads(pickle.dumps(handle[:10]))
        self.assertIn("expected its own tensor 0", said(
            AssertionError, lambda: buffer.combine_with_unpermute(hidden=h.x[0], handle=(*other, handle[10]))
        ))


class Wrong(unittest.TestCase):
    def test_here(self) -> None:
        buffer, h = alone(), Hybrid(World(1, 3, 128, 9, 2), 3, [9])
        x, here, probs, idx = h.x[0], h.maps[0], h.probs[0], h.topk_idx[0]
        rows, *_, handle = buffer.dispatch_with_permute(hidden=x, routing_map=here, pad_multiple=4)
        plain_rows, _, _, of_plain = buffer.dispatch(x, routing_map=here)
        permute, unpermute = buffer.dispatch_with_permute, buffer.combine_with_unpermute
        given: dict[str, Any] = dict(hidden=x, routing_map=here)
        again: dict[str, Any] = dict(hidden=x, handle=handle)
        calls: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("hidden is of type list", lambda: permute(hidden=[x], routing_map=here)),
            ("hidden is of type NoneType", lambda: buffer.combine(None, handle=of_plain)),
            ("routing_map is of type list", lambda: permute(hidden=x, routing_map=[1])),
            ("routing_map is not given: expected it, or topk_idx, or a handle", lambda: permute(hidden=x)),
            ("num_of_experts is not given", lambda: permute(hidden=x, topk_idx=idx)),
            ("num_of_experts is '3': expected a whole", lambda: permute(hidden=x, topk_idx=idx, num_of_experts="3")),
            ("num_of_experts is 0", lambda: permute(hidden=x, topk_idx=idx, num_of_experts=0)),
            ("routing_map is torch.uint8: expected torch.bool", lambda: permute(hidden=x, routing_map=here.byte())),
            ("routing_map has shape (8, 3): expected [9, E]", lambda: permute(hidden=x, routing_map=here[:8])),
            ("probs is torch.float64", lambda: permute(**given, probs=probs.double())),
            ("probs is torch.float32 (9, 2): expected torch.float32 (9, 3)", lambda: permute(**given, probs=probs[:, :2])),
            ("topk_idx is torch.float32", lambda: permute(hidden=x, topk_idx=idx.float(), num_of_experts=3)),
            ("topk_weights is torch.float32 (9, 3)",
             lambda: permute(hidden=x, topk_idx=idx, topk_weights=probs, num_of_experts=3)),
            ("hidden is torch.float32: expected torch.bfloat16", lambda: permute(hidden=x.float(), routing_map=here)),
            ("hidden has shape (9,)", lambda: permute(hidden=x[:, 0], routing_map=here)),
            ("hidden is torch.bfloat16: expected torch.uint8", lambda: permute(**given, use_fp8=True)),
            ("scaling_factor is not given", lambda: permute(hidden=h.fp8[0], routing_map=here, use_fp8=True)),
            ("scaling_factor is torch.float32 (9, 2): expected torch.float32 (9, 1)",
             lambda: permute(hidden=h.fp8[0], routing_map=here, use_fp8=True, scaling_factor=probs[:, :2])),
            ("hidden has 64 columns: expected a multiple of 128",
             lambda: permute(hidden=h.fp8[0][:, :64], routing_map=here, use_fp8=True, scaling_factor=h.scales[0])),
            ("pad_multiple is -1", lambda: permute(**given, pad_multiple=-1)),
            ("pad_multiple is 1.5: expected a whole", lambda: permute(**given, pad_multiple=1.5)),
            ("num_of_experts_per_rank is 2", lambda: permute(**given, num_of_experts_per_rank=2)),
            ("num_permuted_tokens is -4", lambda: permute(**given, num_permuted_tokens=-4)),
            ("num_permuted_tokens is torch.float32 (1,)", lambda: permute(**given, num_permuted_tokens=torch.ones(1))),
            ("num_permuted_tokens is torch.int64 (2,)", lambda: permute(**given, num_permuted_tokens=idx[0])),
            ("num_permuted_tokens is 1: expected at least the", lambda: permute(**given, num_permuted_tokens=1)),
            ("num_permuted_tokens is not given: expected a multiple", lambda: permute(**given, non_blocking=True)),
            ("num_permuted_tokens is 6: expected a multiple of pad_multiple, 4",
             lambda: permute(**given, non_blocking=True, pad_multiple=4, num_permuted_tokens=6)),
            ("handle is of type int", lambda: permute(hidden=x, handle=7)),
            ("handle has 7 items: expected the 11 that dispatch_with_permute gave", lambda: permute(hidden=x, handle=of_plain)),
            ("handle was not made by dispatch_with_permute", lambda: permute(hidden=x, handle=(idx, *handle[1:]))),
            ("hidden has 8 tokens: expected the 9", lambda: permute(hidden=x[:8], handle=handle)),
            ("pad_multiple is 8: expected the handle's, 4", lambda: permute(**again, pad_multiple=8)),
            ("num_permuted_tokens is 4: expected at least", lambda: permute(**again, num_permuted_tokens=4)),
            ("handle is not given", lambda: unpermute(hidden=rows)),
            ("handle has 7 items", lambda: unpermute(hidden=rows, handle=of_plain)),
            ("hidden is torch.float32", lambda: unpermute(hidden=rows.float(), handle=handle)),
            ("hidden has 3 rows: expected at least", lambda: unpermute(hidden=rows[:3], handle=handle)),
            ("probs is torch.float32 (1,)", lambda: unpermute(hidden=rows, probs=torch.ones(1), handle=handle)),
            ("handle is not given", lambda: buffer.combine(plain_rows)),
            ("handle has 11 items: expected the 7 that dispatch gave", lambda: buffer.combine(plain_rows, handle=handle)),
            ("hidden has 0 rows: expected the", lambda: buffer.combine(plain_rows[:0], handle=of_plain)),
            ("probs is torch.float32 (9, 2)", lambda: buffer.combine(plain_rows, torch.ones(9, 2), of_plain)),
            ("num_of_experts is not given", lambda: buffer.dispatch(x, handle=of_plain)),
            ("routing_map is not given", lambda: buffer.dispatch(x, num_of_experts=3)),
            ("hidden_dim is 0: expected", lambda: alone(hidden_dim=0)),
            ("num_local_experts is 'a': expected a whole", lambda: alone(num_local_experts="a")),
            ("group is of type int", lambda: deep_ep.HybridEPBuffer(7, 128, 9, 3)),
            ("hidden_dim is -1", lambda: buffer.update_template_config(hidden_dim=-1)),
        )  # fmt: skip
        for text, call in calls:
            self.assertIn(text, said(AssertionError, call))
        with self.assertRaises(TypeError):
            buffer.dispatch_with_permute(x, routing_map=here)
        combine(buffer, h, Options(4), handle, 5)

    def test_what_the_others_learn(self) -> None:
        """An AssertionError here, and a RuntimeError with this rank's number there; the buffer stays usable."""

        def body(comm: Any) -> None:
            h = Hybrid(World(2, 4, 128, 9, 2), 7, [5, 9])
            buffer = buffer_of(comm, h)
            rank = buffer.rank
            given: dict[str, Any] = dict(hidden=h.x[rank], routing_map=h.maps[rank])
            rows, *_, handle = buffer.dispatch_with_permute(**given)
            for call, base, wrong in (
                (buffer.dispatch_with_permute, given, dict(routing_map=h.maps[rank].int())),
                (buffer.dispatch_with_permute, given, dict(hidden=h.x[rank].double())),
                (buffer.dispatch_with_permute, dict(hidden=h.x[rank], handle=handle), dict(hidden=h.x[rank][:1])),
                (buffer.combine_with_unpermute, dict(hidden=rows, handle=handle), dict(hidden=rows.float())),
                (buffer.dispatch, given, dict(routing_map=h.maps[rank][:1])),
            ):
                used: dict[str, Any] = {**base, **(wrong if rank == 0 else {})}
                heard = said(AssertionError if rank == 0 else RuntimeError, lambda: call(**used))
                self.assertIn("expected" if rank == 0 else "rank 0", heard)
            exchange(buffer, h, Options(4), 1)

        on_ranks(2, body)

    def test_too_few_rows(self) -> None:
        """A rank whose rows do not fit where it waits for them gets an error; the others go on."""

        def body(comm: Any) -> None:
            h = Hybrid(World(2, 4, 32, 9, 2), 8, [9, 9])
            buffer = buffer_of(comm, h)
            rank = buffer.rank
            rows = 0 if rank == 0 else None
            call = lambda: buffer.dispatch_with_permute(  # noqa: E731
                hidden=h.x[rank], routing_map=h.maps[rank], num_permuted_tokens=rows
            )
            if rank == 0:
                self.assertIn("num_permuted_tokens is 0: expected at least the", said(AssertionError, call))
            else:
                call()
            exchange(buffer, h, Options(), 1)

        on_ranks(2, body)


if __name__ == "__main__":
    unittest.main()
