# SPDX-License-Identifier: Apache-2.0
"""Finding the library, and refusing one that these bindings are not for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import expar

import ranks

PACKAGE = Path(expar.__file__).parent


def imported(library: str | None, code: str = "import expar; print(expar.library_path())", **environment: str) -> str:
    """The output of a program that imports expar with that EXPAR_LIBRARY."""
    given = {**os.environ, **environment}
    given.pop("EXPAR_LIBRARY")
    if library is not None:
        given["EXPAR_LIBRARY"] = library
    return ranks.start([sys.executable, "-c", code], env=given).stdout


class Import(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def changed(self, old: bytes, new: bytes) -> str:
        """The library with another table, at a path that says so."""
        content = Path(expar.library_path()).read_bytes()
        self.assertIn(old, content)
        self.assertEqual(len(old), len(new))
        path = self.folder / "libchanged.so"
        path.write_bytes(content.replace(old, new))
        return str(path)

    def refused(self, old: bytes, new: bytes, *said: str) -> None:
        path = self.changed(old, new)
        text = imported(path)
        self.assertIn("ImportError", text)
        for part in (path, str(PACKAGE), expar._abi.VERSION, *said):
            self.assertIn(part, text)

    def test_another_version(self) -> None:
        self.refused(b'"version": "0.1.', b'"version": "0.7.', "has version 0.7.")

    def test_another_offset(self) -> None:
        self.refused(b'"ndim", "offset": 12', b'"ndim", "offset": 16', "expar_tensor.ndim is int32_t of 4 bytes at 16")

    def test_another_type(self) -> None:
        self.refused(
            b'"late_limit_ms", "offset": 40, "size": 8, "type": "int64_t"',
            b'"late_limit_ms", "offset": 40, "size": 8, "type": "size_t" ',
            "expar_group_options.late_limit_ms",
        )

    def test_another_size(self) -> None:
        self.refused(
            b'"expar_ep_layout": {"size": 48', b'"expar_ep_layout": {"size": 56', "expar_ep_layout has 56 bytes"
        )

    def test_another_member(self) -> None:
        self.refused(b'"name": "reserved_high_bytes"', b'"name": "reserved_best_bytes"', "expar_ep_stats.reserved_")

    def test_another_value(self) -> None:
        self.refused(b'"EXPAR_F8E4M3": 7', b'"EXPAR_F8E4M3": 9', "EXPAR_F8E4M3 is 9 in the library")

    def test_no_library(self) -> None:
        text = imported(str(self.folder / "nowhere.so"))
        self.assertIn("ImportError: expar: cannot load", text)
        self.assertIn("named by EXPAR_LIBRARY", text)

    def test_some_other_library(self) -> None:
        self.assertIn("is no libexpar: it has no expar_abi", imported("libm.so.6"))

    def test_the_one_beside_the_package(self) -> None:
        package = self.folder / "expar"
        package.mkdir()
        for source in PACKAGE.glob("*.py"):
            (package / source.name).write_bytes(source.read_bytes())
        beside = package / ("libexpar.so." + ".".join(expar.version().split(".")[:2]))
        beside.write_bytes(Path(expar.library_path()).read_bytes())
        self.assertEqual(imported(None, PYTHONPATH=str(self.folder)).strip(), str(beside))

    def test_takes_little(self) -> None:
        """Neither NumPy nor PyTorch is imported before somebody asks for their arrays, nor modules that take long."""
        names = ("numpy", "torch", "logging", "dataclasses", "inspect", "multiprocessing", "asyncio", "importlib.metadata")
        code = f"import sys, expar; print([name for name in {names} if name in sys.modules])"
        self.assertEqual(imported(expar.library_path(), code).strip(), "[]")


class Command(unittest.TestCase):
    def test_is_the_tool(self) -> None:
        ended = ranks.start([sys.executable, "-m", "expar", "--version"])
        self.assertEqual((ended.returncode, ended.stdout.strip()), (0, f"expar {expar.version()}"))
        self.assertEqual(ranks.start([sys.executable, "-m", "expar", "run", "-n", "2", "--", "false"]).returncode, 1)


class Bindings(unittest.TestCase):
    def test_are_those_of_the_headers(self) -> None:
        root = Path(os.environ["EXPAR_TEST_ROOT"])
        table = os.environ["EXPAR_TEST_ABI"]
        command = [sys.executable, str(root / "tools/abi/bindings.py"), table, str(root / "include")]
        made = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        line = "tools/abi/bindings.py build/release/abi/abi.json include > python/expar/_abi.py"
        self.assertEqual(made, (PACKAGE / "_abi.py").read_bytes(), f"the headers have changed: {line}")


if __name__ == "__main__":
    unittest.main()
