# SPDX-License-Identifier: Apache-2.0
"""The list of C calls that Python does not have (docs/howto/python.md) is what the library has and the package does not
use. Each public call of both packages says what it does, and what its tensors are."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path
from typing import Iterator

import expar
from expar import _abi, _symmetric, _team

PACKAGE = Path(expar.__file__).parent
TYPES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64", "size", "ptrdiff")
TITLE = "### Calls of C that Python does not have"


def exported() -> set[str]:
    """The calls of the library for programs; test_symbols holds them against the headers."""
    told = subprocess.run(["nm", "-D", "--defined-only", expar.library_path()], stdout=subprocess.PIPE, check=True)
    names = {line.split()[-1].split("@")[0] for line in told.stdout.decode().splitlines()}
    return {name for name in names if name.startswith("expar_")}


def used(there: set[str]) -> set[str]:
    """The calls of the package: by name, or one of those that exist for each type of elements."""
    text = "".join(path.read_text() for path in PACKAGE.glob("*.py") if path.name != "_abi.py")
    found = set(re.findall(r"\blib\.(expar_\w+)", text))
    typed = set(re.findall(r'_typed\("(\w+)"', text))
    typed |= {f"atomic_{each}" for each in re.findall(r'_atomic\("(\w+)"', text)}
    suffixes = [suffix for suffix, _ in _symmetric._WORDS.values()]
    found |= {f"expar_{call}_{suffix}" for call in typed for suffix in suffixes} & there
    reductions = [f"expar_{each}_reduce_{suffix}" for each in _team._OPERATIONS for suffix in _team._SUFFIXES.values()]
    return found | (set(reductions) & there)


def listed() -> list[str]:
    """Patterns of the table's first column."""
    text = (Path(os.environ["EXPAR_TEST_ROOT"]) / "docs" / "howto" / "python.md").read_text()
    part = text.split(TITLE, 1)[1].split("\n#", 1)[0]
    rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("|")]
    names = re.findall(r"`(expar_[\w*<>]+)`", " ".join(rows))
    return [name.replace("*", ".*").replace("<type>", f"({'|'.join(TYPES)})") for name in names]


@unittest.skipIf(shutil.which("nm") is None, "there is no nm")
class Coverage(unittest.TestCase):
    def test_list(self) -> None:
        there = exported()
        mine = used(there)
        self.assertGreater(len(mine), 150)
        self.assertLessEqual(mine, there)
        self.assertLessEqual(set(_abi.CALLS), there)
        missing = there - mine
        covered: set[str] = set()
        for pattern in listed():
            matched = {name for name in there if re.fullmatch(pattern, name)}
            self.assertTrue(matched, f"{pattern}: there is no such call")
            self.assertEqual(sorted(matched & mine), [], f"{pattern}: the package uses them")
            covered |= matched
        self.assertEqual(sorted(missing - covered), [], "neither used nor in the list of docs/howto/python.md")


# ---- docstrings ------------------------------------------------------------------------------------------------------

