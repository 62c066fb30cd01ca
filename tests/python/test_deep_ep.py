# SPDX-License-Identifier: Apache-2.0
"""deep_ep: names and arguments, ranks of torchrun against references, wrong use."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import types
import unittest
from typing import Any

import torch
from deep_ep_ranks import BATCH, by_hand, fresh, ll_traffic, low_latency, masks, micro_batches, normal, pairs
from deep_ep_reference import Shape, Traffic, same
from deep_ep_threads import alone, in_turn, on_threads, said
from test_python_group import FakeComm

import deep_ep
import expar
from deep_ep import _normal_forms, _place
import ranks

HERE = os.path.dirname(os.path.abspath(__file__))

# As docs/reference/deep_ep.md has them.
STREAMS = "previous_event=None, async_finish=False, allocate_on_comm_stream=False"
DISPATCH = (
    "x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None, "
    "num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, num_worst_tokens=0, "
    "config=None, " + STREAMS
)
COMBINE = "x, handle, topk_weights=None, bias=None, config=None, " + STREAMS
SURFACE = {
    "__init__": "group=None, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24, "
    "allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False, use_fabric=False, explicitly_destroy=False, "
    "enable_shrink=False, comm=None, num_nvl_peers=None",
    "set_num_sms": "new_num_sms",
    "get_dispatch_config": "num_ranks",
    "get_combine_config": "num_ranks",
    "get_low_latency_rdma_size_hint": "num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts",
    "capture": "",
    "is_sm90_compiled": "",
    "get_comm_stream": "",
    "get_local_buffer_tensor": "dtype, size=None, offset=0, use_rdma_buffer=False",
    "destroy": "",
    "get_dispatch_layout": "topk_idx, num_experts, " + STREAMS,
    "dispatch": DISPATCH,
    "combine": COMBINE,
    "internode_dispatch": DISPATCH,
    "internode_combine": COMBINE,
    "clean_low_latency_buffer": "num_max_dispatch_tokens_per_rank, hidden, num_experts",
    "low_latency_dispatch": "x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, "
    "cumulative_local_expert_recv_stats=None, dispatch_wait_recv_cost_stats=None, use_fp8=True, round_scale=False, "
    "use_ue8m0=False, async_finish=False, return_recv_hook=False, use_nvfp4=False, x_global_scale=None, "
    "topk_weights=None, use_ue8m0_for_sf=False",
    "low_latency_combine": "x, topk_idx, topk_weights, handle, use_logfmt=False, zero_copy=False, async_finish=False, "
    "return_recv_hook=False, out=None, combine_wait_recv_cost_stats=None, overlap=False, packed_recv_count=None, "
    "comp_signal=None, block_m=64, threshold=0, num_sms=None, src_signals=None, src_signal_expect_value=0",
    "get_next_low_latency_combine_buffer": "handle",
    "low_latency_update_mask_buffer": "rank_to_mask, mask=False",
    "low_latency_query_mask_buffer": "mask_status",
    "low_latency_clean_mask_buffer": "",
}
STATIC = {
    "set_num_sms",
    "get_dispatch_config",
    "get_combine_config",
    "get_low_latency_rdma_size_hint",
    "capture",
    "is_sm90_compiled",
}


def arguments_of(function: Any) -> str:
    given = []
    for each in inspect.signature(function).parameters.values():
        if each.name != "self":
            assert each.kind == each.POSITIONAL_OR_KEYWORD
            given.append(each.name if each.default is each.empty else f"{each.name}={each.default!r}")
    return ", ".join(given)


def _rail_bytes(row_bytes: int, size: int) -> int:
    """Bytes of a buffer for the network, with K 32 of 256 experts or more, on nodes of eight ranks."""
    limits = dict(max_row_bytes=row_bytes, max_topk=32, max_experts=max(-(-256 // size) * size, size))
    needed = expar.Buffer.bytes_needed
    return needed(size, ranks_per_node=8, **limits) - needed(size, **limits)


class Surface(unittest.TestCase):
    def test_names_and_arguments(self) -> None:
        for name, wanted in SURFACE.items():
            self.assertEqual(arguments_of(getattr(deep_ep.Buffer, name)), wanted, name)
            self.assertEqual(isinstance(inspect.getattr_static(deep_ep.Buffer, name), staticmethod), name in STATIC)
        self.assertEqual(
            arguments_of(deep_ep.Config),
            "num_sms=20, num_max_nvl_chunked_send_tokens=6, num_max_nvl_chunked_recv_tokens=256, "
            "num_max_rdma_chunked_send_tokens=6, num_max_rdma_chunked_recv_tokens=256",
        )
        self.assertEqual(arguments_of(deep_ep.Config.get_nvl_buffer_size_hint), "hidden_bytes, num_ranks")
        self.assertEqual(arguments_of(deep_ep.Config.get_rdma_buffer_size_hint), "hidden_bytes, num_ranks")
        self.assertEqual(arguments_of(deep_ep.EventHandle), "")
        self.assertEqual(arguments_of(deep_ep.EventOverlap), "event=None, extra_tensors=None")
        self.assertEqual(deep_ep.topk_idx_t, torch.int64)
        self.assertIsInstance(deep_ep.__version__, str)
        from deep_ep.utils import EventHandle, EventOverlap, check_nvlink_connections

        self.assertIs(EventHandle, deep_ep.EventHandle)
        self.assertIs(EventOverlap, deep_ep.EventOverlap)
        check_nvlink_connections(None)

    def test_attributes(self) -> None:
        comm = FakeComm(1).rank(0)
        buffer = deep_ep.Buffer(None, 256, 512, num_qps_per_rank=7, comm=comm)
        self.assertIs(buffer.group, comm)
        for name, value in dict(
            rank=0,
            group_size=1,
            num_nvl_bytes=256,
            num_rdma_bytes=512,
            low_latency_mode=False,
            num_qps_per_rank=7,
            explicitly_destroy=False,
            enable_shrink=False,
            num_sms=20,
        ).items():
            self.assertEqual(getattr(buffer, name), value, name)
        self.assertEqual(buffer.runtime.get_num_rdma_ranks(), 1)
        self.assertEqual(buffer.runtime.get_rdma_rank(), 0)
        self.assertIs(buffer.runtime.is_available(), True)
        self.assertIs(buffer.is_sm90_compiled(), True)
        for size in (1, 2, 3, 8, 144, 1000):
            for config in (buffer.get_dispatch_config(size), buffer.get_combine_config(size)):
                self.assertEqual(config.num_sms, 20)
                self.assertGreaterEqual(config.get_nvl_buffer_size_hint(7168 * 2, size), 0)
                across = config.get_rdma_buffer_size_hint(7168 * 2, size)
                self.assertEqual(across > 0, size in (144, 1000))  # of nodes of eight
                self.assertEqual(across, _rail_bytes(7168 * 2, size) if across else 0)
        few = deep_ep.Buffer.get_low_latency_rdma_size_hint(16, 128, 8, 64)
        self.assertGreater(few, 0)
        self.assertGreater(deep_ep.Buffer.get_low_latency_rdma_size_hint(32, 128, 8, 64), few)
        self.assertIn("max_tokens", said(RuntimeError, lambda: buffer.get_low_latency_rdma_size_hint(-1, 128, 8, 64)))

    def test_number_of_sms(self) -> None:
        """It acts on the next call, wherever it was set, where there are cores for as many threads."""
        buffer = alone()
        buffer._max_threads = 64
        self.assertEqual(buffer._workers(None, _place.CPU), 20)
        try:
            deep_ep.Buffer.set_num_sms(24)
            self.assertEqual((buffer._workers(None, _place.CPU), buffer.get_dispatch_config(1).num_sms), (24, 24))
        finally:
            deep_ep.Buffer.set_num_sms(20)
        buffer.num_sms = 4
        self.assertEqual(buffer._workers(None, _place.CPU), 4)
        self.assertEqual(buffer._workers(deep_ep.Config(6), _place.CPU), 6)
        buffer._max_threads = 6
        self.assertEqual(buffer._workers(deep_ep.Config(6), _place.CPU), 0)
        self.assertIn("expected an even number", said(AssertionError, lambda: deep_ep.Buffer.set_num_sms(3)))

    def test_configs_of_no_ranks(self) -> None:
        for wrong in (0, "two", None):
            with self.assertRaisesRegex(AssertionError, f"num_ranks is {wrong!r}: expected 1 or more"):
                deep_ep.Buffer.get_dispatch_config(wrong)

    def test_local_memory(self) -> None:
        buffer = alone(num_nvl_bytes=1024, num_rdma_bytes=256)
        whole = buffer.get_local_buffer_tensor(torch.uint8)
        self.assertEqual((whole.shape, int(whole.sum())), ((1024,), 0))
        part = buffer.get_local_buffer_tensor(torch.bfloat16, torch.Size([3, 5]), 64)
        self.assertEqual((part.shape, part.dtype, part.data_ptr()), ((3, 5), torch.bfloat16, whole.data_ptr() + 64))
        self.assertEqual(buffer.get_local_buffer_tensor(torch.int32, use_rdma_buffer=True).shape, (64,))
        traffic = Traffic(Shape(1, 2, 2, 32, 20), 3)
        handle = fresh(buffer, traffic)[4]
        whole.zero_()
        same(buffer.combine(traffic.answer(0, traffic.x[0][traffic.goes_to(0, 0)]), handle)[0], traffic.combined(0)[0])
        for wrong in (
            lambda: buffer.get_local_buffer_tensor(torch.int32, torch.Size([257])),
            lambda: buffer.get_local_buffer_tensor(torch.int32, offset=2),
            lambda: buffer.get_local_buffer_tensor(torch.int32, offset=1028),
        ):
            said(AssertionError, wrong)

    def test_events(self) -> None:
        with deep_ep.Buffer.capture() as event:
            self.assertIsInstance(event.event, deep_ep.EventHandle)
        event.current_stream_wait()
        nothing = deep_ep.EventOverlap()
        self.assertIsNone(nothing.event)
        with nothing:
            pass
        self.assertIn("no event", said(AssertionError, nothing.current_stream_wait))
        self.assertEqual(deep_ep.EventOverlap(None, (1,)).extra_tensors, (1,))
        buffer, idx = alone(), torch.zeros((1, 1), dtype=torch.int64)
        for given in (nothing, types.SimpleNamespace(event=None), types.SimpleNamespace(event=deep_ep.EventHandle())):
            self.assertEqual(buffer.get_dispatch_layout(idx, 2, given)[0].tolist(), [1])  # an engine's own, too
        for wrong, text in ((3, "is of type int"), (types.SimpleNamespace(event=3), "event is of type int")):
            self.assertIn(text, said(AssertionError, lambda: buffer.get_dispatch_layout(idx, 2, wrong)))
        with torch.cuda.stream(alone().get_comm_stream()):
            pass


class Defaults(unittest.TestCase):
    def test_of_torch(self) -> None:
        """PyTorch's default types do not matter to calls."""
        buffer, traffic = alone(), Traffic(Shape(1, 4, 2, 64, 9), 8)
        batch = ll_traffic(buffer, 5)
        elastic = deep_ep.ElasticBuffer(FakeComm(1).rank(0), num_max_tokens_per_rank=16, hidden=64)
        x, idx, weights = traffic.x[0].bfloat16(), traffic.topk_idx[0], traffic.weights[0]

        def results() -> list[Any]:
            rows, local, gates, counts, handle, _ = fresh(buffer, traffic, num_worst_tokens=20)
            y, sums, _ = buffer.combine(rows, handle, gates)
            given = batch.x[0], batch.topk_idx[0]
            coded = buffer.low_latency_dispatch(*given, BATCH, batch.shape.experts)
            plain, count, sent, _, _ = buffer.low_latency_dispatch(*given, BATCH, batch.shape.experts, use_fp8=False)
            summed = buffer.low_latency_combine(plain, batch.topk_idx[0], batch.weights[0], sent)[0]
            here, here_idx, here_gates, way, _ = elastic.dispatch(x, idx, weights, num_experts=4)
            back, back_gates, _ = elastic.combine(here, way, here_gates)
            many = len(traffic.received(0)[0])
            made = [rows[:many], local, gates[:many], *handle, y, sums, count, coded[1], summed]
            made += [here, here_idx, here_gates, back, back_gates, way.recv_src_metadata]
            return made + [*coded[0]]

        wanted = results()
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        try:
            found = results()
        finally:
            torch.set_default_device(None)
            torch.set_default_dtype(torch.float32)
        for one, other in zip(found[:-2], wanted[:-2]):
            same(one, other)
        for one, other in zip(found[-2:], wanted[-2:]):  # rows of which some are nobody's
            self.assertEqual((one.shape, one.dtype, one.device), (other.shape, other.dtype, other.device))


