# SPDX-License-Identifier: Apache-2.0
"""Each rule of scripts/check_prose.py fails on a bad sample and passes a good one, and the tree passes.

usage: test_prose.py ROOT
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

if len(sys.argv) < 2 or not Path(sys.argv[1], "scripts", "check_prose.py").is_file():
    raise SystemExit("usage: test_prose.py ROOT (the tree, with scripts/check_prose.py in it)")
ROOT = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True

import check_prose  # noqa: E402

LONG = "The call " + "waits and " * 14 + "returns."  # 31 words
SHORT = "The call " + "waits and " * 13 + "then returns."  # 30 words

# Rule, what breaks it, what does not.
SAMPLES = [
    ("fragment", "Of a call that has ended.", "The result of a call that has ended."),
    ("fragment", "What the caller gives.", "What does the caller give?"),
    ("fragment", "Who waits is woken.", "A thread that waits is woken."),
    ("fragment", "Whose row this is.", "The owner of this row."),
    ("fragment", "Behind the pointer of a row.", "The struct lies behind a pointer."),
    ("sentence", LONG, SHORT),
    ("sentence", f"It ends. {LONG} It ends.", f"It ends. {SHORT} It ends."),
    ("banned", "The lock goes to whoever waits.", "The lock goes to the first waiter."),
    ("banned", "The call behind it fails.", "The call after it fails."),
    ("banned", "A kernel behind the event.", "The struct lies behind a pointer. It leaves no process behind."),
    ("house", "Each rank posts a hello.", "Each rank posts ep_hello, hello.c and the header."),
    ("house", "The ring has no room.", "The ring has no free slot."),
    ("house", "Two halves of a buffer.", "Two slots, half of them free, and a half."),
    ("house", "It is the next unit.", "Rows are read in units of 16 bytes; unit tests check it."),
    ("house", "The done of a rank.", "The work is done when both have been done."),
    ("house", "The bell of a PE.", "The doorbell of a PE."),
    ("house", "One trip to the host.", "One round trip to the host."),
    ("house", "It is handed on.", "It was written by hand."),
    ("house", "A played GPU.", "A simulated GPU."),
]

# One word of each line of check_prose.HOUSE.
FORMER = (
    "hello,offer,done,verdict,refusal,board,bell,unit,read word,half,bank,door,room,resident,home,life,notes,played,"
    "copy limit,lend,errand,dues,lap,trip,wish,hand"
).split(",")

# How a text looks as a comment of each kind of file; where it stands after code, too.
KINDS = {
    "a.c": ["/* {} */\n", "int a; /* {} */\n", "/* A call.\n *\n * {}\n */\n", "// {}\n", 'char *a = "/*"; /* {} */\n'],
    "a.cu": ["/* {} */\n"],
    "a.h": ["/* {} */\n", "struct a {{\n    int b; /* {} */\n}};\n"],
    "a.py": ["# {}\n", '"""{}"""\n', 'def a():\n    """A call.\n\n    {}\n    """\n', "a = '#'  # {}\n"],
    "a.sh": ["# {}\n", "a=1 # {}\n"],
    "run": ["#!/bin/sh\n# {}\n"],
    "a.cmake": ["# {}\n"],
    "CMakeLists.txt": ["set(a 1) # {}\n"],
    "a.md": ["{}\n", "- {}\n", "| a | b |\n| - | - |\n| x | {} |\n", "# Title\n\n{}\n"],
    "a.3": [".Sh DESCRIPTION\n{}\n", ".Pp\n{}\n"],
}

# These hold the same words, and are no prose.
NOT_PROSE = {
    "a.c": ['char *a = "Of a hello behind it";\n', "int hello, unit;\n", "/* A table:\n *   hello    Of a unit\n */\n"],
    "a.py": ['a = "Of a hello behind it"  # A text.\n', "a = '# Of a hello'\n", 'a = """\n# Of a hello\n"""\n'],
    "a.sh": ["echo 'Of a hello' \"# Of it\"\n"],
    "a.md": ["```\nOf a hello behind it\n```\n", "Write `Of a hello behind it` so.\n", "    Of a hello\n"],
    "a.3": [".\\\" Of a hello\n", ".Bd -literal\nOf a hello\n.Ed\n"],
    "a.json": ["Of a hello"],
}


def rules(path: str, text: str) -> set[str]:
    return {violation.rule for violation in check_prose.check_text(path, text)}


