# SPDX-License-Identifier: Apache-2.0
"""Start of a test's processes, and facts about their machine.

A program is started once on each node, and starts its ranks itself. The environment has the address of the others:
MASTER_ADDR, MASTER_PORT, WORLD_SIZE (nodes) and RANK (this node).
"""

from __future__ import annotations

import glob
import os
import random
import re
from typing import Any

import torch
import torch.distributed as dist

_local_rank = 0  # set by init_dist


def init_dist(local_rank: int, num_local_ranks: int, seed: int = 0) -> tuple[int, int, Any]:
    """Returns (rank, number of ranks, a new group of all). Collective. With GPUs the group uses NCCL, and tensors are
    created on this rank's GPU. Otherwise it uses gloo on the CPU. The default dtype becomes bf16. NCCL_IB_SL and
    EP_OVERRIDE_RDMA_SL become 1 unless they are set."""
    global _local_rank
    _local_rank = local_rank
    address, port = os.getenv("MASTER_ADDR", "127.0.0.1"), int(os.getenv("MASTER_PORT", "8361"))
    for name in ("NCCL_IB_SL", "EP_OVERRIDE_RDMA_SL"):
        os.environ.setdefault(name, "1")
    nodes, node = int(os.getenv("WORLD_SIZE", "1")), int(os.getenv("RANK", "0"))
    on_gpu = torch.cuda.is_available()
    rank, size = node * num_local_ranks + local_rank, nodes * num_local_ranks
    if on_gpu:
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        backend="nccl" if on_gpu else "gloo", init_method=f"tcp://{address}:{port}", world_size=size, rank=rank
    )
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda" if on_gpu else "cpu")
    init_seed(seed)
    return rank, size, dist.new_group(list(range(size)))


def init_seed(seed: int) -> None:
    """Seeds PyTorch and `random` with seed + rank."""
    own = seed + (dist.get_rank() if dist.is_initialized() else 0)
    torch.manual_seed(own)
    random.seed(own)


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Prints on one rank of a node or on all ranks, and then waits for all ranks. Collective."""
    if not once_in_node or _local_rank == 0:
        print(f"{s}\n", end="", flush=True)  # one write, because other ranks print, too
    dist.barrier()


def get_rdma_gbs() -> float:
    """Returns the GB/s of this host's fastest active RDMA port; 0 without one."""
    return max((_gbs_of(each) for each in glob.glob("/sys/class/infiniband/*/ports/*")), default=0.0)


def _gbs_of(port: str) -> float:
    """Returns the GB/s of a port's folder, from its files `state` (4: ACTIVE) and `rate` (400 Gb/sec (4X NDR))."""
    try:
        with open(os.path.join(port, "state")) as state, open(os.path.join(port, "rate")) as rate:
            found = re.match(r"([\d.]+) Gb/sec", rate.read())
            return float(found.group(1)) / 8 if found and state.read().startswith("4:") else 0.0
    except OSError:
        return 0.0


def get_sm_read_gbs() -> float:
    """Returns the GB/s that one SM is taken to read."""
    return 180


def get_sm_write_gbs() -> float:
    """Returns the GB/s that one SM is taken to write."""
    return 45


def get_physical_domain_size(group_or_buffer: Any) -> tuple[int, int]:
    """Returns what `deep_ep.get_physical_domain_size` does."""
    from .. import _elastic_sizes

    return _elastic_sizes.get_physical_domain_size(group_or_buffer)


def get_logical_domain_size(group_or_buffer: Any, allow_hybrid_mode: bool | None = None) -> tuple[int, int]:
    """Returns what `deep_ep.get_logical_domain_size` does."""
    from .. import _elastic_sizes

    return _elastic_sizes.get_logical_domain_size(group_or_buffer, allow_hybrid_mode)


class EnvOverride:
    """Sets environment variables within a `with` block. overrides: (name, value, enable); an entry that is not enabled
    has no effect."""

    def __init__(self, overrides: list[tuple[str, Any, bool]]) -> None:
        self._values = {name: str(value) for name, value, enable in overrides if enable}
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> EnvOverride:
        self._before = {name: os.environ.get(name) for name in self._values}
        os.environ.update(self._values)
        return self

    def __exit__(self, *error: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