def near(hint: int, taken: int) -> None:
    """A hint is no less than what is taken, and not much more."""
    assert taken <= hint <= 1.25 * taken + (64 << 20), (hint, taken)


class Nodes(unittest.TestCase):
    def test_layout(self) -> None:
        """On two simulated nodes a token counts once for each that it goes to."""
        traffic = Traffic(Shape(4, 8, 3, 8, 20), 4)

        def body(group: expar.Group) -> None:
            idx = traffic.topk_idx[group.rank]
            found = _normal_forms.LayoutForm(group, idx, 8).layout(idx, None, False, alike=False)
            per_rank, per_expert, in_rank = traffic.layout(group.rank)
            for one, other in zip(found, (per_rank, in_rank.view(-1, 2, 2).any(2).sum(0).int(), per_expert, in_rank)):
                same(one, other)

        ranks.on_threads(4, body, ranks_per_node=2)

    def test_calls(self) -> None:
        """Dispatch, also with a handle, combine and low latency, in buffers that come to larger calls;
        deep_ep_ranks.py has what handles go through on two nodes."""
        few = functools.partial(normal, number=4), functools.partial(low_latency, number=3)
        ranks.on_threads(4, in_turn, (pairs, by_hand, micro_batches, masks, *few), ranks_per_node=2)
        fewer = functools.partial(normal, number=2), functools.partial(low_latency, number=1)
        ranks.on_threads(8, in_turn, fewer, ranks_per_node=4)


