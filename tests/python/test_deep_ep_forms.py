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
from deep_ep import _call, _forms
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


class Wrong(unittest.TestCase):
    def test_behind_good_ones(self) -> None:
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
                pair(buffer, x, idx, weights)
                child = os.fork()
                if child == 0:
                    with contextlib.suppress(BaseException):
                        try:
                            pair(buffer, x, idx, weights)
                        except RuntimeError as error:
                            os._exit(0 if "was forked from it" in str(error) else 3)
                    os._exit(2)
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
                self.assertTrue(torch.equal(pair(buffer, x, idx, weights), weighted(x, weights)))

    @unittest.skipUnless(_forms.shown, "this PyTorch does not show tensors to C")
    def test_table(self) -> None:
        with self.assertRaisesRegex(RuntimeError, r"functions->view is NULL"):
            functions = type(_forms._functions).from_buffer_copy(_forms._functions)
            functions.view = None
            _forms.lib.expar_python_use(_call.addressof(functions))


class Threads(unittest.TestCase):
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
