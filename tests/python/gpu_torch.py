# SPDX-License-Identifier: Apache-2.0
"""The Python packages where PyTorch sees GPUs (`scripts/gpu.sh python DIR`): parts, each by itself, and a table.

usage: gpu_torch.py [--cpu] [PART…]

Two ranks, or as many as there are GPUs, up to 8; ranks that outnumber GPUs share them. With --cpu the same bodies run
on the CPU, but for those of streams and graphs. A part that fails, or takes too long, ends its processes; new ones go
on after it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Optional

import gpu_elastic
import gpu_epbuffer
import gpu_hybrid
import gpu_times

PART_SECONDS = 30
TEXT_BYTES = 24
Ranks = Any  # of torch.distributed


# ---- parts -----------------------------------------------------------------------------------------------------------


def expar_calls(group: Ranks) -> None:
    """`expar` with PyTorch's tensors, on streams of their own."""
    import expar
    import gpu_calls
    from deep_ep_reference import place
    from torch_card import TorchCard

    card = TorchCard(place["device"])
    on_gpu = card.device.type != "cpu"
    with expar.Group.from_torch(group) as own:
        for body in gpu_calls.ALL if on_gpu else (gpu_calls.normal, gpu_calls.low_latency, gpu_calls.low_latency_fp8, gpu_calls.masks):
            body(own, card)