class Sizes(unittest.TestCase):
    def test_normal(self) -> None:
        """Calls take so much beside their results, with as many rows as there can be."""

        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm)
            size, hidden = buffer.group_size, 2048
            x = torch.ones((64, hidden), dtype=torch.bfloat16)
            idx = torch.arange(2 * size).repeat(64, 1)
            per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, 2 * size)
            rows, _, _, _, handle, _ = buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, idx)
            buffer.combine(rows, handle)
            taken = buffer._at(_place.CPU)[0].ep.stats()
            config = buffer.get_dispatch_config(size)
            near(config.get_nvl_buffer_size_hint(2 * hidden, size), taken["group_used_bytes"] - taken["used_bytes"])

        for size in (1, 4):
            on_threads(size, body)

    def test_low_latency(self) -> None:
        """Hints are of the largest top-k that exists, which they are not told; taken is what the largest so far
        needs."""

        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm, low_latency_mode=True)
            for tokens, hidden, experts in ((128, 4096, 16), (8, 128, 64)):
                hint = buffer.get_low_latency_rdma_size_hint(tokens, hidden, 2, experts)
                x = torch.ones((1, hidden), dtype=torch.bfloat16)
                for topk, largest in ((2, 2), (8, 8), (4, 8), (min(experts, 32),) * 2):
                    buffer.low_latency_dispatch(x, torch.arange(topk)[None], tokens, experts)
                    taken = buffer._at(_place.CPU)[1].buffers()[-1].stats()["heap_bytes"]
                    needed = expar.LowLatencyBuffer.bytes_needed(2, tokens, hidden, largest, experts)
                    self.assertEqual(taken, needed)
                near(hint, taken)
            self.assertEqual(len(buffer._at(_place.CPU)[1].buffers()), 2)  # smaller ones have gone

        on_threads(2, body)


