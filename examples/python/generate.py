# SPDX-License-Identifier: Apache-2.0
"""The language model of `expar demo` in PyTorch, with its experts spread over the ranks.

Whole prompts run in normal mode. Then each step in low-latency mode adds one byte to each text.

    torchrun --nproc-per-node 8 generate.py
    torchrun --nproc-per-node 2 generate.py --device cuda --bytes 40

Each shipped prompt is continued by the likeliest bytes. The texts must equal those that the model was shipped with.
`expar demo` writes the same texts. data/moe-lm/README.md describes the model.

Letters in shapes: T tokens, D hidden, K top-k, E experts, N ranks, L = E/N local experts. R is the number of rows that
this rank receives, B the largest number of tokens of a rank in low-latency mode.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor
    from torch.nn.functional import scaled_dot_product_attention, silu
    import deep_ep
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

SHIPPED = Path(__file__).resolve().parents[2] / "data" / "moe-lm"


def weights_of(path: Path, device: torch.device) -> dict[str, Tensor]:
    """Reads a safetensors file into FP32: the length of a JSON header, the header, and the tensors' bytes."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, about in json.loads(content[8:begin]).items():
        if name == "__metadata__":
            continue
        first, last = (begin + offset for offset in about["data_offsets"])
        dtype = {"BF16": torch.bfloat16, "F32": torch.float32}[about["dtype"]]
        values = torch.frombuffer(bytearray(content[first:last]), dtype=dtype).view(about["shape"])
        tensors[name] = values.to(device=device, dtype=torch.float32)
    return tensors


# ---- experts on their ranks ------------------------------------------------------------------------------------------


