# SPDX-License-Identifier: Apache-2.0
"""Errors tell a newcomer what to do: about types that expar lacks, lists and devices. NumPy gets bfloat16 by
ml_dtypes."""

from __future__ import annotations

import importlib
import os
import re
import sys
import unittest
import warnings
from typing import Any
from unittest import mock

import numpy

import expar
import ranks
from expar import _abi, _called, _dtypes
from wrong_values import OnGpu

X = numpy.arange(24, dtype="float32").reshape(3, 8)
IDX = numpy.array([[0], [1], [1]])


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.group = expar.Group.threads(1)[0]
        self.buffer = expar.Buffer(self.group)

    def says(self, kind: type[BaseException], text: str, **given: Any) -> str:
        with self.assertRaisesRegex(kind, re.escape(text)) as caught:
            self.buffer.dispatch(**{"x": X, "topk_idx": IDX, "num_experts": 2, **given})
        return str(caught.exception)


class Types(Case):
    def test_numpy(self) -> None:
        """The text has the expression that works."""
        wide = X.astype("float64")
        self.says(TypeError, 'x: expar has no element type float64: pass x.astype("float32")', x=wide)
        weights = numpy.ones((3, 1))
        self.says(TypeError, 'topk_weights: expar has no element type float64: pass topk_weights.astype("float32")',
                  topk_weights=weights)  # fmt: skip
        self.says(TypeError, 'topk_idx.astype("int64")', topk_idx=IDX.astype("float64"))
        self.says(TypeError, 'topk_idx.astype("int64")', topk_idx=IDX.astype("uint16"))
        self.says(TypeError, 'pass expar.View(x, "bf16") if these are the bits of', x=X.astype("uint16"))
        self.says(TypeError, 'complex64: pass x.real.astype("float32")', x=X.astype("complex64"))
        rows = self.buffer.dispatch(wide.astype("float32"), IDX, weights.astype("float32"), 2)
        numpy.testing.assert_array_equal(rows.x.numpy(), X)

    def test_torch(self) -> None:
        torch = ranks.torch_for(self)
        wide = torch.from_numpy(X).double()
        self.says(TypeError, "x: expar has no element type torch.float64: pass x.float()", x=wide)
        self.says(TypeError, "topk_idx: expar has no element type torch.float64: pass topk_idx.long()",
                  topk_idx=torch.ones(3, 1, dtype=torch.float64))  # fmt: skip
        self.says(TypeError, "torch.int16: pass x.long()", x=wide.short())
        self.says(TypeError, "torch.complex64: pass x.real.float()", x=torch.zeros(3, 8, dtype=torch.complex64))
        self.assertEqual(self.buffer.dispatch(wide.float(), IDX, None, 2).num_recv_tokens, 3)

    def test_lists(self) -> None:
        """A list is not printed whole, nor made to text whole first."""

        class Item:
            def __repr__(self) -> str:
                raise AssertionError("one item of many was printed")

        for given in ([Item()] * 100000, tuple([Item()] * 100000)):
            said = self.says(TypeError, f"x: {type(given).__name__} is no tensor: it is a", x=given)
            self.assertIn("of 100000 items, expected one with __dlpack__ or an array interface", said)
            self.assertIn("numpy.asarray", said)
            self.assertLess(len(said), 200)
        with self.assertRaisesRegex(TypeError, "source: list is no array: it is a list of 999 items, expected"):
            self.group.put(self.group.zeros(999), [0.5] * 999, 0)
        nested = self.says(TypeError, "x: list is no tensor", x=[[[0] * 50] * 50] * 3)
        self.assertLess(len(nested), 250)


