# SPDX-License-Identifier: Apache-2.0
"""Types and help serve a program before it runs: mypy --strict finds mistakes in it and passes correct ones, and help
shows names, defaults and shapes."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import os
import pydoc
import re
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import expar
from expar import _abi, _buffer, _group, _low_latency

import ranks

ROOT = Path(os.environ["EXPAR_TEST_ROOT"])
# PyTorch leaves the types of many of its functions out.
STRICT = ("--strict", "--untyped-calls-exclude=torch", "--no-error-summary", "--no-pretty", "--hide-error-context")

RIGHT = """
from __future__ import annotations
import numpy
from numpy import typing as npt
import expar

def of_options(g: expar.Group) -> None:
    expar.Buffer(g, max_tokens=5, num_threads=2)
    expar.Buffer(g, device="cuda:1", allocator=lambda size: numpy.empty(size, "uint8"))
    expar.LowLatencyBuffer(g, 4, 128, 2, 8, masking=1)
    expar.Group.threads(2, timeout_ms=500, heap_kind=expar.HeapKind.STATIC)
    number: int = expar.Buffer.bytes_needed(2, ranks_per_node=1)

def of_handles(b: expar.Buffer, x: npt.NDArray[numpy.float32], idx: npt.NDArray[numpy.int64]) -> int:
    rows = b.dispatch(x, idx, None, 4)
    again = b.dispatch(x, handle=rows.handle)
    b.combine(rows.x, again.handle, bias=(x, x))
    bits = x.view("uint16")
    b.dispatch(expar.View(bits, "bf16"), idx, num_experts=4)
    b.alloc((3, 4), "f32").numpy()
    return rows.handle.num_tokens

def of_low_latency(b: expar.LowLatencyBuffer, x: npt.NDArray[numpy.float32], idx: npt.NDArray[numpy.int64]) -> None:
    rows = b.dispatch(x, idx, format=expar.LlFormat.FP8)
    b.combine(rows.x, idx, x, rows.handle, stream=5)

def of_memory(g: expar.Group, x: npt.NDArray[numpy.float32]) -> None:
    block = g.zeros((3, 4), "float32")
    g.put(block, x, 0)
    g.put(block.numpy()[1:2], x, 0)
    g.world().reduce(block, x, "sum")
"""

# Each line is wrong, and mypy must say so there.
WRONG = """
from __future__ import annotations
import numpy
from numpy import typing as npt
import expar

def of_options(g: expar.Group) -> None:
    expar.Buffer(g, max_tokns=5)
    expar.Buffer(g, max_tokens="many")
    expar.Buffer(5)
    expar.Buffer(g, device=3.5)
    expar.Buffer.bytes_needed(2, max_token=1)
    expar.LowLatencyBuffer(g, 4, 128, 2, 8, mask=1)
    expar.Group.from_env(timeout=5)
    expar.Group.threads(2, heap_kind="static")
    expar.Group.from_id(b"", 0, 2, timeout_s=5)
    expar.Group.from_torch(timeout=5)

def of_calls(b: expar.Buffer, x: npt.NDArray[numpy.float32], idx: npt.NDArray[numpy.int64]) -> None:
    b.dispatch(3, "hello", None, 4)
    b.dispatch(x, "hello", None, 4)
    b.dispatch([1.0, 2.0], idx, None, 4)
    b.dispatch(x, idx, 0.5, 4)
    b.dispatch(x, idx, None, "four")
    b.dispatch(x, idx, None, 4, handle=x)
    b.dispatch(x, idx, None, 4, expert_majr=True)
    b.dispatch(x, idx, None, 4, path="direct")
    b.dispatch(x, idx, None, 4, out_x=5)
    b.dispatch(x, idx, None, 4, stream="main")
    b.combine(x, None)
    b.combine(x)
    b.layout([1, 2], 4)
    b.route(5, 4)
    expar.RecvCounts(7)
    b.dispatch(x, idx, None, 4).handel

def of_low_latency(b: expar.LowLatencyBuffer, x: npt.NDArray[numpy.float32], idx: npt.NDArray[numpy.int64]) -> None:
    b.dispatch(3, idx)
    b.dispatch(x, "hello")
    b.dispatch(x, idx, format="fp8")
    b.combine(x, idx, None, b.dispatch(x, idx).handle)
    b.combine(x, idx, x, x)

def of_memory(g: expar.Group, x: npt.NDArray[numpy.float32]) -> None:
    g.put(g.zeros(3), [1, 2], 0)
    g.put(3, x, 0)
    g.put(x, x, "left")
    g.wait_until(x, "==", 0)
    g.world().broadcast(x, 5)
