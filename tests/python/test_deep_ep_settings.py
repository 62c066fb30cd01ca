# SPDX-License-Identifier: Apache-2.0
"""deep_ep: what buffers are set to: SMs of calls, as the library is told, sizes, queue pairs, and where ranks are."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import itertools
import os
import threading
import time
import unittest
from ctypes import Structure
from typing import Any, Callable, Iterator
from unittest import mock

import torch
from deep_ep_elastic_calls import HINTS
from deep_ep_elastic_reference import Elastic, World
from deep_ep_ranks import fresh
from deep_ep_reference import Shape, Traffic, same
from deep_ep_threads import alone, in_turn, on_threads
from test_deep_ep import arguments_of
from test_python_group import FakeComm

import deep_ep
import expar
import ranks
from deep_ep import Buffer, Config, ElasticBuffer, _elastic, _elastic_sizes, _forms, _normal, _place, operators
from deep_ep.utils.event import event_of
from expar._abi import EpCombineArgs, EpDispatchArgs, EpRouteArgs

CORES = 64  # of a rank, more than these tests ask for: what is not there is not told to the library
MIB = 1 << 20
UNIT = 2 * MIB
TOO_MUCH = 4 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # bytes: more than the machine has


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def shared_bytes() -> int:
    """Memory of this process, of which pages that are mapped several times count once."""
    with open("/proc/self/smaps_rollup") as file:
        found = dict(line.split(":") for line in file if ":" in line and line.startswith("Pss:"))
    return int(found["Pss"].split()[0]) * 1024


@contextlib.contextmanager
def told(module: Any) -> Iterator[list[int]]:
    """num_sms of the library's calls that the module makes meanwhile: new forms take their steps in Python."""
    found: list[int] = []

    def looked_at(real: Callable[..., int], kind: type[Structure]) -> Callable[..., int]:
        def call(buffer: int, args: int, *results: int) -> int:
            found.append(getattr(kind.from_address(args), "num_sms"))
            return real(buffer, args, *results)

        return call

    kinds = dict(_dispatch=EpDispatchArgs, _combine=EpCombineArgs, _route=EpRouteArgs)
    calls = {name: looked_at(getattr(module, name), kind) for name, kind in kinds.items() if hasattr(module, name)}
    of_forms = dict(AGAIN="_dispatch", COMBINE="_combine", FRESH="_dispatch", FRESH_EXPANDED="_dispatch")
    forms = [(getattr(module, form), kinds[name]) for form, name in of_forms.items() if hasattr(module, form)]
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.multiple(module, **calls))
        patches.enter_context(mock.patch.object(_forms, "shown", False))
        for form, kind in forms:
            patches.enter_context(mock.patch.object(form, "function", looked_at(form.function, kind)))
        yield found


def on_nodes(body: Callable[[Any], None], size: int = 4, ranks_per_node: int = 2) -> None:
    """body(group) on simulated nodes."""
    ranks.on_threads(size, in_turn, (body,), ranks_per_node=ranks_per_node)


