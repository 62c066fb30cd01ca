# SPDX-License-Identifier: Apache-2.0
"""deep_ep.utils: events, arithmetic, references, gates, clocks and the start of processes, each by its definition."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import os
import socket
import sys
import tempfile
import threading
import unittest
from typing import Any
from unittest import mock

import torch
from deep_ep_reference import exponents, plain, quantised, same
from test_deep_ep import arguments_of

import expar
import ranks
from deep_ep import EventHandle, EventOverlap
from deep_ep.utils import envs, event, gate, math, refs, semantic, testing
from deep_ep.utils.event import event_of

HERE = os.path.dirname(os.path.abspath(__file__))

# For each module: its functions, as tests of engines call them.
SURFACE: dict[Any, dict[str, str]] = {
    envs: {
        "init_dist": "local_rank, num_local_ranks, seed=0",
        "init_seed": "seed",
        "dist_print": "s='', once_in_node=False",
        "get_rdma_gbs": "",
        "get_sm_read_gbs": "",
        "get_sm_write_gbs": "",
        "get_physical_domain_size": "group_or_buffer",
        "get_logical_domain_size": "group_or_buffer, allow_hybrid_mode=None",
    },
    semantic: {"value_or": "v, default", "weak_lru": "maxsize=128, typed=False"},
    math: {
        "ceil_div": "x, y",
        "align": "x, y",
        "safe_div": "x, y",
        "calc_diff": "x, y",
        "count_bytes": "*nested",
        "hash_tensor": "t",
        "per_token_cast_to_fp8": "x",
        "per_token_cast_back": "q, sf",
        "inplace_unique": "x, num_slots",
        "create_grouped_scores": "scores, group_idx, num_groups",
    },
    gate: {"get_unbalanced_scores": "num_tokens, num_experts, num_ranks, num_topk, ratio, precise"},
    refs: {
        "dispatch": "x, topk_idx, topk_weights, num_max_tokens_per_rank, num_experts",
        "generate_pre_combine_data": "src_token_global_idx, num_max_tokens_per_rank, num_topk, hidden, seed=0",
        "ordered_accumulate": "data, initial=None",
        "combine": "y, topk_idx, num_scaleout_ranks, num_scaleup_ranks, num_experts, bias, reduce_in_local, "
        "reduce_in_scaleup",
    },
    testing: {
        "parse_num_bytes": "text",
        "bench": "fn, num_warmups=30, num_tests=30, post_fn=None, flush_l2=True",
        "bench_kineto": "fn, kernel_names, num_tests=30, suppress_kineto_output=False, trace_path=None, flush_l2=True, "
        "barrier_comm_profiling=False, num_kernels_per_period=1, barrier=None",
    },
    event: {
        "EventHandle": "",
        "EventOverlap": "event=None, extra_tensors=None",
        "EventOverlap.current_stream_wait": "release_handle=False",
        "EventOverlap.wait": "",
        "EventOverlap.register_hook_after_wait": "fn",
        "EventOverlap.__call__": "release_handle=False",
    },
}


def functions_of(module: Any) -> set[str]:
    """Those of its own that are no others' business."""
    return {
        name
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_")
    }


