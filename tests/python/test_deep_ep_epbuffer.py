# SPDX-License-Identifier: Apache-2.0
"""deep_ep.EPBuffer and what comes with it: names, every combination of options against references, deferred epilogues,
wrong use, and ends."""

from __future__ import annotations

import gc
import contextlib
import functools
import inspect
import io
import itertools
import os
import threading
import unittest
import warnings
import weakref
from typing import Any
from unittest import mock

import deep_ep_epbuffer_calls as calls
import torch
from deep_ep_elastic_calls import HINTS, Options, combine, dispatch
from deep_ep_elastic_reference import Elastic, World
from deep_ep_reference import same
from deep_ep_threads import in_turn, said
from test_deep_ep import arguments_of
from test_deep_ep_elastic import on_ranks
from test_python_group import FakeComm

import deep_ep
import ranks
from deep_ep import BufferAllocator, EPBuffer, comm
from deep_ep.buffers import allocator, base, bucket, engram, ep, pp
from deep_ep.utils import semantic

UNIT = 2 << 20
SURFACE = {
    "__init__": "group, num_bytes=None, num_max_tokens_per_rank=0, hidden=0, num_topk=0, use_fp8_dispatch=False, "
    "lb_allocation_plan_or_num_bytes=0, deterministic=False, allow_hybrid_mode=True, allow_multiple_reduction=True, "
    "prefer_overlap_with_compute=True, sl_idx=None, num_allocated_qps=0, num_cpu_timeout_secs=300, "
    "num_gpu_timeout_secs=100, explicitly_destroy=False",
    "get_buffer_size_hint": "group, num_max_tokens_per_rank, hidden, num_topk=0, use_fp8_dispatch=False, "
    "allow_hybrid_mode=True, allow_multiple_reduction=True",
    "capture": "",
    "get_comm_stream": "",
    "get_theoretical_num_qps": "num_sms",
    "get_theoretical_num_sms": "num_experts, num_topk, num_scaleout_topk=0, rdma_gbs=0, nvlink_gbs=0, sm_read_gbs=0, "
    "sm_write_gbs=0",
    "lb_get_theoretical_num_sms": "",
    "get_physical_domain_size": "",
    "get_logical_domain_size": "",
    "print_memory_usage": "",
    "destroy": "",
    "barrier": "wait_comm_stream=True, with_cpu_sync=False, sequential=True, context_idx=None",
    "dispatch": "x, topk_idx=None, topk_weights=None, cumulative_local_expert_recv_stats=None, num_experts=None, "
    "num_max_tokens_per_rank=None, expert_alignment=None, num_sms=0, num_qps=0, previous_event=None, "
    "async_with_compute_stream=False, allocate_on_comm_stream=False, handle=None, do_handle_copy=False, "
    "do_cpu_sync=None, do_expand=False, do_zero_padding=False, use_tma_aligned_col_major_sf=False, "
    "defer_epilogue=False",
    "combine": "x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0, previous_event=None, "
    "async_with_compute_stream=False, allocate_on_comm_stream=False, defer_epilogue=False",
}
NAMES = (
    "EPBuffer EPHandle BufferBase BufferAllocator BucketBuffer BucketSession PPBuffer EngramBuffer EventHandle "
    "EventOverlap topk_idx_t get_physical_domain_size get_logical_domain_size destroy_all_managed_nccl_comm "
    "get_num_allocation_alignment get_num_rdma_alignment get_num_tma_alignment comm ElasticBuffer Buffer"
).split()


def alone(**options: Any) -> Any:
    return EPBuffer(FakeComm(1).rank(0), **{**HINTS, **options})


