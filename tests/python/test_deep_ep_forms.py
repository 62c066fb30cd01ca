# SPDX-License-Identifier: Apache-2.0
"""Forms: a call that looks like an earlier one gives the result of a first call; any other call is never taken for
such."""

from __future__ import annotations

import contextlib
import os
import threading
import unittest
from typing import Any, Iterator
from unittest import mock

import torch

import deep_ep
from deep_ep import _call, _forms, _place
from expar import _exchange
from deep_ep_threads import FakeComm

TOKENS, TOPK, EXPERTS, HIDDEN, MOST = 3, 2, 4, 256, 8
SHOWN = (True, False) if _forms.shown else (False,)


@contextlib.contextmanager
def forms(shown: bool) -> Iterator[None]:
    """Calls are function objects, or take their steps in Python."""
    with mock.patch.object(_forms, "shown", shown):
        yield


def alone() -> Any:
    return deep_ep.Buffer(None, 1 << 20, low_latency_mode=True, num_qps_per_rank=EXPERTS, comm=FakeComm(1).rank(0))


def given(tokens: int, topk: int, seed: int, hidden: int = HIDDEN) -> tuple[Any, Any, Any]:
    random = torch.Generator().manual_seed(seed)
    idx = torch.rand(tokens, EXPERTS, generator=random).topk(topk, 1)[1]
    x = torch.randn(tokens, hidden, generator=random).to(torch.bfloat16)
    return x, idx, torch.rand(tokens, topk, generator=random)


def weighted(x: Any, weights: Any) -> Any:
    """The sum that comes back where all experts give what they got."""
    total = torch.zeros(x.shape, dtype=torch.float32)
    for k in range(weights.shape[1]):
        total = total + weights[:, k : k + 1] * x.float()
    return total.to(x.dtype)


def pair(buffer: Any, x: Any, idx: Any, weights: Any, hook: bool = False, **more: Any) -> Any:
    """Results of a low-latency dispatch and combine."""
    rows, count, handle, _, receive = buffer.low_latency_dispatch(
        x, idx, MOST, EXPERTS, use_fp8=False, return_recv_hook=hook
    )
    if hook:
        receive()
    assert count.tolist() == torch.bincount(idx.flatten().long(), minlength=EXPERTS).tolist()
    y, _, receive = buffer.low_latency_combine(rows, idx, weights, handle, return_recv_hook=hook, **more)
    if hook:
        receive()
    return y