# Public names of deep_ep beside those of its folders `buffers` and `utils`.
OF_DEEP_EP = {"operators": None, "_elastic_handle": ["EPHandle"]}
# Arguments that are tensors on EP buffers, of which shape and dtype are told, each where it is named.
TENSORS = {
    "x", "y", "out", "out_y", "bias", "topk_idx", "topk_weights", "x_scales", "token_in_rank", "expert_weights",
    "topk_idx_copy", "expert_recv_stats", "wait_ns", "is_token_in_rank", "num_tokens_per_rank",
    "num_tokens_per_rdma_rank", "num_tokens_per_expert", "cumulative_local_expert_recv_stats",
    "dispatch_wait_recv_cost_stats", "combine_wait_recv_cost_stats", "mask_status", "scores", "group_idx", "q", "sf",
    "data", "initial",
}  # fmt: skip
# Arrays in symmetric memory: of any shape, or words.
ARRAYS = {"dest", "source", "word", "words", "signal"}
OTHERS = {"ceil_div", "align", "safe_div", "calc_diff", "broadcast"}  # of numbers, of any tensors, or of bytes
SHAPE, KIND = r"\[[^\]]+\]", r"bf16|e4m3|FP8|u?int(8|32|64)|i32|i64|f32|float32|bool|dtype of|y's dtype"
OUTPUTS = {"Buffer.dispatch": "Dispatched", "LowLatencyBuffer.dispatch": "LowLatencyDispatched"}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def of_class(made: ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    yield made.name, made
    for each in made.body:
        if isinstance(each, Function) and not each.name.startswith("_"):
            yield f"{made.name}.{each.name}", each


def public() -> Iterator[tuple[str, ast.AST]]:
    """Each public class, function, method and property, but enumerations, which have no calls."""
    trees = {path.stem: parsed(path) for path in PACKAGE.glob("*.py") if path.name != "_abi.py"}
    for tree in trees.values():
        for each in tree.body:
            if isinstance(each, ast.ClassDef) and (each.name in expar.__all__ or each.name == "Operations"):
                yield from of_class(each)
            elif isinstance(each, Function) and each.name in expar.__all__:
                yield each.name, each
    folder = PACKAGE.parent / "deep_ep"
    wanted = {folder / f"{name}.py": only for name, only in OF_DEEP_EP.items()}
    wanted.update({path: None for part in ("buffers", "utils") for path in (folder / part).glob("*.py")})
    for path, only in wanted.items():
        for each in parsed(path).body:
            name = getattr(each, "name", "_")
            if name.startswith("_") or (only is not None and name not in only):
                continue
            if isinstance(each, ast.ClassDef):
                yield from ((f"deep_ep {inner}", node) for inner, node in of_class(each))
            else:
                yield f"deep_ep {path.stem}.{name}", each


def arguments_of(node: ast.AST) -> list[str]:
    assert isinstance(node, Function)
    given = node.args
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs) if each.arg not in ("self", "cls")]


def is_told(argument: str, text: str) -> bool:
    """Shape and dtype in the sentence that names it; of symmetric memory it is named, and the text says which types."""
    sentences = re.findall(rf"(?<![\w.]){argument}\b[^;]*?(?:[;.](?:\s|$)|$)", text)
    if argument not in ARRAYS:
        return any(re.search(SHAPE, each) and re.search(KIND, each) for each in sentences)
    return bool(sentences) and bool(re.search(r"uint64|any shape and dtype|Types are", text))


class Docstrings(unittest.TestCase):
    def test_each(self) -> None:
        there = dict(public())
        texts = {name: " ".join((ast.get_docstring(node) or "").split()) for name, node in there.items()}  # type: ignore[arg-type]
        self.assertGreater(len(texts), 200)
        for name, text in texts.items():  # an attribute may be told of by its class
            of, _, attribute = name.rpartition(".")
            self.assertTrue(text or re.search(rf"\b{attribute}\b", texts.get(of, "")), f"{name} has no docstring")
        told = 0
        for name, node in there.items():
            if isinstance(node, ast.ClassDef) or name.rpartition(".")[2] in OTHERS:
                continue
            text, kind = texts[name], name.rpartition(".")[0]
            for other in re.findall(r"[Aa]s (?:of )?`?(\w+)", text):  # which says the rest
                text += " " + texts.get(f"{kind}.{other}", "")
            for argument in arguments_of(node):
                if argument.startswith("out_") and kind + ".dispatch" in OUTPUTS:
                    given = f"`{OUTPUTS[name]}`" if name in OUTPUTS else f"{argument}: ["
                    self.assertIn(given, text, f"{name}: {argument}")
                elif argument in TENSORS or argument in ARRAYS:
                    with self.subTest(call=name, argument=argument):
                        self.assertTrue(is_told(argument, text), text)
                    told += 1
        self.assertGreater(told, 100)

    def test_results(self) -> None:
        """Results of dispatches, by the comment of each member, or by the docstring."""
        for path in ("_results", "_low_latency"):
            source = (PACKAGE / f"{path}.py").read_text()
            for name, shape in re.findall(r"(?m)^    (\w+): Any  # (.*)$", source):
                self.assertRegex(shape, SHAPE, name)
        texts = {name: ast.get_docstring(node) or "" for name, node in public()}  # type: ignore[arg-type]
        for call in ("NormalCalls.dispatch", "NormalCalls.combine", "ElasticBuffer.combine", "LowLatencyCalls.low_latency_dispatch",
                     "LowLatencyCalls.low_latency_combine", "NormalCalls.get_dispatch_layout"):  # fmt: skip
            self.assertRegex(texts[f"deep_ep {call}"].split("\n\n")[0], SHAPE, call)


if __name__ == "__main__":
    unittest.main()