class Sms(unittest.TestCase):
    def calls(self, buffer: Any, config: Config | None = None) -> list[int]:
        """SMs of a dispatch, one with its handle, and a combine."""
        traffic = Traffic(Shape(1, 2, 2, 32, 9), 4)
        with told(_normal) as found:
            rows, _, _, _, handle, _ = fresh(buffer, traffic, config=config)
            again = buffer.dispatch(traffic.x[0], handle=handle, config=config)[0]
            y = buffer.combine(traffic.answer(0, again), handle, config=config)[0]
        same(again, rows)
        same(y, traffic.combined(0)[0])
        return found

    def test_of_buffer(self) -> None:
        """A call's config, else the buffer's number, else that of all buffers."""
        buffer, other = alone(), alone()
        buffer._max_threads = other._max_threads = CORES
        self.assertEqual(self.calls(buffer, Config(6)), [6] * 3)
        try:
            Buffer.set_num_sms(12)
            self.assertEqual(self.calls(buffer), [12] * 3)
            self.assertEqual(self.calls(buffer, buffer.get_dispatch_config(1)), [12] * 3)
            self.assertEqual(self.calls(buffer, buffer.get_combine_config(1)), [12] * 3)
            buffer.num_sms = 10
            self.assertEqual((self.calls(buffer), self.calls(other)), ([10] * 3, [12] * 3))
            self.assertEqual(self.calls(buffer, Config(4)), [4] * 3)
        finally:
            Buffer.set_num_sms(20)
        self.assertEqual((Buffer.num_sms, Config().num_sms), (20, 20))
        buffer._max_threads = 6
        buffer._normal_forms.clear()  # which have been looked at
        self.assertEqual(self.calls(buffer), [0] * 3)

    def test_in_other_ways(self) -> None:
        """The routing first, by names for several nodes, and with results of PyTorch's memory."""
        traffic = Traffic(Shape(1, 2, 2, 32, 9), 4)
        x, idx = traffic.x[0], traffic.topk_idx[0]
        with mock.patch.dict(os.environ, EXPAR_DEEP_EP_OUTPUTS="torch"):
            of_torch = alone()
        for buffer, routes in ((alone(), 0), (of_torch, 1)):
            buffer._max_threads = CORES
            per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, 2)
            with told(_normal) as found:
                event = fresh(buffer, traffic, config=Config(6), num_worst_tokens=20, async_finish=True)[5]
                event.current_stream_wait()
                self.assertEqual(found, [6, 6])
                rows, *_, handle, _ = buffer.internode_dispatch(
                    x, None, per_rank, None, in_rank, per_expert, idx, config=Config(8)
                )
                self.assertEqual(found[2:], [8] * (1 + routes))
                del found[:]
                buffer.internode_combine(rows, handle, config=Config(4))
                buffer.internode_dispatch(x, handle, config=Config(2))
                self.assertEqual(found, [4, 2])

    def test_of_elastic_buffer(self) -> None:
        """The number of a call holds, else the theoretically needed one; for a combine that of its dispatch."""
        buffer = ElasticBuffer(FakeComm(1).rank(0), **HINTS)
        buffer._max_threads = CORES
        e = Elastic(World(1, 4, 3, 32, 9), 5)
        given = e.x[0], e.topk_idx[0], e.weights[0]
        asked = mock.Mock(return_value=12)
        with mock.patch.object(buffer, "get_theoretical_num_sms", asked), told(_elastic) as found:

            def heard(call: Callable[[], Any]) -> tuple[Any, int]:
                """The result of the call, and its SMs."""
                result, (number,) = call(), found
                del found[:]
                return result, number

            for expand in (False, True):
                dispatch = functools.partial(buffer.dispatch, num_experts=4, do_expand=expand)
                (rows, _, _, handle, _), number = heard(lambda: dispatch(*given, num_sms=6))
                self.assertEqual((number, handle.num_sms), (6, 6))
                combine = functools.partial(buffer.combine, rows, handle)
                again = functools.partial(buffer.dispatch, e.x[0], handle=handle, do_expand=expand)
                for sms, wanted in ((0, 6), (8, 8), (0, 6)):
                    self.assertEqual(heard(lambda: combine(num_sms=sms))[1], wanted)
                for sms, wanted in ((10, 10), (0, 12)):
                    (*_, same_one, _), number = heard(lambda: again(num_sms=sms))
                    self.assertEqual((number, same_one.num_sms), (wanted, 6))
                (rows, _, _, handle, _), number = heard(lambda: dispatch(*given))
                self.assertEqual((number, handle.num_sms), (12, 12))
                self.assertEqual(heard(lambda: buffer.combine(rows, handle))[1], 12)
            buffer._max_threads = 6
            (_, _, _, handle, _), number = heard(lambda: buffer.dispatch(*given, num_experts=4, num_sms=8))
            self.assertEqual((number, handle.num_sms), (0, 8))
        self.assertEqual(asked.call_args_list, [mock.call(4, 3)])  # once for all

    def test_of_operators(self) -> None:
        """Forward and backward."""
        buffer = ElasticBuffer(FakeComm(1).rank(0), **HINTS)
        buffer._max_threads = CORES
        e = Elastic(World(1, 4, 3, 32, 9), 5)
        number, x = operators.number_of(buffer), e.x[0].clone().requires_grad_()
        with mock.patch.object(buffer, "get_theoretical_num_sms", return_value=12), told(_elastic) as found:
            rows, _, _, _, handle = operators.dispatch(number, x, e.topk_idx[0], e.weights[0], 4, 9)
            operators.combine(number, rows, handle).float().sum().backward()
        self.assertEqual(found, [12] * 4)