class Looks(unittest.TestCase):
    def test_low_latency(self) -> None:
        """Other tokens, types and strides of the same shape, hooks, an output of one's own, one after the other."""
        for shown in SHOWN:
            with forms(shown):
                buffer = alone()
                for seed, (tokens, topk) in enumerate(((3, 2), (3, 2), (1, 2), (3, 1), (0, 2), (3, 2))):
                    x, idx, weights = given(tokens, topk, seed)
                    apart = torch.zeros((tokens, 2 * HIDDEN), dtype=x.dtype)[:, :HIDDEN].copy_(x)
                    for own in (x, apart, x.half(), x):
                        for own_idx in (idx, idx.int()):
                            for hook in (False, True):
                                y = pair(buffer, own, own_idx, weights, hook)
                                self.assertTrue(torch.equal(y, weighted(own, weights)))
                    out = torch.empty_like(x)
                    self.assertIs(pair(buffer, x, idx, weights, out=out), out)
                    self.assertTrue(torch.equal(out, weighted(x, weights)))
                self.assertGreater(len(buffer._forms), 4)

    def test_scales_of_one_column(self) -> None:
        """A second call has a form also where scales are contiguous, whatever their strides along one column are."""
        for shown in SHOWN:
            with forms(shown), mock.patch.dict(os.environ, EXPAR_DEEP_EP_OUTPUTS="torch"):
                buffer, (x, idx, _) = alone(), given(TOKENS, TOPK, 6, hidden=128)
                found = []
                for _ in range(3):
                    found.append(buffer.low_latency_dispatch(x, idx, MOST, EXPERTS)[0][1])
                    self.assertEqual(found[-1].stride()[1], 1)
                    with mock.patch.object(buffer, "_first_dispatch", side_effect=AssertionError("a first call")):
                        buffer.low_latency_dispatch(x, idx, MOST, EXPERTS)

    def test_statistics(self) -> None:
        """With calls that give them, between such as do not."""
        for shown in SHOWN:
            with forms(shown):
                buffer, (x, idx, weights) = alone(), given(TOKENS, TOPK, 5)
                stats = torch.zeros(EXPERTS, dtype=torch.int32)
                for own in (None, stats, None, stats, stats):
                    buffer.low_latency_dispatch(x, idx, MOST, EXPERTS, cumulative_local_expert_recv_stats=own)
                self.assertEqual(stats.tolist(), (3 * torch.bincount(idx.flatten(), minlength=EXPERTS)).tolist())

    def test_normal(self) -> None:
        """With handles of several dispatches, weights and biases or not, scales."""
        for shown in SHOWN:
            with forms(shown):
                buffer = alone()
                for seed, tokens in enumerate((3, 3, 2, 0, 3)):
                    x, idx, weights = given(tokens, TOPK, seed)
                    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, EXPERTS)
                    handle = buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, idx, weights)[4]
                    coded, scales = x.to(torch.float8_e4m3fn), torch.rand(tokens, 2)
                    for own in (x, x.float(), x):
                        self.assertTrue(torch.equal(buffer.dispatch(own, handle=handle)[0], own))
                    for column_major in (scales, scales.t().contiguous().t()):
                        found, found_scales = buffer.dispatch((coded, column_major), handle=handle)[0]
                        self.assertTrue(torch.equal(found.view(torch.uint8), coded.view(torch.uint8)))
                        self.assertTrue(torch.equal(found_scales, scales))
                    added = (None, None), (weights, None), (None, x), (weights, (x, x)), (None, None)
                    for given_weights, bias in added:
                        y, found_weights, _ = buffer.combine(x, handle, given_weights, bias)
                        many = 0 if bias is None else 2 if isinstance(bias, tuple) else 1
                        self.assertTrue(torch.equal(y, ((1 + many) * x.float()).to(x.dtype)))
                        self.assertEqual(found_weights is None, given_weights is None)

    def test_elastic(self) -> None:
        """With handles that have other numbers of rows, expanded and not."""
        for shown in SHOWN:
            with forms(shown):
                buffer = deep_ep.ElasticBuffer(FakeComm(1).rank(0), num_max_tokens_per_rank=MOST, hidden=HIDDEN)
                for seed, tokens in enumerate((3, 3, 2, 0, 3)):
                    x, idx, weights = given(tokens, TOPK, seed)
                    for expand in (False, True):
                        rows, _, _, handle, _ = buffer.dispatch(x, idx, weights, num_experts=EXPERTS, do_expand=expand)
                        for sign in (1, -1, 1):
                            again = buffer.dispatch(sign * x, handle=handle, do_expand=expand)
                            self.assertTrue(torch.equal(again[0], sign * rows))
                            self.assertIs(again[3], handle)
                            y = buffer.combine(again[0], handle)[0]
                            wanted = sign * x.float() * (TOPK if expand else 1)
                            self.assertTrue(torch.equal(y, wanted.to(x.dtype)))


def fresh(buffer: Any, x: Any, idx: Any, weights: Any, experts: int = EXPERTS, **more: Any) -> Any:
    """A fresh dispatch by that layout. Its tensors are freed afterwards."""
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, experts)
    return buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, idx, weights, **more)