class Surface(unittest.TestCase):
    def test_names_and_arguments(self) -> None:
        for module, functions in SURFACE.items():
            for name, wanted in functions.items():
                with self.subTest(module=module.__name__, name=name):
                    found = operator.attrgetter(name)(module)
                    if wanted.startswith("*"):
                        self.assertEqual(str(inspect.signature(found)).split(":")[0], f"({wanted}")
                    else:
                        self.assertEqual(arguments_of(found), wanted)
            if module is not event:
                self.assertEqual(functions_of(module), set(functions))

    def test_defaults_of_clocks(self) -> None:
        """How often a function runs to warm up, and to be timed."""
        calls: list[int] = []
        testing.bench(lambda: calls.append(len(calls)), post_fn=(behind := mock.Mock()))
        self.assertEqual((len(calls), behind.call_count), (60, 30))
        del calls[:]
        with mock.patch.dict(os.environ, EP_USE_NVIDIA_TOOLS="1"):
            testing.bench_kineto(lambda: calls.append(len(calls)), "none")
        self.assertEqual(len(calls), 30)

    def test_meeting(self) -> None:
        """Where ranks meet, and what they are, by variables; without any: one node, this host, one port."""
        started = mock.Mock()
        for variables, wanted in (
            ({}, ("tcp://127.0.0.1:8361", 2, 1)),
            (dict(MASTER_ADDR="10.1.2.3", MASTER_PORT="77", WORLD_SIZE="3", RANK="2", NCCL_IB_SL="4"), ("tcp://10.1.2.3:77", 6, 5)),
        ):
            others = {name: value for name, value in os.environ.items() if name not in (*MEETING, *SERVICE_LEVELS)}
            with mock.patch.object(torch.cuda, "is_available", lambda: False), mock.patch.dict(
                os.environ, {**others, **variables}, clear=True
            ), mock.patch.multiple(
                envs.dist, init_process_group=started, new_group=mock.Mock(return_value="all")
            ), mock.patch.object(envs, "init_seed") as seed:
                try:
                    self.assertEqual(envs.init_dist(1, 2), (wanted[2], wanted[1], "all"))
                    self.assertEqual([os.environ[name] for name in SERVICE_LEVELS], [variables.get("NCCL_IB_SL", "1"), "1"])
                finally:
                    torch.set_default_dtype(torch.float32)
                    torch.set_default_device(None)
                envs.dist.new_group.assert_called_once_with(list(range(wanted[1])))
            given = dict(init_method=wanted[0], world_size=wanted[1], rank=wanted[2])
            self.assertEqual(started.call_args.kwargs, {"backend": "gloo", **given})
            seed.assert_called_once_with(0)


    def test_variables(self) -> None:
        """They are set within the block alone, where they are enabled."""
        entries = [("NAME_A", 1, True), ("NAME_B", "two", True), ("NAME_C", "3", False)]
        with mock.patch.dict(os.environ, NAME_A="before"):
            os.environ.pop("NAME_B", None)
            with envs.EnvOverride(entries):
                found = [os.environ.get(name) for name, _, _ in entries]
                self.assertEqual(found, ["1", "two", None])
            self.assertEqual([os.environ.get(name) for name, _, _ in entries], ["before", None, None])

    def test_numbers_of_bytes(self) -> None:
        for text, wanted in (("1G", 1 << 30), ("64MiB", 64 << 20), ("512k", 512 << 10), ("7", 7), ("1.5 KB", 1536)):
            self.assertEqual(testing.parse_num_bytes(text), wanted)
        for text in ("", "G", "-1G", "1X", "1 2", "0x10"):
            with self.assertRaisesRegex(ValueError, "expected a number of bytes"):
                testing.parse_num_bytes(text)


MEETING = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
SERVICE_LEVELS = ("NCCL_IB_SL", "EP_OVERRIDE_RDMA_SL")


class Events(unittest.TestCase):
    def test_hooks(self) -> None:
        calls: list[str] = []
        event = EventOverlap(EventHandle())
        event.register_hook_after_wait(lambda: calls.append("hook"))
        with self.assertRaisesRegex(AssertionError, "a hook already"):
            event.register_hook_after_wait(lambda: None)
        event.current_stream_wait()
        self.assertIsNone(event.hook_after_wait)
        event.current_stream_wait()
        self.assertEqual(calls, ["hook"])
        event.hook_after_wait = lambda: calls.append("other")
        event.current_stream_wait(release_handle=True)
        self.assertEqual(calls, ["hook", "other"])
        self.assertIsNone(event.event)
        with self.assertRaisesRegex(AssertionError, "no event"):
            event.current_stream_wait()

    def test_with(self) -> None:
        event = EventOverlap(EventHandle())
        with event() as same_one:
            self.assertIs(same_one, event)
        self.assertIsNotNone(event.event)
        with event(release_handle=True):
            self.assertIsNotNone(event.event)
        self.assertIsNone(event.event)
        with EventOverlap()(True):
            pass

    def test_what_is_left_to_do(self) -> None:
        """Once, by the first that waits, when the call of the event is done; no waiter comes back before it is."""
        work, done, counts = expar.Event(), threading.Event(), []

        def finish() -> None:
            counts.append(work.done)
            done.wait(0.05)
            counts.append(True)

        handle = event_of(work)
        handle.finish_by(finish)
        self.assertFalse(handle.finished)

        def wait() -> None:
            EventOverlap(handle).current_stream_wait()
            assert counts == [True, True], counts

        threads = [functools.partial(wait) for _ in range(3)]
        ranks.at_once([*threads, work.signal])
        self.assertTrue(handle.finished)


