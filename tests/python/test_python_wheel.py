# SPDX-License-Identifier: Apache-2.0
"""The wheel: made of this build, installed into an empty environment without a network, and used there by ranks that
find no compiler; and the source distribution.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path
from typing import ClassVar

import ranks

ROOT = Path(os.environ["EXPAR_TEST_ROOT"])
BUILD = Path(os.environ["EXPAR_TEST_BUILD"])
PACKAGES = sorted(each for each in (ROOT / "python").iterdir() if (each / "__init__.py").exists())

# One expert a rank; without NumPy, which is not there: tensors of the library's pool, filled through their addresses.
LAYER = """
import ctypes, shutil, sys
import expar

assert not [name for name in ("cc", "gcc", "clang", "cmake") if shutil.which(name)]
try:
    import numpy
    sys.exit("the environment is not empty")
except ImportError:
    pass

TOKENS, HIDDEN = 6, 8

def values(tensor, kind):
    count = 1
    for extent in tensor.shape:
        count *= extent
    return (kind * count).from_address(tensor.data_ptr)

with expar.Group.from_env() as group, expar.Buffer(group) as buffer:
    x, experts = buffer.alloc((TOKENS, HIDDEN), "f32"), buffer.alloc((TOKENS, 2), "i64")
    values(x, ctypes.c_float)[:] = [group.rank * 100 + i for i in range(TOKENS * HIDDEN)]
    values(experts, ctypes.c_int64)[:] = [0, 1] * TOKENS
    rows = buffer.dispatch(x, experts, num_experts=group.size)
    got = values(rows.x, ctypes.c_float)
    assert list(got) == [r * 100 + i for r in range(group.size) for i in range(TOKENS * HIDDEN)]
    sums = buffer.combine(rows.x, rows.handle)
    assert list(values(sums.y, ctypes.c_float)) == [2 * value for value in values(x, ctypes.c_float)]
    print("rank", group.rank, "of", group.size, "is right with", expar.library_path())
"""

# Libraries that come with a wheel.
CARRIED = """
with open("/proc/self/maps") as maps:
    used = {line.split()[-1] for line in maps if "/libexpar" in line or "/libsodium" in line}
assert len(used) == 2 and all(path.startswith(sys.prefix + "/") for path in used), used
"""


def environment_of(venv: Path) -> dict[str, str]:
    """Its programs alone in PATH, and nothing of this program's, such as where the library of the build is."""
    return {"PATH": str(venv / "bin"), "HOME": str(venv), "LANG": "C.UTF-8"}


