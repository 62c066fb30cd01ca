# SPDX-License-Identifier: Apache-2.0
"""Blocks of the pages that are no programs: commands, manifests, other fragments. Tests check that they are sound.

A block has a language, so that a reader and a check know what it is. Blocks of `sh` have commands; those in backticks
in a sentence are commands, too, if they start with `expar`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

LANGUAGES = ("c", "cmake", "cuda", "dockerfile", "json", "python", "sh", "text", "yaml")
FENCE = re.compile(r"^( *)```(.*)$")
# Pages write these for a number or a place of the reader's.
PLACES = {"N": "2", "M": "2", "T": "64", "S": "0", "…": "", "RATE": "1gbit", "HOSTS": "2", "[--mpi]": "--mpi"}
ENDS = frozenset(";|&()\n")


@dataclass
class Block:
    page: str
    line: int  # of its first line
    language: str
    text: str


@dataclass
class Command:
    page: str
    line: int
    variables: dict[str, str]  # set for it alone
    words: list[str]


def blocks_of(page: str, text: str) -> list[Block]:
    """The fenced blocks of a page, those of MyST's directives aside. An indented block raises an error."""
    found: list[Block] = []
    rows = text.split("\n")
    opened: re.Match[str] | None = None
    start = 0
    for at, row in enumerate(rows):
        fence = FENCE.match(row)
        if opened is None and fence:
            opened, start = fence, at + 1
            if not fence[2].startswith("{") and fence[2] not in LANGUAGES:
                raise SystemExit(f"{page}:{at + 1}: a block is of '{fence[2]}': one of {', '.join(LANGUAGES)} is expected")
        elif opened is not None and fence and not fence[2]:
            cut = len(opened[1])
            body = "".join(each[cut:] + "\n" for each in rows[start:at])
            if not opened[2].startswith("{"):
                found.append(Block(page, start + 1, opened[2], body))
            opened = None
        elif opened is None and row.startswith("    ") and not rows[at - 1].strip() and not in_list(rows, at):
            raise SystemExit(f"{page}:{at + 1}: a block is indented: a fence with a language is expected")
    if opened is not None:
        raise SystemExit(f"{page}:{start}: a block does not end")
    return found


def in_list(rows: list[str], at: int) -> bool:
    """Whether an indented row continues an item of a list."""
    for row in reversed(rows[:at]):
        if row.strip() and not row.startswith("  "):
            return re.match(r"([-*]|\d+\.) ", row) is not None
    return False


def without_substitutions(text: str) -> str:
    """Puts a word in the place of each $(…)."""
    while True:
        shorter = re.sub(r"\$\([^()]*\)", "SUBSTITUTED", text)
        if shorter == text:
            return text
        text = shorter


def split(text: str) -> list[list[str]]:
    """The simple commands of a piece of shell."""
    found: list[list[str]] = []
    for row in without_substitutions(text.replace("\\\n", " ")).split("\n"):
        lexer = shlex.shlex(row, posix=True, punctuation_chars=";|&()<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= ENDS:
                words.append(word)
            elif words:
                found.append(words)
                words = []
    return found


def command_of(page: str, line: int, words: list[str]) -> Command | None:
    """A command without what stands before its name. None: it only sets variables."""
    variables: dict[str, str] = {}
    words = [PLACES.get(word, word) for word in words]
    words = [re.sub(r"\b[NTS]\b", lambda found: PLACES[str(found[0])], word) if "," in word else word for word in words]
    words = [word for word in words if word]
    while words and (words[0] in ("sudo", "export") or re.match(r"[A-Z_]+=", words[0])):
        name, _, value = words.pop(0).partition("=")
        if value:
            variables[name] = value
    return Command(page, line, variables, words)


def commands_of(block: Block) -> list[Command]:
    """The commands of a block of sh."""
    found = [command_of(block.page, block.line, words) for words in split(block.text)]
    return [command for command in found if command is not None]


def sentences_of(text: str) -> list[tuple[int, str]]:
    """The paragraphs of a page, each as one row with its first line's number, and the rows of its tables."""
    found: list[tuple[int, str]] = []
    fenced = False
    for at, row in enumerate(text.split("\n")):
        if FENCE.match(row):
            fenced = not fenced
            row = ""
        if fenced or not row.strip():
            found.append((at + 2, ""))
        elif row.startswith("|") or not found:
            found.append((at + 1, row))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]} {row.strip()}")
    return found


def commands_in_text(page: str, text: str) -> list[Command]:
    """The commands of expar in backticks, in sentences and tables."""
    found: list[Command] = []
    for line, row in sentences_of(text):
        for code in re.findall(r"`([^`]+)`", row):
            for words in split(code.replace("\\|", "|")) if re.match(r"expar [a-z-]", code) else []:
                command = command_of(page, line, words)
                if command is not None:
                    found.append(command)
    return found
