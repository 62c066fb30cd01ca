# SPDX-License-Identifier: Apache-2.0
"""The distribution expar-deep-ep beside another distribution that has a package deep_ep: none harms the other's files,
and the installation from sources and the import say that there are two.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from typing import ClassVar

import ranks
from test_python_wheel import BUILD, ROOT, environment_of, make_venv, make_wheels, run_in

OTHER = "print('this is the other one')\n"
# Without PyTorch ours says so.
OURS_SAYS = "ImportError: deep_ep needs PyTorch"
TWO = (
    "ImportError: deep_ep: expar-deep-ep and another distribution have a package of this name: {name} 1.0 in {site}. "
    "Keep one of them: 'pip uninstall {name}' to use expar, or 'pip uninstall expar-deep-ep' to use the other"
)


def make_other(folder: Path, name: str) -> Path:
    """Makes the wheel of another distribution with a package deep_ep."""
    wheel = folder / f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    files = {
        "deep_ep/__init__.py": OTHER,
        "deep_ep/utils/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(wheel, "w") as content:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            content.writestr(path, text)
    return wheel


class Names(unittest.TestCase):
    folder: ClassVar[Path]
    ours: ClassVar[Path]
    venv: ClassVar[Path]
    site: ClassVar[Path]

    @classmethod
    def setUpClass(cls) -> None:
        made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(made.cleanup)
        cls.folder = Path(made.name).resolve()
        make_wheels(cls.folder, "deep_ep")
        (cls.ours,) = cls.folder.glob("expar_deep_ep-*.whl")
        cls.venv = make_venv(cls.folder / "venv")
        (cls.site,) = cls.venv.glob("lib/python*/site-packages")

    def pip(self, *arguments: str) -> None:
        ended = run_in(self.venv, "python", "-m", "pip", "--quiet", *arguments)
        self.assertEqual(ended.returncode, 0, ended.stdout)

    def install(self, *wheels: Path) -> None:
        self.pip("install", "--no-index", "--no-deps", *map(str, wheels))

    def imported(self, **variables: str) -> str:
        return run_in(self.venv, "python", "-c", "import deep_ep", **variables).stdout

    def expect_two(self, name: str) -> None:
        self.assertIn(TWO.format(name=name, site=self.site), self.imported())
        again = "try:\n import deep_ep\nexcept ImportError:\n import deep_ep"  # at each attempt
        self.assertIn(name, run_in(self.venv, "python", "-c", again).stdout.splitlines()[-1])
        self.assertEqual((self.site / "deep_ep/__init__.py").read_text(), OTHER)

    def test_each_order(self) -> None:
        """Either may come first, and either may go: the one that stays works."""
        for name, first, gone in (("deep_ep", True, "expar-deep-ep"), ("other-kernels", False, "other-kernels")):
            with self.subTest(name=name):
                other = make_other(self.folder, name)
                for wheel in (other, self.ours) if first else (self.ours, other):
                    self.install(wheel)
                self.expect_two(name)
                self.pip("uninstall", "--yes", gone)
                if gone == name:
                    self.assertFalse((self.site / "deep_ep").exists())
                    self.assertIn(OURS_SAYS, self.imported())
                else:
                    self.assertEqual(self.imported(), "this is the other one\n")
                self.pip("uninstall", "--yes", "expar-deep-ep" if gone == name else name)
                self.assertEqual(list(self.site.glob("*deep_ep*")), [])

    def test_editable(self) -> None:
        """A distribution of that name whose files lie elsewhere, and are found by a finder of its own."""
        self.install(self.ours)
        info = self.site / "deep_ep-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deep_ep\nVersion: 1.0\n")
        self.assertIn(TWO.format(name="deep_ep", site=self.site), self.imported())
        shutil.rmtree(info)
        self.pip("uninstall", "--yes", "expar-deep-ep")

    def test_a_source_tree(self) -> None:
        """A package in PYTHONPATH that no distribution has is the user's choice."""
        self.install(self.ours)
        (self.folder / "tree/deep_ep").mkdir(parents=True)
        (self.folder / "tree/deep_ep/__init__.py").write_text(OTHER)
        self.assertEqual(self.imported(PYTHONPATH=str(self.folder / "tree")), "this is the other one\n")
        self.assertIn(OURS_SAYS, self.imported(PYTHONPATH=str(ROOT / "python")))
        self.pip("uninstall", "--yes", "expar-deep-ep")

    def build(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """`pip install` of the source tree, with the build's tools from the tools of the wheels."""
        (tools,) = (BUILD / "wheel/tools").glob(f"{sys.version_info[0]}.{sys.version_info[1]}")
        env = {**environment_of(self.venv), "PYTHONPATH": str(tools), **variables}
        flags = ["--no-index", "--no-deps", "--no-build-isolation"]
        python = str(self.venv / "bin/python")
        copy = self.folder / "source"
        if not copy.exists():  # nothing is written into the tree
            shutil.copytree(ROOT / "python", copy, ignore=shutil.ignore_patterns("__pycache__"))
        return ranks.start([python, "-m", "pip", "install", *flags, str(copy)], env=env, cwd="/")

    def test_from_sources(self) -> None:
        """The build looks into the environment that it is for."""
        self.install(make_other(self.folder, "deep_ep"))
        ended = self.build()
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn(TWO.format(name="deep_ep", site=self.site).partition(": ")[2], ended.stdout)
        self.assertFalse((self.site / "expar_deep_ep.pth").exists())
        ended = self.build(DEEP_EP_WHEEL_FOR_ELSEWHERE="1")
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.expect_two("deep_ep")
        self.pip("uninstall", "--yes", "deep_ep", "expar-deep-ep")
        ended = self.build()
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn(OURS_SAYS, self.imported())
        self.pip("uninstall", "--yes", "expar-deep-ep")

    def test_make_install(self) -> None:
        """CMake's installation stops before it overwrites another deep_ep, and may install over its own."""
        target = self.folder / "prefix/lib/deep_ep"
        target.mkdir(parents=True)
        script = ["cmake", f"-DFOLDER={target.parent}", "-P", str(ROOT / "cmake/other_deep_ep.cmake")]
        (target / "__init__.py").write_text(OTHER)
        ended = ranks.start(script)
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn(f"{target} is not expar's deep_ep", " ".join(ended.stdout.split()))
        self.assertIn("-DEXPAR_DEEP_EP=OFF", ended.stdout)
        shutil.copy(ROOT / "python/deep_ep/__init__.py", target)
        self.assertEqual(ranks.start(script).returncode, 0)
        os.remove(target / "__init__.py")
        self.assertEqual(ranks.start(script).returncode, 0)


if __name__ == "__main__":
    unittest.main()
