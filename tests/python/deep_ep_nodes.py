# SPDX-License-Identifier: Apache-2.0
"""Ranks of tests that start their processes themselves, node by node: `deep_ep_nodes.py`, with WORLD_SIZE nodes of two
ranks. They are forks of this process, which has imported PyTorch and its compiler for all of them."""

from __future__ import annotations

import itertools
import os
import random
import sys
import traceback

import torch
import torch.distributed as dist
from deep_ep_elastic_calls import Options, exchange
from deep_ep_elastic_layer import layer, step
from deep_ep_elastic_reference import Elastic, World
from deep_ep_reference import Shape, Traffic, same

import deep_ep
from deep_ep import operators
from deep_ep.utils import envs, refs

NUM_LOCAL = 2  # ranks of a node

def environment(local_rank: int, num_local: int) -> dist.ProcessGroup:
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
    return group


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


# Arguments of a buffer, and of the reference, which tell what is added first: rows of a rank, and those of a node.
SUMS = (
    ({}, True, True),
    (dict(allow_hybrid_mode=False), True, False),
    (dict(allow_multiple_reduction=False), False, False),
    (dict(allow_multiple_reduction=False, allow_hybrid_mode=False), False, False),
)


def sums(group: dist.ProcessGroup) -> None:
    """Expanded rows in all orders that utils.refs has, on rows in which each of these gives another one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    e = Elastic(World(ranks, ranks * 3, 6, 32, 9, 4), 80)
    tokens = [torch.arange(len(idx)) + r * 9 for r, idx in enumerate(e.topk_idx)]
    data = [large(refs.generate_pre_combine_data(own, 9, 6, 32)) for own in tokens]
    idx, weights, biases = e.topk_idx[rank], e.weights[rank], e.biases[rank]
    found = {}
    for way, in_local, in_scaleup in SUMS:
        buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=9, hidden=32, **way)
        x, _, _, handle, _ = buffer.dispatch(e.x[rank], idx, weights, num_experts=ranks * 3, do_expand=True)
        metadata = handle.recv_src_metadata
        for g, *places in metadata[:, [0, *range(2, 8)]].tolist():
            for k, place in enumerate(places):
                if place >= 0:
                    x[place] = data[g // 9][g % 9, k]
        y, _, _ = buffer.combine(x, handle, bias=biases)
        shape = ranks // NUM_LOCAL, NUM_LOCAL, ranks * 3
        same(y, refs.combine(data[rank], idx, *shape, biases, in_local, in_scaleup))
        found[in_local, in_scaleup] = y
    different = [not torch.equal(one, other) for one, other in itertools.combinations(found.values(), 2)]
    every = [different] * ranks
    dist.all_gather_object(every, different)
    assert all(any(each) for each in zip(*every))


def large(rows: torch.Tensor) -> torch.Tensor:
    """Some of the elements such that they cancel."""
    signs = torch.randint(-1, 2, rows.shape, generator=torch.Generator().manual_seed(7))
    return torch.where(signs == 0, rows, signs * 2.0**24).to(rows.dtype)


def elastic(group: dist.ProcessGroup) -> None:
    """A buffer of a process group: as the test's reference has it, and as utils.refs does."""
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=9, hidden=32)
    assert buffer.group is group
    rank, ranks = buffer.rank_idx, buffer.num_ranks
    for number, expand in enumerate((False, True)):
        torch.set_default_dtype(torch.float32)
        e = Elastic(World(ranks, ranks * 3, 4, 32, 9, 4), 70 + number)
        exchange(buffer, e, Options(expand, biases=2), number)
        torch.set_default_dtype(torch.bfloat16)
        idx, weights = e.topk_idx[rank], e.weights[rank]
        options = dict(num_experts=ranks * 3, expert_alignment=4, do_expand=expand)
        x, found_idx, found_weights, handle, _ = buffer.dispatch(e.x[rank], idx, weights, **options)
        expected = refs.dispatch(e.x[rank], idx, weights, 9, ranks * 3)
        same(handle.recv_src_metadata[:, 0], expected[3])
        of_scaleup = expected[4].view(-1, NUM_LOCAL).sum(0, dtype=torch.int32)
        same(torch.diff(handle.psum_num_recv_tokens_per_scaleup_rank, prepend=of_scaleup[:1] * 0), of_scaleup)
        if not expand:
            for one, other in zip((x, found_idx, found_weights), expected):
                same(one, other)
            continue
        rows = refs.generate_pre_combine_data(expected[3], 9, 4, 32)
        where = handle.recv_src_metadata[:, 2:]
        x[where[where >= 0].long()] = rows[where >= 0]
        y, _, _ = buffer.combine(x, handle, bias=e.biases[rank])
        own = torch.arange(len(idx)) + rank * 9
        data, biases = refs.generate_pre_combine_data(own, 9, 4, 32), e.biases[rank]
        same(y, refs.combine(data, idx, ranks // NUM_LOCAL, NUM_LOCAL, ranks * 3, biases, True, True))


def compiled(group: dist.ProcessGroup) -> None:
    """A layer with its gradients, compiled as one graph, is the eager one to the bit."""
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=9, hidden=32)
    number, rank = operators.number_of(buffer), buffer.rank_idx
    e = Elastic(World(2, 4, 2, 32, 9, 4), 90)
    eager = step(layer, number, e, rank, True, False)
    run = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for one, other in zip(step(run, number, e, rank, True, False), eager):
        same(one, other)


def rank_main(local_rank: int, num_local: int) -> None:
    torch.set_num_threads(1)
    group = environment(local_rank, num_local)
    elastic(group)
    torch.set_default_dtype(torch.float32)
    sums(group)
    reference_of_dispatch()
    pairs = [dist.new_group([first, first + 1]) for first in (0, 2)]
    if dist.get_rank() < 2:  # two are enough, and compiling takes time
        compiled(pairs[0])
    envs.dist_print(f"rank {dist.get_rank()} is through")
    dist.destroy_process_group()


def begin(node: int, local_rank: int) -> int:
    child = os.fork()
    if child == 0:
        os.environ["RANK"] = str(node)
        try:
            rank_main(local_rank, NUM_LOCAL)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return child


def main() -> None:
    os.environ["EXPAR_RANKS_PER_NODE"] = str(NUM_LOCAL)
    import torch._dynamo  # before there are ranks, each of which would load it

    children = [begin(*place) for place in itertools.product(range(int(os.environ["WORLD_SIZE"])), range(NUM_LOCAL))]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(f"ranks ended with {codes}" if any(codes) else 0)


if __name__ == "__main__":
    main()