class Surface(unittest.TestCase):
    def test_names_and_arguments(self) -> None:
        for name, wanted in SURFACE.items():
            self.assertEqual(arguments_of(getattr(EPBuffer, name)), wanted, name)
        for name in NAMES:
            self.assertTrue(hasattr(deep_ep, name), name)
        self.assertEqual(arguments_of(deep_ep.BufferBase.__init__), "explicitly_destroy=False")
        modules = ((ep, "EPBuffer"), (base, "BufferBase"), (allocator, "BufferAllocator"), (pp, "PPBuffer"))
        for module, name in (*modules, (bucket, "BucketBuffer"), (bucket, "BucketSession"), (engram, "EngramBuffer")):
            self.assertIs(getattr(module, name), getattr(deep_ep, name))
        numbers = deep_ep.get_num_allocation_alignment(), deep_ep.get_num_rdma_alignment()
        self.assertEqual((*numbers, deep_ep.get_num_tma_alignment()), (UNIT, 64, 32))
        deep_ep.destroy_all_managed_nccl_comm()
        handle = deep_ep.EPHandle
        self.assertEqual(
            arguments_of(handle.deterministic_sort),
            "do_cpu_sync, is_cached_dispatch, recv_x, recv_sf, recv_topk_idx, recv_topk_weights, channel_linked_list",
        )
        self.assertIsNone(handle.cached_recv_src_metadata_before_sort)

    def test_what_is_not_there(self) -> None:
        for kind in (deep_ep.PPBuffer, deep_ep.EngramBuffer, deep_ep.BucketBuffer, deep_ep.BucketSession):
            with self.assertRaisesRegex(NotImplementedError, f"^{kind.__name__} is not there: expar has no .*; .*"):
                kind(None, 1, plan=2)
        for name in ("agrs_set_config", "pp_send", "engram_fetch"):
            self.assertFalse(hasattr(EPBuffer, name), name)

    @mock.patch.object(deep_ep._elastic_sizes, "_has_mt4131", lambda: False)
    def test_attributes(self) -> None:
        group = FakeComm(1).rank(0)
        buffer = EPBuffer(group, 4 << 20, 5, deterministic=True, sl_idx=1, lb_allocation_plan_or_num_bytes=UNIT)
        self.assertIs(buffer.group, group)
        wanted = dict(rank_idx=0, num_ranks=1, num_bytes=4 << 20, num_max_tokens_per_rank=5, num_lb_bytes=UNIT)
        wanted.update(deterministic=True, allow_hybrid_mode=True, allow_multiple_reduction=True, sl_idx=1)
        wanted.update(prefer_overlap_with_compute=True, explicitly_destroy=False, num_allocated_qps=129)
        wanted.update(num_rdma_ranks=1, num_nvlink_ranks=1, num_scaleout_ranks=1, num_scaleup_ranks=1)
        wanted.update(scaleout_rank_idx=0, scaleup_rank_idx=0, num_cpu_timeout_secs=300, num_gpu_timeout_secs=100)
        for name, value in wanted.items():
            self.assertEqual(getattr(buffer, name), value, name)
        self.assertEqual(alone(allow_hybrid_mode=False).num_allocated_qps, 17)
        self.assertIsNone(alone().sl_idx)
        assert buffer.runtime is not None
        storage = buffer.runtime.lb_storage
        self.assertEqual((storage.dtype, storage.shape), (torch.uint8, (UNIT,)))
        self.assertIs(buffer.main_context, buffer.context)
        self.assertIsInstance(buffer.nccl_comm_handle, comm.NCCLCommHandle)
        self.assertIsInstance(comm.get_nccl_comm_handle(group), comm.NCCLCommHandle)
        self.assertIsInstance(EPBuffer.capture(), deep_ep.EventHandle)
        self.assertIs(buffer.get_comm_stream(), comm.get_comm_stream())
        self.assertFalse(hasattr(buffer, "num_cpu_bytes"))
        with contextlib.redirect_stdout(io.StringIO()) as said_of_memory:
            buffer.print_memory_usage()
        self.assertRegex(said_of_memory.getvalue(), r"^EPBuffer of rank 0: .*, 2\.0 MiB for replicas\n$")

    def test_domains(self) -> None:
        """Groups and buffers have them; a buffer has its own, whatever the flag says."""

        def body(group: Any) -> None:
            hybrid, one = (EPBuffer(group, **HINTS, allow_hybrid_mode=on) for on in (True, False))
            for module in (deep_ep, comm):
                self.assertEqual(module.get_physical_domain_size(group), (2, 2))
                self.assertEqual(module.get_physical_domain_size(one), (2, 2))
                for flag in (None, True, False):
                    self.assertEqual(module.get_logical_domain_size(hybrid, flag), (2, 2))
                    self.assertEqual(module.get_logical_domain_size(one, flag), (1, 4))
                for flag, wanted in ((None, (2, 2)), (True, (2, 2)), (False, (1, 4))):
                    self.assertEqual(module.get_logical_domain_size(group, allow_hybrid_mode=flag), wanted)
                self.assertEqual(module.get_logical_domain_size(group=group), (2, 2))
            self.assertEqual((one.get_logical_domain_size(), hybrid.get_physical_domain_size()), ((1, 4), (2, 2)))
            with mock.patch.object(deep_ep.buffers.ep_sizes, "get_rdma_gbs", lambda: 0.0):
                with self.assertRaisesRegex(ZeroDivisionError, "rdma_gbs is 0"):
                    hybrid.get_theoretical_num_sms(8, 2)
                self.assertEqual(one.get_theoretical_num_sms(8, 2) % 4, 0)
                self.assertEqual(hybrid._sms(0, 8, 2, 0) % 4, 0)  # calls have a number all the same
            self.assertEqual(hybrid.get_theoretical_num_sms(8, 2, rdma_gbs=50) % 4, 0)

        ranks.on_threads(4, in_turn, (body,), ranks_per_node=2)

    def test_numbers_of_sms(self) -> None:
        buffer, busy = alone(), alone(prefer_overlap_with_compute=False)
        for experts, topk in ((1, 1), (64, 8), (256, 8)):
            number = buffer.get_theoretical_num_sms(experts, topk)
            self.assertTrue(number >= 4 and number % 4 == 0, number)
            self.assertEqual(number, buffer.get_theoretical_num_sms(experts, topk, sm_read_gbs=180, sm_write_gbs=45))
            self.assertGreaterEqual(busy.get_theoretical_num_sms(experts, topk), 64)
        busy._most_sms = 31
        self.assertEqual(busy.get_theoretical_num_sms(64, 8), 30)
        self.assertEqual(buffer.lb_get_theoretical_num_sms() % 2, 0)
        self.assertIn("num_scaleout_topk is 1", said(AssertionError, lambda: buffer.get_theoretical_num_sms(8, 2, 1)))
        two = mock.Mock(wraps=buffer, num_scaleout_ranks=1, num_scaleup_ranks=2, _most_sms=None)
        self.assertIn("num_experts is 9", said(AssertionError, lambda: EPBuffer.get_theoretical_num_sms(two, 9, 2)))
        e = Elastic(World(1, 4, 2, 32, 9), 1)
        handle = buffer.dispatch(e.x[0], e.topk_idx[0], num_experts=4, num_sms=5)[3]
        self.assertEqual(handle.num_sms, 6)
        handle = buffer.dispatch(e.x[0], e.topk_idx[0], num_experts=4, num_sms=8)[3]
        self.assertEqual(handle.num_sms, 8)

    def test_helpers(self) -> None:
        self.assertEqual((semantic.value_or(None, 3), semantic.value_or(0, 3)), (3, 0))
        made: list[int] = []

        class Holder:
            @semantic.weak_lru(maxsize=None)
            def square(self, number: int) -> int:
                """Its square."""
                made.append(number)
                return number * number

        first, second = Holder(), Holder()
        self.assertEqual([first.square(3), first.square(3), second.square(3)], [9, 9, 9])
        self.assertEqual((made, Holder.square.__doc__), ([3, 3], "Its square."))
        gone = weakref.ref(first)
        del first
        gc.collect()
        self.assertIsNone(gone())


