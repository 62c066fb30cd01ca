#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the man pages of section 3 (mdoc).

Each public header has one, each section of shmem.h too, and each call has a page that leads there.

usage: make.py INCLUDE_DIR OUT_DIR DATE COMPILER…
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from headers import Block, Family, Manual, Page

COLUMNS = 78
SENTENCE_ENDS = re.compile(r"[^. ][.:]?[.]$")
MAY_BEGIN = re.compile(r'^["(`]?[A-Z*]')
TYPE = """.Pp
.Dv TYPE
stands for i8, i16, i32, i64, u8, u16, u32, u64, f32 or f64, as NAME lists
them, and
.Em T
for its type in C, int8_t to uint64_t, float or double."""
TYPENAME = """.Pp
.Dv TYPENAME
stands for the names of types that NAME lists, and
.Em TYPE
for the type itself."""
SIZE = """.Pp
.Dv SIZE
stands for the bits of an element."""
RETURNS = """A call that gives
.Vt expar_status
gives
.Dv EXPAR_OK ,
or a status whose cause
.Fn expar_last_error
tells.
Outputs are set on success only."""
SHMEM_RETURNS = "As the standard has it: most calls give nothing, and what the others give is told with them."
SHMEM_ERRORS = (
    "A call that cannot be carried out, for a wrong argument or because a PE has died, says on stderr what was wrong"
    " and ends the program, but where its text tells of a value for that."
)
EP_PAGES = ("buffer", "combine", "dispatch", "handle", "output", "routing")


def escaped(text: str) -> str:
    text = text.replace("\\", "\\e")
    return "\\&" + text if text[:1] in (".", "'") else text


def width(text: str) -> int:
    """As wide as troff's source makes it: characters beyond ASCII are written by their numbers there."""
    plain = re.sub(r"[^\x00-\x7f]+", "", text)
    return len(plain.encode()) + 8 * len(re.findall(r"[^\x00-\x7f]+", text))


def wrapped(text: str) -> list[str]:
    """Lines of no more than 78 characters, each sentence beginning on one of its own."""
    text = " " + text.replace("`", "")
    text = re.sub(r"([ (]expar_[a-z0-9_]+)\(\)", r"\1", text)
    words, lines, out = text.split(), [], ""
    for at, word in enumerate(words):
        if out and width(out) + 1 + width(word) > COLUMNS:
            lines.append(escaped(out))
            out = ""
        out = f"{out} {word}" if out else word
        if SENTENCE_ENDS.search(word) and at + 1 < len(words) and MAY_BEGIN.match(words[at + 1]):
            lines.append(escaped(out))
            out = ""
    return lines + [escaped(out)] * bool(out)


def comment(text: str, plain: bool, first: str) -> list[str]:
    """A comment, line by line: an empty line begins a paragraph, an indented one a line of its own."""
    lines: list[str] = []
    pending: list[str] = []
    fresh = first != ""

    def end_sentence() -> None:
        lines.extend(wrapped(" ".join(pending)) if pending else [])
        pending.clear()

    for row in text.split("\n"):
        if not row.strip(" "):
            end_sentence()
            fresh, first = True, ".Pp"
            continue
        if fresh:
            lines.append(first)
        elif row.startswith(" ") and not plain:
            end_sentence()
            lines.append(".br")
        fresh, first = False, ".Pp"
        pending.append(row.lstrip(" "))
    end_sentence()
    return lines


def literal(code: str) -> list[str]:
    return [".Bd -literal -offset 2n", *(escaped(row) for row in code.split("\n")), ".Ed"]


def split_arguments(arguments: str) -> list[str]:
    found, depth, one = [], 0, ""
    for letter in arguments:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            found.append(one.removeprefix(" "))
            one = ""
        else:
            one += letter
    return [*found, one.removeprefix(" ")]


def synopsis(page: Page) -> list[str]:
    lines = [".Sh SYNOPSIS", ".In " + ("shmem.h" if "shmem" in page.header else page.header)]
    for family in page.families:
        lines += [f".Ft {family.returns}"] if family.returns else []
        lines.append(f".Fn {family.name} " + " ".join(f'"{one}"' for one in split_arguments(family.arguments)))
    names = [family.name for family in page.families]
    lines += [TYPE] if any("TYPE" in name and "TYPENAME" not in name for name in names) else []
    lines += [TYPENAME] if any("TYPENAME" in name for name in names) else []
    return lines + ([SIZE] if any("SIZE" in name for name in names) else [])


