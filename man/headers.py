# SPDX-License-Identifier: Apache-2.0
"""Read the public headers: their calls, comments, types, statuses and variables.

`pages` returns one Page for each header, and for shmem.h one for each of its sections. The man pages (make.py) and the
site (docs/_ext/c_reference.py) are written from them.

Doxygen does not serve here. Most calls are declared by macros that list types, such as
EXPAR_DATA_TYPES(EXPAR_RMA_DECLARE), and calls of a kind share a comment. Doxygen gives such a comment to the macro, or
to the first call. So 141 of 2310 functions get a text from Doxygen 1.9.4 with comments that begin with `/**`. Here the
compiler expands the macros, and a comment belongs to all calls that the lines after it declare.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

TYPENAMES = (
    "ulonglong|longlong|longdouble|ptrdiff|complexd|complexf|uint64|uint32|uint16|uint8|int64|int32|int16|int8"
    "|uchar|ushort|uint|ulong|schar|double|float|short|long|char|size|int"
)
# Types whose names stand for nothing else among the arguments: how much each is preferred, and its name in C.
PREFERRED = {
    "f64": (1, "double"), "u64": (2, "uint64_t"), "double": (1, "double"), "uint64": (2, "uint64_t"),
    "ulonglong": (3, "unsigned long long"), "longlong": (4, "long long"), "64": (1, ""),
}  # fmt: skip


@dataclass
class Call:
    """One call. `line` is where its declaration begins, or the macro that declares it. A macro has no arguments."""

    header: str
    line: int
    name: str
    returns: str = ""
    arguments: str = ""


@dataclass
class Family:
    """Calls that differ only in a type or a size are one line, named by TYPE, TYPENAME or SIZE."""

    line: int
    name: str
    returns: str
    arguments: str
    members: list[str] = field(default_factory=list)


@dataclass
class Block:
    """A part of a page: `heading`, `calls` with their text, or `text` with the code that follows."""

    kind: str
    text: str = ""
    code: str = ""
    families: list[Family] = field(default_factory=list)
    plain: bool = False  # the lines of the text were marked only at its start and end, so indentation means nothing


@dataclass
class Page:
    name: str
    header: str
    section: str
    brief: str
    intro: str
    calls: list[Call]
    families: list[Family]
    blocks: list[Block]
    statuses: list[tuple[str, str, str]]  # name, text, number
    variables: list[tuple[str, str]]  # name, text
    example: Path | None


# ---- calls -----------------------------------------------------------------------------------------------------------

DECLARED = re.compile(r'(visibility *\("default"\)+|static inline) ([^(;{]*)\(')


def closing(text: str) -> int:
    """Where the parenthesis that is open before `text` is closed; -1: not in it."""
    depth = 1
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return at
    return -1


def tidy(text: str) -> str:
    """Writes a piece of a declaration as a reader would."""
    text = re.sub(r"[ \t]+", " ", text).strip(" ")
    text = text.replace("* ", "*").replace("_Bool", "bool")
    return re.sub(r"\[\([^]]*\)\]", "[]", text)  # a length that is a sum of constants; the text names it


# Calls of kernels have one page, which is not made of the header (expar_kernel.3).
APART = ("mpi.h", "device.h")


def preprocessed(include: Path, compiler: list[str]) -> str:
    """All headers as the compiler sees them. mpi.h is taken as it is, since it needs MPI."""
    headers = sorted(f"expar/{path.name}" for path in (include / "expar").glob("*.h") if path.name not in APART)
    source = "".join(f"#include <{header}>\n" for header in headers)
    command = [*compiler, f"-I{include}", "-E", "-x", "c", "-"]
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    return text + f'# 1 "{include}/expar/mpi.h"\n' + (include / "expar" / "mpi.h").read_text()


def calls_of(text: str) -> list[Call]:
    """The public calls of preprocessed headers."""
    found: list[Call] = []
    line, header, public, held, begin = 0, "", False, "", 0
    for row in text.splitlines():
        marker = re.match(r'# (\d+) "(.*?)"', row)
        if marker:
            line = int(marker[1]) - 1
            inside = re.search(r"(?:.*/)?(expar/[^/]*\.h)$", marker[2])
            public, header = inside is not None, inside[1] if inside else ""
            continue
        line += 1
        if not public:
            continue
        if not held:
            begin = line
        held += row + " "
        while declared := DECLARED.search(held):
            rest = held[declared.end() :]
            end = closing(rest)
            if end < 0:
                break
            returns, name = re.fullmatch(r"(.*?)([A-Za-z_0-9]+) *", declared[2], re.DOTALL).groups()  # type: ignore[union-attr]
            found.append(Call(header, begin, name, tidy(returns), tidy(rest[:end])))
            held, begin = rest[end + 1 :], line
        if "visibility" not in held and "static inline" not in held:
            held = ""
    return found


def generic_calls(include: Path) -> list[Call]:
    """The generic names of OpenSHMEM, which are macros."""
    rows = (include / "expar" / "shmem_generic.h").read_text().splitlines()
    return [
        Call("expar/shmem_generic.h", number, re.split(r"[ (]", row)[1])
        for number, row in enumerate(rows, 1)
        if row.startswith("#define shmem_")
    ]


# ---- families --------------------------------------------------------------------------------------------------------


def family_of(name: str) -> tuple[str, str]:
    """The family of a call, and what the call has in the place of TYPE, TYPENAME or SIZE."""
    typed = re.search(r"_(i8|i16|i32|i64|u8|u16|u32|u64|f32|f64)$", name)
    if name.startswith("expar_") and typed:
        return name[: typed.start() + 1] + "TYPE", typed[1]
    typed = re.match(rf"(shmem_(?:ctx_)?)({TYPENAMES})_", name)
    if typed:
        return typed[1] + "TYPENAME" + name[typed.end(2) :], typed[2]
    sized = re.match(r"shmem_[a-z_]*?(8|16|32|64|128)", name)
    if sized and not re.search(r"(int|float)(8|16|32|64)", name):
        return name[: sized.start(1)] + "SIZE" + name[sized.end(1) :], sized[1]
    return name, ""


def replaced(text: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![A-Za-z_0-9]){re.escape(old)}(?![A-Za-z_0-9])", new, text)


def families_of(calls: list[Call], typed: list[Family]) -> list[Family]:
    """The calls by families. `typed`: families from which generic names take their arguments."""
    chosen = {re.sub("^shmem_TYPENAME_", "shmem_", family.name): family for family in typed if "TYPENAME" in family.name}
    grouped: dict[str, list[tuple[str, Call]]] = {}
    for call in calls:
        name, suffix = family_of(call.name)
        grouped.setdefault(name, []).append((suffix, call))
    families = []
    for name, members in grouped.items():
        suffix, best = min(members, key=lambda member: PREFERRED.get(member[0], (9, ""))[0])
        returns, arguments = best.returns, best.arguments
        word = PREFERRED.get(suffix, (9, ""))[1]
        if len(members) > 1 and word:
            kind = "TYPE" if "TYPENAME" in name else "T"
            returns, arguments = replaced(returns, word, kind), replaced(arguments, word, kind)
        shown = name if len(members) > 1 else members[0][1].name
        if not returns and shown in chosen:
            returns, arguments = chosen[shown].returns, chosen[shown].arguments
        arguments = arguments or ("void" if returns else "...")
        families.append(Family(members[0][1].line, shown, returns, arguments, [call.name for _, call in members]))
    return families


# ---- text ------------------------------------------------------------------------------------------------------------

BEGINS_MACRO = re.compile(
    r"#define +[A-Za-z_0-9]+(\(| .*EXPAR_STRUCT_INIT|_H$)|#define EXPAR_([A-Z_]*_INIT|API|[A-Z_]*_H)( |$)|#define .*\\$"
)
PREPROCESSOR = re.compile(r"#(ifndef|ifdef|include|undef|else|elif|endif|if|error)")
BEGINS_CALL = re.compile(r"(EXPAR_API|EXPAR_[A-Z_]+\(|static inline)")


def unmarked(line: str) -> str:
    """A comment's line without its marks."""
    line = re.sub(r" *\*/ *$", "", line)
    if line.startswith("/*"):
        return re.sub(r"^/\* ?", "", line)
    return re.sub(r"^ \* ?", "", line) if line.startswith(" *") else re.sub("^   ", "", line)