class Fresh(unittest.TestCase):
    def check(self, buffer: Any, x: Any, idx: Any, weights: Any, experts: int = EXPERTS, **more: Any) -> None:
        """A fresh dispatch gives on one rank what it was given, and its handle serves a combine."""
        rows, found_idx, found_weights, counts, handle, event = fresh(buffer, x, idx, weights, experts, **more)
        if more.get("async_finish"):
            event.current_stream_wait()
        worst, alignment = more.get("num_worst_tokens", 0), more.get("expert_alignment", 1)
        wanted = torch.bincount(idx.flatten().long(), minlength=experts)
        aligned = (wanted + alignment - 1) // alignment * alignment
        self.assertEqual(counts, [] if worst else aligned.tolist())
        tokens = len(idx)
        for found, given_ in ((rows, x), (found_idx, idx), (found_weights, weights)):
            pair = found if isinstance(found, tuple) else (found,)
            for one, other in zip(pair, given_ if isinstance(given_, tuple) else (given_,)):
                if other is None:
                    self.assertIsNone(one)
                    continue
                self.assertEqual((len(one), one.dtype), (worst or tokens, other.dtype))
                bits = (each.contiguous().view(torch.uint8) for each in (one[:tokens], other))
                self.assertTrue(torch.equal(*bits))
        self.assertEqual(handle[0].tolist(), [[tokens]])
        if not isinstance(x, tuple):
            y = buffer.combine(rows, handle)[0]
            self.assertTrue(torch.equal(y, x))

    def test_others_between(self) -> None:
        """Other tokens, types, strides, options and tensors that are not given, one after the other."""
        for shown in SHOWN:
            with forms(shown):
                buffer = alone()
                for seed, (tokens, topk) in enumerate(((3, 2), (3, 2), (1, 2), (3, 1), (0, 2), (3, 2))):
                    x, idx, weights = given(tokens, topk, seed)
                    apart = torch.zeros((tokens, 2 * HIDDEN), dtype=x.dtype)[:, :HIDDEN].copy_(x)
                    coded = x.to(torch.float8_e4m3fn), torch.rand(tokens, 2)
                    for own in (x, apart, x.half(), coded, x):
                        for own_weights in (weights, None):
                            self.check(buffer, own, idx, own_weights)
                            self.check(buffer, own, idx.int(), own_weights)
                    for more in (
                        dict(num_worst_tokens=5),
                        dict(),
                        dict(num_worst_tokens=4),
                        dict(expert_alignment=4),
                        dict(async_finish=True),
                        dict(async_finish=True, num_worst_tokens=5),
                        dict(),
                    ):
                        self.check(buffer, x, idx, weights, **more)
                    self.check(buffer, x, idx, weights, 2 * EXPERTS)
                    self.check(buffer, x, idx, weights)
                self.assertGreater(len(buffer._normal_forms), 10)

    def test_repeated(self) -> None:
        """A repeated call makes no form, and its memory is that of the calls before."""
        for shown in SHOWN:
            with forms(shown):
                buffer, (x, idx, weights) = alone(), given(TOKENS, TOPK, 3)
                self.check(buffer, x, idx, weights)
                ep, kept = buffer._modes[_place.CPU][0].ep, dict(buffer._normal_forms)
                before = ep.stats()["group_used_bytes"]
                for seed in range(20):
                    self.check(buffer, *given(TOKENS, TOPK, seed))
                self.assertEqual(ep.stats()["group_used_bytes"], before)
                self.assertEqual([id(form) for form in buffer._normal_forms.values()], list(map(id, kept.values())))

    def test_counts_of_the_caller(self) -> None:
        """Without topk_idx the counts are those of num_tokens_per_expert, which differ from call to call."""
        for shown in SHOWN:
            with forms(shown):
                buffer, (x, idx, weights) = alone(), given(TOKENS, TOPK, 3)
                per_rank, in_rank = torch.tensor([TOKENS], dtype=torch.int32), torch.ones(TOKENS, 1, dtype=torch.bool)
                for counts in ([1, 2, 0, 0], [0, 0, 3, 0], [1, 1, 1, 0]):
                    per_expert = torch.tensor(counts, dtype=torch.int32)
                    found = buffer.dispatch(x, None, per_rank, None, in_rank, per_expert)
                    self.assertEqual((found[1], found[2], found[3]), (None, None, counts))
                    self.assertTrue(torch.equal(found[0], x))
                    self.check(buffer, x, idx, weights)

    def test_wrong(self) -> None:
        """After a good call each wrong one is told what is wrong, and takes no memory."""
        for shown in SHOWN:
            with forms(shown):
                buffer, (x, idx, weights) = alone(), given(TOKENS, TOPK, 3)
                per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, EXPERTS)
                good: dict[str, Any] = dict(x=x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank)
                good.update(num_tokens_per_expert=per_expert, topk_idx=idx, topk_weights=weights)
                self.check(buffer, x, idx, weights)
                before = buffer._modes[_place.CPU][0].ep.stats()["group_used_bytes"]
                outside = idx.clone()
                outside[1, 0] = EXPERTS
                for error, text, wrong in (
                    (AssertionError, "num_tokens_per_rank, is_token_in_rank", dict(num_tokens_per_rank=None)),
                    (AssertionError, "num_tokens_per_rank, is_token_in_rank", dict(is_token_in_rank=None)),
                    (AssertionError, "num_tokens_per_expert is of type list", dict(num_tokens_per_expert=[1])),
                    (AssertionError, "is torch.int64 on cpu", dict(num_tokens_per_expert=per_expert.long())),
                    (
                        AssertionError,
                        "expected contiguous",
                        dict(num_tokens_per_expert=torch.zeros(2 * EXPERTS, dtype=torch.int32)[::2]),
                    ),
                    (AssertionError, "x is of type list", dict(x=[1])),
                    (RuntimeError, "x lies on meta", dict(x=x.to("meta"))),
                    (AssertionError, "topk_idx is of type list", dict(topk_idx=[1])),
                    (AssertionError, "topk_weights needs topk_idx", dict(topk_idx=None)),
                    (RuntimeError, "", dict(topk_idx=idx[:2])),
                    (RuntimeError, r"topk_idx\[1\]\[0\] is 4", dict(topk_idx=outside)),
                    (RuntimeError, "is_token_in_rank|token_in_rank", dict(is_token_in_rank=in_rank.int())),
                    (AssertionError, "expert_alignment is 1.5", dict(expert_alignment=1.5)),
                    (AssertionError, "num_worst_tokens is '1'", dict(num_worst_tokens="1")),
                    (RuntimeError, "2", dict(num_worst_tokens=2)),  # one row is dropped
                    (RuntimeError, "2", dict(num_worst_tokens=2)),
                    (AssertionError, "config is 3", dict(config=3)),
                ):
                    with self.assertRaisesRegex(error, text):
                        buffer.dispatch(**{**good, **wrong})
                    self.check(buffer, x, idx, weights)
                self.assertEqual(buffer._modes[_place.CPU][0].ep.stats()["group_used_bytes"], before)

    def test_layout(self) -> None:
        """Layouts of other tokens, types, strides and experts, one after the other; wrong ones between."""
        for shown in SHOWN:
            with forms(shown):
                buffer = deep_ep.Buffer(explicitly_destroy=True, comm=FakeComm(1).rank(0))
                for seed, (tokens, topk) in enumerate(((3, 2), (3, 2), (1, 2), (3, 1), (0, 2), (3, 2))):
                    idx = given(tokens, topk, seed)[1]
                    apart = torch.zeros((tokens, 5), dtype=torch.int64)[:, :topk].copy_(idx)
                    for own in (idx, idx.int(), apart, idx):
                        for experts in (EXPERTS, 2 * EXPERTS):
                            per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(own, experts)
                            wanted = torch.bincount(idx.flatten(), minlength=experts).int()
                            self.assertTrue(torch.equal(per_expert, wanted))
                            self.assertEqual((per_rank.tolist(), per_node), ([tokens], None))
                            self.assertEqual(in_rank.tolist(), [[True]] * tokens)
                    for error, text, wrong, experts in (
                        (AssertionError, "topk_idx is of type list", [[1]], EXPERTS),
                        (AssertionError, "num_experts is 4.5", idx, 4.5),
                        (RuntimeError, "dtype|element type", idx.float(), EXPERTS),
                        (RuntimeError, "num_experts is 0|0 experts", idx, 0),
                    ):
                        with self.assertRaisesRegex(error, text):
                            buffer.get_dispatch_layout(wrong, experts)
                    if tokens:
                        with self.assertRaisesRegex(RuntimeError, r"topk_idx\[0\]\[0\] is 4"):
                            buffer.get_dispatch_layout(torch.full_like(idx, EXPERTS), EXPERTS)
                buffer.destroy()
                with self.assertRaisesRegex(AssertionError, "destroyed"):
                    buffer.get_dispatch_layout(idx, EXPERTS)