class Calls(unittest.TestCase):
    def test_combinations(self) -> None:
        for size in (2, 4):
            on_ranks(size, calls.every_combination)

    def test_nodes(self) -> None:
        """On two simulated nodes."""
        ranks.on_threads(4, in_turn, (calls.on_nodes,), ranks_per_node=2)
        ranks.on_threads(2, in_turn, (calls.on_nodes,), ranks_per_node=1)

    def test_nobody_has_tokens(self) -> None:
        for size in (1, 3):
            on_ranks(size, calls.of_nobody)

    def test_everywhere(self) -> None:
        for body, size in itertools.product(calls.EVERYWHERE, (2, 4)):
            with self.subTest(body=body.__name__, ranks=size):
                on_ranks(size, body)

    def test_host(self) -> None:
        """Deferred calls wait for nobody, and their waits raise what went wrong."""
        for body in (calls.host_goes_on, calls.refused, calls.late_rejection):
            with self.subTest(body=body.__name__):
                on_ranks(2, body)

    def test_lateness(self) -> None:
        """The wait for a deferred dispatch ends with the time-out that the caller named, if a rank stays away."""
        over = threading.Event()

        def body(group: Any) -> None:
            buffer = EPBuffer(group, **HINTS, num_cpu_timeout_secs=2)
            e = Elastic(World(2, 4, 3, 64, 9), 8)
            if buffer.rank_idx == 1:
                assert over.wait(ranks.DEADLINE_S)
                return
            try:
                heard = said(RuntimeError, calls.launch(buffer, e, False, True).wait)
            finally:
                over.set()
            self.assertRegex(heard, r"timed out after 2000 ms \(the late limit\).*rank 1 is alive")

        with mock.patch.dict(os.environ):
            os.environ.pop("EXPAR_TIMEOUT", None)
            os.environ.pop("EXPAR_LATE_LIMIT", None)
            on_ranks(2, body)

    def test_memory(self) -> None:
        """Dropped calls leave no memory behind. Results of a deferred dispatch lie where its rows came."""

        def body(group: Any) -> None:
            buffer, e = EPBuffer(group, **HINTS), Elastic(World(2, 4, 2, 64, 16, 2), 4)
            handle = dispatch(buffer, e, Options())[2]
            mode = buffer._at(deep_ep._place.CPU)
            rows = calls.answers_of(e, handle, buffer.rank_idx, False, 3)[0]
            buffer.barrier()
            gc.collect()
            before = mode.ep.stats()["used_bytes"]
            for _ in range(3):
                for expand in (False, True):
                    calls.launch(buffer, e, expand, True)
                buffer.combine(rows, handle, bias=e.biases[buffer.rank_idx][0], **calls.ASIDE)
            buffer.barrier()
            gc.collect()
            assert mode.ep.stats()["used_bytes"] == before
            launched = calls.launch(buffer, e, False, True)
            output = launched.hook_after_wait._launched.output
            found = launched.wait()[0]
            whole = output.tensors(deep_ep._call.Parts((0,), (torch.bfloat16,)))[0]
            assert found.data_ptr() == whole.data_ptr() and found.shape[0] < whole.shape[0]

        on_ranks(2, body)

    def test_later_buffers(self) -> None:
        """A handle of either generation serves buffers of both."""

        def body(group: Any) -> None:
            e = Elastic(World(2, 4, 3, 32, 6, 2), 4)
            made = [kind(group, **HINTS) for kind in (EPBuffer, deep_ep.ElasticBuffer)]
            for first, later in (made, made[::-1]):
                for expand in (False, True):
                    handle = dispatch(first, e, Options(expand))[2]
                    combine(later, e, Options(expand), handle, 3)
            first, later = made
            handle = dispatch(first, e, calls.DEFERRED._replace(expand=True))[2]
            del first, made
            gc.collect()
            combine(later, e, Options(True), handle, 3)

        on_ranks(2, body)


