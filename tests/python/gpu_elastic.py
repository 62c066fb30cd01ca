# SPDX-License-Identifier: Apache-2.0
"""Parts of gpu_torch: `ElasticBuffer` where PyTorch sees GPUs; but for streams and graphs on the CPU, too."""

from __future__ import annotations

from typing import Any, Callable

from gpu_times import tell_held

Ranks = Any  # of torch.distributed


def elastic(group: Ranks) -> None:
    """Plain and expanded, of known and of unknown size, on the current stream and beside it, with replays, biases."""
    import deep_ep_elastic_calls

    deep_ep_elastic_calls.combinations(group, few=True, shapes=1)
    deep_ep_elastic_calls.chains(group)
    deep_ep_elastic_calls.overwritten(group)
    deep_ep_elastic_calls.barriers(group)


def elastic_step(group: Ranks) -> None:
    """Forward and backward by operators against the dense computation in double."""
    import torch
    import torch.distributed as dist
    from deep_ep_elastic_layer import dense, layer, step
    from deep_ep_elastic_reference import Elastic, World

    import deep_ep
    from deep_ep import operators

    size = dist.get_world_size(group)
    e = Elastic(World(size, 2 * size, 2, 32, 8, 2), 5)
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=8, hidden=32)
    number = operators.number_of(buffer)
    for expand, synced in ((False, True), (True, False), (False, False)):
        found, wanted = step(layer, number, e, buffer.rank_idx, expand, synced), dense(e, buffer.rank_idx)
        for one, other in zip(found, wanted):
            torch.testing.assert_close(one.cpu().double(), other, rtol=0.05, atol=0.05)


def elastic_compiled(group: Ranks) -> None:
    """A compiled layer gives what the eager one does, to the bit."""
    import torch
    import torch.distributed as dist
    from deep_ep_elastic_layer import layer, step
    from deep_ep_elastic_reference import Elastic, World
    from deep_ep_reference import same

    import deep_ep
    from deep_ep import operators

    size = dist.get_world_size(group)
    e = Elastic(World(size, 2 * size, 2, 32, 8, 2), 6)
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=8, hidden=32)
    number = operators.number_of(buffer)
    run = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for expand in (False, True):
        eager = step(layer, number, e, buffer.rank_idx, expand, False)
        for one, other in zip(step(run, number, e, buffer.rank_idx, expand, False), eager):
            same(one, other)


def elastic_streams(group: Ranks) -> None:
    """Calls after slow work of the current stream and after events, before the call and before its results."""
    import torch
    import torch.distributed as dist
    from deep_ep_elastic_calls import Options, check_rows, dispatch
    from deep_ep_elastic_reference import Elastic, World

    import deep_ep

    size = dist.get_world_size(group)
    e = Elastic(World(size, 2 * size, 3, 512, 64, 4), 11)
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=64, hidden=512)
    rank, options = buffer.rank_idx, Options()
    handle = dispatch(buffer, e, options)[2]  # kernels are there
    source, other = e.x[rank].cuda(), torch.cuda.Stream()
    for step in range(4):
        x = torch.full_like(source, -3.0)
        events: dict[str, Any] = {}
        torch.cuda.synchronize()
        with torch.cuda.stream(other if step % 2 else torch.cuda.current_stream()):
            torch.cuda._sleep(20_000_000)
            x.copy_(source)
            if step % 2:  # who does not wait for this event sends what was there before
                events["previous_event_before_epilogue" if step == 1 else "previous_event"] = buffer.capture()
                events["allocate_on_comm_stream"] = True
        rows, _, _, _, event = buffer.dispatch(x, handle=handle, async_with_compute_stream=step != 2, **events)
        if step != 2:
            event.current_stream_wait()
        check_rows(e, rank, options, rows, None)
    comm = buffer.get_comm_stream()
    with torch.cuda.stream(comm):
        try:
            buffer.combine(rows, handle)
        except RuntimeError as error:
            assert "is current" in str(error), error
        else:
            raise AssertionError("a call with the stream for communication as the current one")