class Reader:
    """Reads lines of a header into the blocks of a page. `told` collects all text that a reader of the page sees."""

    def __init__(self, section: str, families: list[Family], call_lines: set[int], statuses: str) -> None:
        self.section, self.families, self.call_lines, self.statuses = section, families, call_lines, statuses
        self.blocks: list[Block] = []
        self.told: list[str] = []
        self.comment: list[str] = []
        self.code = ""
        self.dropped = self.has_calls = self.plain = False
        self.first = self.last = 0
        self.state = ""  # comment, macro, call, body
        self.foreign = self.braces = False

    def flush(self) -> None:
        """Ends the block that is being read."""
        text = "\n".join(self.comment)
        code = re.sub(r"\n+$", "", self.code)
        if self.has_calls:
            here = [family for family in self.families if self.first <= family.line <= self.last]
            self.blocks.append(Block("calls", text, code, here, plain=True))
        # Comments of macros that are for the compiler are not for readers either.
        elif code or (self.comment and not self.dropped):
            self.blocks.append(Block("text", text if code or not self.dropped else "", code, plain=self.plain))
        if text or code or self.has_calls:
            self.comment, self.code = [], ""
            self.dropped = self.has_calls = False
            self.first = self.last = 0

    def note(self, number: int) -> None:
        """A line of code belongs to the block."""
        self.first = self.first or number
        self.last = number
        self.has_calls = self.has_calls or number in self.call_lines

    def heading(self, line: str) -> None:
        self.flush()
        title = re.sub(r" -*( *\*/)?$", "", re.sub(r"^/\* -+ ", "", line))
        if title != self.section:
            self.blocks.append(Block("heading", title))
        self.told.append(line)

    def read_comment(self, line: str) -> None:
        if self.state != "comment":
            self.flush()
            self.plain, self.state = True, "comment"
        closes = re.fullmatch(r" \*/ *", line)
        if line.startswith(" *") and not closes:
            self.plain = False
        self.told.append(line)
        if not closes:
            self.comment.append(unmarked(line))
        if re.search(r"\*/ *$", line):
            self.state = ""

    def read(self, number: int, line: str) -> None:
        # Between #ifdef __cplusplus and what follows there is nothing for readers of C.
        if line.startswith("#ifdef __cplusplus"):
            self.foreign = True
        if re.match("#(else|elif|endif)", line):
            self.foreign = False
        if self.foreign:
            return
        if line.startswith("/* ---- "):
            return self.heading(line)
        if self.state != "comment" and line.startswith("/* clang-format"):
            return
        if self.state == "comment" or line.startswith("/*"):
            return self.read_comment(line)
        self.read_code(number, line)

    def read_code(self, number: int, line: str) -> None:
        if self.state == "macro" or BEGINS_MACRO.match(line):
            self.dropped = self.dropped or self.state != "macro"
            self.note(number)
            self.state = "macro" if line.endswith("\\") else ""
            return
        if PREPROCESSOR.match(line):
            return
        if self.state == "body" or line.startswith("{"):
            self.state = "" if line.startswith("}") else "body"
            return
        if not line.strip(" ") and not self.braces:
            if self.has_calls or not self.code:
                self.flush()
            else:
                self.code += "\n"
            return
        self.read_declaration(number, line)

    def read_declaration(self, number: int, line: str) -> None:
        self.note(number)
        if self.state == "call" or BEGINS_CALL.match(line):
            self.state = "" if re.search(r"[;)] *$", line) else "call"
            return
        if "EXPAR_STATUS_TABLE" in line:
            self.code += self.statuses
            return
        if re.search(r"\{ *(/\*.*)?$", line):
            self.braces = True
        if line.startswith("}"):
            self.braces = False
        self.told.append(line)
        self.code += line + "\n"