class Wrong(unittest.TestCase):
    def test_use(self) -> None:
        buffer = alone(allow_multiple_reduction=False)
        e = Elastic(World(1, 2, 2, 32, 8), 3)
        x, idx, weights = e.x[0], e.topk_idx[0], e.weights[0]
        rows, _, _, handle, _ = buffer.dispatch(x, idx, weights, num_experts=2)
        expanded = buffer.dispatch(x, idx, weights, num_experts=2, do_expand=True)
        stats = torch.zeros(2, dtype=torch.int32)
        plan = BufferAllocator()
        plan.materialize(torch.zeros(0, dtype=torch.uint8))
        fresh: Any = functools.partial(buffer.dispatch, x, idx, num_experts=2)
        again: Any = functools.partial(buffer.dispatch, x, handle=handle)
        cases: Any = (
            (AssertionError, "do_handle_copy is set", lambda: fresh(do_handle_copy=True)),
            (TypeError, "previous_event_before_epilogue", lambda: fresh(previous_event_before_epilogue=None)),
            (RuntimeError, "defer_epilogue is set: expected async", lambda: fresh(defer_epilogue=True)),
            (RuntimeError, "defer_epilogue is set: expected async", lambda: again(defer_epilogue=True)),
            (RuntimeError, "defer_epilogue is set: expected async",
             lambda: buffer.combine(rows, handle, defer_epilogue=True)),
            (RuntimeError, "do_zero_padding is set: expected do_expand", lambda: fresh(do_zero_padding=True)),
            (RuntimeError, "allocate_on_comm_stream", lambda: fresh(previous_event=buffer.capture())),
            (RuntimeError, "allocate_on_comm_stream",
             lambda: buffer.combine(rows, handle, previous_event=buffer.capture())),
            (AssertionError, "topk_idx does not go", lambda: again(topk_idx=idx)),
            (AssertionError, "do_cpu_sync", lambda: again(do_cpu_sync=True)),
            (AssertionError, "num_experts is 4", lambda: again(num_experts=4)),
            (AssertionError, "alignment is 8", lambda: again(expert_alignment=8)),
            (AssertionError, "rank is 9", lambda: again(num_max_tokens_per_rank=9)),
            (AssertionError, "do_expand needs", lambda: again(do_expand=True)),
            (RuntimeError, "does not go with a handle", lambda: again(cumulative_local_expert_recv_stats=stats)),
            (AssertionError, "num_qps is 130", lambda: fresh(num_qps=130)),
            (AssertionError, "num_sms is -1: expected 0 or more", lambda: fresh(num_sms=-1)),
            (TypeError, "num_sms is 2.5: expected a whole", lambda: fresh(num_sms=2.5)),
            (AssertionError, "allow_multiple", lambda: buffer.combine(expanded[0], expanded[3], expanded[2])),
            (RuntimeError, "bias is torch.float32",
             lambda: buffer.combine(rows, handle, bias=x.float(), **calls.ASIDE)),
            (TypeError, "bias is a tuple of 3", lambda: buffer.combine(rows, handle, bias=(x, x, x), **calls.ASIDE)),
            (TypeError, "handle is of type int", lambda: buffer.combine(rows, 7)),
            (TypeError, "previous_event is of type int",
             lambda: fresh(previous_event=7, allocate_on_comm_stream=True)),
            (AssertionError, "explicitly_destroy", buffer.destroy),
            (RuntimeError, "multiple of 2 MiB", lambda: alone(num_bytes=3 << 20)),
            (RuntimeError, "or num_bytes", lambda: alone(hidden=0)),
            (AssertionError, "num_bytes is -1: expected 0 or more",
             lambda: alone(lb_allocation_plan_or_num_bytes=-1)),
            (RuntimeError, "num_bytes is 5: expected a multiple of 2 MiB",
             lambda: alone(lb_allocation_plan_or_num_bytes=5)),
            (AssertionError, "has been materialized", lambda: alone(lb_allocation_plan_or_num_bytes=plan)),
            (TypeError, "lb_allocation_plan_or_num_bytes is 'all'",
             lambda: alone(lb_allocation_plan_or_num_bytes="all")),
            (TypeError, "sl_idx is 3.0", lambda: alone(sl_idx=3.0)),
            (TypeError, "abstract", lambda: deep_ep.BufferBase()),
        )
        for kind, text, call in cases:
            with self.subTest(text=text):
                self.assertIn(text, said(kind, call))
        same(buffer.combine(rows, handle)[0], e.combined(0, [x[(idx >= 0).any(1)]], False, True, ()))