class ElasticFresh(unittest.TestCase):
    """Fresh dispatches of `ElasticBuffer`."""

    def check(self, buffer: Any, x: Any, idx: Any, weights: Any, experts: int = EXPERTS, **more: Any) -> Any:
        """All that one rank gets and its handle says follows from what it gave."""
        expand, alignment = more.get("do_expand", False), more.get("expert_alignment") or 1
        rows, found_idx, found_weights, handle, event = buffer.dispatch(x, idx, weights, num_experts=experts, **more)
        if more.get("async_with_compute_stream"):
            event.current_stream_wait()
        tokens, counts = len(idx), torch.bincount(idx.flatten(), minlength=experts)
        aligned = (counts + alignment - 1) // alignment * alignment
        self.assertEqual(handle.num_unaligned_recv_tokens_per_expert.tolist(), counts.tolist())
        ends = aligned.cumsum(0)
        self.assertEqual(
            handle.psum_num_recv_tokens_per_expert.tolist(), (ends - aligned + counts if expand else ends).tolist()
        )
        self.assertTrue(torch.equal(handle.topk_idx, idx))
        self.assertEqual(handle.topk_idx is idx, more.get("do_handle_copy") is False)
        most = more.get("num_max_tokens_per_rank") or buffer.num_max_tokens_per_rank
        self.assertEqual((handle.num_experts, handle.num_max_tokens_per_rank), (experts, most))
        self.assertEqual(handle.expert_alignment, alignment)
        synced = more.get("do_cpu_sync") is not False
        self.assertEqual(handle.num_recv_tokens_per_expert_list, aligned.tolist() if synced else [])
        self.assertEqual(found_weights is None, weights is None)
        if synced:
            self.assertEqual(len(rows), int(aligned.sum()) if expand else tokens)
        if not expand:
            self.assertTrue(torch.equal(rows[:tokens], x))
            self.assertTrue(torch.equal(found_idx[:tokens], idx))
            if weights is not None:
                self.assertTrue(torch.equal(found_weights[:tokens], weights))
        elif weights is not None:
            of_slots = found_weights[handle.recv_src_metadata[:tokens, 2:]]
            self.assertTrue(torch.equal(of_slots, weights))
        y = buffer.combine(rows, handle)[0]
        self.assertTrue(torch.equal(y, (x.float() * (idx.shape[1] if expand else 1)).to(x.dtype)))
        return rows

    def test_others_between(self) -> None:
        """Other tokens, options and tensors that are not given, one after the other."""
        for shown in SHOWN:
            with forms(shown):
                buffer = deep_ep.ElasticBuffer(FakeComm(1).rank(0), num_max_tokens_per_rank=MOST, hidden=HIDDEN)
                for seed, (tokens, topk) in enumerate(((3, 2), (3, 2), (1, 2), (3, 1), (0, 2), (3, 2))):
                    x, idx, weights = given(tokens, topk, seed)
                    for more in (
                        dict(),
                        dict(do_expand=True),
                        dict(do_handle_copy=False),
                        dict(),
                        dict(num_max_tokens_per_rank=MOST + 1),
                        dict(do_cpu_sync=False),
                        dict(expert_alignment=4),
                        dict(expert_alignment=4, do_expand=True),
                        dict(do_cpu_sync=False, do_expand=True),
                        dict(async_with_compute_stream=True),
                        dict(do_expand=True),
                        dict(),
                    ):
                        for own_weights in (weights, None, weights):
                            self.check(buffer, x, idx, own_weights, **more)
                    self.check(buffer, x, idx, weights, 2 * EXPERTS)
                    self.check(buffer, x, idx, weights)
                    stats = torch.zeros(EXPERTS, dtype=torch.int32)
                    for _ in range(2):
                        self.check(buffer, x, idx, weights, cumulative_local_expert_recv_stats=stats)
                    self.assertEqual(stats.tolist(), (2 * torch.bincount(idx.flatten(), minlength=EXPERTS)).tolist())

    def test_repeated(self) -> None:
        """A repeated call makes no form, and its memory is that of the calls before."""
        for shown in SHOWN:
            with forms(shown):
                buffer = deep_ep.ElasticBuffer(FakeComm(1).rank(0), num_max_tokens_per_rank=MOST, hidden=HIDDEN)
                for expand in (False, True):
                    x, idx, weights = given(TOKENS, TOPK, 3)
                    for _ in range(2):
                        self.check(buffer, x, idx, weights, do_expand=expand)
                    ep, kept = buffer._at(_place.CPU).ep, list(buffer._calls)
                    before = ep.stats()["group_used_bytes"]
                    with mock.patch.object(buffer, "_form", side_effect=AssertionError("a call was looked at")):
                        for _ in range(20):
                            self.check(buffer, -x, idx.clone(), weights.clone(), do_expand=expand)
                    self.assertEqual(ep.stats()["group_used_bytes"], before)
                    self.assertEqual(list(buffer._calls), kept)

    def test_wrong(self) -> None:
        """After a good call each wrong one is told what is wrong."""
        for shown in SHOWN:
            with forms(shown):
                buffer = deep_ep.ElasticBuffer(FakeComm(1).rank(0), num_max_tokens_per_rank=MOST, hidden=HIDDEN)
                x, idx, weights = given(TOKENS, TOPK, 3)
                good: dict[str, Any] = dict(x=x, topk_idx=idx, topk_weights=weights, num_experts=EXPERTS)
                self.check(buffer, x, idx, weights)
                for error, text, wrong in (
                    (TypeError, "x is", dict(x=[1])),
                    (TypeError, "topk_idx is", dict(topk_idx=[[1]])),
                    (AssertionError, "topk_idx and num_experts", dict(topk_idx=None)),
                    (AssertionError, "topk_idx and num_experts", dict(num_experts=None)),
                    (TypeError, "num_experts is 4.0", dict(num_experts=4.0)),
                    (AssertionError, "expert_alignment is 0", dict(expert_alignment=0)),
                    (RuntimeError, "num_max_tokens_per_rank|tokens", dict(num_max_tokens_per_rank=2)),
                    (RuntimeError, "topk_idx", dict(topk_idx=idx.int())),
                    (RuntimeError, "topk_weights", dict(topk_weights=weights.double())),
                    (RuntimeError, r"is 4; expected", dict(topk_idx=torch.full_like(idx, EXPERTS))),
                    (AssertionError, "num_qps is -1", dict(num_qps=-1)),
                    (RuntimeError, "do_zero_padding", dict(do_zero_padding=True)),
                ):
                    with self.assertRaisesRegex(error, text):
                        buffer.dispatch(**{**good, **wrong})
                    self.check(buffer, x, idx, weights)