def expar_events(group: Ranks) -> None:
    """Events of streams, memory of the caller, and results read on another stream than the call's."""
    import torch
    from deep_ep_reference import here

    import expar

    with expar.Group.from_torch(group) as own, expar.Buffer(own, device="cuda") as buffer:
        x = here(torch.full((64, 256), float(own.rank + 1)))
        idx = here(torch.arange(64).view(64, 1) % own.size)
        side = torch.cuda.Stream()
        before = expar.Event.record()
        done = buffer.dispatch(x, idx, num_experts=own.size, stream=side, wait_event=before, async_finish=True)
        assert done.event is not None and done.handle is not None
        done.event.stream_wait()
        rows = done.x.torch()
        assert rows.device.type == "cuda" and rows.sum().item() == sum(
            256.0 * (r + 1) * (64 // own.size) for r in range(own.size)
        )
        done.event.wait()
        y = buffer.combine(rows, done.handle).y.torch()
        torch.testing.assert_close(y, x)
        with expar.LowLatencyBuffer(own, 8, 256, 1, own.size, device="cuda") as low:
            x = x[:8].bfloat16()
            sent = low.dispatch(x, idx[:8], hook=True)
            assert sent.hook is not None
            sent.hook()
            lent = low.combine_buffer(sent.handle, "bf16")
            lent.torch().copy_(sent.x.torch())
            weights = torch.ones((8, 1), device=x.device)
            y = low.combine(lent, idx[:8], weights, sent.handle).y.torch()
            torch.testing.assert_close(y, x)
            torch.cuda.synchronize()
            del lent


def normal(group: Ranks) -> None:
    """Layout, dispatch and combine in three types, with events, worst-case sizes, handles, weights and biases."""
    import deep_ep_ranks

    deep_ep_ranks.normal(group, 4)


def pairs(group: Ranks) -> None:
    """FP8 rows with scales; a routing made by hand."""
    import deep_ep_ranks

    deep_ep_ranks.pairs(group)
    deep_ep_ranks.by_hand(group)


def handles(group: Ranks) -> None:
    """Through autograd's context, custom operators and later buffers."""
    import deep_ep_ranks

    deep_ep_ranks.handles(group)


def low_latency(group: Ranks) -> None:
    """Formats, hooks, events, zero copy, LogFMT, memory of the caller's."""
    import deep_ep_ranks

    deep_ep_ranks.low_latency(group, 4)


def micro_batches(group: Ranks) -> None:
    """Two low-latency calls open at once, received by hooks."""
    import deep_ep_ranks

    deep_ep_ranks.micro_batches(group)


def masks(group: Ranks) -> None:
    """A rank that is masked, and comes back."""
    import deep_ep_ranks

    deep_ep_ranks.masks(group)


def layer(group: Ranks) -> None:
    """Forward and backward of an MoE layer against the dense computation in float64."""
    import deep_ep_ranks

    deep_ep_ranks.layer(group)


def local_memory(group: Ranks) -> None:
    """Clearing all of `get_local_buffer_tensor` takes one chunk of memory, which shows in each chunk. It lasts as long
    as a tensor of it."""
    import torch

    import deep_ep

    size = 4 << 30
    buffer = deep_ep.Buffer(group, 0, size, low_latency_mode=True, explicitly_destroy=True)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    whole = buffer.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True)
    assert whole.numel() == size and whole.is_cuda and not int(whole[:: 1 << 20].sum())
    whole.fill_(3)
    torch.cuda.synchronize()
    if torch.cuda.device_count() >= group.size():  # the memory of a GPU that ranks share is all of theirs
        assert before - torch.cuda.mem_get_info()[0] < 256 << 20
    assert int(whole[-1]) == 3
    whole[5] = 7
    assert int(whole[(size // 2) + 5]) == 7
    part = buffer.get_local_buffer_tensor(torch.bfloat16, torch.Size([3, 5]), 64, True)
    buffer.destroy()
    del whole, buffer
    part.fill_(2)
    assert float(part.sum()) == 30


def engines(group: Ranks) -> None:
    """Calls as engines make them."""
    import deep_ep_engines

    for body in deep_ep_engines.ENGINES:
        body(group)


def streams(group: Ranks) -> None:
    """Calls after slow work of the current stream, and results that are released while slow work still reads them."""
    import torch
    from deep_ep_ranks import fresh
    from deep_ep_reference import Shape, Traffic, same

    import deep_ep

    buffer = deep_ep.Buffer(group)
    rank, size = buffer.rank, buffer.group_size
    traffic = Traffic(Shape(size, size * 2, 2, 512, 64, torch.bfloat16), 11)
    wanted = traffic.received(rank)[0]
    fresh(buffer, traffic)  # kernels are there
    for step in range(4):
        x = torch.zeros(traffic.x[rank].shape, dtype=torch.bfloat16, device="cuda")
        source = traffic.x[rank].cuda()
        noise = torch.full_like(source, -3.0)
        torch.cuda._sleep(20_000_000)
        x.copy_(source)  # a call that does not wait for it sends zeros
        previous = buffer.capture() if step % 2 else None  # `fresh` makes it again, after its layout
        rows, _, _, _, handle, event = fresh(
            buffer, traffic, x=x, async_finish=True, previous_event=previous, allocate_on_comm_stream=bool(step % 2)
        )
        event.current_stream_wait()
        before = buffer.capture()
        torch.cuda._sleep(20_000_000)
        copy = rows.clone()  # reads late
        answers = traffic.answer(rank, rows)
        del rows, x
        # Beside that: these may not take the memory that the copy reads.
        others = [
            buffer.dispatch(noise, handle=handle, previous_event=before, async_finish=True) for _ in range(2)
        ]
        for other in others:
            other[5].current_stream_wait()
        y, _, event = buffer.combine(answers, handle, async_finish=True)
        event.current_stream_wait()
        same(copy, wanted)
        same(y, traffic.combined(rank)[0])


def graphs(group: Ranks) -> None:
    """A decode step in low latency, and one in normal mode with a handle, captured once and launched with other
    rows."""
    import torch
    from deep_ep_ranks import BATCH, fresh
    from deep_ep_reference import Shape, Traffic, same

    import deep_ep

    buffer = deep_ep.Buffer(group)
    rank, size = buffer.rank, buffer.group_size
    shape = Shape(size, size * 2, 2, 256, BATCH, torch.bfloat16)
    cases = [Traffic(shape, seed, distinct=True) for seed in range(21, 24)]
    tokens = BATCH
    x = torch.zeros((tokens, 256), dtype=torch.bfloat16, device="cuda")
    idx = torch.full((tokens, 2), -1, dtype=torch.int64, device="cuda")
    weights = torch.zeros((tokens, 2), device="cuda")

    def step() -> Any:
        rows, _, handle, _, hook = buffer.low_latency_dispatch(
            x, idx, BATCH, size * 2, use_fp8=False, return_recv_hook=True
        )
        hook()
        answers = traffic_answer(rows)
        return buffer.low_latency_combine(answers, idx, weights, handle)[0]

    def traffic_answer(rows: Any) -> Any:
        return (rows.float() * (rank + 1.5)).to(rows.dtype)

    def fill(traffic: Any) -> int:
        many = len(traffic.x[rank])
        x.zero_(), idx.fill_(-1), weights.zero_()
        given = (traffic.x[rank], traffic.topk_idx[rank], traffic.weights[rank])
        for place, values in zip((x, idx, weights), given):
            place[:many] = values.cuda()
        return many

    def captured(body: Callable[[], Any]) -> tuple[Any, Any]:
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

    fill(cases[0])
    graph, y = captured(step)
    for traffic in (*cases, cases[0]):
        many = fill(traffic)
        graph.replay()
        same(y[:many], traffic.weighted(rank))

    first = Traffic(shape, 31)
    handle = fresh(buffer, first)[4]
    rows_in = first.x[rank].cuda()

    def again() -> Any:
        rows = buffer.dispatch(rows_in, handle=handle)[0]
        return buffer.combine(traffic_answer(rows), handle)[0]

    graph, y = captured(again)
    for _ in range(2):
        graph.replay()
        same(y, first.combined(rank)[0])
    torch.cuda.synchronize()


def text(group: Ranks) -> None:
    """The demo's model, its experts over the ranks: prompts in normal mode, decode in low-latency mode; the shipped
    texts come."""
    import json
    from pathlib import Path

    import generate
    import torch
    from deep_ep_reference import place

    import deep_ep

    folder = next(Path(path) for path in gpu_times.beside("moe-lm", "data") if os.path.isdir(path))
    buffer, device = deep_ep.Buffer(group), place["device"]
    own = json.loads((folder / "config.json").read_text())["generations"][buffer.rank :: buffer.group_size]
    with torch.no_grad():
        model = generate.Model(buffer, folder, 8 // buffer.group_size, device)
        texts = generate.generate(model, [each["prompt"].encode() for each in own], TEXT_BYTES, device)
    assert texts == [bytes(each["bytes"][:TEXT_BYTES]) for each in own], texts


def groups(group: Ranks) -> str | None:
    """Buffers of NCCL's groups and of gloo's, on GPUs of their own. Not where ranks share one: NCCL refuses that."""
    import deep_ep_ranks
    import torch
    import torch.distributed as dist

    if torch.cuda.device_count() < dist.get_world_size(group):
        return f"NCCL takes a GPU for each rank, and there is {torch.cuda.device_count()}"
    for backend in ("nccl", "gloo"):
        own = dist.new_group(backend=backend)
        for body in (deep_ep_ranks.normal, deep_ep_ranks.low_latency):
            body(own, 3)
    return None


def init_dist(group: Ranks) -> str | None:
    """Processes that meet by `deep_ep.utils.envs.init_dist`, which takes NCCL where PyTorch sees GPUs."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if torch.cuda.device_count() < size:
        return f"NCCL takes a GPU for each rank, and there is {torch.cuda.device_count()}"
    port = [None]
    if rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = [free.getsockname()[1]]
    dist.broadcast_object_list(port, src=0, group=group)
    where = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port[0]), WORLD_SIZE="1", RANK="0")
    command = [sys.executable, os.path.abspath(__file__), "meet", str(rank), str(size)]
    subprocess.run(command, env={**os.environ, **where}, check=True, stdout=sys.stdout, stderr=subprocess.STDOUT)
    dist.barrier(group)
    return None


def meet_main(rank: int, size: int) -> None:
    """A process of `init_dist`: tokens go to all ranks and come back, tensors being what is made without asking."""
    import torch
    import torch.distributed as dist

    import deep_ep
    from deep_ep.utils import envs

    own, many, group = envs.init_dist(rank, size)
    assert (own, many) == (rank, size)
    assert dist.get_backend(group) == "nccl" and torch.cuda.current_device() == rank
    x = torch.full((8 * size, 256), float(rank + 1))
    assert x.device == torch.device("cuda", rank) and x.dtype == torch.bfloat16
    idx = torch.arange(8 * size).view(-1, 1) % size
    buffer = deep_ep.Buffer(group)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, size)
    weights = torch.ones((len(x), 1), dtype=torch.float32)
    rows, _, _, _, handle, _ = buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, idx, weights)
    wanted = torch.arange(1, size + 1).to(x.dtype).repeat_interleave(8).view(-1, 1).expand(-1, 256)
    assert torch.equal(rows, wanted), rows[:, 0]
    assert torch.equal(buffer.combine(rows, handle)[0], x)
    envs.dist_print(f"rank {rank}")
    dist.destroy_process_group()


ON_GPU: dict[str, Callable[[Ranks], Optional[str]]] = {
    each.__name__: each
    for each in (
        expar_calls,
        expar_events,
        normal,
        pairs,
        handles,
        low_latency,
        micro_batches,
        masks,
        layer,
        engines,
        local_memory,
        streams,
        graphs,
        *gpu_times.PARTS,
        text,
        groups,
        init_dist,
        *gpu_elastic.PARTS,
        *gpu_epbuffer.PARTS,
        *gpu_hybrid.PARTS,
    )
}
NOT_ON_CPU = ("expar_events", "device_time", "groups", "init_dist", "local_memory")
ON_CPU = [name for name in ON_GPU if name not in NOT_ON_CPU and not name.endswith(("streams", "graphs"))]


# ---- a rank ----------------------------------------------------------------------------------------------------------


def rank_main(place: str, rank: int, size: int, meeting: str, parts: list[str]) -> None:
    """Says what it does on its standard output: "begin PART", then "end PART", or "end PART: not run: WHY". What fails
    ends it."""
    import deep_ep_reference
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    backend = "gloo"
    if place == "gpu":
        count = torch.cuda.device_count()
        torch.cuda.set_device(rank % count)
        deep_ep_reference.place["device"] = torch.device("cuda", rank % count)
        backend = "nccl" if count >= size else "gloo"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=size)
    for part in parts:
        print(f"begin {part}", flush=True)
        faulthandler.dump_traceback_later(PART_SECONDS - 3, file=sys.stdout)  # a part that is late says where it waits
        try:
            left_out = ON_GPU[part](dist.group.WORLD)
            if place == "gpu":
                torch.cuda.synchronize()
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os._exit(1)
        faulthandler.cancel_dump_traceback_later()
        print(f"end {part}" + (f": not run: {left_out}" if left_out else ""), flush=True)
    os._exit(0)  # what is left of buffers and groups goes with the process


# ---- all of it -------------------------------------------------------------------------------------------------------


def _said(path: str) -> list[str]:
    with open(path, errors="replace") as file:
        return file.read().splitlines()


def _through(lines: list[str]) -> list[str]:
    """The report of each part that has come to its end: nothing, or that it was not run."""
    return [line.partition(": ")[2] for line in lines if line.startswith("end ")]


def attempt(place: str, size: int, parts: list[str], folder: str, number: int) -> list[tuple[str, float, str]]:
    """(part, seconds, "", "not run: …" or why it failed) of those parts that were begun: up to the first that fails."""
    logs = [os.path.join(folder, f"{number}.{rank}") for rank in range(size)]
    meeting = os.path.join(folder, f"meet.{number}")
    started = []
    for rank, log in enumerate(logs):
        with open(log, "w") as out:
            command = [sys.executable, os.path.abspath(__file__), "rank", place, str(rank), str(size), meeting, *parts]
            started.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT))
    results: list[tuple[str, float, str]] = []
    begun = time.monotonic()
    allowed = 2 * PART_SECONDS  # to start with
    try:
        while len(results) < len(parts):
            through = [_through(_said(log)) for log in logs]
            done = min(len(each) for each in through)
            while len(results) < done:
                results.append((parts[len(results)], time.monotonic() - begun, through[0][len(results)]))
                begun, allowed = time.monotonic(), PART_SECONDS
            codes = [process.poll() for process in started]
            late = time.monotonic() - begun > allowed
            if len(results) < len(parts) and (late or any(codes)):
                if not late:
                    time.sleep(1)  # what the others say of it
                why = "too long" if late else f"rc {next(code for code in codes if code)}"
                results.append((parts[len(results)], time.monotonic() - begun, why))
                for rank, log in enumerate(logs):
                    print(f"-- {parts[len(results) - 1]}, rank {rank} ({why}) ends:")
                    print("\n".join(line[:200] for line in _said(log)[-40:]))
                break
            time.sleep(0.05)
    except SystemExit:  # somebody else's time is up: what has become of it so far
        print(f"-- through: {', '.join(f'{name} {seconds:.0f} s' for name, seconds, _ in results) or 'nothing'}")
        for rank, log in enumerate(logs):
            print(f"-- rank {rank} after {time.monotonic() - begun:.0f} s: {(_said(log) or ['nothing was said'])[-1][:200]}")
        raise
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
    for line in _said(logs[0]):
        if line.startswith("    "):
            print(line)
    return results


def main(arguments: list[str]) -> int:
    place = "cpu" if "--cpu" in arguments else "gpu"
    wanted = [each for each in arguments if each != "--cpu"] or (ON_CPU if place == "cpu" else list(ON_GPU))
    unknown = [each for each in wanted if each not in ON_GPU]
    if unknown:
        print(f"gpu_torch: {unknown[0]}: expected {', '.join(ON_GPU)}")
        return 2
    size = 2
    if place == "gpu":
        import torch

        if not torch.cuda.is_available():
            print("SKIPPED: PyTorch sees no GPU")
            return 77
        size = max(2, min(torch.cuda.device_count(), 8))
        print(f"{torch.cuda.device_count()} GPUs, {size} ranks, PyTorch {torch.__version__}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ranks are ended, too
    results: list[tuple[str, float, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        while len(results) < len(wanted):
            results += attempt(place, size, wanted[len(results) :], folder, len(results))
    print("part                 seconds  result")
    for name, seconds, why in results:
        print(f"{name:20} {seconds:7.1f}  {why or 'passed'}")
    return 1 if any(why and not why.startswith("not run: ") for _, _, why in results) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6:])
    if sys.argv[1:2] == ["meet"]:
        sys.exit(meet_main(int(sys.argv[2]), int(sys.argv[3])))
    sys.exit(main(sys.argv[1:]))
