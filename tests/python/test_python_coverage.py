# SPDX-License-Identifier: Apache-2.0
"""The list of C calls that Python does not have (docs/python.md) is what the library has and the package does not use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

import expar
from expar import _abi, _symmetric, _team

PACKAGE = Path(expar.__file__).parent
TYPES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64", "size", "ptrdiff")
TITLE = "### Calls of C that Python does not have"


def exported() -> set[str]:
    """What the library gives to programs; test_symbols holds it against the headers."""
    told = subprocess.run(["nm", "-D", "--defined-only", expar.library_path()], stdout=subprocess.PIPE, check=True)
    names = {line.split()[-1].split("@")[0] for line in told.stdout.decode().splitlines()}
    return {name for name in names if name.startswith("expar_")}


def used(there: set[str]) -> set[str]:
    """What the package calls: by name, or one of those that there are for each type of elements."""
    text = "".join(path.read_text() for path in PACKAGE.glob("*.py") if path.name != "_abi.py")
    found = set(re.findall(r"\blib\.(expar_\w+)", text))
    typed = set(re.findall(r'_typed\("(\w+)"', text))
    typed |= {f"atomic_{each}" for each in re.findall(r'_atomic\("(\w+)"', text)}
    suffixes = [suffix for suffix, _ in _symmetric._WORDS.values()]
    found |= {f"expar_{call}_{suffix}" for call in typed for suffix in suffixes} & there
    reductions = [f"expar_{each}_reduce_{suffix}" for each in _team._OPERATIONS for suffix in _team._SUFFIXES.values()]
    return found | (set(reductions) & there)


def listed() -> list[str]:
    """Patterns of the table's first column."""
    text = (Path(os.environ["EXPAR_TEST_ROOT"]) / "docs" / "python.md").read_text()
    part = text.split(TITLE, 1)[1].split("\n#", 1)[0]
    rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("|")]
    names = re.findall(r"`(expar_[\w*<>]+)`", " ".join(rows))
    return [name.replace("*", ".*").replace("<type>", f"({'|'.join(TYPES)})") for name in names]


@unittest.skipIf(shutil.which("nm") is None, "there is no nm")
class Coverage(unittest.TestCase):
    def test_list(self) -> None:
        there = exported()
        mine = used(there)
        self.assertGreater(len(mine), 150)
        self.assertLessEqual(mine, there)
        self.assertLessEqual(set(_abi.CALLS), there)
        missing = there - mine
        covered: set[str] = set()
        for pattern in listed():
            matched = {name for name in there if re.fullmatch(pattern, name)}
            self.assertTrue(matched, f"{pattern}: there is no such call")
            self.assertEqual(sorted(matched & mine), [], f"{pattern}: the package uses them")
            covered |= matched
        self.assertEqual(sorted(missing - covered), [], "neither used nor in the list of docs/python.md")


if __name__ == "__main__":
    unittest.main()