def elastic_graphs(group: Ranks) -> None:
    """A fresh dispatch of unknown size and its combine, captured once and launched with other tokens and experts."""
    import torch
    import torch.distributed as dist
    from deep_ep_elastic_calls import Options, check_handle, check_rows
    from deep_ep_elastic_reference import Elastic, World
    from deep_ep_reference import same

    import deep_ep

    size = dist.get_world_size(group)
    world = World(size, 2 * size, 2, 256, 12, 4)
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=12, hidden=256)
    rank = buffer.rank_idx
    x = torch.zeros((12, 256), dtype=torch.bfloat16, device="cuda")
    idx = torch.full((12, 2), -1, dtype=torch.int64, device="cuda")
    weights = torch.zeros((12, 2), device="cuda")
    for expand in (False, True):
        cases = [Elastic(world, seed) for seed in range(31, 34)]
        answers = torch.zeros((cases[0].worst(expand), 256), dtype=torch.bfloat16, device="cuda")
        stats = torch.zeros(2, dtype=torch.int32, device="cuda")

        def step() -> Any:
            rows, _, given, handle, _ = buffer.dispatch(
                x, idx, weights, stats, 2 * size, 12, 4, do_cpu_sync=False, do_expand=expand
            )
            return rows, given, handle, buffer.combine(answers, handle)[0]

        idx.fill_(-1)
        graph, (rows, given, handle, y) = captured(step)
        all_idx = handle.topk_idx
        stats.zero_()
        for launch, e in enumerate((*cases, cases[0])):
            many, length = e.tokens[rank], len(e.expanded(rank) if expand else e.plain(rank))
            idx.fill_(-1)
            for place, values in zip((x, idx, weights), (e.x[rank], e.topk_idx[rank], e.weights[rank])):
                place[:many] = values.cuda()
            lengths = [len(e.expanded(r) if expand else e.plain(r)) for r in range(size)]
            of_all = [e.answers(r, lengths[r], launch) for r in range(size)]
            answers[:length] = of_all[rank].cuda()
            before = stats.clone()
            graph.replay()
            check_rows(e, rank, Options(expand, synced=False), rows, given)
            same(y[:many], e.combined(rank, of_all, expand, True, ()))
            same(stats - before, torch.tensor(e.counts(rank), dtype=torch.int32))
            handle.topk_idx = all_idx[:many]
            check_handle(e, buffer, Options(expand, synced=False), handle)
        torch.cuda.synchronize()


def captured(body: Callable[[], Any]) -> tuple[Any, Any]:
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = body()
    return graph, out


def elastic_host_time(group: Ranks) -> None:
    """How long calls of `ElasticBuffer` hold the host."""
    import torch
    import torch.distributed as dist
    from deep_ep_reference import here

    import deep_ep

    size = dist.get_world_size(group)
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=16, hidden=2048)
    x = here(torch.randn((12, 2048)).bfloat16())
    idx, weights = here(torch.arange(24).view(12, 2) % (size * 2)), here(torch.rand((12, 2)))
    calls: dict[str, Callable[[], Any]] = {}
    for expand in (False, True):
        given: dict[str, Any] = dict(num_experts=2 * size, do_expand=expand)
        rows, _, _, handle, _ = buffer.dispatch(x, idx, weights, **given)
        form = "expanded" if expand else "plain"
        calls[f"dispatch, {form}"] = lambda given=given: buffer.dispatch(x, idx, weights, **given)
        calls[f"dispatch, {form}, no sync"] = lambda given=given: buffer.dispatch(
            x, idx, weights, do_cpu_sync=False, **given
        )
        calls[f"dispatch, {form}, handle"] = lambda h=handle, e=expand: buffer.dispatch(x, handle=h, do_expand=e)
        calls[f"combine, {form}"] = lambda h=handle, r=rows: buffer.combine(r, h)
    calls["size hint"] = lambda: buffer.get_buffer_size_hint(group, 4096, 7168, 8)
    tell_held(calls, x, "elastic ", buffer.rank_idx)


PARTS = (elastic, elastic_step, elastic_compiled, elastic_streams, elastic_graphs, elastic_host_time)