def calls(families: list[Family], text: str) -> list[str]:
    lines = [".Bl -tag -width Ds", ".It Xo"]
    lines += [f".Fn {family.name}" + (" ," if family is not families[-1] else "") for family in families]
    return [*lines, ".Xc", *comment(text, True, ""), ".El"]


def block(item: Block, headed: bool) -> list[str]:
    if item.kind == "heading":
        return [".Ss " + item.text[:1].upper() + item.text[1:]]
    if item.kind == "calls":
        return (literal(item.code) if item.code else []) + calls(item.families, item.text)
    lines = comment(item.text, item.plain, "" if headed else ".Pp") if item.text else []
    return lines + (literal(item.code) if item.code else [])


def named(rows: list[tuple[str, str]], macro: str) -> list[str]:
    lines = [".Bl -tag -width Ds"] if rows else []
    for name, text in rows:
        lines += [f".It {macro} {name}", *wrapped(text[:1].upper() + text[1:] + ".")]
    return lines + ([".El"] if rows else [])


def errors(page: Page) -> list[str]:
    if "shmem" in page.header:
        return wrapped(SHMEM_ERRORS)
    if "status" in page.header:
        return wrapped("None: no call of these fails. The statuses of the others are those above.")
    lines = named([(name, text) for name, text, _ in page.statuses], "Dv")
    return lines or wrapped("None: no call of these can fail.")


def see_also(page: Page) -> list[str]:
    lines = [".Sh SEE ALSO", ".Xr expar 1 ,"]
    if "shmem" in page.header:
        lines.append(".Xr expar-run 1 ,")
    if "/ep" not in page.header:
        return [*lines, ".Xr expar_pgas 3"]
    if page.header != "expar/ep.h":
        lines.append(".Xr expar_ep 3 ,")
    lines += [f".Xr expar_ep_{name} 3 ," for name in EP_PAGES if page.name != f"expar_ep_{name}"]
    return [*lines, ".Xr expar_event 3 ,", ".Xr expar_tensor 3"]


def example(page: Page) -> list[str]:
    if page.example is None:
        return []
    rows = [row for row in page.example.read_text().splitlines() if not re.match(r"/\* SPDX|#include", row)]
    while rows and not rows[0]:
        rows.pop(0)
    return [".Sh EXAMPLES", ".Bd -literal -offset 2n", *map(escaped, rows), ".Ed"]


def description(page: Page) -> list[str]:
    lines = [".Sh DESCRIPTION", *comment(page.intro, False, "")]
    headed = False
    for item in page.blocks:
        lines += block(item, headed)
        headed = item.kind == "heading"
    return lines


def mdoc(page: Page, date: str) -> str:
    # A header may have the name of its call.
    names = [page.name] + [call.name for call in page.calls if call.name != page.name]
    brief = f"OpenSHMEM 1.5: {page.section}" if page.section else page.brief[:1].lower() + page.brief[1:]
    # REUSE-IgnoreStart
    lines = ['.\\" SPDX-License-Identifier: Apache-2.0', f'.\\" Made from <{page.header}>.']
    # REUSE-IgnoreEnd
    lines += [f".Dd {date}", f".Dt {page.name.upper()} 3", ".Os", ".Sh NAME"]
    lines += [".Nm " + " ,\n.Nm ".join(names), f".Nd {escaped(brief)}"]
    lines += [*synopsis(page), *description(page), ".Sh RETURN VALUES"]
    lines += wrapped(SHMEM_RETURNS) if "shmem" in page.header else [RETURNS]
    lines += [".Sh ENVIRONMENT", *named(page.variables, "Ev"), *example(page), ".Sh ERRORS", *errors(page)]
    return "\n".join(lines + see_also(page)) + "\n"


def main(arguments: list[str]) -> int:
    if len(arguments) < 4:
        print("usage: make.py INCLUDE_DIR OUT_DIR DATE COMPILER…", file=sys.stderr)
        return 2
    include, out, date = Path(arguments[0]), Path(arguments[1]), arguments[2]
    if not (include / "expar").is_dir():
        print(f"make.py: {include} has no folder expar of headers", file=sys.stderr)
        return 2
    manual = Manual(include, Path(__file__).resolve().parents[1], arguments[3:])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for page in manual.pages:
        (out / f"{page.name}.3").write_text(mdoc(page, date))
        for call in page.calls:
            leads = out / f"{call.name}.3"
            if not leads.exists():
                leads.write_text(f".so man3/{page.name}.3\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
