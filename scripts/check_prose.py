#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check the mechanical part of the rules of writing (CONTRIBUTING.md, "Rules of writing").

It reads comments of C, CUDA, Python, shell and CMake, Markdown pages, man pages, and commit subjects:

- fragment: a comment or paragraph starts with `Of`, `What`, `Who`, `Whose`, `Whoever` or `Behind`. Questions may.
- sentence: a sentence has more than 30 words.
- columns: a line of text has more than 120 columns. Rows of Markdown tables and single long words may.
- banned: `whoever`, and `behind` where it means `after`.
- house: a word that docs/reference/glossary.md lists as a former one. The glossary itself may use them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import prose_text
from prose_text import Paragraph

RULES = ("fragment", "sentence", "columns", "banned", "house")
MAX_WORDS = 30
MAX_COLUMNS = 120
MAX_SUBJECT = 72
ROOTS = (
    "CMakeLists.txt Containerfile Makefile CHANGELOG.md CONTRIBUTING.md README.md SECURITY.md pyproject.toml .clang-tidy"
    " .ci bench cmake data docs examples include man packaging python scripts src tests tools"
).split()
CACHES = {"__pycache__", ".mypy_cache", ".ruff_cache"}
NOT_TEXT = (".pyc", ".npy", ".safetensors", ".json")
GLOSSARY = "docs/reference/glossary.md"

FRAGMENT = re.compile(r"[\"'(]*(Of|What|Who|Whose|Whoever|Behind)\b(?!_)")

WHOEVER = re.compile(r"\bwhoever\b", re.IGNORECASE)
BEHIND = re.compile(r"\bbehind\b(?!_)", re.IGNORECASE)
# These mean a place, not an order: "behind a pointer", "leaves nothing behind", "falls behind".
BEHIND_ALLOWED = re.compile(
    r"\b(leaves?|leaving|left|falls?|fell|falling|lags?|lagging)(\s+[\w-]+){0,3}\s+behind\b"
    r"|\bbehind\s+((a|an|the|one|its|each|this|that|opaque)\s+)?([\w-]+\s+)?"
    r"(pointers?|interface|shims?|firewall|switch|mutex|lock|headers?|macros?|option|proxy|NAT|flag|symlink)\b",
    re.IGNORECASE,
)

# Former words of this project: pattern, words around it that make it an ordinary one, and what to write.
HOUSE: list[tuple[str, str, str]] = [
    (r"hellos?", "", "header exchange, header (notify)"),
    (r"offers?|offered", "", "buffer advertisement"),
    (r"dones|(?:a|the|its|each|every|no|first|last) done", "", "completion flag"),
    (r"verdicts?", "", "result of the vote"),
    (r"refusals?", "", "rejection"),
    (r"boards?", "mother", "mailbox array"),
    (r"bells?", "", "doorbell (futex)"),
    (r"units?", r"unit tests?|(?:whole |in )units of|units? of measure|(?:compilation|translation) units?", "message header, piece"),
    (r"read words?", "", "acknowledgement (credit)"),
    (r"halves|(?:the|other|each|both|its|one|which|that|this|same) half", "", "slot of a double buffer"),
    (r"banks?", r"bank conflicts?|memory banks?", "slot of a double buffer"),
    (r"doors?", "", "credit check"),
    (r"rooms?", "", "free space, spare capacity"),
    (r"residents?", "resident (?:memory|pages|bytes|blocks?|and allocated)", "group-attached state"),
    (r"homes?", r"home (folder|directory)", "per-GPU state"),
    (r"life|lives of", r"life ?times?", "handle table, lifetime"),
    (r"notes", r"release notes", "wait registry"),
    (r"played|plays|playing|pretended|pretends?", "", "simulated"),
    (r"copy limits?", "", "copy roofline"),
    (r"lends?|lent|lending", "", "borrow, or what it does"),
    (r"errands?", "", "request, or what it does"),
    (r"dues?", r"due to|is due|are due", "pending work"),
    (r"laps?", "", "round, turn of the ring"),
    (r"trips?", r"round[ -]trips?", "copy, transfer"),
    (r"wish(?:es|ed)?", "", "request"),
    (r"hands?|handed|handing", r"by hand|(?:other|one|left|right)[ -]hand|hand-written", "pass, give"),
]
HOUSE_ANY = "|".join(f"(?P<h{i}>{word})" for i, (word, _, _) in enumerate(HOUSE))
HOUSE_WORD = re.compile(rf"(?<![\w./>=-])(?:{HOUSE_ANY})(?![\w/(]|\.[a-z])", re.IGNORECASE)
HOUSE_ALLOWED = re.compile("|".join(rf"\b(?:{allowed})\b" for _, allowed, _ in HOUSE if allowed), re.IGNORECASE)

