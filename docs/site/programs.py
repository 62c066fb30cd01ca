#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of the pages for users: blocks of C, CUDA and Python.

The first line of a program has its name: `/* layer.c */`, `// ring.cu`, `# layer.py`. After it the page has the command
that runs it, and perhaps the lines that it prints. Blocks without a name are fragments, which are only compiled
(test_doc_commands, test_python_types); a block that is a whole program must have a name.

usage: programs.py ROOT FOLDER      writes all programs to the folder
"""

from __future__ import annotations

import ast
import builtins
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(c|cuda|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?:/\* (\w+\.c) \*/|// (\w+\.cu)|# (\w+\.py))\n")
PRINTS = re.compile(r"\A\n*```\n\n*```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Program:
    page: str
    name: str
    text: str
    command: list[str]  # that runs it
    prints: list[str]  # lines that the page shows after the command


def command_after(page: str, name: str, text: str) -> tuple[list[str], list[str]]:
    """The first command after the program that starts with a launcher or Python and has the program's name, and what it
    prints."""
    stem = re.sub(r"\.cu?$", "", name)
    for found in re.finditer(rf"(?m)^((?:expar run|torchrun|python3) [^#\n]*\b{re.escape(stem)}\b.*)$", text):
        words = shlex.split(found[1], comments=True)
        shown = PRINTS.match(text[found.end() :])
        return words, shown[1].splitlines() if shown else []
    raise SystemExit(f"{page}: no command runs {name}")


def is_whole(language: str, text: str) -> bool:
    """Whether a block is a program: it has all names that it uses, those of the package among them."""
    if language != "python":
        return re.search(r"\bint main\(", text) is not None
    tree = ast.parse(text)
    used: set[str] = set()
    made = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            made |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return bool(made & {"expar", "deep_ep"}) and used <= made


def pages_of(root: Path) -> list[Path]:
    """The pages that have programs."""
    return [path for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))) if path.is_file()]


def programs_of(root: Path) -> list[Program]:
    """All programs, by page."""
    found: list[Program] = []
    for path in pages_of(root):
        text, page = path.read_text(), str(path.relative_to(root))
        for block in BLOCK.finditer(text):
            named = NAMED.match(block[2])
            if named is None:
                if is_whole(block[1], block[2]):
                    raise SystemExit(f"{page}: a program does not begin with its name: {block[2].splitlines()[0]}")
                continue
            name = named[1] or named[2] or named[3]
            if any(each.name == name for each in found):
                raise SystemExit(f"{page}: another program is called {name}")
            found.append(Program(page, name, block[2], *command_after(page, name, text[block.end() :])))
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: programs.py ROOT FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs_of(Path(arguments[0])):
        (folder / program.name).write_text(program.text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