# ---- what the comments name ------------------------------------------------------------------------------------------


def statuses_of(include: Path) -> list[tuple[str, str, str]]:
    """Name, text and number of each status."""
    text = (include / "expar" / "status.h").read_text()
    return [(f"EXPAR_{name}", said, number) for name, number, said in re.findall(r' *X\(([A-Z_0-9]*), (\d*), "(.*)"\)', text)]


def variables_of(table: Path) -> list[tuple[str, str]]:
    """Name and text of each environment variable (src/base/env_table.h)."""
    text = re.sub(r"\\?\n", " ", table.read_text())
    rows = re.split(r"[\\ ]* X\(", text)
    found = [re.match(r'"(EXPAR_[A-Z_]*)".*, *"([^"]*)"\)', row) for row in rows]
    return [(row[1], row[2]) for row in found if row]


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[A-Z][A-Z_0-9]+[A-Z0-9]", text))


def named_statuses(told: str, include: Path, header_of: dict[str, str]) -> set[str]:
    """The words of a page's text. A comment that says "errors as in expar/team.h" or "as of expar_ep_dispatch" adds the
    errors of that header; "but for" removes some."""
    words = words_of(told)
    for source in re.findall(r"(?:[Ee]rrors as (?:in|of)|[Tt]hose of|[Ee]rrors as) (expar[/_][a-z_0-9]+)", told):
        header = f"{source}.h" if "/" in source else header_of.get(source, "")
        path = include / header
        if header and path.is_file():
            words |= {word for word in words_of(path.read_text()) if word.startswith("EXPAR_ERR_")}
    for named in re.findall(r"but for (EXPAR_ERR_[A-Z_]+(?:(?:, | and )EXPAR_ERR_[A-Z_]+)*)", told):
        words -= set(re.findall("EXPAR_ERR_[A-Z_]+", named))
    return words