# A full stop, then a word that may open a sentence. Not after an abbreviation.
SENTENCE_END = re.compile(
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\bcf)(?<!\bNo)(?<!\betc)[.!?][\"')`*]*\s+"
    r"(?=[\"'(`*\[]*[A-Z0-9_`(\[“]|[a-z]\w*[_(])"
)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK = re.compile(r"\]\([^)\s]*\)|https?://\S+")


@dataclass(frozen=True)
class Violation:
    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def plain(text: str) -> str:
    """Code and links as one word of the same length, so that offsets stay."""
    text = CODE.sub(lambda code: "X" + "_" * (len(code[0]) - 2) + "X", text)
    return LINK.sub(lambda link: "]" + "_" * (len(link[0]) - 1), text)


def sentences(text: str) -> list[tuple[int, str]]:
    """Each sentence with its offset."""
    found, at = [], 0
    for end in SENTENCE_END.finditer(text):
        found.append((at, text[at : end.end()].strip()))
        at = end.end()
    found.append((at, text[at:].strip()))
    return found


def count_words(sentence: str) -> int:
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


def outside(found: re.Match[str], allowed: re.Pattern[str], text: str) -> bool:
    """No allowed phrase covers it."""
    return not any(other.start() <= found.start() and found.end() <= other.end() for other in allowed.finditer(text))


def check_words(text: str, house: bool) -> list[tuple[int, str, str]]:
    """(offset, rule, what) for each banned word and house word."""
    bad = [(found.start(), "banned", '"whoever": say which one') for found in WHOEVER.finditer(text)]
    bad += [
        (found.start(), "banned", '"behind": "after" for an order')
        for found in BEHIND.finditer(text)
        if outside(found, BEHIND_ALLOWED, text)
    ]
    for found in HOUSE_WORD.finditer(text) if house else ():
        if outside(found, HOUSE_ALLOWED, text):
            group = found.lastgroup or "h0"
            bad.append((found.start(), "house", f'"{found[0]}": {HOUSE[int(group[1:])][2]}'))
    return bad


def check_paragraph(path: str, paragraph: Paragraph) -> list[Violation]:
    text = plain(paragraph.text)
    bad = check_words(text, path != GLOSSARY)
    if not paragraph.heading:
        first = sentences(text)[0][1]
        if FRAGMENT.match(text) and not first.rstrip("\"')").endswith("?"):
            bad.append((0, "fragment", f'"{paragraph.text[:40]}": open with a subject and a verb'))
        for offset, sentence in sentences(text):
            words = count_words(sentence)
            if words > MAX_WORDS:
                opening = paragraph.text[offset : offset + 40]
                bad.append((offset, "sentence", f'{words} words, expected at most {MAX_WORDS}: "{opening}..."'))
    return [Violation(path, paragraph.line_at(offset), rule, what) for offset, rule, what in sorted(bad)]


def may_be_wide(path: str, line: str) -> bool:
    """Rows of tables, macros of man pages, and words that cannot be divided."""
    if path.endswith(".md"):
        return line.startswith("|") or " " not in line.strip()
    if re.search(r"\.[1-9]$", path):
        return line.startswith(".")
    return " " not in line.strip().removeprefix("# ")