class Experts:
    """A layer's router, and the experts on this rank."""

    def __init__(self, buffer: deep_ep.Buffer, sizes: dict[str, Any], weights: dict[str, Tensor], batch: int) -> None:
        self.buffer, self.batch = buffer, batch
        self.count, self.topk = sizes["experts"], sizes["top_k"]
        local = self.count // buffer.group_size
        own = slice(buffer.rank * local, (buffer.rank + 1) * local)
        self.gate, self.up, self.down = (weights[name][own] for name in ("w1", "w3", "w2"))
        self.router, self.bias = weights["wr"], weights["bias"]

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [T, D]. Returns the experts [T, K] and their weights."""
        scores = torch.sigmoid(x @ self.router.t())
        # Equal logits: the lower number wins.
        chosen = torch.sort(scores + self.bias, dim=-1, descending=True, stable=True).indices[:, : self.topk]
        weights = scores.gather(1, chosen)
        return chosen.contiguous(), weights / weights.sum(-1, keepdim=True)

    def expert(self, number: int, x: Tensor) -> Tensor:
        """x: [rows, D]"""
        return (silu(x @ self.gate[number].t()) * (x @ self.up[number].t())) @ self.down[number].t()

    def whole_prompts(self, x: Tensor) -> Tensor:
        """x: [T, D], in normal mode. A row goes once to each rank that has one of its experts."""
        chosen, weights = self.route(x)
        per_rank, per_node, per_expert, in_rank, _ = self.buffer.get_dispatch_layout(chosen, self.count)
        rows, local, row_weights, _, handle, _ = self.buffer.dispatch(
            x, None, per_rank, per_node, in_rank, per_expert, chosen, weights
        )
        y = torch.zeros_like(rows)
        for number in range(len(self.gate)):
            mine, slots = torch.nonzero(local == number, as_tuple=True)
            y.index_add_(0, mine, self.expert(number, rows[mine]) * row_weights[mine, slots, None])
        sums: Tensor = self.buffer.combine(y, handle)[0]
        return sums

    def step(self, x: Tensor) -> Tensor:
        """x: [T, D], T <= B, in low-latency mode. A row goes to each of its experts, and is weighted on its way
        back."""
        chosen, weights = self.route(x)
        rows, count, handle, _, _ = self.buffer.low_latency_dispatch(x, chosen, self.batch, self.count, use_fp8=False)
        y = torch.empty_like(rows)  # rows after the count are not sent
        for number, many in enumerate(count.tolist()):
            y[number, :many] = self.expert(number, rows[number, :many])
        sums: Tensor = self.buffer.low_latency_combine(y, chosen, weights, handle)[0]
        return sums


# ---- the model -------------------------------------------------------------------------------------------------------


class Attention:
    """Attention of a layer. `past` has the keys and values of a text."""

    def __init__(self, sizes: dict[str, Any], weights: dict[str, Tensor]) -> None:
        self.heads, self.width = sizes["heads"], sizes["hidden"] // sizes["heads"]
        self.query, self.key, self.value, self.out = (weights[name] for name in ("wq", "wk", "wv", "wo"))
        half = torch.arange(self.width // 2, dtype=torch.float64, device=self.out.device)
        self.turns = sizes["rope_theta"] ** (-half / (self.width // 2))

    def turned(self, x: Tensor, first: int) -> Tensor:
        """Rotates x: [heads, T, width] by its positions, from `first` on."""
        places = torch.arange(first, first + x.shape[1], dtype=torch.float64, device=x.device)
        angle = places[:, None] * self.turns
        sine, cosine = angle.sin().float(), angle.cos().float()
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)

    def __call__(self, x: Tensor, past: list[Tensor]) -> Tensor:
        """x: [T, D] of one text; `past`, empty or keys and values, grows by them."""
        query, key, value = (
            (x @ weight.t()).view(len(x), self.heads, self.width).transpose(0, 1)
            for weight in (self.query, self.key, self.value)
        )
        first = past[0].shape[1] if past else 0
        query, key = self.turned(query, first), self.turned(key, first)
        if past:
            key, value = torch.cat((past[0], key), dim=1), torch.cat((past[1], value), dim=1)
        past[:] = [key, value]
        # Without a whole prompt x is one position, which sees all.
        seen = scaled_dot_product_attention(query[None], key[None], value[None], is_causal=len(x) > 1)[0]
        return seen.transpose(0, 1).reshape(len(x), -1) @ self.out.t()


class Model:
    """The model. Attention and embeddings are on every rank, for its own texts; an expert is on one rank only."""

    def __init__(self, buffer: deep_ep.Buffer, folder: Path, batch: int, device: torch.device) -> None:
        self.sizes = json.loads((folder / "config.json").read_text())
        weights = weights_of(folder / "model.safetensors", device)
        self.table, self.last_gain, self.layers = weights["emb"], weights["g"], []
        for number in range(self.sizes["layers"]):
            prefix = f"blocks.{number}."
            own = {name[len(prefix) :]: each for name, each in weights.items() if name.startswith(prefix)}
            self.layers.append(
                (own["g1"], Attention(self.sizes, own), own["g2"], Experts(buffer, self.sizes, own, batch))
            )

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.sizes["rms_eps"]) * gain

    def __call__(self, texts: list[Tensor], pasts: list[Any]) -> list[int]:
        """Returns the likeliest next byte of each text. Collective. texts: the new bytes of each, whole prompts at
        first, then one byte. pasts: for each text, a list for each layer."""
        lengths = [len(text) for text in texts]
        new = torch.cat([torch.empty(0, dtype=torch.int64, device=self.table.device), *texts])
        step = bool(pasts) and bool(pasts[0][0])
        x = self.table[new]
        for number, (gain, attention, inner_gain, experts) in enumerate(self.layers):
            parts = self.norm(x, gain).split(lengths)
            if parts:
                x = x + torch.cat([attention(part, past[number]) for part, past in zip(parts, pasts)])
            rows = self.norm(x, inner_gain)
            x = x + (experts.step(rows) if step else experts.whole_prompts(rows))
        ends = torch.tensor(lengths, dtype=torch.int64).cumsum(0) - 1
        likeliest = (self.norm(x[ends], self.last_gain) @ self.table.t()).argmax(-1)
        return [int(byte) for byte in likeliest]


def generate(model: Model, prompts: list[bytes], count: int, device: torch.device) -> list[bytes]:
    """Generates count bytes after each prompt."""
    pasts: list[list[list[Any]]] = [[[] for _ in model.layers] for _ in prompts]
    found = [bytearray() for _ in prompts]
    new = [list(prompt) for prompt in prompts]
    for _ in range(count):
        texts = [torch.tensor(each, dtype=torch.int64, device=device) for each in new]
        new = [[byte] for byte in model(texts, pasts)]
        for text, byte in zip(found, new):
            text += bytes(byte)
    return [bytes(text) for text in found]


def main() -> None:
    parser = argparse.ArgumentParser(description="A small MoE language model writes text.")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="folder of config.json and model.safetensors")
    parser.add_argument("--bytes", type=int, default=160, help="to write after each prompt, 1 to 160 (160)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if not 1 <= options.bytes <= 160:
        parser.error(f"--bytes is {options.bytes}: expected 1 to 160")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    cases = json.loads((options.model / "config.json").read_text())["generations"]
    if size > len(cases) or 32 % size:
        sys.exit(f"generate: {size} ranks: expected 1, 2, 4 or 8")
    own = cases[rank::size]
    buffer = deep_ep.Buffer(dist.group.WORLD, explicitly_destroy=True)
    with torch.no_grad():
        model = Model(buffer, options.model, -(-len(cases) // size), device)
        texts = generate(model, [each["prompt"].encode() for each in own], options.bytes, device)
    buffer.destroy()
    right = sum(text == bytes(each["bytes"][: options.bytes]) for text, each in zip(texts, own))
    everything: list[Any] = [None] * size
    dist.all_gather_object(everything, (right, [text.decode(errors="replace") for text in texts]))
    total = sum(each for each, _ in everything)
    if rank == 0:
        for number, case in enumerate(cases):
            print(f"{case['prompt']}{everything[number % size][1][number // size]}\n")
        print(f"equals the continuation that came with the model: {total} of {len(cases)} texts on {size} ranks")
    dist.destroy_process_group()
    sys.exit(total != len(cases))


if __name__ == "__main__":
    main()
