# SPDX-License-Identifier: Apache-2.0
"""Make docstrings, which are plain text, into reStructuredText.

A line that starts with `name:` begins an item of a list; lines after it continue the item. All else is paragraphs.
"""

from __future__ import annotations

import re
from typing import Any

ITEM = re.compile(r"(?P<names>[A-Za-z0-9_…]+(?:, [A-Za-z0-9_…]+)*): (?P<text>.*)")


def marked(text: str) -> str:
    """Text with code in backticks as literals, and no other markup."""
    pieces = re.split(r"`([^`]+)`", text)
    plain = [re.sub(r"([*|\\`]|_\b)", r"\\\1", piece) for piece in pieces[::2]]
    code = [f"``{piece}``" for piece in pieces[1::2]]
    # A literal ends at a space or at punctuation.
    out = plain[0]
    for before, literal, after in zip(plain, code, plain[1:]):
        glue = "\\ " if before and before[-1].isalnum() else ""
        out += glue + literal + ("\\ " if after and after[0].isalnum() else "") + after
    return out


def paragraph(rows: list[str]) -> list[str]:
    """One paragraph, a list, or code that is indented."""
    if all(row.startswith("    ") for row in rows):
        return ["::", "", *rows, ""]
    lines: list[str] = []
    items = 0
    for row in rows:
        item = ITEM.fullmatch(row)
        if item and not row.startswith(" "):
            lines += [""] * (items == 0)
            lines.append(f"- ``{item['names']}``: {marked(item['text'])}")
            items += 1
        else:
            lines.append(("  " if items else "") + marked(row.strip()))
    return [*lines, ""]


def process(app: Any, what: str, name: str, object_: Any, options: Any, lines: list[str]) -> None:
    made: list[str] = []
    rows: list[str] = []
    for row in [*lines, ""]:
        if row.strip():
            rows.append(row)
        elif rows:
            made += paragraph(rows)
            rows = []
    lines[:] = made


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    from sphinx.ext.autodoc.mock import MockFinder

    # deep_ep asks PyTorch for its version.
    import sys

    sys.meta_path.insert(0, MockFinder(["torch"]))
    import torch

    torch.__version__ = "2.4.0"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
