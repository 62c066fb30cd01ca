# SPDX-License-Identifier: Apache-2.0
"""The examples and the measurement that need PyTorch run, and say what they should."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import runpy
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import grouped_gemm
import torch
from deep_ep_threads import on_threads

import deep_ep
import ranks

ROOT = Path(os.environ["EXPAR_TEST_ROOT"])
EXAMPLES = ROOT / "examples" / "python"
# Threads beside those of ranks would only wait for each other on few cores.
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
BYTES = "24"


class Examples(unittest.TestCase):
    def run_here(self, *command: str) -> str:
        ended = ranks.start([*command], env=ALONE)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        return ended.stdout

    def test_generate(self) -> None:
        """On 8 ranks: the texts of `expar demo`."""
        ended = ranks.torchrun(8, str(EXAMPLES / "generate.py"), "--bytes", BYTES)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        texts, _, end = ended.stdout.partition("equals the continuation that came with the model: ")
        self.assertEqual(end.strip(), "8 of 8 texts on 8 ranks")
        shipped = ("--model", str(ROOT / "data" / "moe-lm"))
        demo = self.run_here(os.environ["EXPAR_TEST_TOOL"], "demo", "--bytes", BYTES, *shipped)
        self.assertIn(texts[texts.index("Call me Ishmael. ") :].rstrip(), demo)

    def test_generate_is_not_always_right(self) -> None:
        """A model that is another one writes other texts, and that is said."""
        code = f"""
import sys, torch
sys.path.insert(0, {str(EXAMPLES)!r})
sys.argv = ["generate", "--bytes", "12"]
import generate
read = generate.weights_of
def other(*given):
    tensors = read(*given)
    tensors["blocks.1.w2"].neg_()
    return tensors
