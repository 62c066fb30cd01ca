# SPDX-License-Identifier: Apache-2.0
"""Ends of an interpreter with everything of `deep_ep` still there: a process for each, forked once PyTorch is in."""

from __future__ import annotations

import os
import sys

import torch
from test_python_group import FakeComm

import deep_ep

ENDS = (
    "",
    "del buffer",
    "del handle, rows",
    "del elastic",
    "del got",
    "del ll, hook",
    "sys.exit(0)",
    "sys.modules.clear()",
    "cycle = [buffer]; cycle.append(cycle)",
)
children = []
for end in ENDS:
    child = os.fork()
    if child == 0:
        break
    children.append(child)
else:
    failed = [end for end, child in zip(ENDS, children) if os.waitpid(child, 0)[1]]
    if failed:
        print("these ends failed:", failed)
    os._exit(len(failed))

buffer = deep_ep.Buffer(comm=FakeComm(1).rank(0), low_latency_mode=True, explicitly_destroy=True)
x, idx = torch.zeros((5, 128), dtype=torch.bfloat16), torch.zeros((5, 1), dtype=torch.int64)
per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, 2)
rows, _, _, _, handle, event = buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, idx, async_finish=True)
sums = buffer.combine(rows, handle, previous_event=event, async_finish=True)
ll = buffer.low_latency_dispatch(x, idx, 8, 2, return_recv_hook=True)
hook = ll[4]
other = buffer.low_latency_dispatch(x, idx, 8, 2, use_fp8=False)
region = buffer.get_next_low_latency_combine_buffer(other[2])
elastic = deep_ep.ElasticBuffer(FakeComm(1).rank(0), num_max_tokens_per_rank=8, hidden=128)
got = elastic.dispatch(x, idx, idx.float(), num_experts=2, do_expand=True, async_with_compute_stream=True)
later = dict(previous_event=got[4], allocate_on_comm_stream=True, async_with_compute_stream=True)
back = elastic.combine(got[0], got[3], **later)
exec(end)
