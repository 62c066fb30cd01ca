# SPDX-License-Identifier: Apache-2.0
"""Two ranks that are forks, of which rank 1 is stopped between two calls: what rank 0's next calls come to."""

from __future__ import annotations

import copy
import os
import signal
from typing import Any

import torch
from deep_ep_ranks import BATCH, ll_traffic
from deep_ep_reference import same

import deep_ep

_HINTS = dict(num_max_tokens_per_rank=4, hidden=32)


def told(comm: Any, **seconds: int) -> None:
    """Calls of `ElasticBuffer` raise which rank is silent, after seconds of the options that are given."""
    os.environ.pop("EXPAR_TIMEOUT", None)
    buffer = deep_ep.ElasticBuffer(comm, **_HINTS, **seconds)
    x = torch.ones((4, 32), dtype=torch.bfloat16)
    idx = torch.arange(4).view(4, 1) % 2
    rows, _, _, handle, _ = buffer.dispatch(x, idx, num_experts=2)
    if buffer.rank_idx == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        buffer.combine(rows, handle)
        buffer.dispatch(x, idx, num_experts=2)  # on a GPU a combine waits for nobody, and this one for counts
    except RuntimeError as error:
        assert "silent: rank 1" in str(error), error
    else:
        raise AssertionError("calls without rank 1")


def masked(comm: Any, cleans: bool = False) -> None:
    """Low-latency calls of a buffer with enable_shrink mask it by themselves, without an error, and go on. cleans: the
    first one that misses it is a clean."""
    os.environ["EXPAR_TIMEOUT"] = "3"
    buffer = deep_ep.Buffer(comm=comm, low_latency_mode=True, enable_shrink=True)
    traffic, rank = ll_traffic(buffer, 7), buffer.rank
    x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
    without = copy.copy(traffic)  # what goes to rank 1 goes nowhere
    without.topk_idx = [torch.where(each // traffic.local == 1, -1, each) for each in traffic.topk_idx]
    assert not torch.equal(traffic.weighted(0), without.weighted(0))

    def sent() -> Any:
        return buffer.low_latency_dispatch(x, idx, BATCH, traffic.shape.experts, use_fp8=False)

    def check(found: Any, wanted: Any) -> None:
        same(buffer.low_latency_combine(traffic.answer(rank, found[0]), idx, weights, found[2])[0], wanted)

    check(sent(), traffic.weighted(rank))
    found = sent()
    status = torch.full((2,), 9, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0, 0], status
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if cleans:
        buffer.clean_low_latency_buffer(BATCH, traffic.shape.hidden, traffic.shape.experts)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 1], status
    for _ in range(2):
        check(found, without.weighted(rank))
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 1], status
        found = sent()
        assert not (found[2][1][:, 1] & 0xFFFFFFFF).any()
