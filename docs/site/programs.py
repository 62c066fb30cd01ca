#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of the pages for users: blocks of C, CUDA and Python in docs/tutorials and docs/howto.

Each such block is a whole program, and its first line has its name: `/* layer.c */`, `// ring.cu`, `# layer.py`. After
it the page has the command that runs it, and perhaps the lines that it prints.

usage: programs.py ROOT FOLDER      writes all programs to the folder
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(c|cuda|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?:/\* (\w+\.c) \*/|// (\w+\.cu)|# (\w+\.py))\n")
PRINTS = re.compile(r"\A\n*```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Program:
    page: str
    name: str
    text: str
    command: list[str]  # that runs it
    prints: list[str]  # lines that the page shows after the command


def command_after(page: str, name: str, text: str) -> tuple[list[str], list[str]]:
    """The last indented line that starts with a launcher or Python and has the program's name, and what it prints."""
    stem = re.sub(r"\.cu?$", "", name)
    for found in re.finditer(rf"(?m)^    ((?:expar run|torchrun|python3) .*\b{re.escape(stem)}\S*)$", text):
        words = shlex.split(found[1], comments=True)
        shown = PRINTS.match(text[found.end() :])
        return words, shown[1].splitlines() if shown else []
    raise SystemExit(f"{page}: no command runs {name}")


def programs_of(root: Path) -> list[Program]:
    """All programs, by page."""
    found = []
    for path in sorted([*root.glob("docs/tutorials/*.md"), *root.glob("docs/howto/*.md")]):
        text, page = path.read_text(), str(path.relative_to(root))
        for block in BLOCK.finditer(text):
            named = NAMED.match(block[2])
            if named is None:
                raise SystemExit(f"{page}: a program does not begin with its name: {block[2].splitlines()[0]}")
            name = named[1] or named[2] or named[3]
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