class Wheel(unittest.TestCase):
    folder: ClassVar[Path]
    wheel: ClassVar[Path]
    venv: ClassVar[Path]

    @classmethod
    def setUpClass(cls) -> None:
        made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(made.cleanup)
        cls.folder = Path(made.name).resolve()
        command = [str(ROOT / "scripts/wheel.sh"), str(BUILD), str(cls.folder), "wheel", "sdist"]
        ended = ranks.start(command, env={**os.environ, "PYTHON": sys.executable})
        if ended.returncode == 77 and os.environ.get("EXPAR_REQUIRE_PYTHON", "0") != "1":
            raise unittest.SkipTest(ended.stdout)
        assert ended.returncode == 0, ended.stdout
        (cls.wheel,) = cls.folder.glob("*.whl")
        cls.venv = cls.folder / "venv"
        for command in (
            [sys.executable, "-m", "venv", str(cls.venv)],
            [str(cls.venv / "bin/python"), "-m", "pip", "--quiet", "install", "--no-index", str(cls.wheel)],
        ):
            ended = ranks.start(command, env={**environment_of(cls.venv), "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
            assert ended.returncode == 0, ended.stdout

    def run_in(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {**environment_of(self.venv), **variables}
        return ranks.start([str(self.venv / "bin" / command[0]), *command[1:]], env=env, cwd="/")

    def test_what_is_in_it(self) -> None:
        name = re.fullmatch(r"expar-([0-9.]+)-py3-none-manylinux_2_[0-9]+_\w+\.whl", self.wheel.name)
        assert name, self.wheel.name
        with zipfile.ZipFile(self.wheel) as content:
            names = set(content.namelist())
        soname = "libexpar.so." + ".".join(name[1].split(".")[:2])
        expected = {f"expar/{soname}", "expar/bin/expar", "expar/py.typed"}
        for package in PACKAGES:
            expected |= {str(each.relative_to(ROOT / "python")) for each in package.rglob("*.py")}
        self.assertEqual(expected - names, set())
        folders = {name.split("/")[0] for name in names if ".dist-info/" not in name}
        self.assertEqual(folders, {"expar.libs", *(package.name for package in PACKAGES)})
        self.assertEqual([name for name in names if "__pycache__" in name], [])

    def test_a_layer_on_two_ranks(self) -> None:
        program = self.folder / "layer.py"
        program.write_text(LAYER + CARRIED)
        for launcher in (["expar"], ["python", "-m", "expar"]):
            ended = self.run_in(*launcher, "run", "-n", "2", "--", "python", str(program))
            self.assertEqual(ended.returncode, 0, ended.stdout)
            for rank in range(2):
                said = f"rank {rank} of 2 is right with {self.venv}/lib/"
                self.assertIn(said, ended.stdout)

    def test_text(self) -> None:
        """The model of the demo writes, with PyTorch from here, and `deep_ep` of the wheel."""
        torch = ranks.torch_for(self)
        lent = dict(PYTHONPATH=str(Path(torch.__file__).parents[1]), OMP_NUM_THREADS="1")
        where = self.run_in("python", "-c", "import deep_ep; print(deep_ep.__file__)", **lent)
        self.assertEqual(where.stdout.strip().partition("/lib/")[0], str(self.venv), where.stdout)
        torchrun = ("python", "-m", "torch.distributed.run", "--nproc-per-node", "2")
        meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
        ended = self.run_in(*torchrun, *meeting, str(ROOT / "examples/python/generate.py"), "--bytes", "8", **lent)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("8 of 8 texts on 2 ranks", ended.stdout)

    def test_the_command(self) -> None:
        version = self.wheel.name.split("-")[1]
        for command in (["expar"], ["python", "-m", "expar"]):
            ended = self.run_in(*command, "--version")
            self.assertEqual((ended.returncode, ended.stdout), (0, f"expar {version}\n"))

    def test_without_its_library(self) -> None:
        """It says which file it looked for, and how to name another one."""
        (library,) = self.venv.glob("lib/python*/site-packages/expar/libexpar.so*")
        away = library.with_suffix(".away")
        library.rename(away)
        try:
            said = self.run_in("python", "-c", "import expar").stdout
        finally:
            away.rename(library)
        self.assertRegex(said, rf"ImportError: expar: cannot load {library.name} \(EXPAR_LIBRARY names another one\)")

    def test_sources(self) -> None:
        """All that the build reads; a build from them takes too long for here, and is one of `make nightly`."""
        (archive,) = self.folder.glob("*.tar.gz")
        with tarfile.open(archive) as content:
            names = {name.split("/", 1)[1] for name in content.getnames() if "/" in name}
        expected = {"CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "pyproject.toml"}
        for folder in ("bench", "cmake", "examples", "include", "man", "python", "scripts", "src", "tools"):
            files = (each.relative_to(ROOT) for each in (ROOT / folder).rglob("*") if each.is_file())
            made = "__pycache__"  # and by other tools what begins with a point
            expected |= {str(each) for each in files if not any(p == made or p.startswith(".") for p in each.parts)}
        self.assertEqual(expected - names, set())
        self.assertEqual([name for name in names if name.split("/")[0] in ("build", "data", "tests", ".git")], [])


if __name__ == "__main__":
    unittest.main()