class Wrong(unittest.TestCase):
    def test_after_good_ones(self) -> None:
        """An error is reported as that of a first call, and the next call is as good as before."""
        for shown in SHOWN:
            with forms(shown):
                buffer, (x, idx, weights) = alone(), given(TOKENS, TOPK, 7)
                for _ in range(2):
                    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, MOST, EXPERTS, use_fp8=False)
                    buffer.low_latency_combine(rows, idx, weights, handle)
                    for error, text, call in (
                        (AssertionError, "topk_idx is of type list", lambda: pair(buffer, x, [[1]], weights)),
                        (AssertionError, "topk_weights is of type NoneType", lambda: pair(buffer, x, idx, None)),
                        (AssertionError, "x is of type list", lambda: pair(buffer, [1], idx, weights)),
                        (RuntimeError, "x lies on meta", lambda: pair(buffer, x.to("meta"), idx, weights)),
                        (RuntimeError, "dtype", lambda: pair(buffer, x.to(torch.complex64), idx, weights)),
                        (AssertionError, "3 dimensions", lambda: pair(buffer, x[None], idx, weights)),
                    ):
                        with self.assertRaisesRegex(error, text):
                            call()
                    self.assertTrue(torch.equal(pair(buffer, x, idx, weights), weighted(x, weights)))

    def test_destroyed(self) -> None:
        for shown in SHOWN:
            with forms(shown):
                buffer = deep_ep.Buffer(low_latency_mode=True, explicitly_destroy=True, comm=FakeComm(1).rank(0))
                x, idx, weights = given(TOKENS, TOPK, 7)
                pair(buffer, x, idx, weights)
                buffer.destroy()
                with self.assertRaisesRegex(AssertionError, "destroyed"):
                    pair(buffer, x, idx, weights)

    def test_in_a_child(self) -> None:
        """By fork: it is no rank, and is told so."""
        for shown in SHOWN:
            with forms(shown):
                buffer, (x, idx, weights) = alone(), given(TOKENS, TOPK, 7)
                per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, EXPERTS)
                calls = (
                    lambda: pair(buffer, x, idx, weights),
                    lambda: buffer.get_dispatch_layout(idx, EXPERTS),
                    lambda: buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, idx, weights),
                )
                for call in calls:
                    call()
                for call in calls:
                    child = os.fork()
                    if child == 0:
                        with contextlib.suppress(BaseException):
                            try:
                                call()
                            except RuntimeError as error:
                                os._exit(0 if "was forked from it" in str(error) else 3)
                        os._exit(2)
                    self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
                self.assertTrue(torch.equal(pair(buffer, x, idx, weights), weighted(x, weights)))

    @unittest.skipUnless(_forms.shown, "this PyTorch does not show tensors to C")
    def test_table(self) -> None:
        with self.assertRaisesRegex(RuntimeError, r"functions->view is NULL"):
            functions = type(_exchange.functions).from_buffer_copy(_exchange.functions)
            functions.view = None
            _forms.lib.expar_python_use(_call.addressof(functions))