class Arithmetic(unittest.TestCase):
    def test_numbers(self) -> None:
        self.assertEqual([math.ceil_div(n, 4) for n in (0, 1, 4, 5)], [0, 1, 1, 2])
        self.assertEqual([math.align(n, 16) for n in (0, 1, 16, 17)], [0, 16, 16, 32])
        self.assertEqual((math.safe_div(0, 0), math.safe_div(3, 2)), (0, 1.5))

    def test_difference(self) -> None:
        x = torch.randn((5, 7), dtype=torch.bfloat16)
        y = x + 0.25
        one, other = x.double().add(1), y.double().add(1)
        expected = 1 - 2 * float((one * other).sum()) / float((one**2 + other**2).sum())
        self.assertAlmostEqual(math.calc_diff(x, y), expected, places=12)
        self.assertEqual(math.calc_diff(x, x.clone()), 0)

    def test_bytes(self) -> None:
        x = torch.zeros((3, 4), dtype=torch.bfloat16)
        self.assertEqual(math.count_bytes(x, None, (x.int(), [x.double(), (x,)])), 24 + 48 + 96 + 24)
        self.assertEqual(math.count_bytes(), 0)

    def test_hash(self) -> None:
        bits = torch.tensor([[1, -5, 2**31 - 1, 2**31 - 1]], dtype=torch.int32)
        self.assertEqual(math.hash_tensor(bits), 2**32 - 6)
        self.assertEqual(math.hash_tensor(bits.view(torch.bfloat16)), 2**32 - 6)

    def test_fp8(self) -> None:
        for rows, hidden in ((6, 512), (3, 128)):
            x = torch.randn((rows, hidden)).to(torch.bfloat16)
            x[:1] = 0  # the least amax
            q, sf = math.per_token_cast_to_fp8(x)
            for one, other in zip((q, sf), quantised(x, False)):
                same(one, other)
            same(math.per_token_cast_back(q, sf), plain(q, sf).to(torch.bfloat16))
            self.assertLess(math.calc_diff(math.per_token_cast_back(q, sf), x), 1e-3)
            q, sf = quantised(x, True)
            same(math.per_token_cast_back(q, exponents(sf)), plain(q, sf).to(torch.bfloat16))
        q, sf = math.per_token_cast_to_fp8(torch.empty((0, 256)))
        self.assertEqual((q.shape, sf.shape, math.per_token_cast_back(q, sf).shape), ((0, 256), (0, 2), (0, 256)))
        q, sf = math.per_token_cast_to_fp8(torch.full((2, 200), 3.0))
        self.assertEqual((q.shape, sf.shape), ((2, 200), (2, 2)))
        same(math.per_token_cast_back(q, sf), torch.full((2, 200), 3.0, dtype=torch.bfloat16))

    def test_shapes_of_scales(self) -> None:
        """They count by their elements: a user views packed ones of an expert, too, as (-1, H/128)."""
        for rows, hidden in ((8, 512), (3, 1024), (4, 128), (12, 384)):
            x = torch.randn((rows, hidden)).to(torch.bfloat16)
            q, sf = math.per_token_cast_to_fp8(x)
            wanted = math.per_token_cast_back(q, sf)
            for shaped in (sf.view(1, -1), sf.view(-1, 1), sf.view(-1), sf.view(rows, 1, -1), sf.t().contiguous().t()):
                same(math.per_token_cast_back(q, shaped), wanted)
            wide = torch.cat((sf, torch.full_like(sf, 7.0)), dim=1)  # more than there are groups
            same(math.per_token_cast_back(q, wide), wanted)
            q, sf = quantised(x, True)
            wanted, packed = plain(q, sf).to(torch.bfloat16), exponents(sf)
            for shaped in (packed, packed.t().contiguous().t(), packed.view(1, -1), packed.reshape(-1)):
                same(math.per_token_cast_back(q, shaped), wanted)
            if packed.numel() % (hidden // 128) == 0:
                same(math.per_token_cast_back(q, packed.view(-1, hidden // 128)), wanted)

    def test_scales_that_are_wrong(self) -> None:
        q, sf = math.per_token_cast_to_fp8(torch.ones((4, 256)))
        for wrong, elements in ((sf[:3], 6), (sf[:, :1], 4), (torch.ones((5, 2), dtype=torch.float32), 10)):
            with self.assertRaisesRegex(AssertionError, f"sf has {elements} elements of torch.float32: .* 4 rows of q, 2 or"):
                math.per_token_cast_back(q, wrong)
        with self.assertRaisesRegex(AssertionError, "sf has 3 elements of torch.int32: .* 4 rows of q, 1 or more"):
            math.per_token_cast_back(q, torch.zeros((3, 1), dtype=torch.int32))
        with self.assertRaisesRegex(AssertionError, "sf has 2 elements"):
            math.per_token_cast_back(q[:0], sf[:1])
        self.assertEqual(math.per_token_cast_back(q[:0], torch.zeros((0, 1), dtype=torch.int32)).shape, (0, 256))

    def test_distinct(self) -> None:
        x = torch.tensor([[3, 1, 3, -1, 0], [-1, -1, -1, -1, -1], [4, 4, 4, 4, 4], [0, 1, 2, 3, 4]])
        math.inplace_unique(x, 5)
        self.assertEqual(x.tolist(), [[3, 1, 0, -1, -1], [-1] * 5, [4, -1, -1, -1, -1], [4, 3, 2, 1, 0]])

    def test_groups(self) -> None:
        scores = torch.arange(1, 13).view(2, 6).float()
        masked = math.create_grouped_scores(scores, torch.tensor([[0, 2], [1, 1]]), 3)
        self.assertEqual(masked.tolist(), [[1, 2, 0, 0, 5, 6], [0, 0, 9, 10, 0, 0]])


class Gate(unittest.TestCase):
    def counts(self, scores: Any, size: int, topk: int) -> list[int]:
        """Tokens of each rank, each counted once for it."""
        experts = scores.shape[1] // size
        chosen = scores.topk(topk, dim=1).indices // experts
        return [int((chosen == rank).any(dim=1).sum()) for rank in range(size)]

    def test_ratio(self) -> None:
        torch.manual_seed(3)
        for tokens, experts, size, topk, ratio in (
            (1024, 64, 8, 8, 2.0),
            (1024, 64, 8, 6, 4.0),
            (700, 32, 4, 2, 1.5),
            (512, 16, 2, 1, 3.0),
            (512, 256, 8, 8, 1.0),
            (4096, 24, 3, 4, 1.37),
        ):
            scores = gate.get_unbalanced_scores(tokens, experts, size, topk, ratio, True)
            self.assertEqual((scores.shape, scores.dtype), ((tokens, experts), torch.float32))
            counts = self.counts(scores, size, topk)
            self.assertLess(max(counts[1:]) / min(counts[1:]), 1.02)
            self.assertLess(abs(counts[0] / counts[1] / ratio - 1), 0.1, counts)

    def test_few_tokens(self) -> None:
        """The nearest counts, and never an error: counts of ranks beside 0 differ by one at most."""
        torch.manual_seed(5)
        shapes = ((2, 2, 1), (4, 2, 2), (8, 8, 2), (64, 8, 8), (2, 2, 2), (8, 8, 8), (64, 64, 1), (12, 3, 4))
        for tokens, (experts, size, topk), ratio in itertools.product((1, 2, 3, 7, 9), shapes, (1.0, 1.5, 4.0, 100.0)):
            with self.subTest(tokens=tokens, experts=experts, size=size, topk=topk, ratio=ratio):
                for precise in (True, False):
                    scores = gate.get_unbalanced_scores(tokens, experts, size, topk, ratio, precise)
                    self.assertEqual((scores.shape, scores.dtype), ((tokens, experts), torch.float32))
                    counts = self.counts(scores, size, topk)
                    self.assertLessEqual(max(counts[1:]) - min(counts[1:]), 1)
                    self.assertGreaterEqual(sum(counts), tokens * -(-topk * size // experts))
        for tokens, experts, size, topk, ratio, wanted in (
            (1, 2, 2, 1, 1.0, [1, 0]),  # as near as [0, 1]
            (2, 2, 2, 1, 1.0, [1, 1]),
            (2, 2, 2, 1, 4.0, [2, 0]),  # 1.6 and 0.4 would be right
            (3, 2, 2, 1, 4.0, [2, 1]),
            (3, 2, 2, 1, 0.1, [0, 3]),
            (1, 4, 2, 2, 1.0, [1, 1]),
            (1, 4, 2, 2, 4.0, [1, 0]),
            (3, 8, 8, 8, 4.0, [3] * 8),
        ):
            for precise in (True, False):
                scores = gate.get_unbalanced_scores(tokens, experts, size, topk, ratio, precise)
                self.assertEqual(self.counts(scores, size, topk), wanted, (tokens, experts, size, topk, ratio))

    def test_uneven_numbers(self) -> None:
        """Many ranks with one expert a token: the same number for all others would be 20 tokens on rank 0, twice."""
        counts = self.counts(gate.get_unbalanced_scores(650, 64, 64, 1, 1.0, True), 64, 1)
        self.assertEqual((counts[0], sum(counts), set(counts)), (10, 650, {10, 11}))

    def test_what_cannot_be(self) -> None:
        """Two experts of two, on two ranks: as many for each."""
        with self.assertRaisesRegex(AssertionError, "ratio is 2.0"):
            gate.get_unbalanced_scores(64, 2, 2, 2, 2.0, True)
        with self.assertRaisesRegex(AssertionError, "ratio is 0.5"):
            gate.get_unbalanced_scores(64, 2, 2, 2, 0.5, True)
        with self.assertRaisesRegex(AssertionError, "num_topk is 5: expected at most the number of experts, 4"):
            gate.get_unbalanced_scores(64, 4, 2, 5, 1.0, False)
        scores = gate.get_unbalanced_scores(64, 2, 2, 2, 2.0, False)
        self.assertEqual(self.counts(scores, 2, 2), [64, 64])
        self.assertEqual(gate.get_unbalanced_scores(5, 4, 1, 2, 9.0, True).shape, (5, 4))
        self.assertEqual(gate.get_unbalanced_scores(0, 4, 2, 2, 1.0, False).shape, (0, 4))


class References(unittest.TestCase):
    def test_accumulate(self) -> None:
        data = torch.tensor([[[1e8], [1.0], [-1e8]]])
        self.assertEqual(refs.ordered_accumulate(data).tolist(), [[0.0]])
        self.assertEqual(refs.ordered_accumulate(data.flip(1), torch.tensor([[2.0]])).tolist(), [[0.0]])
        # One rounding, to the dtype of data: in BF16 256 + 1 is 256, and 256 + 1 + 1 is 258.
        data = torch.tensor([[[256.0], [1.0], [1.0]]])
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            found = refs.ordered_accumulate(data.to(dtype), torch.full((1, 1), 2.0**-9, dtype=torch.float32))
            same(found, torch.tensor([[258.0 + 2.0**-9]]).to(dtype))

    def test_data(self) -> None:
        """By g, slot, column and seed alone."""
        whole = refs.generate_pre_combine_data(torch.arange(64, dtype=torch.int32), 16, 3, 40)
        self.assertEqual((whole.shape, whole.dtype), ((64, 3, 40), torch.bfloat16))
        some = torch.tensor([50, 7, 7], dtype=torch.int32)
        same(refs.generate_pre_combine_data(some, 16, 3, 40), whole[some.long()])
        same(refs.generate_pre_combine_data(some, 16, 2, 33), whole[some.long(), :2, :33])
        self.assertLess(abs(float(whole.float().mean())), 0.05)
        self.assertGreater(len(whole.unique()), 500)
        for other in (whole.roll(1, 0), whole.roll(1, 1), whole.roll(1, 2)):
            self.assertLess(float((whole == other).float().mean()), 0.05)
        self.assertFalse(torch.equal(refs.generate_pre_combine_data(some, 16, 3, 40, 1), whole[some.long()]))

    def sums(
        self, y: Any, idx: list[int], nodes: int, local: int, experts: int, bias: Any, by_rank: bool, by_node: bool
    ) -> Any:
        """One token [K, H], as the definition has it: lists of (highest slot, row), level by level."""
        per_rank = experts // (nodes * local)
        parts = [(k, expert // per_rank, y[k].float()) for k, expert in enumerate(idx) if expert >= 0]
        for wanted, per_owner in ((by_rank, 1), (by_node, local)):
            if wanted:
                owners = {rank // per_owner for _, rank, _ in parts}
                members = [[part for part in parts if part[1] // per_owner == owner] for owner in owners]
                added = [(each[-1][0], each[-1][1], sum(row for _, _, row in each)) for each in members]
                parts = sorted(((k, rank, row.bfloat16().float()) for k, rank, row in added), key=lambda part: part[0])
        total = torch.zeros(y.shape[1])
        for each in bias:
            total = total + each.float()
        for _, _, row in parts:
            total = total + row
        return total.bfloat16()

    def test_combine(self) -> None:
        random = torch.Generator().manual_seed(8)
        for by_rank, by_node in ((False, False), (True, False), (True, True)):
            for nodes, local in ((1, 4), (2, 2), (2, 4)):
                experts, topk = nodes * local * 2, 6
                idx = torch.rand((12, experts), generator=random).argsort(1)[:, :topk]
                idx[torch.rand(idx.shape, generator=random) < 0.25] = -1
                y = torch.randn((12, topk, 24), generator=random).bfloat16()
                y[idx < 0] = float("nan")
                pair = tuple(torch.randn((12, 24), generator=random).bfloat16() for _ in range(2))
                for bias in (None, pair[0], pair):
                    found = refs.combine(y, idx, nodes, local, experts, bias, by_rank, by_node)
                    biases = bias if isinstance(bias, tuple) else () if bias is None else (bias,)
                    for t in range(12):
                        row_biases = [each[t] for each in biases]
                        expected = self.sums(y[t], idx[t].tolist(), nodes, local, experts, row_biases, by_rank, by_node)
                        same(found[t], expected)


# For a process of its own: warnings come once a process.
QUIET = """
import sys, torch
from deep_ep.utils.testing import bench_kineto

def call():
    print("call", flush=True)
    torch.ones(3)

def fail():
    call()
    raise KeyError

for trace in (None, sys.argv[1]):
    try:
        bench_kineto(fail, "dispatch", 1, trace_path=trace)
    except KeyError:
        pass
    for names in ("dispatch", ("dispatch", "combine")):
        assert bench_kineto(call, names, 2, trace_path=trace) in (1e-6, [1e-6, 1e-6])
    call()
bench_kineto(call, "dispatch", 3, suppress_kineto_output=True)
"""


class Clocks(unittest.TestCase):
    def test_bench(self) -> None:
        calls: list[str] = []
        mean, least, most = testing.bench(
            lambda: calls.append("call"), num_warmups=2, num_tests=3, post_fn=lambda: calls.append("behind")
        )
        self.assertEqual(calls, ["call"] * 2 + ["call", "behind"] * 3)
        self.assertTrue(0 < least <= mean <= most < 60)

    def test_kernels(self) -> None:
        """By name, and by their turn in a period."""
        took = dict(a=("combine", 4.0), b=("dispatch", 1.0), c=("dispatch", 3.0), d=("barrier", 9.0))
        took.update(e=("dispatch", 5.0), f=("dispatch", 7.0))
        launches = [testing.Launch(f"{name}_impl<8>", ord(at), us) for at, (name, us) in took.items()]
        average = functools.partial(testing._average, launches[::-1])
        self.assertEqual(average(("dispatch_impl", "barrier"), 1), [4e-6, 9e-6])
        self.assertEqual(average(("dispatch",), 2), [[3e-6, 5e-6]])
        self.assertEqual(average(("none",), 1), [testing._NO_KERNEL_S])

    def test_bench_kineto(self) -> None:
        calls: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.json")
            found = testing.bench_kineto(
                lambda: calls.append("call"),
                ("dispatch_impl", "combine_impl"),
                3,
                True,
                trace,
                num_kernels_per_period=2,
                barrier=lambda: calls.append("barrier"),
            )
            self.assertTrue(os.path.getsize(trace) > 0)
        self.assertEqual(calls, ["barrier", "call"] * 3)
        self.assertTrue(all(0 < each < 1e-3 for pair in found for each in pair) and [len(p) for p in found] == [2, 2])
        self.assertGreater(testing.bench_kineto(lambda: None, "barrier", 1), 0)
        with mock.patch.dict(os.environ, EP_USE_NVIDIA_TOOLS="1"):
            self.assertEqual(testing.bench_kineto(lambda: None, "barrier", 1), 1)
            self.assertEqual(testing.bench_kineto(lambda: None, ("a", "b"), 1), (1, 1))

    def test_profiler_is_quiet(self) -> None:
        """In a process without a GPU there is the function's output alone, with a trace, too, and when that raises."""
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.json")
            ended = ranks.start([sys.executable, "-c", QUIET, trace], env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
            self.assertEqual((ended.returncode, ended.stdout), (0, "call\n" * 12))
            with open(trace) as file:
                self.assertIn("aten::ones", file.read())

    def test_meeting_of_streams(self) -> None:
        """By NCCL streams meet after a rest, before each run; otherwise hosts do, and alone nobody."""
        for backend, wanted in (("nccl", ["rest", "all_reduce"]), ("gloo", ["barrier"]), (None, [])):
            calls: list[str] = []
            dist = mock.Mock()
            dist.is_initialized.return_value, dist.get_backend.return_value = backend is not None, backend
            dist.all_reduce.side_effect = lambda _: calls.append("all_reduce")
            dist.barrier.side_effect = lambda: calls.append("barrier")
            cuda = mock.Mock(_sleep=lambda _: calls.append("rest"))
            ones = mock.Mock()
            with mock.patch.object(testing, "dist", dist), mock.patch.object(testing.torch, "cuda", cuda):
                with mock.patch.object(testing.torch, "ones", ones):
                    testing._run(lambda: calls.append("call"), 2, False, True, None)
            self.assertEqual(calls, 2 * [*wanted, "call"])


class Environment(unittest.TestCase):
    def test_network(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for state, rate, expected in (
                ("4: ACTIVE", "400 Gb/sec (4X NDR)", 50.0),
                ("4: ACTIVE", "2.5 Gb/sec (1X SDR)", 0.3125),
                ("1: DOWN", "400 Gb/sec (4X NDR)", 0.0),
                ("4: ACTIVE", "nothing", 0.0),
            ):
                for name, text in (("state", state), ("rate", rate)):
                    with open(os.path.join(folder, name), "w") as file:
                        file.write(text + "\n")
                self.assertEqual(envs._gbs_of(folder), expected)
            self.assertEqual(envs._gbs_of(os.path.join(folder, "missing")), 0.0)
        self.assertIsInstance(envs.get_rdma_gbs(), float)

    def test_nodes(self) -> None:
        """Two nodes of two ranks; see there."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        ended = ranks.start([sys.executable, os.path.join(HERE, "deep_ep_nodes.py")], env={**os.environ, **variables})
        self.assertEqual(ended.returncode, 0, ended.stdout)
        said = sorted(line for line in ended.stdout.splitlines() if line.startswith(("rank", "node")))
        wanted = [f"rank {rank}{end}" for rank in range(4) for end in ("", " is through")]
        self.assertEqual(said, sorted(["node 0", "node 1", *wanted]))


if __name__ == "__main__":
    unittest.main()
