# SPDX-License-Identifier: Apache-2.0
"""A program for mpirun: groups of mpi4py's communicators, of all ranks and of some; `mpi_ranks.py deep_ep`: buffers."""

from __future__ import annotations

import sys
from typing import Any

from mpi4py import MPI

import expar


def meet(comm: Any) -> None:
    rank, size = comm.Get_rank(), comm.Get_size()
    with expar.Group.from_mpi4py(comm) as group:
        assert (group.rank, group.size) == (rank, size)
        told = [int(each) for each in group.allgather(str(rank).encode())]
        assert told == comm.allgather(rank), told


def exchange(comm: Any) -> None:
    """A token of each rank to each, by a buffer of either generation."""
    import torch

    import deep_ep

    torch.set_num_threads(1)
    rank, size = comm.Get_rank(), comm.Get_size()
    x = torch.full((size, 64), float(rank), dtype=torch.bfloat16)
    idx = torch.arange(size)[:, None]
    wanted = torch.arange(size, dtype=torch.bfloat16)[:, None].expand(size, 64)
    buffer = deep_ep.Buffer(comm=comm)
    assert buffer.group is comm and (buffer.rank, buffer.group_size) == (rank, size)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, size)
    rows, _, _, counts, handle, _ = buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, idx)
    assert torch.equal(rows, wanted) and counts == [size]
    assert torch.equal(buffer.combine(rows, handle)[0], x)
    assert deep_ep.Buffer(comm=comm)._group is buffer._group
    elastic = deep_ep.ElasticBuffer(comm, num_max_tokens_per_rank=size, hidden=64)
    rows, _, _, way, _ = elastic.dispatch(x, idx, num_experts=size)
    assert torch.equal(rows, wanted)
    assert torch.equal(elastic.combine(rows, way)[0], x)


for its_comm in (MPI.COMM_WORLD, MPI.COMM_WORLD.Split(MPI.COMM_WORLD.Get_rank() % 2)):
    (exchange if sys.argv[1:] == ["deep_ep"] else meet)(its_comm)
print(f"rank {MPI.COMM_WORLD.Get_rank()} of mpi4py is through", flush=True)