"""

# Declarations that fragments of pages take from the text around them.
AROUND = {
    "E": "E: int",
    "buffer": "buffer: expar.Buffer",
    "deep_ep": "import deep_ep",
    "expar": "import expar",
    "experts": "experts: Callable[..., Any]",
    "group": "group: expar.Group",
    "loss": "loss: Callable[[torch.Tensor], torch.Tensor]",
    "mine": "mine: numpy.ndarray[Any, Any]",
    "num_experts": "num_experts: int",
    "operators": "from deep_ep import operators",
    "pe": "pe: int",
    "received": "received: expar.Symmetric",
    "sent": "sent: expar.Symmetric",
    "step": "step: Callable[[], None]",
    "topk_idx": "topk_idx: numpy.ndarray[Any, Any]",
    "topk_weights": "topk_weights: numpy.ndarray[Any, Any]",
    "torch": "import torch",
    "total": "total: expar.Symmetric",
    **{name: f"{name}: numpy.ndarray[Any, Any]" for name in ("x", "x0", "x1", "idx0", "idx1", "weights0", "weights1")},
}
# The same where PyTorch is used.
AROUND_TORCH = {
    **AROUND,
    **{name: f"{name}: torch.Tensor" for name in ("in_rank", "per_expert", "per_rank", "topk_idx", "topk_weights", "x")},
}


BUFFER = "import deep_ep\nbuffer: deep_ep.ElasticBuffer"


def uses_torch(program: str) -> bool:
    return re.search(r"\b(torch|deep_ep|operators)\b", program) is not None


def has_torch() -> bool:
    there = find_spec("torch") is not None
    assert there or os.environ.get("EXPAR_REQUIRE_TORCH") != "1"
    return there


def mypy(test: unittest.TestCase, *files: Path) -> list[str]:
    """The lines that mypy --strict says of these files. It sees NumPy and PyTorch of this interpreter."""
    if find_spec("mypy") is None:
        if os.environ.get("EXPAR_REQUIRE_TORCH") == "1":  # scripts/torch.sh installs it
            test.fail("there is no mypy")
        test.skipTest("there is no mypy for this Python")
    cache = Path(os.environ.get("EXPAR_TEST_BUILD", tempfile.gettempdir())) / "mypy"
    env = {**os.environ, "MYPYPATH": str(ROOT / "python"), "PYTHONPATH": ""}
    command = [sys.executable, "-m", "mypy", *STRICT, "--cache-dir", str(cache), *map(str, files)]
    ended = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=540)
    assert ended.returncode in (0, 1), ended.stdout
    return ended.stdout.splitlines()


def blocks(page: Path) -> list[tuple[int, str]]:
    """The programs of a page, each with its line."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start()) + 2, match[1]) for match in found]


def whole(program: str) -> str:
    """The program, after declarations of names that it takes from around it, and imports that it leaves out."""
    tree = ast.parse(program)
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    made |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    made |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            made |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    lacking = sorted(named - made - set(dir(builtins)))
    around = AROUND_TORCH if uses_torch(program) else AROUND
    lines = ["from __future__ import annotations", "from typing import Any, Callable", "import numpy"]
    lines += ["import expar", "import torch"] if uses_torch(program) else ["import expar"]
    lines += [around[name] for name in lacking if name not in ("numpy", "expar", "torch")]
    # A buffer of operators is the second generation's.
    text = "\n".join(lines).replace("buffer: expar.Buffer", BUFFER if "operators" in lacking else "buffer: expar.Buffer")
    return f"{text}\n{program}"


class Checked(unittest.TestCase):
    maxDiff = None

    def test_right_and_wrong(self) -> None:
        """mypy names each wrong line, and no line of the correct programs."""
        with tempfile.TemporaryDirectory() as folder:
            right, wrong = Path(folder, "right.py"), Path(folder, "wrong.py")
            right.write_text(RIGHT)
            wrong.write_text(WRONG)
            said = mypy(self, right, wrong)
        self.assertEqual([line for line in said if "right.py" in line], [])
        errors = {int(match[1]) for line in said if (match := re.search(r"wrong\.py:(\d+): error", line))}
        calls = [(number, text) for number, text in enumerate(WRONG.splitlines(), 1) if text.startswith("    ")]
        self.assertGreater(len(calls), 35)
        self.assertEqual([text for number, text in calls if number not in errors], [], "mypy passes these lines")
        self.assertEqual(errors - {number for number, _ in calls}, set(), "\n".join(said))

    def test_programs(self) -> None:
        """Every example and every program of a page passes."""
        pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for page in pages:
                for line, program in blocks(page):
                    if uses_torch(program) and not has_torch():
                        continue
                    files.append(Path(folder, f"{page.stem}_{line}".lower().replace("-", "_") + ".py"))
                    files[-1].write_text(whole(program))
            self.assertGreaterEqual(len(files), 12 if has_torch() else 4)
            for example in sorted((ROOT / "examples" / "python").glob("*.py")):
                if has_torch() or not uses_torch(example.read_text()):
                    files.append(example)
            self.assertEqual(mypy(self, *files), [])