class Manual:
    """All pages of the headers."""

    def __init__(self, include: Path, root: Path, compiler: list[str]) -> None:
        self.include, self.root = include, root
        self.calls = calls_of(preprocessed(include, compiler))
        generic = generic_calls(include)
        self.typed = families_of([call for call in self.calls if call.header == "expar/shmem.h"], [])
        self.typed += families_of(generic, [])
        self.calls += generic
        self.header_of = {call.name: call.header for call in self.calls}
        self.statuses = statuses_of(include)
        self.variables = variables_of(root / "src" / "base" / "env_table.h")
        self.pages = [page for header in sorted({"expar/ep.h"} | set(self.header_of.values())) for page in self.parts(header)]

    def parts(self, header: str) -> list[Page]:
        """The pages of a header."""
        name = Path(header).stem
        rows = (self.include / header).read_text().splitlines()
        if name == "shmem_generic":  # what stands before the names is how they choose
            first = next(number for number, row in enumerate(rows, 1) if row.startswith("#define shmem_"))
            return self.page(header, f"expar_{name}", first, len(rows), "")
        if name != "shmem":
            return self.page(header, f"expar_{name}", 1, len(rows), "")
        titles = [
            (number, re.sub(r" -*( \*/)*$", "", re.sub(r"^[^a-zA-Z]*", "", row)))
            for number, row in enumerate(rows, 1)
            if row.startswith("/* ---- ")
        ]
        ends = [number - 1 for number, _ in titles[1:]] + [len(rows)]
        return [
            page
            for (first, title), last in zip(titles, ends)
            for page in self.page(header, f"expar_shmem_{re.sub('[^a-z].*', '', title)}", first, last, title)
        ]

    def page(self, header: str, name: str, first: int, last: int, section: str) -> list[Page]:
        calls = [call for call in self.calls if call.header == header and first <= call.line <= last]
        # A header without calls of its own has the common part of the calls of expert parallelism.
        if not calls and header != "expar/ep.h":
            return []
        families = families_of(calls, self.typed)
        table = "".join(f"    {status} = {number}, /* {text} */\n" for status, text, number in self.statuses)
        reader = Reader(section, families, {call.line for call in calls}, table)
        rows = (self.include / header).read_text().splitlines()
        end = next(number for number, row in enumerate(rows[1:], 2) if re.search(r"\*/ *$", row))
        intro = "\n".join(unmarked(row) for row in rows[1:end])
        reader.told.append(intro)
        for number, row in enumerate(rows[end:], end + 1):
            if first <= number <= last:
                reader.read(number, row)
        reader.flush()
        brief = re.split(r"[.](?: |$)", intro.replace("\n", " "), maxsplit=1)[0]
        brief = re.sub(r" *\([^)]*\)", "", brief, count=1)
        told = re.sub(r"[ \n]+(\*[ \n]+)?", " ", " ".join(reader.told))
        words = named_statuses(told, self.include, self.header_of)
        return [self.whole(Page(name, header, section, brief, intro, calls, families, reader.blocks, [], [], None), words)]

    def whole(self, page: Page, words: set[str]) -> Page:
        """Fills in what the text of the page names."""
        shmem = "shmem" in page.header
        always = {"EXPAR_LOG", "EXPAR_LOG_FILE"}
        if shmem or "EXPAR_ERR_PEER" in words:
            always |= {"EXPAR_TIMEOUT", "EXPAR_LATE_LIMIT", "EXPAR_SPIN"}
        if shmem:
            always.add("EXPAR_HEAP_SIZE")
        page.statuses = [status for status in self.statuses if status[0] in words and status[0] != "EXPAR_OK"]
        page.variables = [variable for variable in self.variables if variable[0] in words | always]
        example = self.root / "man" / "examples" / f"{page.name}.c"
        page.example = example if example.is_file() else None
        return page
