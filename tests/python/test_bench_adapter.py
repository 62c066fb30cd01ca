#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The adapter for CollectiveX: its figures make sense, its sums are checked, and wrong ones are found."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import unittest
from typing import Any

import ranks

ROOT = os.environ["EXPAR_TEST_ROOT"]
ADAPTERS = os.path.join(ROOT, "bench", "adapters")
SMALL = ["--tokens", "7", "--hidden", "256", "--topk", "3", "--experts", "8", "--pairs", "9", "--trials", "2"]


class Adapter(unittest.TestCase):
    def setUp(self) -> None:
        ranks.torch_for(self)
        sys.path.insert(0, ADAPTERS)
        self.module = importlib.import_module("ep_expar")

    def told(self, *options: str) -> dict[str, Any]:
        program = os.path.join(ADAPTERS, "ep_expar.py")
        done = ranks.start([os.environ["EXPAR_TEST_TOOL"], "run", "--no-prefix", "-n", "2", "--", sys.executable, program,
                            *SMALL, *options])
        self.assertEqual(done.returncode, 0, done.stdout)
        return dict(json.loads(done.stdout[done.stdout.index("{") :]))

    def test_figures_make_sense(self) -> None:
        for options in ([], ["--fp8", "--cached"]):  # each rank loads PyTorch
            found = self.told(*options)
            self.assertTrue(found["verified"])
            self.assertEqual(found["dtype"], "fp8" if "--fp8" in options else "bf16")
            self.assertEqual(found["dropped"], 1)
            self.assertEqual(found["config"]["ranks"], 2)
            self.assertGreater(found["dispatch_floor_us"], 0)
            self.assertGreater(found["combine_floor_us"], 0)
            self.assertGreaterEqual(found["gap_us"], 0)
            self.assertGreater(found["pair_period_us"], found["gap_us"])
            self.assertGreaterEqual(found["spread"], 0)

    def adapter(self, group: Any, **options: Any) -> Any:
        torch = importlib.import_module("torch")
        shape = argparse.Namespace(tokens=5, hidden=128, topk=2, experts=4, seed=3)
        x, idx, weights = self.module.inputs(group.rank, shape, torch.device("cpu"))
        idx[0, 1] = -1
        return self.module.ExparAdapter(group, x, idx, weights, shape.experts, **options)

    def test_wrong_sums_are_found(self) -> None:
        def body(group: Any) -> None:
            adapter = self.adapter(group)
            adapter.dispatch()
            adapter.combine()
            self.assertTrue(adapter.verify())
            adapter.y[0, 0] += 1
            self.assertFalse(adapter.verify())
            adapter.close()

        ranks.on_threads(2, body)

    def test_coding_is_part_of_the_dispatch(self) -> None:
        """A dispatch codes the rows as they are then."""

        def body(group: Any) -> None:
            adapter = self.adapter(group, fp8=True)
            self.assertTrue(adapter.fp8)
            adapter.x.mul_(2)
            first = importlib.import_module("torch").from_dlpack(adapter.dispatch().scales).clone()
            adapter.x.mul_(4)
            second = importlib.import_module("torch").from_dlpack(adapter.dispatch().scales).clone()
            self.assertTrue(first.shape[0] == 0 or bool((second == 4 * first).all()))
            adapter.close()

        ranks.on_threads(2, body)

    def test_bad_input_is_named(self) -> None:
        torch = importlib.import_module("torch")
        idx, weights = torch.zeros((1, 1), dtype=torch.int64), torch.ones((1, 1))
        with self.assertRaisesRegex(ValueError, "BF16 rows"):
            self.module.ExparAdapter(None, torch.zeros((1, 128)), idx, weights, 2)
        with self.assertRaisesRegex(ValueError, "rows of 100 elements: a multiple of 128"):
            self.module.ExparAdapter(None, torch.zeros((1, 100), dtype=torch.bfloat16), idx, weights, 2, fp8=True)
        with self.assertRaisesRegex(ValueError, "pairs is 1: at least 2"):
            self.module.measure(None, pairs=1)


if __name__ == "__main__":
    unittest.main()
