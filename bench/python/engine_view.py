#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The engine's view of `deep_ep` and `expar` with PyTorch: calls back to back, beside the figures of the C API.

Each row is one kind of call: dispatches and combines of `Buffer`, `ElasticBuffer` and `expar.Buffer`, and layers. A
layer is a dispatch with a handle, work in PyTorch, and the combine of its rows. Low-latency dispatches, combines and
pairs are there with and without hooks. Results are released at once, where the row does not say otherwise.

    loop      a call's share of a loop of calls, of the slowest rank: what an engine gets
    single    single calls in another loop, by events; on the CPU the host's time: the median; most: the longest
    host      the host's time in a call of the loop, the release of its result included: the median; p99

Times are microseconds, of the slowest rank. Sums of combines and layers are compared with what arithmetic demands,
other results with those of the first call.

C_JSON: files that `expar bench all --pattern all --json` and `expar bench ll --pattern all --json` printed. The figures
of the same call stand beside each row. C alone is the isolated call (of layers and pairs the sum of both calls). C loop
is its loop, and C host the host's time. "of alone" is this program's loop, or single call, divided by C alone.

With --device cuda each rank has a GPU of its own, or ranks share them out. On the CPU calls are not asynchronous.
usage: PYTHONPATH=python bench/python/engine_view.py [--device cpu|cuda] [--ranks N] [--tokens T,…] [C_JSON…]
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import socket
from typing import Any, Callable, Iterator

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

from engine_times import Bench, Case, heading, Meter, row

FP8, FP8_MOST, FP8_GROUP = torch.float8_e4m3fn, 448.0, 128
BATCH = 128  # tokens a rank at most, of low-latency buffers
BUFFER_BYTES = 1 << 30  # what engines give a Buffer on GPUs
NUM_SMS = 24


@dataclasses.dataclass
class Shape:
    device: torch.device
    ranks: int
    hidden: int
    topk: int
    experts: int