class Threads(unittest.TestCase):
    def test_fresh(self) -> None:
        """Two ranks whose routing differs from call to call: rows, counts and prefixes are those of each call."""
        ranks, local = 2, EXPERTS // 2

        def check(buffer: Any, number: int, round_: int) -> bool:
            given_ = [given(TOKENS, TOPK, 10 * round_ + source) for source in range(ranks)]
            x, idx, weights = given_[number]
            rows, found_idx, _, counts, handle, _ = fresh(buffer, x, idx, weights)
            here = [each[1] // local == number for each in given_]
            wanted = torch.cat([each[0][mine.any(1)] for each, mine in zip(given_, here)])
            lists = torch.cat([torch.where(mine, each[1] % local, -1)[mine.any(1)] for each, mine in zip(given_, here)])
            many = [int((lists == expert).sum()) for expert in range(local)]
            prefix = torch.tensor([int(mine.any(1).sum()) for mine in here]).cumsum(0)
            y = buffer.combine(rows, handle)[0]
            reached = torch.stack([(idx // local == rank).any(1) for rank in range(ranks)]).sum(0)
            return (
                torch.equal(rows, wanted)
                and torch.equal(found_idx, lists)
                and counts == many
                and handle[0][:, number].tolist() == prefix.tolist()
                and torch.equal(y, (reached[:, None] * x.float()).to(x.dtype))
            )

        for shown in SHOWN:
            with forms(shown):
                comm, found = FakeComm(ranks), []

                def rank(number: int) -> None:
                    buffer = deep_ep.Buffer(comm=comm.rank(number))
                    for round_ in range(20):
                        found.append(check(buffer, number, round_))

                both = [threading.Thread(target=rank, args=(number,)) for number in range(ranks)]
                for each in both:
                    each.start()
                for each in both:
                    each.join()
                self.assertEqual(found, [True] * 40)

    def test_others_run(self) -> None:
        """A rank that waits in a form's call has not the interpreter's lock: the other one comes to its own."""
        for shown in SHOWN:
            with forms(shown):
                comm, found = FakeComm(2), []

                def rank(number: int) -> None:
                    buffer = deep_ep.Buffer(low_latency_mode=True, comm=comm.rank(number))
                    x, idx, weights = given(TOKENS, TOPK, number)
                    for _ in range(20):
                        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, MOST, EXPERTS, use_fp8=False)
                        y = buffer.low_latency_combine(rows, idx, weights, handle)[0]
                        found.append(torch.equal(y, weighted(x, weights)))

                ranks = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
                for each in ranks:
                    each.start()
                for each in ranks:
                    each.join()
                self.assertEqual(found, [True] * 40)


if __name__ == "__main__":
    unittest.main()