class Rules(unittest.TestCase):
    def test_each_rule_in_each_kind_of_file(self) -> None:
        for path, forms in KINDS.items():
            for form in forms:
                for rule, bad, good in SAMPLES:
                    with self.subTest(path=path, form=form, bad=bad):
                        # The long samples are wider than a line of code may be.
                        self.assertEqual(rules(path, form.format(bad)) - {"columns"}, {rule})
                        self.assertEqual(rules(path, form.format(good)) - {"columns"}, set())

    def test_not_prose(self) -> None:
        for path, texts in NOT_PROSE.items():
            for text in texts:
                with self.subTest(path=path, text=text):
                    self.assertEqual(rules(path, text), set())

    def test_columns(self) -> None:
        wide = "a " * 60 + "b"  # 121
        for path, forms in KINDS.items():
            for form in forms:
                with self.subTest(path=path, form=form):
                    self.assertIn("columns", rules(path, form.format(wide)) if "|" not in form else {"columns"})
        for path, form in (("a.c", "/* {} */"), ("a.sh", "# {}"), ("a.md", "{}"), ("a.3", "{}")):
            line = form.format(wide[: 122 - len(form)])
            with self.subTest(path=path):
                self.assertEqual(len(line), 120)
                self.assertNotIn("columns", rules(path, line + "\n"))
        self.assertEqual(rules("a.md", f"| {'a ' * 10}| {'b ' * 60}|\n") - {"sentence"}, set())
        self.assertEqual(rules("a.sh", "# https://" + "a" * 200 + "\n"), set())
        self.assertEqual(rules("a.sh", "echo " + "a " * 100 + "\n"), set())

    def test_the_line_is_that_of_the_sentence(self) -> None:
        found = check_prose.check_text("a.c", f"int a;\n/* It ends.\n   It ends. The call\n   {LONG} */\n")
        self.assertEqual([(v.line, v.rule) for v in found if v.rule != "columns"], [(3, "sentence")])

    def test_a_sentence_may_end_in_code_or_a_list(self) -> None:
        half = "The call " + "waits and " * 8
        for between in ("`ends`. ", "ends.\n- ", "ends.\n\n", "ends (so). ", 'says "no." ', "ends. `expar` "):
            with self.subTest(between=between):
                self.assertEqual(rules("a.md", f"{half}\n{between}{half}ends.\n"), set())
        self.assertEqual(rules("a.md", f"{half}ends, e.g. \n{half}ends.\n"), {"sentence"})

    def test_the_glossary_has_former_words(self) -> None:
        self.assertEqual(len(FORMER), len(check_prose.HOUSE))
        glossary = (ROOT / check_prose.GLOSSARY).read_text().lower()
        for word in FORMER:
            with self.subTest(word=word):
                self.assertIn(word, glossary)
                self.assertEqual(rules("a.md", f"This is the {word}.\n"), {"house"})
                self.assertEqual(rules(check_prose.GLOSSARY, f"This is the {word}.\n"), set())
        self.assertEqual(rules(check_prose.GLOSSARY, "It stands behind the call.\n"), {"banned"})

    def test_subjects(self) -> None:
        for good in ("shmem: let waits look at words of 16 bits", "ep, exec: wrap lines", 'Revert "ep: do it"'):
            self.assertEqual(check_prose.check_subject(good), [])
        for bad in ("let waits look", "ep: " + "a" * 69, "ep: of a call", "ep: wait behind it", "ep: post a hello", "ep: "):
            self.assertNotEqual(check_prose.check_subject(bad), [], bad)


class Tree(unittest.TestCase):
    def test_the_tool_ends_with_1_where_a_rule_is_broken(self) -> None:
        command = [sys.executable, str(ROOT / "scripts" / "check_prose.py"), "--root"]
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "src" / "a.c"
            source.parent.mkdir()
            for text, status, said in (("A call.", 0, ""), ("Of a call.", 1, "src/a.c:1: fragment: ")):
                source.write_text(f"/* {text} */\n")
                ended = subprocess.run([*command, folder], capture_output=True, text=True)
                self.assertEqual(ended.returncode, status)
                self.assertTrue(ended.stdout.startswith(said) and bool(ended.stdout) == bool(said), ended.stdout)

    def test_wrong_arguments_are_named(self) -> None:
        command = [sys.executable, str(ROOT / "scripts" / "check_prose.py")]
        for wrong in (["--since", "no-such-commit"], ["no-such-file"]):
            ended = subprocess.run([*command, *wrong], capture_output=True, text=True)
            self.assertEqual(ended.returncode, 1)
            self.assertIn(f"'{wrong[-1]}'", ended.stderr)
            self.assertIn("is expected", ended.stderr)
            self.assertNotIn("Traceback", ended.stderr)

    def test_the_tree_passes(self) -> None:
        self.assertEqual([str(violation) for violation in check_prose.check_tree(ROOT)], [])
        self.assertGreater(len(check_prose.files_of(ROOT)), 1000)


if __name__ == "__main__":
    unittest.main()