class Tokens:
    """The tokens of one rank and their routing."""

    def __init__(self, shape: Shape, count: int) -> None:
        random = torch.Generator().manual_seed(7 * count + dist.get_rank())
        x = torch.randn((count, shape.hidden), generator=random).bfloat16()
        idx = torch.rand((count, shape.experts), generator=random).topk(shape.topk, dim=1).indices
        ranks = torch.zeros((count, shape.ranks)).scatter_(1, idx // (shape.experts // shape.ranks), 1.0)
        # Ranks return a token's row as it was, so that its sum is exact in FP32, and rounded once.
        self.sums = (x.float() * ranks.sum(1, keepdim=True)).bfloat16().to(shape.device)
        sent: list[Any] = [None] * shape.ranks
        dist.all_gather_object(sent, ranks.sum(0).int().tolist())
        self.received = sum(each[dist.get_rank()] for each in sent)
        groups = x.float().view(count, -1, FP8_GROUP)
        scales = groups.abs().amax(2).clamp(1e-4) / FP8_MOST
        coded = (groups / scales[:, :, None]).to(FP8).view(count, shape.hidden)
        self.count = count
        self.x, self.idx = x.to(shape.device), idx.to(shape.device)
        self.weights = torch.rand((count, shape.topk), generator=random).to(shape.device)
        self.coded = (coded.to(shape.device), scales.contiguous().to(shape.device))


def first(result: Any) -> Any:
    """Returns the first tensor of a result: its rows."""
    while not isinstance(result, torch.Tensor):
        result = result[0]
    return result


def of_dispatch(dtype: str, cached: bool) -> dict[str, Any]:
    return dict(mode="normal", op="dispatch", dtype=dtype, cached=cached)


OF_COMBINE = dict(mode="normal", op="combine", dtype="bf16")
OF_LAYER = [of_dispatch("bf16", True), OF_COMBINE]
STEADY, LAYER = dict(pattern="steady"), dict(pattern="layer", mode="normal", op="layer", dtype="bf16")


def dispatch_case(through: str, name: str, tokens: Tokens, call: Callable[[], Any], dtype: str, cached: bool) -> Case:
    of_c = of_dispatch(dtype, cached)
    loop = {**of_c, **STEADY}
    # Results may have more rows than came; those are not written.
    return Case(
        through, f"dispatch {name}", tokens.count, call, lambda out: first(out)[: tokens.received], [of_c], loop
    )


def combine_cases(
    through: str, tokens: Tokens, combine: Callable[[Any], Any], again: Callable[[], Any], rows: Any
) -> Iterator[Case]:
    """Makes cases of combines, of rows that a dispatch gave and of PyTorch's rows, and of layers. `again` returns the
    rows of a dispatch with a handle."""
    mine = rows.clone()
    loop: dict[str, Any] = {**OF_COMBINE, **STEADY}
    calls = {"received rows": lambda: combine(rows), "PyTorch's rows": lambda: combine(mine)}
    for name, call in calls.items():
        yield Case(through, f"combine of {name}", tokens.count, call, first, [OF_COMBINE], loop, tokens.sums)
    doubled = tokens.sums * 2
    yield Case(through, "layer", tokens.count, lambda: combine(again() * 2), first, OF_LAYER, LAYER, doubled)


# ---- normal mode -----------------------------------------------------------------------------------------------------


def buffer_cases(buffer: Any, shape: Shape, tokens: Tokens) -> Iterator[Case]:
    idx = tokens.idx.to(topk_type())
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, shape.experts)
    routing = dict(num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank)
    routing.update(num_tokens_per_expert=per_expert, topk_idx=idx, topk_weights=tokens.weights)
    for dtype, x in (("bf16", tokens.x), ("f8e4m3", tokens.coded)):
        rows, _, _, _, handle, _ = buffer.dispatch(x, **routing)

        def again(x: Any = x, handle: Any = handle) -> Any:
            return buffer.dispatch(x, handle=handle)

        def fresh(x: Any = x) -> Any:
            return buffer.dispatch(x, **routing)

        name = "BF16" if dtype == "bf16" else "FP8"
        yield dispatch_case("Buffer", f"{name}, fresh", tokens, fresh, dtype, False)
        yield dispatch_case("Buffer", f"{name}, handle", tokens, again, dtype, True)
        kept = dispatch_case("Buffer", f"{name}, handle, 4 kept", tokens, again, dtype, True)
        yield dataclasses.replace(kept, keep=4)
        if dtype == "bf16":
            yield from combine_cases(
                "Buffer", tokens, lambda rows: buffer.combine(rows, handle), lambda: again()[0], rows
            )


def elastic_cases(buffer: Any, shape: Shape, tokens: Tokens) -> Iterator[Case]:
    idx = tokens.idx.to(topk_type())

    def fresh() -> Any:
        return buffer.dispatch(tokens.x, topk_idx=idx, topk_weights=tokens.weights, num_experts=shape.experts)

    rows, _, _, handle, _ = fresh()

    def again() -> Any:
        return buffer.dispatch(tokens.x, handle=handle, num_experts=shape.experts)

    yield dispatch_case("ElasticBuffer", "BF16, fresh", tokens, fresh, "bf16", False)
    yield dispatch_case("ElasticBuffer", "BF16, handle", tokens, again, "bf16", True)
    yield from combine_cases(
        "ElasticBuffer", tokens, lambda rows: buffer.combine(rows, handle), lambda: again()[0], rows
    )


def expar_cases(buffer: Any, shape: Shape, tokens: Tokens) -> Iterator[Case]:
    """Makes cases of `expar` itself. Calls are asynchronous on GPUs, where the stream orders them."""
    later = dict(async_finish=True) if shape.device.type == "cuda" else {}

    def fresh() -> Any:
        return buffer.dispatch(tokens.x, tokens.idx, tokens.weights, shape.experts)

    def again() -> Any:
        return buffer.dispatch(tokens.x, handle=handle, **later)

    def combine(rows: Any) -> Any:
        return [buffer.combine(rows, handle, **later).y.torch()]

    done = fresh()
    handle, rows = done.handle, done.x.torch()
    for name, call, cached in (("BF16, fresh", fresh, False), ("BF16, handle", again, True)):
        case = dispatch_case("expar.Buffer", name, tokens, call, "bf16", cached)
        yield dataclasses.replace(case, rows_of=lambda result: result.x.torch())  # of as many rows as came
    yield from combine_cases("expar.Buffer", tokens, combine, lambda: again().x.torch(), rows)