class Devices(Case):
    def test_calls_have_names_of_python(self) -> None:
        """All names of the table exist on both sides."""
        for c, python in _called._NAMES.items():
            self.assertIn(c, _abi.CALLS)
            there: Any = expar
            for part in python.split("."):
                there = getattr(there, part)

    def test_tensors(self) -> None:
        self.says(expar.Error, "expar.Buffer.dispatch on rank 0: x lies on device type CUDA; expected", x=OnGpu(X))
        with self.assertRaisesRegex(expar.Error, "expar.Buffer.layout: topk_idx lies on GPU 0: expected the CPU"):
            self.buffer.layout(OnGpu(IDX), 2)
        handle = self.buffer.dispatch(X, IDX, None, 2).handle
        with self.assertRaisesRegex(expar.Error, "expar.Buffer.combine on rank 0: x lies on device type CUDA"):
            self.buffer.combine(OnGpu(X), handle)
        low = expar.LowLatencyBuffer(self.group, 4, 128, 1, 2, max_row_bytes=512)
        with self.assertRaisesRegex(expar.Error, "expar.LowLatencyBuffer.dispatch on rank 0: x lies on device type"):
            low.dispatch(OnGpu(numpy.ones((3, 128), "float32")), IDX)

    def test_buffers(self) -> None:
        """Without a GPU the text names the class and the device as the program does."""
        code = (
            "import expar\n"
            "group = expar.Group.threads(1)[0]\n"
            "for make in (lambda: expar.Buffer(group, device='cuda:3'), lambda: expar.Event.record(5),\n"
            "             lambda: expar.LowLatencyBuffer(group, 4, 128, 1, 2, device='cuda')):\n"
            "    try: make()\n"
            "    except expar.Error as error: print(error)\n"
        )
        # No driver: the simulated one is out of this program's sight.
        env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        said = ranks.start([sys.executable, "-c", code], env={**env, "CUDA_VISIBLE_DEVICES": ""}).stdout.splitlines()
        self.assertEqual(len(said), 3, said)
        for text, name in zip(said, ("Buffer(device='cuda:3'): ", "Event.record: ", "LowLatencyBuffer(device='cuda'): ")):
            self.assertTrue(text.startswith(f"expar.{name}"), text)
            self.assertNotIn("expar_", text)


class Bfloat16(Case):
    def setUp(self) -> None:
        super().setUp()
        _dtypes._ml_dtypes.cache_clear()
        self.addCleanup(_dtypes._ml_dtypes.cache_clear)
        self.bits = (X.view("uint32") >> 16).astype("uint16")

    def test_without_ml_dtypes(self) -> None:
        """Bits come out, and a warning says so, once, at the line of the program."""
        rows = self.buffer.dispatch(expar.View(self.bits, "bf16"), IDX, None, 2)
        with mock.patch.dict(sys.modules, {"ml_dtypes": None}), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            numpy.testing.assert_array_equal(rows.x.numpy(), self.bits)
            self.assertEqual(rows.x.numpy().dtype, "uint16")
            self.assertEqual(self.group.zeros(3, "bfloat16").numpy().dtype, "uint16")
        self.assertEqual(len(caught), 1)
        self.assertIn("ml_dtypes is not installed", str(caught[0].message))
        self.assertEqual(caught[0].filename, __file__)

    def test_with_ml_dtypes(self) -> None:
        """Values come out, without a copy, and go in again."""
        try:
            ml_dtypes: Any = importlib.import_module("ml_dtypes")
        except ImportError:
            if os.environ.get("EXPAR_REQUIRE_TORCH") == "1":  # scripts/torch.sh installs it
                raise
            self.skipTest("there is no ml_dtypes")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x = X.astype(ml_dtypes.bfloat16)
            rows = self.buffer.dispatch(x, IDX, None, 2)
            got = rows.x.numpy()
            self.assertEqual(got.dtype, ml_dtypes.bfloat16)
            numpy.testing.assert_array_equal(got, x)
            got[0, 0] = 5
            self.assertEqual(float(rows.x.numpy()[0, 0]), 5)
            got[0, 0] = x[0, 0]
            sums = self.buffer.combine(got * 2, rows.handle).y.numpy()
            self.assertEqual(sums.dtype, ml_dtypes.bfloat16)
            numpy.testing.assert_array_equal(sums, x * 2)
            eights = X.astype(ml_dtypes.float8_e4m3fn)
            wide = numpy.tile(eights, (1, 2))
            rows = self.buffer.dispatch(wide, IDX, None, 2, x_scales=numpy.ones((3, 1), "float32"))
            numpy.testing.assert_array_equal(rows.x.numpy(), wide)
            block = self.group.zeros(3, "bfloat16")
            block.numpy()[:] = x[2, :3]
            mine = numpy.zeros(3, ml_dtypes.bfloat16)
            self.group.get(mine, block, 0)
            numpy.testing.assert_array_equal(mine, x[2, :3])
        with self.assertRaisesRegex(TypeError, r"no element type float8_e5m2: pass x.astype"):
            self.buffer.dispatch(X.astype(ml_dtypes.float8_e5m2), IDX, None, 2)


if __name__ == "__main__":
    unittest.main()
