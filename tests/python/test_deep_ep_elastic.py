# SPDX-License-Identifier: Apache-2.0
"""deep_ep.ElasticBuffer: every combination of options against references, wrong use, and ends in every order."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import threading
import pickle
import time
import unittest
import warnings
from typing import Any, Callable
from unittest import mock

import torch
from deep_ep_elastic_calls import (
    HINTS, Options, across_nodes, barriers, chains, check_rows, combinations, combine, dispatch, exchange, gathered, held_back,
    overwritten, too_many_tokens, without_tokens,
)
from deep_ep_elastic_layer import dense, layer, step
from deep_ep_elastic_reference import Elastic, World
from deep_ep_reference import same
from deep_ep_silence import told
from deep_ep_threads import in_turn, on_threads, said
from test_deep_ep import arguments_of
from test_python_group import FakeComm

import deep_ep
import expar
import ranks
from deep_ep import _handles, _place, operators
from deep_ep._elastic_sizes import group_for

silence: Any = None  # two ranks, while this process has not used the library


def setUpModule() -> None:
    global silence
    silence = ranks.Forks(lambda comm: told(comm, num_cpu_timeout_secs=3))


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


class Combinations(unittest.TestCase):
    def test_all(self) -> None:
        on_ranks(4, combinations)

    def test_nodes(self) -> None:
        """On two simulated nodes."""
        ranks.on_threads(4, in_turn, (across_nodes,), ranks_per_node=2)


SURFACE = {
    "__init__": "group, num_bytes=None, num_cpu_bytes=0, num_max_tokens_per_rank=0, hidden=0, num_topk=0, "
    "use_fp8_dispatch=False, deterministic=False, allow_hybrid_mode=True, allow_multiple_reduction=True, "
    "prefer_overlap_with_compute=True, sl_idx=3, num_allocated_qps=0, num_cpu_timeout_secs=300, "
    "num_gpu_timeout_secs=100, explicitly_destroy=False",
    "get_buffer_size_hint": "group, num_max_tokens_per_rank, hidden, num_topk=0, use_fp8_dispatch=False, "
    "allow_hybrid_mode=True, allow_multiple_reduction=True",
    "capture": "",
    "get_comm_stream": "",
    "barrier": "use_comm_stream=True, with_cpu_sync=False, sequential=True",
    "get_theoretical_num_sms": "num_experts, num_topk, num_scaleout_topk=0, rdma_gbs=0, nvlink_gbs=0, "
    "sm_read_gbs=200, sm_write_gbs=50",
    "get_theoretical_num_qps": "num_sms",
    "get_physical_domain_size": "",
    "get_logical_domain_size": "",
    "destroy": "",
    "dispatch": "x, topk_idx=None, topk_weights=None, cumulative_local_expert_recv_stats=None, num_experts=None, "
    "num_max_tokens_per_rank=None, expert_alignment=None, num_sms=0, num_qps=0, previous_event=None, "
    "previous_event_before_epilogue=None, async_with_compute_stream=False, allocate_on_comm_stream=False, "
    "handle=None, do_handle_copy=True, do_cpu_sync=None, do_expand=False, do_zero_padding=False, "
    "use_tma_aligned_col_major_sf=False",
    "combine": "x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0, previous_event=None, "
    "previous_event_before_epilogue=None, async_with_compute_stream=False, allocate_on_comm_stream=False",
}
MISSING = (
    "get_agrs_num_max_session_bytes get_agrs_buffer_size_hint agrs_set_config create_agrs_session "
    "destroy_agrs_session agrs_new_session agrs_get_inplace_tensor all_gather get_pp_buffer_size_hint pp_set_config "
    "pp_send pp_recv get_engram_storage_size_hint engram_write engram_fetch"
).split()


def alone(**options: Any) -> Any:
    return deep_ep.ElasticBuffer(FakeComm(1).rank(0), **{**HINTS, **options})


class Surface(unittest.TestCase):
    def test_names_and_arguments(self) -> None:
        for name, wanted in SURFACE.items():
            self.assertEqual(arguments_of(getattr(deep_ep.ElasticBuffer, name)), wanted, name)
        self.assertEqual(deep_ep.__version__, "2.1.0")
        wanted = "group_or_buffer=None, allow_hybrid_mode=None, group=None"
        self.assertEqual(arguments_of(deep_ep.get_logical_domain_size), wanted)
        from deep_ep.buffers.elastic import ElasticBuffer

        self.assertIs(ElasticBuffer, deep_ep.ElasticBuffer)

    def test_what_is_not_there(self) -> None:
        buffer = alone()
        for name in MISSING:
            with self.assertRaisesRegex(NotImplementedError, f"^{name} is not there: expar has no .*; .*"):
                getattr(buffer, name)(1, two=2)
            with self.assertRaises(NotImplementedError):
                getattr(deep_ep.ElasticBuffer, name)(buffer)

    @mock.patch.object(deep_ep._elastic_sizes, "_has_mt4131", lambda: False)
    def test_attributes(self) -> None:
        comm = FakeComm(1).rank(0)
        buffer = deep_ep.ElasticBuffer(comm, 4 << 20, 7, 5, deterministic=True, sl_idx=1)
        self.assertIs(buffer.group, comm)
        wanted = dict(rank_idx=0, num_ranks=1, num_bytes=4 << 20, num_cpu_bytes=7, num_max_tokens_per_rank=5)
        wanted.update(deterministic=True, allow_hybrid_mode=True, allow_multiple_reduction=True, sl_idx=1)
        wanted.update(prefer_overlap_with_compute=True, explicitly_destroy=False, num_allocated_qps=129)
        wanted.update(num_rdma_ranks=1, num_nvlink_ranks=1, num_scaleout_ranks=1, num_scaleup_ranks=1)
        wanted.update(scaleout_rank_idx=0, scaleup_rank_idx=0, num_cpu_timeout_secs=300, num_gpu_timeout_secs=100)
        for name, value in wanted.items():
            self.assertEqual(getattr(buffer, name), value, name)
        self.assertIsNotNone(buffer.runtime)
        self.assertEqual(buffer.get_physical_domain_size(), (1, 1))
        self.assertEqual(deep_ep.get_logical_domain_size(comm, False), (1, 1))
        self.assertEqual(deep_ep.get_physical_domain_size(comm), (1, 1))
        self.assertIsInstance(buffer.capture(), deep_ep.EventHandle)
        self.assertIs(buffer.get_comm_stream(), alone().get_comm_stream())
        buffer.barrier(False, True, False)
        self.assertEqual(alone(num_allocated_qps=3).get_theoretical_num_qps(24), 3)
        self.assertEqual([buffer.get_theoretical_num_qps(n) for n in (4, 24)], [65, 129])
        said(TypeError, lambda: deep_ep.ElasticBuffer(7, 2 << 20))
        for wrong in (0, -(2 << 20), 3 << 20):
            self.assertIn("multiple of 2 MiB", said(RuntimeError, lambda: alone(num_bytes=wrong)))
        self.assertIn("or num_bytes", said(RuntimeError, lambda: alone(hidden=0)))

    def test_sizes(self) -> None:
        hint, comm = deep_ep.ElasticBuffer.get_buffer_size_hint, FakeComm(8).rank(0)
        found = [hint(comm, *shape) for shape in itertools.product((1, 9, 4096), (128, 7168), (1, 9))]
        self.assertTrue(all(each > 0 and each % (2 << 20) == 0 for each in found))
        self.assertGreaterEqual(hint(comm, 4096, 7168), 8 * 4096 * 7168 * 2)
        self.assertEqual(hint(comm, 4096, 7168), hint(comm, 4096, 7168, 32))
        for one, other in (((64, 256), (65, 256)), ((64, 256), (64, 512)), ((64, 256, 2), (64, 256, 8))):
            self.assertLessEqual(hint(comm, *one), hint(comm, *other))
        begin = time.perf_counter()
        for _ in range(1000):
            hint(comm, 4096, 7168, 8)
        self.assertLess(time.perf_counter() - begin, 5)  # 10 us each on a machine of one's own

    def test_sizes_taken(self) -> None:
        """A hint is what results take where all tokens go to all ranks, and not much more."""

        def body(comm: Any) -> None:
            tokens, hidden, topk = 512, 7168, 4
            hint = deep_ep.ElasticBuffer.get_buffer_size_hint(comm, tokens, hidden, topk)
            buffer = deep_ep.ElasticBuffer(comm, hint, num_max_tokens_per_rank=tokens)
            x, idx = torch.zeros((tokens, hidden), dtype=torch.bfloat16), torch.arange(topk).repeat(tokens, 1)
            rows, _, weights, handle, _ = buffer.dispatch(x, idx, torch.ones(idx.shape), num_experts=topk)
            y, sums, _ = buffer.combine(rows, handle, weights)
            taken = buffer._at(_place.CPU).ep.stats()["used_high_bytes"]
            self.assertTrue(taken <= hint <= 1.25 * taken + (64 << 20), (hint, taken))

        on_ranks(2, body)

    def test_number_of_sms(self) -> None:
        buffer, busy = alone(), alone(prefer_overlap_with_compute=False)
        for experts, topk in ((1, 1), (64, 8), (256, 8)):
            number = buffer.get_theoretical_num_sms(experts, topk)
            self.assertTrue(number >= 4 and number % 2 == 0, number)
            self.assertGreaterEqual(busy.get_theoretical_num_sms(experts, topk), 64)
        of = deep_ep._elastic_sizes.theoretical_num_sms
        fast, slow = (of(1, 8, 256, 8, 0, 0, gbs, 200, 50, True, None) for gbs in (450, 100))
        self.assertGreater(fast, slow)
        self.assertEqual(of(1, 8, 256, 8, 0, 0, 4500, 200, 50, True, 79), 78)
        self.assertEqual(of(1, 1, 256, 8, 0, 0, 0, 200, 50, True, None), 24)  # no link is the limit
        with self.assertRaisesRegex(AssertionError, "num_experts is 9"):
            of(1, 8, 9, 8, 0, 0, 0, 200, 50, True, None)


class Calls(unittest.TestCase):
    def test_handles(self) -> None:
        """With the caller's index or a copy, sliced, set anew, and on later buffers."""

        def body(comm: Any) -> None:
            buffer, e = deep_ep.ElasticBuffer(comm, **HINTS), Elastic(World(2, 4, 3, 32, 6, 2), 4)
            rank = buffer.rank_idx
            for expand in (False, True):
                options = Options(expand, synced=False)
                _, _, handle = dispatch(buffer, e, options, do_handle_copy=False)
                assert handle.topk_idx.data_ptr() == e.topk_idx[rank].data_ptr()
                _, _, other = dispatch(buffer, e, options)
                assert other.topk_idx.data_ptr() != e.topk_idx[rank].data_ptr()
                same(handle.dst_buffer_slot_idx, other.dst_buffer_slot_idx)
                rows = len(e.plain(rank))
                handle.recv_src_metadata = handle.recv_src_metadata[:rows].clone()
                later = deep_ep.ElasticBuffer(comm, **HINTS)
                answers = [e.answers(r, len(e.expanded(r) if expand else e.plain(r)), 9) for r in range(2)]
                y = later.combine(answers[rank], handle)[0]
                same(y, e.combined(rank, answers, expand, True, ()))
                del buffer
                buffer = later
                combine(buffer, e, options, other, 3)
                if expand:  # only rows that are named
                    last = max(e.ends(rank, True), default=0)
                    y = buffer.combine(answers[rank][:last].contiguous(), handle)[0]
                    same(y, e.combined(rank, answers, expand, True, ()))

        on_ranks(2, body)

    def test_copied_handles(self) -> None:
        """Copies share the routing, whichever goes first; other processes have no use for it."""
        buffer, e = alone(), Elastic(World(1, 2, 2, 32, 8), 3)
        rows, _, _, handle, _ = buffer.dispatch(e.x[0], e.topk_idx[0], num_experts=2)
        wanted = buffer.combine(rows, handle)[0]
        copy.deepcopy(handle)  # and goes
        shallow, deep = copy.copy(handle), copy.deepcopy(handle)
        with self.assertRaisesRegex(TypeError, "cannot pickle deep_ep.Handle, which belongs to this process: send topk_idx"):
            pickle.dumps(handle)
        same(deep.recv_src_metadata, handle.recv_src_metadata)
        del handle
        for each in (shallow, deep):
            same(buffer.combine(rows, each)[0], wanted)
        assert isinstance(shallow._routing, _handles.Handle) and deep._routing is shallow._routing

    def test_events_without_one(self) -> None:
        """An EventOverlap that has none is nothing to wait for, and needs nothing else."""
        buffer, e = alone(), Elastic(World(1, 2, 2, 32, 8), 3)
        none = deep_ep.EventOverlap()
        rows, _, _, handle, _ = buffer.dispatch(e.x[0], e.topk_idx[0], num_experts=2, previous_event=none)
        same(buffer.combine(rows, handle, previous_event=none)[0], buffer.combine(rows, handle)[0])

    def test_other_rows(self) -> None:
        """A handle carries rows of another length, and scales of another number and type; so does its combine."""

        def body(comm: Any) -> None:
            buffer, e = deep_ep.ElasticBuffer(comm, **HINTS), Elastic(World(2, 4, 3, 32, 9, 4), 10)
            rank = buffer.rank_idx
            wide = [torch.arange(96 * n).view(n, 96).bfloat16() + r for r, n in enumerate(e.tokens)]
            packed = [torch.arange(5 * n, dtype=torch.int32).view(5, n).t() + 999 * r for r, n in enumerate(e.tokens)]
            for expand, synced in itertools.product((False, True), repeat=2):
                _, _, handle = dispatch(buffer, e, Options(expand, synced))
                rows = e.expanded(rank) if expand else e.plain(rank)
                here = [place for place, row in enumerate(rows) if row is not None]
                given = (wide[rank].to(torch.float8_e4m3fn), packed[rank])
                (x, scales), *_ = buffer.dispatch(given, handle=handle, do_expand=expand)
                found = gathered(packed, [rows[place] for place in here])
                same(scales[here], found)
                x, *_ = buffer.dispatch(wide[rank], handle=handle, do_expand=expand)
                same(x[here], gathered(wide, [rows[place] for place in here]))
                y = buffer.combine(torch.ones_like(x), handle)[0]
                idx = e.topk_idx[rank]
                owners = [[r for r in (row // 2).tolist() if r >= 0] for row in idx]
                sums = [float(len(each) if expand else len(set(each))) for each in owners]
                same(y, torch.tensor(sums).bfloat16()[:, None].expand(-1, 96))

        on_ranks(2, body)

    def test_chains(self) -> None:
        on_ranks(2, chains)

    def test_overwritten(self) -> None:
        on_ranks(2, overwritten)

    def test_barriers(self) -> None:
        on_ranks(2, barriers)
        came = [False]

        def late(arrive: Callable[[], None]) -> None:
            time.sleep(0.03)
            arrive()

        on_ranks(2, lambda comm: held_back(comm, came, late, lambda: None))

    def test_stats(self) -> None:
        def body(comm: Any) -> None:
            buffer = deep_ep.ElasticBuffer(comm, **HINTS)
            e = Elastic(World(2, 4, 3, 32, 9, 4), 6)
            stats = torch.tensor([100, 200], dtype=torch.int32)
            for asynchronous in (False, True):
                options = Options(asynchronous=asynchronous, synced=asynchronous)
                dispatch(buffer, e, options, cumulative_local_expert_recv_stats=stats)
            same(stats, torch.tensor([100, 200], dtype=torch.int32) + 2 * torch.tensor(e.counts(buffer.rank_idx)).int())

        on_ranks(2, body)

    def test_nobody_has_tokens(self) -> None:
        for size in (1, 2, 3):
            on_ranks(size, without_tokens)
        on_ranks(3, too_many_tokens)

    def test_most_tokens_of_nobody(self) -> None:
        """Neither the call nor the buffer says how many tokens there may be."""
        buffer = deep_ep.ElasticBuffer(FakeComm(1).rank(0), 2 << 20)
        e = Elastic(World(1, 2, 2, 32, 0), 3)
        with self.assertRaisesRegex(AssertionError, "num_max_tokens_per_rank is not given: expected"):
            buffer.dispatch(e.x[0], e.topk_idx[0], num_experts=2)
        with self.assertRaisesRegex(AssertionError, "num_max_tokens_per_rank is -1: expected 0 or more"):
            buffer.dispatch(e.x[0], e.topk_idx[0], num_experts=2, num_max_tokens_per_rank=-1)


class Layer(unittest.TestCase):
    def test_training_step(self) -> None:
        """Forward and backward of a layer against the dense computation; gradients of biases go by themselves."""

        def body(comm: Any) -> None:
            buffers = [deep_ep.ElasticBuffer(comm, **HINTS, allow_multiple_reduction=on) for on in (True, False)]
            for number, (expand, synced, buffer) in enumerate(itertools.product((False, True), (False, True), buffers)):
                e = Elastic(World(4, 8, 3, 32, 11, 4), 20 + number)
                found = step(layer, operators.number_of(buffer), e, buffer.rank_idx, expand, synced)
                for one, other in zip(found, dense(e, buffer.rank_idx)):
                    torch.testing.assert_close(one.double(), other, rtol=0.03, atol=0.03)
                nobody = Elastic(World(4, 8, 3, 32, 0, 4), 5)
                for each in step(layer, operators.number_of(buffer), nobody, buffer.rank_idx, expand, synced):
                    assert not each.any(), each

        on_ranks(4, body)

    @unittest.skipIf(torch.__version__.startswith("2.4."), "PyTorch 2.4 compiles no gradients of sizes that it learns")
    def test_compiled(self) -> None:
        """With as many rows as come; deep_ep_nodes.py has several ranks, and the most rows."""
        buffer, e = alone(), Elastic(World(1, 4, 2, 32, 9, 4), 90)
        number = operators.number_of(buffer)
        eager = step(layer, number, e, 0, False, True)
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            run = torch.compile(layer, backend="aot_eager", fullgraph=True)
            for one, other in zip(step(run, number, e, 0, False, True), eager):
                same(one, other)

    def test_operators(self) -> None:
        """PyTorch's demands on an operator: schemas, fake tensors, autograd."""
        buffer, e = alone(), Elastic(World(1, 4, 2, 32, 9, 4), 3)
        number = operators.number_of(buffer)
        assert number == operators.number_of(buffer) != operators.number_of(alone())
        x, weights = e.x[0].clone().requires_grad_(), e.weights[0].clone().requires_grad_()
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        for expand in (False, True):
            given = (x, e.topk_idx[0], weights, number, 4, 9, 4, expand, False)
            torch.library.opcheck(operators._dispatch, given, test_utils=tests)
            rows, _, _, _, handle = operators.dispatch(number, x, e.topk_idx[0], weights, 4, 9, 4, expand)
            sent = rows.detach().clone().requires_grad_()
            torch.library.opcheck(operators._combine, (sent, handle, x, None, number), test_utils=tests)
        with self.assertRaisesRegex(AssertionError, "of no dispatch"):
            operators.combine(number, rows, torch.zeros_like(handle))
        with self.assertRaisesRegex(AssertionError, "buffer 0 was freed"):
            operators.combine(0, rows, handle)


class Wrong(unittest.TestCase):
    def test_use(self) -> None:
        """Errors that every rank would make alike."""
        buffer = alone(allow_multiple_reduction=False)
        e = Elastic(World(1, 2, 2, 32, 8), 3)
        x, idx, weights = e.x[0], e.topk_idx[0], e.weights[0]
        rows, _, _, handle, _ = buffer.dispatch(x, idx, weights, num_experts=2)
        expanded = buffer.dispatch(x, idx, weights, num_experts=2, do_expand=True)
        calls: Any = (
            (AssertionError, "topk_idx and num_experts", lambda: buffer.dispatch(x)),
            (RuntimeError, "topk_idx is torch.int64 ()", lambda: buffer.dispatch(x, idx[0, 0], num_experts=2)),
            (TypeError, "num_bytes is 'all': expected a whole", lambda: alone(num_bytes="all")),
            (TypeError, "hidden is 2.5: expected a whole", lambda: alone(hidden=2.5)),
            (TypeError, "gpu_timeout_secs is None: expected a number", lambda: alone(num_gpu_timeout_secs=None)),
            (TypeError, "per_rank is '4': expected a whole", lambda: alone(num_max_tokens_per_rank="4")),
            (TypeError, "num_allocated_qps is 'a': expected a whole", lambda: alone(num_allocated_qps="a")),
            (AssertionError, "num_allocated_qps is -1", lambda: alone(num_allocated_qps=-1)),
            (TypeError, "sl_idx is 3.0: expected a whole", lambda: alone(sl_idx=3.0)),
            (TypeError, "per_rank is 4.0: expected a whole", lambda: buffer.get_buffer_size_hint(buffer.group, 4.0, 32)),
            (TypeError, "hidden is '32': expected a whole", lambda: buffer.get_buffer_size_hint(buffer.group, 4, "32")),
            (RuntimeError, "per_rank is -4: expected 0", lambda: buffer.get_buffer_size_hint(buffer.group, -4, 32)),
            (TypeError, "num_experts is 'a': expected a whole", lambda: buffer.get_theoretical_num_sms("a", 1)),
            (TypeError, "num_topk is 1.0: expected a whole", lambda: buffer.get_theoretical_num_sms(2, 1.0)),
            (TypeError, "rdma_gbs is 'a': expected a number",
             lambda: buffer.get_theoretical_num_sms(2, 1, rdma_gbs="a")),
            (AssertionError, "sm_read_gbs is 0: expected more",
             lambda: buffer.get_theoretical_num_sms(2, 1, sm_read_gbs=0)),
            (TypeError, "num_sms is None: expected a whole", lambda: buffer.get_theoretical_num_qps(None)),
            (AssertionError, "does not go with a handle", lambda: buffer.dispatch(x, idx, handle=handle)),
            (AssertionError, "do_cpu_sync", lambda: buffer.dispatch(x, handle=handle, do_cpu_sync=True)),
            (AssertionError, "num_experts is 4", lambda: buffer.dispatch(x, handle=handle, num_experts=4)),
            (AssertionError, "alignment is 8", lambda: buffer.dispatch(x, handle=handle, expert_alignment=8)),
            (AssertionError, "rank is 9", lambda: buffer.dispatch(x, handle=handle, num_max_tokens_per_rank=9)),
            (AssertionError, "do_expand needs", lambda: buffer.dispatch(x, handle=handle, do_expand=True)),
            (AssertionError, "num_qps is 130", lambda: buffer.dispatch(x, idx, num_experts=2, num_qps=130)),
            (AssertionError, "num_qps is 130", lambda: buffer.combine(rows, handle, num_qps=130)),
            (AssertionError, "num_qps is -1: expected 0 or more", lambda: buffer.combine(rows, handle, num_qps=-1)),
            (AssertionError, "num_sms is -2: expected 0 or more", lambda: buffer.dispatch(x, handle=handle, num_sms=-2)),
            (TypeError, "num_sms is 'all': expected a whole", lambda: buffer.combine(rows, handle, num_sms="all")),
            (TypeError, "num_experts is 2.0: expected a whole",
             lambda: buffer.dispatch(x, idx, weights, num_experts=2.0)),
            (TypeError, "alignment is 1.5: expected a whole",
             lambda: buffer.dispatch(x, idx, num_experts=2, expert_alignment=1.5)),
            (TypeError, "per_rank is 8.0: expected a whole",
             lambda: buffer.dispatch(x, idx, num_experts=2, num_max_tokens_per_rank=8.0)),
            (AssertionError, "alignment is 0", lambda: buffer.dispatch(x, idx, num_experts=2, expert_alignment=0)),
            (AssertionError, "allow_multiple", lambda: buffer.combine(expanded[0], expanded[3], expanded[2])),
            (AssertionError, "explicitly_destroy", buffer.destroy),
            (TypeError, "x is of type list", lambda: buffer.dispatch([x], idx, num_experts=2)),
            (TypeError, "x is a tuple of 1", lambda: buffer.dispatch((x,), idx, num_experts=2)),
            (TypeError, "topk_idx is of type list", lambda: buffer.dispatch(x, [1], num_experts=2)),
            (TypeError, "handle is of type int", lambda: buffer.combine(rows, 7)),
            (TypeError, "bias is a tuple of 3", lambda: buffer.combine(rows, handle, bias=(x, x, x))),
            (TypeError, "previous_event is of type int",
             lambda: buffer.combine(rows, handle, previous_event=7, allocate_on_comm_stream=True)),
        )
        for kind, text, call in calls:
            self.assertIn(text, said(kind, call))
        no_most = deep_ep.ElasticBuffer(FakeComm(1).rank(0), 2 << 20)
        self.assertIn("num_max_tokens", said(AssertionError, lambda: no_most.dispatch(x, idx, num_experts=2)))
        same(buffer.combine(rows, handle)[0], e.combined(0, [e.x[0][(idx >= 0).any(1)]], False, True, ()))

    def test_what_the_others_learn(self) -> None:
        """A RuntimeError here, and one with this rank's number there; the buffer stays usable."""

        def body(comm: Any) -> None:
            buffer = deep_ep.ElasticBuffer(comm, **HINTS)
            e = Elastic(World(2, 4, 3, 32, 9), 7)
            rank = buffer.rank_idx
            x, idx, weights = e.x[rank], e.topk_idx[rank], e.weights[rank]
            rows, _, handle = dispatch(buffer, e, Options())
            stats = torch.zeros(2, dtype=torch.int32)
            good: dict[str, Any] = dict(x=x, topk_idx=idx, topk_weights=weights, num_experts=4)
            again: dict[str, Any] = dict(x=x, handle=handle)
            sums: dict[str, Any] = dict(x=rows, handle=handle)
            columns = torch.zeros((32, len(x)), dtype=torch.bfloat16)
            for call, base, wrong, text in (
                (buffer.dispatch, good, dict(x=torch.zeros((17, 32), dtype=torch.bfloat16)), "x has 17 tokens"),
                (buffer.dispatch, good, dict(x=x.float()), "x is torch.float32"),
                (buffer.dispatch, good, dict(x=columns.t()), "expected contiguous [T, H]"),
                (buffer.dispatch, good, dict(x=x[:, :7].contiguous()), "16"),
                (buffer.dispatch, good, dict(topk_idx=idx.int()), "topk_idx is torch.int32"),
                (buffer.dispatch, good, dict(topk_idx=idx.t().contiguous().t()), "contiguous torch.int64"),
                (buffer.dispatch, good, dict(topk_idx=idx.repeat(1, 11), topk_weights=None), "33 slots"),
                (buffer.dispatch, good, dict(topk_weights=weights.double()), "topk_weights is torch.float64"),
                (buffer.dispatch, good, dict(cumulative_local_expert_recv_stats=stats.long()), "torch.int32 (2,)"),
                (buffer.dispatch, good, dict(do_zero_padding=True), "expected do_expand"),
                (buffer.dispatch, good, dict(previous_event=buffer.capture()), "allocate_on_comm_stream"),
                (buffer.dispatch, again, dict(cumulative_local_expert_recv_stats=stats), "does not go with a handle"),
                (buffer.dispatch, again, dict(x=torch.cat((x, x[:1]))), "x"),
                (buffer.combine, sums, dict(x=torch.cat((rows, rows[:1]))), "as many as recv_src_metadata"),
                (buffer.combine, sums, dict(x=rows.float()), "x is torch.float32"),
                (buffer.combine, sums, dict(bias=x.float()), "bias is torch.float32"),
                (buffer.combine, sums, dict(topk_weights=weights[:0]), "topk_weights is"),
                (buffer.combine, sums, dict(previous_event=buffer.capture()), "allocate_on_comm_stream"),
            ):
                heard = said(RuntimeError, lambda: call(**{**base, **(wrong if rank == 0 else {})}))
                self.assertIn(text if rank == 0 else "rank 0", heard)
            exchange(buffer, e, Options(), 1)

        on_ranks(2, body)


class Ends(unittest.TestCase):
    def test_time_outs(self) -> None:
        """The first buffer of a group says how long a rank may be silent. It also says how long one that answers may
        take, where the caller names a time-out, be it the default."""
        given: list[Any] = []
        make = expar.Group.from_mpi4py

        def making(comm: Any, **options: Any) -> Any:
            given.append(options)
            return make(comm, **options)

        def body(comm: Any) -> None:
            for seconds in (7, 9):
                deep_ep.ElasticBuffer(comm, **HINTS, num_cpu_timeout_secs=seconds, num_gpu_timeout_secs=seconds)
            for seconds_of_gpus in (0.5, 100):
                alone(num_gpu_timeout_secs=seconds_of_gpus)
            alone(num_cpu_timeout_secs=300)
            for name in ("num_cpu_timeout_secs", "num_gpu_timeout_secs"):
                with self.assertRaisesRegex(AssertionError, f"{name} is 0: expected more than 0"):
                    deep_ep.ElasticBuffer(comm, **HINTS, **{name: 0})

        with mock.patch.object(expar.Group, "from_mpi4py", making), mock.patch.dict(os.environ):
            os.environ.pop("EXPAR_TIMEOUT", None)
            os.environ.pop("EXPAR_LATE_LIMIT", None)
            on_ranks(1, body)
            os.environ["EXPAR_TIMEOUT"] = os.environ["EXPAR_LATE_LIMIT"] = "8"
            alone(num_cpu_timeout_secs=7)
        usual = {"timeout_ms": 300_000}
        named = {"timeout_ms": 300_000, "late_limit_ms": 300_000}
        self.assertEqual(given, [{"timeout_ms": 7000, "late_limit_ms": 7000}, usual, usual, named, {}])

    def test_lateness(self) -> None:
        """A rank that lives and stays away is waited for as long as a named time-out says."""
        over = threading.Event()

        def body(comm: Any) -> None:
            buffer = deep_ep.ElasticBuffer(comm, **HINTS, num_cpu_timeout_secs=2)
            e = Elastic(World(2, 4, 3, 32, 9), 8)
            if buffer.rank_idx == 1:
                assert over.wait(ranks.DEADLINE_S)
                return
            try:
                heard = said(
                    RuntimeError,
                    lambda: buffer.dispatch(e.x[0], e.topk_idx[0], num_experts=4, num_max_tokens_per_rank=9),
                )
            finally:
                over.set()
            self.assertRegex(heard, r"timed out after 2000 ms \(the late limit\).*rank 1 is alive")

        with mock.patch.dict(os.environ):
            os.environ.pop("EXPAR_TIMEOUT", None)
            os.environ.pop("EXPAR_LATE_LIMIT", None)
            on_ranks(2, body)

    def test_silence(self) -> None:
        """A rank that is stopped is given up after num_cpu_timeout_secs, which are 3, and not 300."""
        self.assertEqual(silence.failure(), "")

    def test_destroy(self) -> None:
        def body(comm: Any) -> None:
            buffer, e = deep_ep.ElasticBuffer(comm, **HINTS, explicitly_destroy=True), Elastic(World(2, 4, 3, 32, 9), 8)
            rank = buffer.rank_idx
            x, _, weights, handle, event = buffer.dispatch(
                e.x[rank], e.topk_idx[rank], e.weights[rank], num_experts=4, num_max_tokens_per_rank=9, do_expand=True,
                async_with_compute_stream=True,
            )
            buffer.destroy()
            buffer.destroy()
            self.assertIsNone(buffer.runtime)
            self.assertIn("destroyed", said(AssertionError, lambda: buffer.combine(x, handle)))
            event.current_stream_wait()
            check_rows(e, rank, Options(True), x, weights)
            combine(deep_ep.ElasticBuffer(comm, **HINTS), e, Options(True), handle, 2)

        on_ranks(2, body)

    def test_without(self) -> None:
        """The collector gives a buffer up; where it was to be destroyed there is a warning."""
        for explicitly, wanted in ((False, 0), (True, 1)):
            buffer = alone(explicitly_destroy=explicitly)
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                del buffer
                gc.collect()
            self.assertEqual(sum("without destroy" in str(each.message) for each in heard), wanted)

    def test_every_order(self) -> None:
        e = Elastic(World(1, 2, 2, 32, 9), 9)
        for order in itertools.permutations(("buffer", "handle", "weights", "event")):
            buffer = alone()
            x, _, weights, handle, event = buffer.dispatch(
                e.x[0], e.topk_idx[0], e.weights[0], num_experts=2, do_expand=True, async_with_compute_stream=True
            )
            event.current_stream_wait()
            held: dict[str, Any] = dict(buffer=buffer, handle=handle, weights=weights, event=event)
            del buffer, handle, weights, event
            for name in order:
                del held[name]
                check_rows(e, 0, Options(True), x, held.get("weights"))


if __name__ == "__main__":
    unittest.main()