class Ranks(unittest.TestCase):
    def test_torchrun(self) -> None:
        """Groups of 2, 4 and 8 among its ranks; see there."""
        ended = ranks.torchrun(8, os.path.join(HERE, "deep_ep_ranks.py"))
        self.assertEqual(ended.returncode, 0, ended.stdout)
        for rank in range(8):
            self.assertIn(f"rank {rank} is through", ended.stdout)


class Wrong(unittest.TestCase):
    def test_arguments(self) -> None:
        """Everything that Python sees alone; nobody else has to be there."""
        buffer = alone()
        traffic = Traffic(Shape(1, 2, 1, 64, 6), 1)
        x, idx, weights = traffic.x[0], traffic.topk_idx[0], traffic.weights[0]
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, 2)
        rows, _, _, _, handle, _ = fresh(buffer, traffic)
        given = dict(num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert)
        ll = buffer.low_latency_dispatch(x.bfloat16(), idx, 8, 2, use_fp8=False)
        for call, text in (
            (lambda: buffer.dispatch(x), "without a handle"),
            (lambda: buffer.dispatch(x, handle=handle, topk_idx=idx), "do not go with a handle"),
            (lambda: buffer.dispatch(x, handle=(1, 2)), "expected the tuple"),
            (lambda: buffer.dispatch(x, handle=tuple(each.clone() for each in handle)), "made by a dispatch"),
            (lambda: buffer.combine(rows, None), "expected the tuple"),
            (lambda: buffer.dispatch(x, **given, topk_weights=weights), "needs topk_idx"),
            (lambda: buffer.dispatch(x, **given, num_worst_tokens=4), "needs topk_idx"),
            (lambda: buffer.dispatch(x, **{**given, "num_tokens_per_expert": per_expert.long()}), "contiguous int32"),
            (lambda: buffer.dispatch((x,), **given), "expected rows and scales"),
            (lambda: buffer.dispatch((x, None), **given), "x[1] is None: expected scales"),
            (lambda: buffer.dispatch(x, **{**given, "num_tokens_per_expert": [6, 6]}), "of type list: expected a tensor"),
            (lambda: buffer.dispatch(x, **given, topk_idx=[[1]]), "topk_idx is of type list: expected a tensor"),
            (
                lambda: buffer.dispatch(x, **given, topk_idx=idx, topk_weights=7.5),
                "topk_weights is of type float: expected a tensor",
            ),
            (
                lambda: buffer.dispatch(x, **{**given, "is_token_in_rank": [True]}, topk_idx=idx),
                "is_token_in_rank is of type list: expected a tensor",
            ),
            # This has the form of a call that has been made, but for one thing.
            (
                lambda: buffer.dispatch(x, **{**given, "num_tokens_per_rank": None}, topk_idx=idx, topk_weights=weights),
                "without a handle",
            ),
            (
                lambda: buffer.dispatch(x, **given, topk_idx=idx, topk_weights=weights, expert_alignment=1.0),
                "expert_alignment is 1.0: expected a whole number",
            ),
            (lambda: buffer.low_latency_dispatch(x, None, 8, 2), "topk_idx is of type NoneType: expected a tensor"),
            (lambda: buffer.low_latency_dispatch(x, [[1]], 8, 2), "topk_idx is of type list: expected a tensor"),
            (lambda: buffer.dispatch(x, handle=handle[:5]), "has 5 items: expected the tuple"),
            (lambda: buffer.get_local_buffer_tensor(torch.int8, 3), "size is 3: expected a torch.Size"),
            (lambda: buffer.dispatch([1], **given), "x is of type list: expected a tensor"),
            (lambda: buffer.dispatch(x, **given, allocate_on_comm_stream=True), "needs previous_event"),
            (lambda: buffer.dispatch(x, **given, previous_event=7), "expected an EventOverlap"),
            (lambda: buffer.combine(rows, handle, bias=(x, x, x)), "at most 2"),
            (buffer.destroy, "explicitly_destroy"),
            (lambda: buffer.low_latency_update_mask_buffer(0, True), "enable_shrink"),
            (buffer.low_latency_clean_mask_buffer, "enable_shrink"),
            (lambda: buffer.low_latency_query_mask_buffer(per_rank), "enable_shrink"),
            (lambda: buffer.low_latency_dispatch(x, idx, 8, 2, use_ue8m0=True), "needs round_scale"),
            (
                lambda: buffer.low_latency_dispatch(x, idx, 8, 2, async_finish=True, return_recv_hook=True),
                "do not go together",
            ),
            (lambda: buffer.low_latency_combine(ll[0], idx, weights, handle), "low_latency_dispatch gave"),
            (lambda: buffer.low_latency_combine(ll[0], idx, weights, ll[2], zero_copy=True), "there are no rows"),
            (
                lambda: buffer.low_latency_combine(ll[0], idx, weights, ll[2], use_logfmt=True, zero_copy=True),
                "does not go with",
            ),
        ):
            self.assertIn(text, said(AssertionError, call))
        said(ValueError, deep_ep.Buffer)
        same(buffer.combine(rows, handle)[0], x * (idx >= 0).any(1, keepdim=True))

    def test_what_is_not_there(self) -> None:
        buffer = alone()
        x, idx = torch.zeros((2, 128), dtype=torch.bfloat16), torch.zeros((2, 1), dtype=torch.int64)
        text = said(RuntimeError, lambda: buffer.low_latency_dispatch(x, idx, 8, 2, use_ue8m0_for_sf=True))
        self.assertRegex(text, "^use_ue8m0_for_sf is True: expected False")
        meta = torch.empty((2, 128), device="meta")
        counts = torch.zeros(1, dtype=torch.int32)
        text = said(RuntimeError, lambda: buffer.dispatch(meta, None, idx, None, idx, counts))
        self.assertRegex(text, "^x lies on meta: expected a tensor on the CPU or on a GPU of CUDA's")
        self.assertRegex(said(RuntimeError, lambda: buffer.get_dispatch_layout(meta, 2)), "^topk_idx lies on meta")

    def test_what_the_library_reports(self) -> None:
        """The others learn of it, and the buffer stays usable."""

        def body(comm: Any) -> None:
            buffer = deep_ep.Buffer(comm=comm)
            traffic = Traffic(Shape(2, 4, 2, 64, 9), 8)
            for wrong, text in (
                (dict(topk_weights=torch.zeros((1, 1))), "topk_weights"),
                (dict(x=traffic.x[0][:, :7]), "16"),
                (dict(x=traffic.x[0].double()), "x.dtype is f64; expected bf16"),
                (dict(topk_idx=traffic.topk_idx[0].short()), "topk_idx.dtype is i16; expected i64 or i32"),
                (dict(topk_weights=traffic.weights[0].cfloat()), "topk_weights.dtype is c64; expected f32"),
                (dict(topk_idx=traffic.topk_idx[0].float()), "topk_idx.dtype is f32; expected i64 or i32"),
            ):
                options = wrong if buffer.rank == 0 else {}
                heard = said(RuntimeError, lambda: fresh(buffer, traffic, **options))
                self.assertIn(text if buffer.rank == 0 else "rank 0", heard)
                rows, _, _, _, handle, _ = fresh(buffer, traffic)
                same(buffer.combine(traffic.answer(buffer.rank, rows), handle)[0], traffic.combined(buffer.rank)[0])
            ended = said(RuntimeError, lambda: buffer.get_dispatch_layout(torch.full((1, 1), 4), 4))
            self.assertIn("EXPAR_ERR_INDEX", ended)
            worst = 1
            heard = said(RuntimeError, lambda: fresh(buffer, traffic, num_worst_tokens=worst))
            self.assertIn("EXPAR_ERR_DROPPED", heard)

        on_threads(2, body)


if __name__ == "__main__":
    gc.freeze()  # of PyTorch there is much, and none of it goes
    unittest.main()
