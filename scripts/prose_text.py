# SPDX-License-Identifier: Apache-2.0
"""Find the prose of a file: comments of source code, text of Markdown and of man pages.

A paragraph is a run of text that belongs together: a comment, or the part of one between two blank lines.
Tables, pictures, code and directives of tools are not prose.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Paragraph:
    """Joined lines, and where each line starts in the joined text."""

    text: str
    starts: list[int]
    lines: list[int]
    heading: bool = False

    def line_at(self, offset: int) -> int:
        return self.lines[bisect_right(self.starts, offset) - 1]


class Builder:
    """Collects lines; a break ends a paragraph."""

    def __init__(self) -> None:
        self.done: list[Paragraph] = []
        self.pending: list[tuple[int, str]] = []

    def add(self, line: int, text: str) -> None:
        self.pending.append((line, text.strip()))

    def end(self, heading: bool = False) -> None:
        if self.pending:
            starts, at = [], 0
            for _, text in self.pending:
                starts.append(at)
                at += len(text) + 1
            joined = " ".join(text for _, text in self.pending)
            self.done.append(Paragraph(joined, starts, [line for line, _ in self.pending], heading))
        self.pending = []

    def one(self, line: int, text: str, heading: bool = False) -> None:
        self.end()
        if text.strip():
            self.add(line, text)
            self.end(heading)


# Directives of tools, and lines that only name things.
DIRECTIVE = re.compile(
    r"SPDX-License-Identifier|clang-format (on|off)|NOLINT|shellcheck |cppcheck-suppress|noqa|type: ignore|pragma:|ruff:"
    r"|mypy:|!|usage:|vim:|-\*-|fall ?through$|={4,}|-{4,}",
    re.IGNORECASE,
)
# Two words with a wide gap: a table. Lines and arrows: a picture. Nothing but signs: a ruler.
TABLE = re.compile(r"\S {2,}\S|[─-╿▀-▟◀▶▲▼]|---+[>|]|<---|\.\.\.\s*\|")
ITEM = re.compile(r"(?:[-*+•]|\d+[.)])\s+")


def comment_lines(builder: Builder, lines: list[tuple[int, str]]) -> None:
    """The lines of one comment, without its signs but with their indentation."""
    indents = [len(text) - len(text.lstrip()) for _, text in lines[1:] if text.strip()]
    base = min(indents, default=0)
    in_item = False
    for index, (number, raw) in enumerate(lines):
        text = raw.strip()
        indent = 0 if index == 0 else len(raw) - len(raw.lstrip()) - base
        if not re.search(r"[A-Za-z]", text) or DIRECTIVE.match(text):
            builder.end()
            in_item = False
        elif ITEM.match(text):
            builder.end()
            builder.add(number, ITEM.sub("", text, count=1))
            in_item = True
        elif TABLE.search(text) or (indent >= 3 and not in_item):
            builder.end()
            in_item = False
        else:
            builder.add(number, text)
    builder.end()


C_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
C_RULER = re.compile(r"^-{4,}\s*(.*?)\s*-{4,}$")


def c_prose(text: str) -> list[Paragraph]:
    builder = Builder()
    line, at = 1, 0
    for found in C_TOKEN.finditer(text):
        token = found[0]
        if token[0] != "/":
            continue
        line += text.count("\n", at, found.start())
        at = found.start()
        if token.startswith("//"):
            comment_lines(builder, [(line, token.lstrip("/<! "))])
            continue
        body = token[2:-2].lstrip("*<! ")
        ruler = C_RULER.match(body.strip())
        if ruler:
            builder.one(line, ruler[1], heading=True)
            continue
        bare = [re.sub(r"^\s*\* ?", "", part) if i else part for i, part in enumerate(body.split("\n"))]
        comment_lines(builder, list(enumerate(bare, line)))
    return builder.done


def hash_comment(line: str) -> tuple[int, str] | None:
    """Column and text of a comment that starts with '#'; None where there is none, or where it is inside a string."""
    for found in re.finditer(r"(?:^|(?<=\s))#", line):
        before = line[: found.start()]
        if before.count('"') % 2 or before.count("'") % 2:
            continue
        return found.start(), line[found.start() :].lstrip("#").removeprefix(" ")
    return None


def hash_prose(text: str) -> list[Paragraph]:
    """Shell, CMake, awk, make: comments on lines of their own that follow each other are one."""
    return hash_blocks(enumerate(text.split("\n"), 1))


def hash_blocks(numbered: Iterator[tuple[int, str]]) -> list[Paragraph]:
    builder = Builder()
    block: list[tuple[int, str]] = []
    column = 0
    for number, line in numbered:
        found = hash_comment(line) if "#" in line else None
        own_line = found is not None and not line[: found[0]].strip()
        if block and not (found and own_line and found[0] == column):
            comment_lines(builder, block)
            block = []
        if found:
            column = found[0]
            block.append((number, found[1]))
    if block:
        comment_lines(builder, block)
    return builder.done


PYTHON_TOKEN = re.compile(
    r'(?P<long>[A-Za-z]{0,2}(?:"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'))'
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(?P<comment>\#[^\n]*)',
    re.DOTALL,
)


def python_prose(text: str) -> list[Paragraph]:
    """Docstrings, and comments. Other strings are blanked first."""
    builder = Builder()
    kept: list[str] = []
    at = 0
    for found in PYTHON_TOKEN.finditer(text):
        kept.append(text[at : found.start()])
        at = found.end()
        token = found[0]
        if found["comment"]:
            kept.append(token)
            continue
        kept.append("x" + "\n" * token.count("\n"))
        first = text.rfind("\n", 0, found.start()) + 1
        if found["long"] and not text[first : found.start()].strip():
            line = text.count("\n", 0, found.start()) + 1
            body = token[token.index(token[-3:]) + 3 : -3]
            comment_lines(builder, list(enumerate(body.split("\n"), line)))
    kept.append(text[at:])
    comments = hash_blocks(enumerate("".join(kept).split("\n"), 1))
    return sorted(builder.done + comments, key=lambda paragraph: paragraph.lines[0])


def markdown_prose(text: str) -> list[Paragraph]:
    builder = Builder()
    fence = ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        mark = re.match(r"`{3,}|~{3,}", line)
        if fence or mark:
            builder.end()
            if mark and not fence:
                fence = mark[0]
            elif fence and line == fence:
                fence = ""
            continue
        if not line or line.startswith("<!--"):
            builder.end()
        elif raw.startswith("    ") and not builder.pending:
            continue
        elif line.startswith("#"):
            builder.one(number, line.lstrip("# "), heading=True)
        elif line.startswith("|"):
            if not re.fullmatch(r"[|:\s-]+", line):
                for cell in re.split(r"(?<!\\)\|", line.strip("|")):
                    builder.one(number, cell)
        elif ITEM.match(line):
            builder.end()
            builder.add(number, ITEM.sub("", line, count=1))
        else:
            builder.add(number, line.lstrip("> "))
    builder.end()
    return builder.done


# Macros whose words belong to the sentence around them; the others end a paragraph.
ROFF_TEXT = re.compile(
    r"\.(Nm|Nd|Fa|Fn|Ft|Vt|Va|Dv|Er|Em|Sy|Li|Ql|Dq|Pa|Cm|Fl|Ar|Ev|Xr|Lk|Cd|Ic|In|B|I|BR|IR|BI|IB|RB|RI)\b"
)


def roff_prose(text: str) -> list[Paragraph]:
    builder = Builder()
    verbatim = False
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"\.(Bd|EX|nf)\b", line):
            verbatim = True
        if re.match(r"\.(Ed|EE|fi)\b", line):
            verbatim = False
        if verbatim or not line.strip() or re.match(r"[.']\\\"", line):
            builder.end()
        elif ROFF_TEXT.match(line):
            mark = line[-1] if line[-2:-1] == " " and line[-1] in ".,;:)" else ""
            builder.add(number, f"`{line[1:].removesuffix(mark).strip().replace('`', '')}`{mark}")
        elif line[0] in ".'":
            builder.end()
        else:
            builder.add(number, line)
    builder.end()
    return builder.done


C_ENDINGS = {".c", ".h", ".cu", ".cpp", ".pml"}
HASH_ENDINGS = {".sh", ".cmake", ".awk", ".map", ".ini", ".toml"}
HASH_NAMES = {"CMakeLists.txt", "Makefile", ".clang-tidy", "cppcheck.txt", "tsan.txt", "leaks.txt"}
HASH_NAMES |= {"fixed_numbers.txt", "variants.txt", "Containerfile", "rules"}


def prose(path: Path, text: str) -> list[Paragraph] | None:
    """The paragraphs of that file. None: it is of a kind that has no prose."""
    ending = path.suffixes[-1] if path.suffixes else ""
    if ending == ".in" and path.stem.endswith(".cmake") or path.name in HASH_NAMES or ending in HASH_ENDINGS:
        return hash_prose(text)
    if ending in C_ENDINGS:
        return c_prose(text)
    if ending == ".py":
        return python_prose(text)
    if ending == ".md":
        return markdown_prose(text)
    if re.fullmatch(r"\.[1-9]", ending):
        return roff_prose(text)
    if text.startswith("#!"):
        return python_prose(text) if "python" in text.split("\n", 1)[0] else hash_prose(text)
    return None
