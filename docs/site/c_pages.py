# SPDX-License-Identifier: Apache-2.0
"""Write the pages of the C reference (reStructuredText) from what man/headers.py reads in the public headers."""

from __future__ import annotations

import re
from pathlib import Path

from headers import Block, Family, Manual, Page

SUFFIXES = (
    "TYPE stands for i8, i16, i32, i64, u8, u16, u32, u64, f32 or f64, as far as the call exists for the type, and T for"
    " the type itself."
)
TYPENAMES = "TYPENAME stands for the names of types in the standard's tables, and TYPE for the type itself."
SIZES = "SIZE stands for the bits of an element."
TYPE_OF = re.compile(r"^typedef (struct|enum) (\w+) (?:\{|\2;)|^typedef [^{};]*\(\*(\w+)\)|^typedef .*?(\w+);$", re.MULTILINE)


def slug(page: Page) -> str:
    return page.name.removeprefix("expar_")


class Writer:
    """Writes pages whose names of calls and types are links."""

    def __init__(self, manual: Manual) -> None:
        self.manual = manual
        pages = [page for page in manual.pages if not page.name.endswith("_generic")]
        self.family = {name: family.name for page in pages for family in page.families for name in family.members}
        self.generic = False
        self.types = {name: page for page in manual.pages for block in page.blocks for name in types_of(block.code)}

    def linked(self, word: str) -> str:
        name = word.removesuffix("()")
        if name in self.family:
            return f":c:func:`{name} <{self.family[name]}>`"
        if name in self.types:
            return f":c:type:`{name}`"
        return f"``{word}``"

    def text(self, text: str) -> str:
        """Prose of a comment: names and code in backticks marked, all else escaped."""
        out = []
        for at, piece in enumerate(re.split(r"`([^`]*)`|\b((?:expar|shmem)_[a-z0-9_]+(?:\(\))?|EXPAR_[A-Z0-9_]+)", text)):
            if piece is None or piece == "":
                continue
            if at % 3 == 0:
                out.append(re.sub(r"([*|\\`]|_(?!\w))", r"\\\1", piece))
                continue
            before = "\\ " if out and not re.search(r"[\s(\[{<\"'/:-]$", out[-1]) else ""
            out.append(before + (self.linked(piece) if at % 3 == 2 else f"``{piece}``"))
            out.append("\\ ")
        return re.sub(r"\\ (?=[\s.,;:!?)\]}'\"/-]|$)", "", "".join(out))

    def comment(self, text: str, plain: bool) -> list[str]:
        """A comment: empty lines divide paragraphs, and lines that are indented stand by themselves."""
        lines: list[str] = []
        held: list[str] = []

        def flush() -> None:
            if held:
                lines.extend([self.text(" ".join(held)), ""])
                held.clear()

        block: list[str] = []
        for row in [*text.split("\n"), ""]:
            if row.startswith(" ") and row.strip() and not plain:
                flush()
                block.append("| " + self.text(row.strip()))
                continue
            if block:
                lines.extend([*block, ""])
                block = []
            if row.strip():
                held.append(row.strip())
            else:
                flush()
        return lines

    def code(self, code: str) -> list[str]:
        if not code:
            return []
        names = types_of(code)
        lines = [f".. c:type:: {names[0]}", ""] if names else []
        for name in names[1:]:
            lines[:-1] = [*lines[:-1], f"            {name}"]
        indent = "   " if names else ""
        return [*lines, f"{indent}.. code-block:: c", "", *(f"{indent}   {row}".rstrip() for row in code.split("\n")), ""]

    def calls(self, families: list[Family], block: Block) -> list[str]:
        """Calls with their text. Generic names are macros: functions of their names may exist as well."""
        signatures = [signature(family) for family in families]
        if self.generic:
            return [*self.comment(block.text, True), *self.code("\n".join(f"{call};" for call in signatures))]
        lines = [*self.code(block.code), ".. c:function:: " + "\n                ".join(signatures), ""]
        return lines + [f"   {row}".rstrip() for row in self.comment(block.text, True)]

    def block(self, block: Block) -> list[str]:
        if block.kind == "heading":
            title = block.text[:1].upper() + block.text[1:]
            return [title, "-" * len(title), ""]
        if block.kind == "calls":
            return self.calls(block.families, block)
        return self.comment(block.text, block.plain) + self.code(block.code)

    def page(self, page: Page) -> str:
        self.generic = page.name.endswith("_generic")
        title = f"OpenSHMEM: {page.section}" if page.section else page.header
        include = "shmem.h" if "shmem" in page.header else page.header
        lines = [title, "=" * len(title), "", f"``#include <{include}>``; ``man {page.name}`` has the same.", ""]
        lines += self.comment(page.intro, False)
        names = " ".join(family.name for family in page.families)
        notes = [(r"_TYPE\b", SUFFIXES), ("TYPENAME", TYPENAMES), ("SIZE", SIZES)]
        for pattern, note in notes:
            lines += [note, ""] if re.search(pattern, names) else []
        for block in page.blocks:
            lines += self.block(block)
        return "\n".join(lines + self.ends(page)) + "\n"

    def ends(self, page: Page) -> list[str]:
        lines: list[str] = []
        if page.example:
            lines += ["Example", "-------", "", ".. code-block:: c", ""]
            shown = page.example.read_text().splitlines()
            lines += [f"   {row}".rstrip() for row in shown if "SPDX" not in row]
            lines.append("")
        for title, rows in (
            ("Errors", [(name, text) for name, text, _ in page.statuses]),
            ("Environment variables", page.variables),
        ):
            if rows and not (title == "Errors" and "shmem" in page.header):
                lines += [title, "-" * len(title), ""]
                lines += [f"- ``{name}``: {self.text(text)}" for name, text in rows] + [""]
        return lines


def types_of(code: str) -> list[str]:
    """The types that a piece of a header declares."""
    return [next(filter(None, found.groups()[1:])) for found in TYPE_OF.finditer(code)]


def signature(family: Family) -> str:
    returns = family.returns or "void"
    star = "" if returns.endswith("*") else " "
    return f"{returns}{star}{family.name}({family.arguments})"


def index(pages: list[Page]) -> str:
    """The page that leads to all others."""
    title = "C reference"
    lines = [title, "=" * len(title), ""]
    lines += ["Each public header has a page. ``man NAME`` shows the same for each call, after ``make install``.", ""]
    for caption, shmem in (("expar", False), ("OpenSHMEM", True)):
        lines += [".. toctree::", f"   :caption: {caption}", "   :maxdepth: 1", ""]
        lines += [f"   {slug(page)}" for page in pages if ("shmem" in page.header) == shmem] + [""]
    return "\n".join(lines)


def write(manual: Manual, folder: Path) -> dict[Path, str]:
    """The pages by path, and with them the index."""
    writer = Writer(manual)
    made = {folder / f"{slug(page)}.rst": writer.page(page) for page in manual.pages}
    return {**made, folder / "index.rst": index(manual.pages)}


def places(manual: Manual) -> dict[str, tuple[str, str]]:
    """Where the site has each call, type and macro: page and anchor."""
    found: dict[str, tuple[str, str]] = {}
    for page in manual.pages:
        where = f"reference/c/{slug(page)}"
        found |= {f"expar/{Path(page.header).name}": (where, "")} if not page.section else {}
        for block in page.blocks:
            for name in types_of(block.code):
                found[name] = (where, f"c.{name}")
        for family in page.families:
            anchor = "" if page.name.endswith("_generic") else f"c.{family.name}"
            found |= {name: (where, anchor) for name in [family.name, *family.members] if name not in found}
    return found