def check_columns(path: str, text: str, paragraphs: list[Paragraph]) -> list[Violation]:
    """In pages all lines, in code those of comments."""
    prose_lines = {number for paragraph in paragraphs for number in paragraph.lines}
    is_page = re.search(r"\.(md|[1-9])$", path) is not None
    bad = []
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) <= MAX_COLUMNS or may_be_wide(path, line):
            continue
        if is_page or number in prose_lines or line.lstrip().startswith(("#", "/*", "* ", "//")):
            bad.append(Violation(path, number, "columns", f"{len(line)} columns, expected at most {MAX_COLUMNS}"))
    return bad


def check_text(path: str, text: str) -> list[Violation]:
    """All violations in a file of that name with that text."""
    paragraphs = prose_text.prose(Path(path), text)
    if paragraphs is None:
        return []
    bad = check_columns(path, text, paragraphs)
    for paragraph in paragraphs:
        bad += check_paragraph(path, paragraph)
    return sorted(bad, key=lambda violation: violation.line)


def files_of(root: Path) -> list[str]:
    """All files that may have prose, below that folder."""
    found = []
    for top in ROOTS:
        if (root / top).is_file():
            found.append(top)
        for folder, folders, names in os.walk(root / top):
            folders[:] = [name for name in folders if name not in CACHES]
            within = os.path.relpath(folder, root)
            found += [f"{within}/{name}" for name in names if not name.endswith(NOT_TEXT)]
    return sorted(found)


def check_tree(root: Path) -> list[Violation]:
    bad = []
    for path in files_of(root):
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        bad += check_text(path, text)
    return bad


def check_subject(subject: str) -> list[str]:
    """Says in which ways the subject of a commit is wrong."""
    bad = []
    form = re.match(r"(?:[A-Za-z][A-Za-z0-9_/., +-]*: (?=.)|Revert )", subject)
    if len(subject) > MAX_SUBJECT or not form:
        bad.append(f'expected at most {MAX_SUBJECT} characters, the folder first ("shmem: ...")')
    rest = subject[form.end() :] if form else subject
    if FRAGMENT.match(rest[:1].upper() + rest[1:]):
        bad.append("fragment: open with a verb in the imperative")
    bad += [f"{rule}: {what}" for _, rule, what in check_words(plain(rest), True)]
    return bad


def check_commits(root: Path, base: str) -> list[str]:
    """Subjects of the commits after that one."""
    command = ["git", "-C", str(root), "log", "--no-merges", "--format=%h %s", f"{base}..HEAD"]
    log = subprocess.run(command, capture_output=True, text=True)
    if log.returncode:
        told = (log.stderr.splitlines() or ["git log failed"])[0]
        raise SystemExit(f"check_prose.py: --since '{base}': a commit of {root} is expected ({told})")
    bad = []
    for line in log.stdout.splitlines():
        commit, subject = line.split(" ", 1)
        bad += [f"{commit} {subject}: {what}" for what in check_subject(subject)]
    return bad


def report(violations: list[Violation], worst: int) -> None:
    rules = Counter(violation.rule for violation in violations)
    print("total: " + " ".join(f"{rule}={rules[rule]}" for rule in RULES))
    for path, number in Counter(violation.path for violation in violations).most_common(worst):
        print(f"{number:5} {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="check the mechanical part of the rules of writing")
    parser.add_argument("paths", nargs="*", help="check these files instead of the tree")
    tree = Path(__file__).resolve().parent.parent
    parser.add_argument("--root", type=Path, default=tree, help="the tree (default: this one)")
    parser.add_argument("--since", metavar="COMMIT", help="check subjects of the commits after that one instead")
    parser.add_argument("--worst", type=int, metavar="N", help="print totals by rule, and the N worst files")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    root: Path = arguments.root
    if arguments.since:
        wrong = check_commits(root, arguments.since)
    elif arguments.paths:
        wrong = []
        for path in arguments.paths:
            name = os.path.relpath(path, root)
            try:
                text = Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise SystemExit(f"check_prose.py: '{path}': a readable text file is expected ({error})") from None
            wrong += map(str, check_text(name, text))
    else:
        violations = check_tree(root)
        if arguments.worst:
            report(violations, arguments.worst)
            return 0
        wrong = [str(violation) for violation in violations]
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
