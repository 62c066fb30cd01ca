# SPDX-License-Identifier: Apache-2.0
"""A rank of two, of which rank 1 is stopped between two calls: `deep_ep_silence.py RANK MEETING`. Rank 0 writes what
its second call raises."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist

import deep_ep

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
buffer = deep_ep.ElasticBuffer(dist.group.WORLD, 2 << 20, num_max_tokens_per_rank=4, num_cpu_timeout_secs=3)
x = torch.ones((4, 32), dtype=torch.bfloat16)
idx = torch.arange(4).view(4, 1) % 2
rows, _, _, handle, _ = buffer.dispatch(x, idx, num_experts=2)
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    buffer.combine(rows, handle)
except RuntimeError as error:
    print(error, flush=True)
os._exit(0)