# ---- low-latency mode ------------------------------------------------------------------------------------------------


def of_low_latency(op: str, row_format: str, **more: str) -> dict[str, Any]:
    return dict(mode="low_latency", op=op, format=row_format, dtype="bf16", phase="call", **more)


def low_latency_cases(buffer: Any, shape: Shape, tokens: Tokens) -> Iterator[Case]:
    idx, count = tokens.idx.to(topk_type()), tokens.count
    local = shape.experts // shape.ranks
    rows = torch.randn((local, shape.ranks * BATCH, shape.hidden), device=shape.device).bfloat16()

    def send(fp8: bool, hook: bool = False) -> Any:
        return buffer.low_latency_dispatch(
            tokens.x, idx, BATCH, shape.experts, use_fp8=fp8, return_recv_hook=hook
        )

    def back(handle: Any, hook: bool = False) -> Any:
        return buffer.low_latency_combine(rows, idx, tokens.weights, handle, return_recv_hook=hook)

    def pair() -> Any:
        return back(send(True)[2])

    def pair_by_hooks() -> Any:
        _, _, handle, _, receive = send(True, True)
        receive()
        y, _, receive = back(handle, True)
        receive()
        return [y]

    of_combine = of_low_latency("combine", "bf16", sum="exact")
    for fp8 in (True, False):
        of_c = of_low_latency("dispatch", "fp8" if fp8 else "bf16")
        name = f"dispatch {'FP8' if fp8 else 'BF16'}"
        # Rows after an expert's last one are not written, so that the counts are compared.
        yield Case(
            "low latency", name, count, lambda fp8=fp8: send(fp8), lambda out: out[1], [of_c], {**of_c, **STEADY}
        )
    handle = send(False)[2]
    yield Case("low latency", "combine", count, lambda: back(handle), first, [of_combine], {**of_combine, **STEADY})
    parts = [of_low_latency("dispatch", "fp8"), of_combine]
    of_pair = {**of_low_latency("pair", "fp8", sum="exact"), "pattern": "decode"}
    whole = Case("low latency", "pair", count, pair, first, parts, of_pair)
    yield whole
    yield Case("low latency", "pair by hooks", count, pair_by_hooks, first, parts, {**of_pair, "phase": "hooks"})
    if shape.device.type == "cuda":
        yield dataclasses.replace(whole, name="pair, L2 flushed", flush=True)


# ---- ranks -----------------------------------------------------------------------------------------------------------


def topk_type() -> torch.dtype:
    import deep_ep

    found: torch.dtype = getattr(deep_ep, "topk_idx_t", torch.int64)
    return found


def all_cases(group: Any, shape: Shape, counts: list[int]) -> Iterator[Case]:
    """Makes one buffer after another. Each lives as long as its cases are measured."""
    import deep_ep

    deep_ep.Buffer.set_num_sms(NUM_SMS)
    size = BUFFER_BYTES if shape.device.type == "cuda" else 0
    buffer = deep_ep.Buffer(group, size, 0, explicitly_destroy=True)
    for count in counts:
        yield from buffer_cases(buffer, shape, Tokens(shape, count))
    buffer.destroy()
    if hasattr(deep_ep, "ElasticBuffer"):
        most = dict(num_max_tokens_per_rank=max(counts), hidden=shape.hidden, num_topk=shape.topk)
        elastic = deep_ep.ElasticBuffer(group, **most, explicitly_destroy=True)
        for count in counts:
            yield from elastic_cases(elastic, shape, Tokens(shape, count))
        elastic.destroy()
    if importlib.util.find_spec("expar"):
        import expar

        device, sizes = str(shape.device), dict(num_sms=NUM_SMS, pool_bytes=size) if size else {}
        with expar.Group.from_torch(group) as own, expar.Buffer(own, device=device, **sizes) as plain:
            for count in counts:
                yield from expar_cases(plain, shape, Tokens(shape, count))
    few = sorted({1, *(count for count in counts if count <= BATCH)})
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(BATCH, shape.hidden, shape.ranks, shape.experts)
    decoding = deep_ep.Buffer(
        group, 0, size, low_latency_mode=True, num_qps_per_rank=shape.experts // shape.ranks, explicitly_destroy=True
    )
    for count in few:
        yield from low_latency_cases(decoding, shape, Tokens(shape, count))
    decoding.destroy()