class OfBuffer(unittest.TestCase):
    def test_stored(self) -> None:
        """By name, with defaults for what is not given; names in the order of the arguments."""
        defaults = dict(
            num_nvl_bytes=0,
            num_rdma_bytes=0,
            low_latency_mode=False,
            num_qps_per_rank=24,
            allow_nvlink_for_low_latency_mode=True,
            allow_mnnvl=False,
            use_fabric=False,
            explicitly_destroy=False,
            enable_shrink=False,
        )
        others = dict(zip(defaults, (4 * MIB, UNIT, True, 7, False, True, True, True, True)))
        buffers = [(alone(), defaults), (Buffer(None, *others.values(), FakeComm(1).rank(0)), others)]
        for name, value in others.items():
            buffers.append((alone(**{name: value}), {**defaults, name: value}))
        for buffer, wanted in buffers:
            self.assertEqual({name: getattr(buffer, name) for name in defaults}, wanted)

    def test_configs(self) -> None:
        chunks = itertools.product(("nvl", "rdma"), ("send", "recv"))
        names = ("num_sms", *(f"num_max_{way}_chunked_{side}_tokens" for way, side in chunks))
        for config, wanted in (
            (Config(), (20, 6, 256, 6, 256)),
            (Buffer.get_dispatch_config(8), (20, 6, 256, 6, 256)),
            (Buffer.get_combine_config(8), (20, 6, 256, 6, 256)),
            (Config(2, 3, 4, 5, 6), (2, 3, 4, 5, 6)),
            (Config(**dict(zip(names, range(2, 7)))), (2, 3, 4, 5, 6)),
        ):
            self.assertEqual(tuple(getattr(config, name) for name in names), wanted)

    def test_memory_at_the_start(self) -> None:
        """On a CPU sizes are hints, whatever they are: nothing is taken, and results are as large as they are."""
        traffic, least = Traffic(Shape(1, 2, 2, 4096, 64), 3), 0
        for given in ((), (2 * TOO_MUCH,), (0, TOO_MUCH), (TOO_MUCH, TOO_MUCH, True)):
            buffer = Buffer(None, *given, comm=FakeComm(1).rank(0))
            ep = buffer._at(_place.CPU)[0].ep
            stats = ep.stats()
            self.assertEqual((stats["used_bytes"], stats["growths"]), (0, 0))
            least = least or int(stats["reserved_bytes"])
            self.assertEqual(stats["reserved_bytes"], least, given)
            rows = fresh(buffer, traffic)[0]
            same(rows, traffic.received(0)[0])
            self.assertGreater(ep.stats()["used_bytes"], rows.numel())

    def test_many_ranks(self) -> None:
        """16 ranks of a host name more than it has, for buffers of either generation."""

        def body(comm: Any) -> None:
            for options in (dict(num_nvl_bytes=TOO_MUCH), dict(num_rdma_bytes=TOO_MUCH)):
                buffer = Buffer(comm=comm, **options)
                traffic = Traffic(Shape(16, 16, 2, 32, 4), 7)
                rows, _, _, _, handle, _ = fresh(buffer, traffic)
                y = buffer.combine(traffic.answer(buffer.rank, rows), handle)[0]
                same(y, traffic.combined(buffer.rank)[0])
            elastic = ElasticBuffer(comm, TOO_MUCH // UNIT * UNIT)
            e = Elastic(World(16, 16, 2, 32, 4), 7)
            rank = elastic.rank_idx
            rows = elastic.dispatch(e.x[rank], e.topk_idx[rank], num_experts=16, num_max_tokens_per_rank=4)[0]
            assert rows.shape[1] == 32

        on_threads(16, body)

    def test_many_ranks_with_masks(self) -> None:
        """The reserve for a first low-latency call is a part of the host's memory at most."""

        def body(comm: Any) -> None:
            buffer = Buffer(comm=comm, num_rdma_bytes=TOO_MUCH, low_latency_mode=True, enable_shrink=True)
            x, idx = torch.ones(2, 128, dtype=torch.bfloat16), torch.tensor([[0, 3], [0, 1]])
            counts = buffer.low_latency_dispatch(x, idx, 4, 16, use_fp8=False)[1]
            wanted = {0: 32, 1: 16, 3: 16}.get(buffer.rank, 0)
            assert counts.tolist() == [wanted], (buffer.rank, counts)

        on_threads(16, body)

    def test_local_memory(self) -> None:
        """One chunk stands for all; the memory lasts as long as a tensor of it."""
        buffer = alone(num_nvl_bytes=TOO_MUCH, explicitly_destroy=True)
        before = resident_bytes()
        given = torch.int32, torch.Size([1 << 18]), TOO_MUCH // 2
        with torch.inference_mode():
            self.assertEqual(int(buffer.get_local_buffer_tensor(*given).sum()), 0)
        memory = buffer.get_local_buffer_tensor(*given)
        self.assertFalse(memory.is_inference())  # whichever call has asked before
        memory.copy_(torch.arange(1 << 18, dtype=torch.int32))
        self.assertLess(resident_bytes() - before, 256 * MIB)
        self.assertEqual(buffer.get_local_buffer_tensor(torch.uint8).numel(), TOO_MUCH)
        buffer.destroy()
        del buffer
        gc.collect()
        same(memory, torch.arange(1 << 18, dtype=torch.int32))

    def test_cleared_memory(self) -> None:
        """Clearing all of it takes one chunk, and tells no call anything."""
        size = 256 * MIB
        buffer = alone(num_rdma_bytes=size, low_latency_mode=True)
        whole = buffer.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True)
        before = shared_bytes()
        whole.fill_(1)
        self.assertLess(shared_bytes() - before, 32 * MIB)
        self.assertEqual((whole.numel(), int(whole[-1])), (size, 1))
        whole.zero_()
        self.assertFalse(whole[:: 1 << 16].any())

    def test_runtime(self) -> None:
        """It is there as long as the group."""
        for end in (expar.Group.abandon, expar.Group.close):
            buffer = alone(explicitly_destroy=True)
            runtime, group = buffer.runtime, buffer._group
            self.assertIs(runtime.is_available(), True)
            buffer.destroy()
            self.assertIs(runtime.is_available(), True)
            end(group)
            self.assertIs(runtime.is_available(), False)

    def test_nodes(self) -> None:
        def body(group: Any) -> None:
            buffer = Buffer(group)
            rank = buffer.rank
            assert (buffer.runtime.get_num_rdma_ranks(), buffer.runtime.get_rdma_rank()) == (3, rank // 2), rank

        on_nodes(body, 6)


class OfElasticBuffer(unittest.TestCase):
    def test_nodes(self) -> None:
        """On two nodes of four ranks: as they are, and without hybrid mode as one."""

        def body(group: Any) -> None:
            rank = group.rank()
            assert deep_ep.get_physical_domain_size(group) == (2, 4)
            assert deep_ep.get_logical_domain_size(group) == deep_ep.get_logical_domain_size(group, True) == (2, 4)
            assert deep_ep.get_logical_domain_size(group, False) == (1, 8)
            for hybrid, (scaleout, scaleup) in ((True, (2, 4)), (False, (1, 8))):
                buffer = ElasticBuffer(group, **HINTS, allow_hybrid_mode=hybrid)
                assert buffer.allow_hybrid_mode is hybrid
                assert buffer.get_physical_domain_size() == (buffer.num_rdma_ranks, buffer.num_nvlink_ranks) == (2, 4)
                assert buffer.get_logical_domain_size() == (scaleout, scaleup)
                assert (buffer.num_scaleout_ranks, buffer.num_scaleup_ranks) == (scaleout, scaleup)
                assert (buffer.scaleout_rank_idx, buffer.scaleup_rank_idx) == (rank // scaleup, rank % scaleup)

        on_nodes(body, 8, 4)

    def test_queue_pairs(self) -> None:
        def body(group: Any) -> None:
            for options, allocated, theoretical in (
                ({}, 129, {2: 33, 7: 113, 8: 129, 24: 129}),
                (dict(allow_hybrid_mode=False), 17, {2: 2, 8: 8, 9: 9, 24: 9}),
                (dict(num_allocated_qps=500), 500, {2: 33, 24: 385}),
                (dict(num_allocated_qps=500, allow_hybrid_mode=False), 500, {2: 2, 24: 9}),
                (dict(num_allocated_qps=5, allow_hybrid_mode=False), 5, {2: 2, 24: 5}),
            ):
                buffer = ElasticBuffer(group, **HINTS, **options)
                assert buffer.num_allocated_qps == allocated, (options, buffer.num_allocated_qps)
                assert {n: buffer.get_theoretical_num_qps(n) for n in theoretical} == theoretical, options

        with mock.patch.object(_elastic_sizes, "_has_mt4131", lambda: False):
            on_nodes(body)
            on_nodes(body, 2)  # one node: the flag decides there, too
        with mock.patch.object(_elastic_sizes, "_has_mt4131", lambda: True):  # a card that has fewer
            for hybrid, wanted in ((False, 17), (True, 65)):
                buffer = ElasticBuffer(FakeComm(1).rank(0), **HINTS, allow_hybrid_mode=hybrid)
                self.assertEqual(buffer.num_allocated_qps, wanted)
            self.assertEqual(_elastic_sizes.allocated_qps(30, True), 30)

    def test_network_cards(self) -> None:
        """Cards of a host: those that cannot be asked are passed over."""
        for cards, wanted in (
            (None, False),
            ({}, False),
            ({"mlx5_0": "MT4129\n", "mlx5_1": "MT41310\n"}, False),
            ({"mlx5_0": None, "mlx5_1": "MT4129\n", "mlx5_2": "MT4131\n"}, True),
        ):

            def opened(path: str, cards: Any = cards) -> Any:
                *folders, card, name = path.split("/")
                self.assertEqual(("/".join(folders), name), ("/sys/class/infiniband", "hca_type"))
                if cards[card] is None:
                    raise FileNotFoundError(path)
                return io.StringIO(cards[card])

            with mock.patch.object(_elastic_sizes, "open", opened, create=True), mock.patch.object(
                os.path, "isdir", lambda _, cards=cards: cards is not None
            ), mock.patch.object(os, "listdir", lambda _, cards=cards: list(cards)):
                self.assertIs(_elastic_sizes._has_mt4131(), wanted)

    def test_size(self) -> None:
        """Without num_bytes it is the hint."""
        comm, hint = FakeComm(1).rank(0), ElasticBuffer.get_buffer_size_hint
        sizes = []
        for shape in ((4096, 7168), (4096, 7168, 2), (4096, 1024), (64, 7168)):
            given = dict(zip(("num_max_tokens_per_rank", "hidden", "num_topk"), shape))
            buffer = ElasticBuffer(comm, **given)
            self.assertEqual(buffer.num_bytes, hint(comm, *shape))
            self.assertEqual(buffer.num_max_tokens_per_rank, shape[0])
            self.assertEqual(ElasticBuffer(comm, 3 * UNIT, **given).num_bytes, 3 * UNIT)
            sizes.append(buffer.num_bytes)
        self.assertEqual(len(set(sizes)), 4)

    def test_theoretical_sms(self) -> None:
        """By the links, and by what an SM reads and writes; of nodes, too."""

        def body(group: Any) -> None:
            buffer = ElasticBuffer(group, **HINTS)
            of = functools.partial(buffer.get_theoretical_num_sms, 256, 8)
            slow, fast = of(rdma_gbs=50), of(rdma_gbs=200)
            assert slow < fast, (slow, fast)
            by_nvlink = [of(rdma_gbs=100_000, nvlink_gbs=gbs) for gbs in (100, 450, 900)]
            assert by_nvlink == sorted(set(by_nvlink)), by_nvlink
            assert of(rdma_gbs=100_000) == by_nvlink[1]
            for name, less in (("sm_read_gbs", 20), ("sm_write_gbs", 5)):
                assert of(rdma_gbs=200, **{name: less}) > fast, name
            assert of(rdma_gbs=200, sm_read_gbs=200, sm_write_gbs=50) == fast
            assert of(1, 200) == of(num_scaleout_topk=1, rdma_gbs=200) > fast == of(2, 200)  # each token to one node
            one_node = ElasticBuffer(group, **HINTS, allow_hybrid_mode=False)
            assert one_node.get_theoretical_num_sms(256, 8, rdma_gbs=1) == one_node.get_theoretical_num_sms(256, 8)

        on_nodes(body)

    def test_theoretical_sms_are_kept(self) -> None:
        buffer, real = ElasticBuffer(FakeComm(1).rank(0), **HINTS), _elastic_sizes._expected_owners
        with mock.patch.object(_elastic_sizes, "_expected_owners", side_effect=real) as asked:
            _elastic_sizes.theoretical_num_sms.cache_clear()
            first = buffer.get_theoretical_num_sms(64, 8)
            count = asked.call_count
            self.assertGreater(count, 0)
            self.assertEqual(buffer.get_theoretical_num_sms(64, 8), first)
            self.assertEqual(asked.call_count, count)
            buffer.get_theoretical_num_sms(64, 8, nvlink_gbs=17)
            self.assertEqual(asked.call_count, 2 * count)

    def test_barrier(self) -> None:
        """No rank leaves it before all ranks' earlier calls are complete: rank 1's combine waits for an event."""
        behind, early = threading.Event(), []

        def body(comm: Any) -> None:
            buffer, e = ElasticBuffer(comm, **HINTS), Elastic(World(2, 4, 3, 32, 9), 5)
            rank, held = buffer.rank_idx, expar.Event()
            rows, _, _, handle, _ = buffer.dispatch(e.x[rank], e.topk_idx[rank], num_experts=4)
            before = dict(previous_event=event_of(held), allocate_on_comm_stream=True) if rank == 1 else {}
            event = buffer.combine(rows, handle, async_with_compute_stream=True, **before)[2]

            def let_go() -> None:
                time.sleep(0.05)
                early.append(behind.is_set())
                held.signal()

            thread = threading.Thread(target=let_go)
            if rank == 1:
                thread.start()
            buffer.barrier()
            through = event.event.work is None or event.event.work.done
            behind.set()
            if rank == 1:
                thread.join()
            event.current_stream_wait()
            assert through, rank

        on_threads(2, body)
        self.assertEqual(early, [False])

    def test_operators(self) -> None:
        self.assertEqual(
            arguments_of(operators.dispatch),
            "buffer, x, topk_idx, topk_weights, num_experts, num_max_tokens_per_rank, expert_alignment=1, "
            "do_expand=False, do_cpu_sync=False",
        )
        self.assertEqual(arguments_of(operators.combine), "buffer, x, handle, bias=None")
        buffer, e = ElasticBuffer(FakeComm(1).rank(0), **HINTS), Elastic(World(1, 4, 3, 32, 9), 5)
        with mock.patch.object(buffer, "dispatch", side_effect=buffer.dispatch) as call:
            given = e.x[0], e.topk_idx[0], e.weights[0]
            operators.dispatch(operators.number_of(buffer), *given, 4, 9)
        wanted = dict(num_experts=4, num_max_tokens_per_rank=9, expert_alignment=1, do_cpu_sync=False, do_expand=False)
        self.assertEqual({**call.call_args.kwargs, **wanted}, {**call.call_args.kwargs})


if __name__ == "__main__":
    gc.freeze()  # of PyTorch there is much, and none of it goes
    unittest.main()