class Allocator(unittest.TestCase):
    def test_plan(self) -> None:
        """Tensors are views of the memory, in order, at multiples of 2 MiB. Objects stay, and nothing is cleared."""
        plan = BufferAllocator()
        self.assertEqual((plan.alignment, plan.allocations, plan.num_bytes, plan.materialized), (UNIT, [], 0, False))
        first, none = plan.allocate((3, 5), torch.float32), plan.allocate((0,), torch.int32)
        big = plan.allocate(torch.Size([UNIT + 1]), torch.uint8)
        self.assertTrue(first.is_meta and first.shape == (3, 5) and first.dtype is torch.float32)
        self.assertEqual([offset for _, offset in plan.allocations], [0, UNIT, UNIT])
        self.assertEqual(plan.num_bytes, 3 * UNIT)
        held, view = [first], first[1:]
        storage = torch.full((3 * UNIT,), 7, dtype=torch.uint8)
        for wrong in (storage[:-1], storage.view(-1, 2), storage.int(), storage.repeat(2)[::2], storage.to("meta"), 7):
            self.assertIn("expected", said(AssertionError, lambda: plan.materialize(wrong)))
        plan.materialize(storage)
        self.assertTrue(plan.materialized and held[0] is first and view.is_meta)
        self.assertEqual((first.data_ptr(), big.data_ptr()), (storage.data_ptr(), storage.data_ptr() + UNIT))
        self.assertEqual((first.shape, none.shape, big[0].item()), ((3, 5), (0,), 7))
        first.fill_(2.0)
        del storage, held
        gc.collect()
        self.assertEqual(first.sum().item(), 30.0)
        self.assertIn("materialized", said(AssertionError, lambda: plan.allocate((1,), torch.int8)))
        self.assertIn("once", said(AssertionError, lambda: plan.materialize(torch.zeros(0, dtype=torch.uint8))))

    def test_weak_references(self) -> None:
        plan = BufferAllocator()
        tensor = plan.allocate((1,), torch.uint8)
        kept = weakref.ref(tensor)
        self.assertIn("weak", said(RuntimeError, lambda: plan.materialize(torch.zeros(UNIT, dtype=torch.uint8))))
        self.assertIs(kept(), tensor)

    def test_of_a_buffer(self) -> None:
        plan = BufferAllocator()
        tensors = [plan.allocate((4, 8), torch.bfloat16) for _ in range(2)]
        buffer = alone(lb_allocation_plan_or_num_bytes=plan, explicitly_destroy=True)
        storage = buffer.runtime.lb_storage
        self.assertEqual((buffer.num_lb_bytes, storage.numel()), (2 * UNIT, 2 * UNIT))
        tensors[1].fill_(1.0)
        self.assertEqual(storage[UNIT : UNIT + 64].view(torch.bfloat16).sum().item(), 32.0)
        del storage
        buffer.destroy()
        self.assertEqual(tensors[1].sum().item(), 32.0)


