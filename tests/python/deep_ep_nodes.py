# SPDX-License-Identifier: Apache-2.0
"""A rank of the tests that start their processes by themselves, node by node: `deep_ep_nodes.py LOCAL_RANK NUM_LOCAL`."""

from __future__ import annotations

import os
import random
import sys

import torch
import torch.distributed as dist
from deep_ep_reference import Shape, Traffic, same

from deep_ep.utils import envs, refs


def environment(local_rank: int, num_local: int) -> None:
    nodes, node = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    rank, size, group = envs.init_dist(local_rank, num_local, seed=5)
    assert (rank, size) == (node * num_local + local_rank, nodes * num_local)
    assert (dist.get_rank(group), dist.get_world_size(group)) == (rank, size)
    assert group is not dist.group.WORLD
    assert torch.get_default_dtype() is torch.bfloat16
    drawn = torch.rand(3), random.random()
    torch.manual_seed(5 + rank)
    random.seed(5 + rank)
    assert torch.equal(drawn[0], torch.rand(3)) and drawn[1] == random.random()
    envs.dist_print(f"node {node}", once_in_node=True)
    envs.dist_print(f"rank {rank}")


def reference_of_dispatch() -> None:
    """Against the traffic, which every rank knows whole."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step, index in enumerate((torch.int64, torch.int32)):
        traffic = Traffic(Shape(ranks, ranks * 3, 4, 16, 9, torch.bfloat16, index), step, distinct=True)
        x, idx, weights = traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank]
        expected = traffic.received(rank)
        found = refs.dispatch(x, idx, weights, 11, ranks * 3)
        same(found[0], expected[0])
        same(found[1], expected[1])
        same(found[2], expected[2])
        counts = torch.diff(traffic.prefix(rank), prepend=torch.zeros(1, dtype=torch.int32))
        same(found[4], counts)
        g = [s * 11 + t for s in range(ranks) for t in traffic.goes_to(s, rank).nonzero()[:, 0].tolist()]
        same(found[3], torch.tensor(g, dtype=torch.int32))
        tokens = [len(each) for each in traffic.x]
        scales = [torch.arange(2 * n, dtype=torch.int32).view(2, n).t() + 100 * r for r, n in enumerate(tokens)]
        (rows, carried), _, none, _, _ = refs.dispatch((x, scales[rank]), idx, None, 11, ranks * 3)
        same(rows, expected[0])
        same(carried, torch.cat([scales[s][traffic.goes_to(s, rank)] for s in range(ranks)]))
        assert none is None


def main() -> None:
    torch.set_num_threads(1)
    environment(int(sys.argv[1]), int(sys.argv[2]))
    torch.set_default_dtype(torch.float32)
    reference_of_dispatch()
    print(f"rank {dist.get_rank()} is through", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