class Help(unittest.TestCase):
    def text(self, thing: Any) -> str:
        return pydoc.render_doc(thing, renderer=pydoc.plaintext)

    def test_options(self) -> None:
        """Each option of C is a keyword with its default, which help shows."""
        no_options = {"struct_size", "id", "rank", "size", "device", "alloc", "free", "alloc_context", "max_tokens_"}
        for call, struct, names in (
            (expar.Buffer, _abi.EpConfig, _buffer._OPTIONS[:-1]),
            (expar.Buffer.bytes_needed, _abi.EpConfig, _buffer._OPTIONS),
            (expar.LowLatencyBuffer, _abi.LlConfig, _low_latency._SHAPE + _low_latency._OPTIONS),
            (expar.LowLatencyBuffer.bytes_needed, _abi.LlConfig, _low_latency._SHAPE + _low_latency._OPTIONS),
            *((getattr(expar.Group, name), _abi.GroupOptions, _group._OPTION_NAMES)
              for name in ("from_env", "from_id", "from_torch", "from_mpi4py", "threads")),
        ):  # fmt: skip
            fields = {field[0] for field in struct._fields_} - no_options
            self.assertEqual(fields - set(names), {"ranks_per_node"} if call is expar.Buffer else set())
            parameters, text = inspect.signature(call).parameters, self.text(call)
            for name in names:
                self.assertIn(name, parameters)
                if name not in _low_latency._SHAPE or struct is not _abi.LlConfig:
                    self.assertIn(parameters[name].default, (0, None))
                    self.assertRegex(text, rf"\b{name}: '?\w+'? = ")
            self.assertFalse([each for each in parameters.values() if each.kind is each.VAR_KEYWORD], call)

    def test_values_reach_their_options(self) -> None:
        """No option takes the place of another one: an error names the one that is wrong."""
        group = expar.Group.threads(1)[0]
        makers: dict[str, Any] = {
            "Group": lambda **options: expar.Group.threads(1, **options),
            "Buffer": lambda **options: expar.Buffer(group, **options),
            "LowLatencyBuffer": lambda **options: expar.LowLatencyBuffer(group, 4, 128, 1, 1, **options),
        }
        for maker, names in (
            ("Group", _group._OPTION_NAMES), ("Buffer", _buffer._OPTIONS[:-1]),
            ("LowLatencyBuffer", _low_latency._OPTIONS),
        ):  # fmt: skip
            for name in names:
                with self.assertRaisesRegex(TypeError, f"^{name} is 'x': expected a whole number"):
                    makers[maker](**{name: "x"})

    def test_shapes(self) -> None:
        """The help of each call that takes tensors has the shape of each."""
        for call in (expar.Buffer.dispatch, expar.Buffer.combine, expar.Buffer.layout, expar.LowLatencyBuffer.dispatch,
                     expar.LowLatencyBuffer.combine):  # fmt: skip
            text = self.text(call)
            for name in inspect.signature(call).parameters:
                if name in ("x", "topk_idx", "topk_weights", "x_scales", "token_in_rank", "out_y", "bias"):
                    self.assertRegex(text, rf"\b{name}: \[[TRNL], ?[A-Z]", f"{call.__qualname__}: {name}")

    def test_results(self) -> None:
        """The help of each result has its members, and the shape of each tensor."""
        results: list[Any] = [expar.Combined, expar.Dispatched, expar.Layout]
        results += [expar.LowLatencyCombined, expar.LowLatencyDispatched]
        if has_torch():
            operators = importlib.import_module("expar.torch")
            results += [operators.Rows, operators.LowLatencyRows]
        plain = {"num_recv_tokens", "num_dropped_tokens", "handle", "path", "event", "hook"}
        for result in results:
            text = self.text(result)
            for name in result._fields:
                if name not in plain:
                    self.assertRegex(text, rf"(?m)^ \|  {name}: [^\n]*\[([A-Z]\b|rows)", f"{result.__name__}.{name}")

    def test_enumerations(self) -> None:
        """Each says what it is for, and its members print by name."""
        found = 0
        for name, kind in _abi.ENUMS.items():
            self.assertTrue(kind.__doc__ and kind.__doc__ != _abi.Named.__doc__, name)
            self.assertIn(kind.__doc__.split("\n")[0][:30], self.text(kind))
            for member in kind:
                self.assertEqual(str(member), f"{kind.__name__}.{member.name}")
                self.assertEqual(f"{member}", str(member))
                self.assertEqual(f"{member:>40}", str(member).rjust(40))
                self.assertEqual((f"{member:d}", member + 1, int(member)), (str(int(member)), int(member) + 1, member))
                found += 1
        self.assertGreater(found, 80)
        self.assertIn("ERR_PEER: a peer died, left", self.text(expar.Status))
        self.assertIn("FP8_UE8M0: f8e4m3, the exponents", self.text(expar.LlFormat))

    def test_fresh_handles(self) -> None:
        """A dispatch always has a handle: its own, or the given one."""
        numpy: Any = __import__("numpy")
        x, idx = numpy.zeros((2, 8), "float32"), numpy.zeros((2, 1), "int64")
        group = expar.Group.threads(1)[0]
        with group, expar.Buffer(group) as buffer:
            rows = buffer.dispatch(x, idx, None, 1)
            self.assertIsInstance(rows.handle, expar.Handle)
            self.assertIs(buffer.dispatch(x, handle=rows.handle).handle, rows.handle)


if __name__ == "__main__":
    unittest.main()