class Ends(unittest.TestCase):
    def test_destroy(self) -> None:
        def body(group: Any) -> None:
            buffer, e = EPBuffer(group, **HINTS, explicitly_destroy=True), Elastic(World(2, 4, 3, 32, 9), 8)
            event = calls.launch(buffer, e, False, True)
            found = event.wait()
            buffer.destroy()
            buffer.destroy()
            assert buffer.runtime is None and buffer.nccl_comm_handle is None
            calls.check_launched(EPBuffer(group, **HINTS), e, found, False, True)
            for call in (lambda: dispatch(buffer, e, Options()), buffer.print_memory_usage, buffer.barrier):
                self.assertIn("has been destroyed", said(AssertionError, call))

        on_ranks(2, body)

    def test_collected(self) -> None:
        """The garbage collector ends buffers, and warns of one that was to be destroyed."""
        for explicit in (False, True):
            buffer = alone(explicitly_destroy=explicit)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                del buffer
                gc.collect()
            self.assertEqual([str(each.message) for each in caught if "destroy" in str(each.message)], [
                "EPBuffer with explicitly_destroy=True ends without destroy()"
            ] * explicit)

    def test_pending(self) -> None:
        """Results can be had of calls that were launched on a buffer that has gone since."""

        def body(group: Any) -> None:
            buffer, e = EPBuffer(group, **HINTS), Elastic(World(2, 4, 3, 32, 9), 8)
            rank = buffer.rank_idx
            handle = dispatch(buffer, e, Options())[2]
            mine, of_all = calls.answers_of(e, handle, rank, False, 3)
            event = buffer.combine(mine, handle, bias=e.biases[rank], **calls.ASIDE)
            event.event.current_stream_wait()
            del buffer
            gc.collect()
            same(event.wait()[0], e.combined(rank, of_all, False, True, e.biases[rank]))

        on_ranks(2, body)


if __name__ == "__main__":
    unittest.main()