def device_of(rank: int, kind: str) -> torch.device:
    if kind == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def rank_main(rank: int, options: argparse.Namespace, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = device_of(rank, options.device)
    # Barriers between loops are the host's: they put nothing on a stream.
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    shape = Shape(device, options.ranks, options.hidden, options.topk, options.experts)
    meter = Meter(device, options.calls, options.warmup)
    bench = Bench(options.c_json) if options.c_json else None
    group = dist.new_group(list(range(options.ranks)))
    wrong, told = 0, []
    if rank == 0 and not options.json:
        print(heading(bench), flush=True)
    for case in all_cases(group, shape, options.tokens):
        times = meter.measure(case)
        wrong += not times.verified
        told.append(dict(through=case.through, name=case.name, tokens=case.tokens, **dataclasses.asdict(times)))
        if rank == 0 and not options.json:
            print(row(case, times, bench), flush=True)
    if rank == 0 and options.json:
        print(json.dumps(told, indent=2))
    dist.barrier()
    dist.destroy_process_group()
    if wrong:
        raise SystemExit(f"engine_view: {wrong} results are wrong")


# ---- the program -----------------------------------------------------------------------------------------------------


def numbers(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"'{text}': numbers of 1 or more, divided by commas, are expected")
    return found


def at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}': a number of {least} or more is expected")
        return int(text)

    return number


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What an engine gets from deep_ep and expar with PyTorch.")
    parser.add_argument("c_json", nargs="*", metavar="C_JSON", help="what `expar bench --json` printed")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=at_least(1), help="(2; on GPUs as many as there are)")
    parser.add_argument("--tokens", type=numbers, help="of each rank, a list (128; on GPUs 4096,128)")
    parser.add_argument("--hidden", type=at_least(FP8_GROUP), default=7168)
    parser.add_argument("--topk", type=at_least(1), default=8)
    parser.add_argument("--experts", type=at_least(1), help="a multiple of the ranks (64; on GPUs 256)")
    parser.add_argument("--calls", type=at_least(2), default=60, help="of a loop (60)")
    parser.add_argument("--warmup", type=at_least(0), default=20, help="calls before it (20)")
    parser.add_argument("--json", action="store_true", help="print a list of results instead of the table")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU")
    options.ranks = options.ranks or (torch.cuda.device_count() if on_gpu else 2)
    options.tokens = options.tokens or ([4096, 128] if on_gpu else [128])
    options.experts = options.experts or (256 if on_gpu else 64) // options.ranks * options.ranks
    if options.experts % options.ranks:
        parser.error(f"--experts {options.experts}: a multiple of --ranks {options.ranks} is expected")
    if options.topk > options.experts:
        parser.error(f"--topk {options.topk}: at most --experts {options.experts} is expected")
    if options.hidden % FP8_GROUP:
        parser.error(f"--hidden {options.hidden}: a multiple of {FP8_GROUP} is expected")
    Bench(options.c_json)  # a file that cannot be read ends the program before its ranks start
    return options


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    options = arguments()
    if importlib.util.find_spec("deep_ep") is None:
        raise SystemExit("no deep_ep: it comes with the wheel (make wheel), or from the tree by PYTHONPATH=python")
    # A process that has used CUDA cannot be forked; on the CPU a fork has PyTorch already.
    method = "spawn" if options.device == "cuda" else "fork"
    torch.multiprocessing.start_processes(
        rank_main, (options, free_port()), nprocs=options.ranks, start_method=method
    )


if __name__ == "__main__":
    main()