generate.weights_of = other
generate.main()
"""
        place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        ended = ranks.start([sys.executable, "-c", code], env={**ALONE, **place})
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertRegex(ended.stdout, "came with the model: [0-7] of 8 texts on 1 rank")

    def test_training_step(self) -> None:
        ended = ranks.launched(2, str(EXAMPLES / "training_step_torch.py"), env=ALONE)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("2 ranks: autograd's gradients are those", ended.stdout)

    def test_measurement(self) -> None:
        """A row for each call, whatever the numbers are."""
        calls = (
            "get_dispatch_layout",
            "dispatch with a handle",
            "combine",
            "low_latency_combine",
            "EP combine, bias, deferred",
            "hybrid permuted, map",
        )
        for option, columns in ((), 3), (("--steps",), 20):
            said = self.run_here(sys.executable, str(ROOT / "bench" / "python" / "deep_ep_overhead.py"), *option, "1")
            for call in calls:
                self.assertRegex(said, rf"(?m)^{call}( +-?\d+\.\d){{{columns}}}$")


class EngineView(unittest.TestCase):
    SHAPE = ("--hidden", "128", "--topk", "3", "--experts", "6")
    PROGRAM = str(ROOT / "bench" / "python" / "engine_view.py")

    def start(self, *arguments: str) -> Any:
        return ranks.start([sys.executable, self.PROGRAM, *arguments], env=ALONE)

    def c_figures(self, folder: str, name: str, *arguments: str) -> str:
        path = Path(folder) / name  # what the tool says of the machine's load goes elsewhere
        few = ("-n", "2", "--tokens", "1,5", "--iters", "2", *self.SHAPE, "--pattern", "all", "--json")
        ended = ranks.start(
            [os.environ["EXPAR_TEST_TOOL"], "bench", *arguments, *few, "--output", str(path)], env=ALONE
        )
        self.assertEqual(ended.returncode, 0, ended.stdout)
        return str(path)

    def test_rows(self) -> None:
        """Each call through each class stands in a row with the figures of the C API, and is verified."""
        dispatches = ("dispatch BF16, fresh", "dispatch BF16, handle", "combine of received rows")
        rows = [f"{through} {call}" for through in ("Buffer", "ElasticBuffer", "expar.Buffer") for call in dispatches]
        rows += ["Buffer dispatch FP8, handle, 4 kept", "Buffer combine of PyTorch's rows", "ElasticBuffer layer"]
        rows += [f"low latency {call}" for call in ("dispatch FP8", "combine", "pair", "pair by hooks")]
        with tempfile.TemporaryDirectory() as folder:
            figures = [
                self.c_figures(folder, "normal.json", "all", "--cached=both", "--dtype", "bf16,fp8"),
                self.c_figures(folder, "ll.json", "ll", "--format", "bf16,fp8"),
            ]
            ended = self.start("--tokens", "5", *self.SHAPE, "--calls", "3", "--warmup", "1", *figures)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        for row in rows:
            self.assertRegex(ended.stdout, rf"(?m)^{row} +5( +\d+\.\d){{8}} +\d+\.\d\d  yes$")
        self.assertRegex(ended.stdout, r"(?m)^low latency pair +1( +\d+\.\d){8} +\d+\.\d\d  yes$")
        self.assertNotIn("  NO", ended.stdout)

    def test_json(self) -> None:
        ended = self.start("--tokens", "3", *self.SHAPE, "--calls", "2", "--warmup", "0", "--ranks", "1", "--json")
        self.assertEqual(ended.returncode, 0, ended.stdout)
        told = json.loads(ended.stdout[ended.stdout.index("[\n") :])
        self.assertTrue(all(each["verified"] and each["loop_us"] > 0 for each in told))
        self.assertEqual({each["tokens"] for each in told}, {1, 3})

    def test_bad_arguments(self) -> None:
        for arguments, said in {
            ("--tokens", "5,0"): "--tokens: '5,0': numbers of 1 or more",
            ("--ranks", "0"): "--ranks: '0': a number of 1 or more is expected",
            ("--ranks", "3", "--experts", "8"): "--experts 8: a multiple of --ranks 3 is expected",
            ("--topk", "9", "--experts", "8"): "--topk 9: at most --experts 8 is expected",
            ("--hidden", "200"): "--hidden 200: a multiple of 128 is expected",
        }.items():
            # In this process, which has PyTorch already.
            path = [os.path.dirname(self.PROGRAM), *sys.path]
            with mock.patch.object(sys, "argv", [self.PROGRAM, *arguments]), mock.patch.object(sys, "path", path):
                with contextlib.redirect_stderr(io.StringIO()) as text, self.assertRaises(SystemExit) as ended:
                    runpy.run_path(self.PROGRAM, run_name="__main__")
            self.assertEqual(ended.exception.code, 2, text.getvalue())
            self.assertIn(said, text.getvalue())


class GroupedGemm(unittest.TestCase):
    def test_products(self) -> None:
        """Both ways are products expert by expert, with gradients; also of experts without rows, and of no rows."""
        random = torch.Generator().manual_seed(3)
        for dtype, ends in itertools.product((torch.float32, torch.float64), ([4, 4, 9], [0, 0, 0], [9, 9, 9])):
            x = torch.randn((ends[-1], 8), generator=random, dtype=dtype).requires_grad_()
            weight = torch.randn((3, 8, 16), generator=random, dtype=dtype).requires_grad_()
            y = grouped_gemm.grouped_mm(x, weight, torch.tensor(ends, dtype=torch.int32))
            grad = torch.randn(y.shape, generator=random, dtype=dtype)
            (y * grad).sum().backward()
            expert = torch.searchsorted(torch.tensor(ends), torch.arange(ends[-1]), right=True)
            wide, matrices = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
            wanted = torch.einsum("xh,xhf->xf", wide, matrices[expert])
            (wanted * grad.double()).sum().backward()
            for one, other in ((y, wanted), (x.grad, wide.grad), (weight.grad, matrices.grad)):
                assert one is not None and other is not None
                torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)

    def test_step(self) -> None:
        """On three ranks: by PyTorch's call, and by products one by one."""

        def body(comm: Any) -> None:
            torch.set_num_threads(1)
            buffer = deep_ep.ElasticBuffer(comm, num_max_tokens_per_rank=grouped_gemm.T, hidden=grouped_gemm.H)
            for name, off in grouped_gemm.step(buffer, torch.device("cpu")).items():
                assert off < grouped_gemm.CLOSE, (name, off)

        on_threads(3, body)
        with mock.patch.object(grouped_gemm, "has_kernel", return_value=False):
            on_threads(3, body)

    def test_program(self) -> None:
        """On one rank; and one that is wrong says so."""
        place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        with mock.patch.dict(os.environ, place), contextlib.redirect_stdout(io.StringIO()) as said:
            grouped_gemm.main()
            wrong = mock.patch.object(grouped_gemm, "grouped_mm", lambda x, weight, ends: x @ weight[0])
            with wrong, self.assertRaisesRegex(SystemExit, "rank 0: WRONG y: off by"):
                grouped_gemm.main()
        self.assertEqual(said.getvalue(), "1 ranks: a step by grouped GEMMs is that of the dense layer\n")


if __name__ == "__main__":
    unittest.main()
