# SPDX-License-Identifier: Apache-2.0
"""The wheels: made of this build, installed into empty environments without a network, and used there by ranks that
find no compiler; and the source distribution. test_python_deep_ep_wheel.py has what other distributions do to them.
"""

from __future__ import annotations

import email
import os
import re
import shutil
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

PYTHON = re.compile(r"Programming Language :: Python :: 3\.([0-9]+)$")

# With a terminal, with one that cannot be opened, and with a build that fails.
PROGRESS = """
import io, os, pty, subprocess, sys
import pip_backend

def built(terminal, code=0):
    source, sink = os.pipe()
    before = os.dup(1)
    os.dup2(sink, 1)
    try:
        with pip_backend.shown(terminal):
            print("configured")
            command = "echo [1/20] Building core.c; echo [2/20] Building log.c; exit %d" % code
            subprocess.run(["/bin/sh", "-c", command], check=True)
    finally:
        os.dup2(before, 1)
        os.close(sink)
        with open(source) as output:
            text = output.read()
        assert text == "configured\\n[1/20] Building core.c\\n[2/20] Building log.c\\n", text

def seen():
    os.write(slave, b"END")  # one read may return less than what was written
    text = ""
    while not text.endswith("END"):
        text += os.read(master, 10000).decode()
    assert "expar: compiles the library and the tool" in text, text
    assert "expar: [1/20] Building core.c" in text and "[2/20]" not in text, text  # one line every few seconds

sys.stdout.reconfigure(line_buffering=True)
master, slave = pty.openpty()
built(os.ttyname(slave))
seen()
built("/nowhere/tty")
try:
    built(os.ttyname(slave), 3)
    sys.exit("no error")
except subprocess.CalledProcessError as error:
    assert error.returncode == 3
seen()
assert {"build_wheel", "build_sdist", "get_requires_for_build_wheel"} <= set(dir(pip_backend))
"""

# Libraries that come with a wheel.
CARRIED = """
with open("/proc/self/maps") as maps:
    used = {line.split()[-1] for line in maps if "/libexpar" in line or "/libsodium" in line}
assert len(used) == 2 and all(path.startswith(sys.prefix + "/") for path in used), used
"""


def environment_of(venv: Path) -> dict[str, str]:
    """Its programs alone in PATH, and nothing of this program's, such as where the library of the build is."""
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    return {"PATH": str(venv / "bin"), "HOME": str(venv), "LANG": "C.UTF-8", **quiet}


def make_wheels(folder: Path, *kinds: str) -> None:
    """Makes them of this build. The test is skipped where PyPI is not reached."""
    command = [str(ROOT / "scripts/wheel.sh"), str(BUILD), str(folder), *kinds]
    ended = ranks.start(command, env={**os.environ, "PYTHON": sys.executable})
    if ended.returncode == 77 and os.environ.get("EXPAR_REQUIRE_PYTHON", "0") != "1":
        raise unittest.SkipTest(ended.stdout)
    assert ended.returncode == 0, ended.stdout


def run_in(venv: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of the environment."""
    env = {**environment_of(venv), **variables}
    return ranks.start([str(venv / "bin" / command[0]), *command[1:]], env=env, cwd="/")


def make_venv(folder: Path, *wheels: Path) -> Path:
    """Makes an environment with these wheels alone."""
    ended = ranks.start([sys.executable, "-m", "venv", str(folder)])
    assert ended.returncode == 0, ended.stdout
    if wheels:
        ended = run_in(folder, "python", "-m", "pip", "--quiet", "install", "--no-index", "--no-deps", *map(str, wheels))
        assert ended.returncode == 0, ended.stdout
    return folder


def packed(package: str) -> set[str]:
    """The files of a package that a wheel has."""
    return {str(each.relative_to(ROOT / "python")) for each in (ROOT / "python" / package).rglob("*.py")}


class Wheel(unittest.TestCase):
    folder: ClassVar[Path]
    wheel: ClassVar[Path]
    deep_ep: ClassVar[Path]
    venv: ClassVar[Path]

    @classmethod
    def setUpClass(cls) -> None:
        made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(made.cleanup)
        cls.folder = Path(made.name).resolve()
        make_wheels(cls.folder, "wheel", "deep_ep", "sdist")
        (cls.wheel,) = cls.folder.glob("expar-*.whl")
        (cls.deep_ep,) = cls.folder.glob("expar_deep_ep-*.whl")
        cls.venv = make_venv(cls.folder / "venv", cls.wheel, cls.deep_ep)

    def run_in(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return run_in(self.venv, *command, **variables)

    def test_what_is_in_it(self) -> None:
        name = re.fullmatch(r"expar-([0-9.]+)-py3-none-manylinux_2_[0-9]+_\w+\.whl", self.wheel.name)
        assert name, self.wheel.name
        with zipfile.ZipFile(self.wheel) as content:
            names = set(content.namelist())
        soname = "libexpar.so." + ".".join(name[1].split(".")[:2])
        expected = {f"expar/{soname}", "expar/bin/expar", "expar/py.typed", *packed("expar")}
        self.assertEqual(expected - names, set())
        self.assertEqual({name.split("/")[0] for name in names if ".dist-info/" not in name}, {"expar", "expar.libs"})
        self.assertEqual([name for name in names if "__pycache__" in name], [])

    def test_what_is_in_that_of_deep_ep(self) -> None:
        self.assertRegex(self.deep_ep.name, r"^expar_deep_ep-([0-9.]+)-py3-none-any\.whl$")
        with zipfile.ZipFile(self.deep_ep) as content:
            names = {name for name in content.namelist() if ".dist-info/" not in name}
        expected = {f"expar_deep_ep/{name}" for name in packed("deep_ep")} | packed("expar_deep_ep")
        self.assertEqual(names, expected | {"expar_deep_ep.pth", "expar_deep_ep/deep_ep/py.typed"})

    def test_metadata(self) -> None:
        """Whole, true, and short enough for a screen."""
        version = self.wheel.name.split("-")[1]
        needs: dict[Path, set[str]] = {
            self.wheel: {'numpy; extra == "numpy"', 'torch; extra == "torch"'},
            self.deep_ep: {f"expar=={version}", "torch>=2.4"},
        }
        for wheel, name in ((self.wheel, "expar"), (self.deep_ep, "expar-deep-ep")):
            with zipfile.ZipFile(wheel) as content:
                (path,) = (each for each in content.namelist() if each.endswith(".dist-info/METADATA"))
                self.assertIn(path.replace("METADATA", "licenses/LICENSE"), content.namelist())
                told = email.message_from_bytes(content.read(path))
            for field, value in {
                "Name": name,
                "Version": version,
                "License-Expression": "Apache-2.0",
                "License-File": "LICENSE",
                "Author": "The expar authors",
                "Requires-Python": ">=3.9",
                "Description-Content-Type": "text/markdown",
            }.items():
                self.assertEqual(told[field], value, field)
            self.assertGreater(len(told["Keywords"].split(",")), 3)
            self.assertEqual(set(told.get_all("Requires-Dist", [])), needs[wheel])
            minors = [int(each[1]) for each in map(PYTHON.match, told.get_all("Classifier", [])) if each]
            self.assertEqual(minors, list(range(9, 9 + len(minors))))
            shown = self.run_in("python", "-m", "pip", "show", name)
            self.assertEqual(shown.returncode, 0, shown.stdout)
            self.assertLess(len(shown.stdout.splitlines()), 24, shown.stdout)
            self.assertIn(f"Name: {name}\nVersion: {version}\nSummary: ", shown.stdout)

    def test_other_pythons(self) -> None:
        """Each version of Python that the metadata name, where it is installed, imports the package."""
        site = next(self.venv.glob("lib/python*/site-packages"))
        env = {**environment_of(self.venv), "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        for minor in range(9, 30):
            python = shutil.which(f"python3.{minor}")
            if python and ranks.start([python, "-c", "import ctypes"], env=env).returncode == 0:
                command = [python, "-c", "import expar; expar.Group.threads(1)[0].close()"]
                ended = ranks.start(command, env={**env, "PYTHONPATH": str(site)}, cwd="/")
                self.assertEqual(ended.returncode, 0, f"{python}: {ended.stdout}")

    def test_only_the_library_and_the_tool_are_compiled(self) -> None:
        """By `pip install .`, whose targets pyproject.toml names."""
        text = (ROOT / "pyproject.toml").read_text()
        targets = re.search(r"^build\.targets = \[(.*)\]$", text, re.MULTILINE)
        assert targets
        names = [each.strip(' "') for each in targets[1].split(",")]
        self.assertEqual(names, ["expar", "expar_command"])
        ended = ranks.start(["ninja", "-C", str(BUILD), "-t", "commands", *names])
        self.assertEqual(ended.returncode, 0, ended.stdout)
        compiled = set(re.findall(rf" -c {re.escape(str(ROOT))}/(\w+)/", ended.stdout))
        # bench has what `expar bench` measures, and build what was made of text.
        self.assertEqual(compiled - {"src", "tools", "bench", "build"}, set())
        self.assertLessEqual({"src", "tools"}, compiled)

    def test_progress_of_a_build(self) -> None:
        """`pip install .` shows steps of the compiler on the terminal, and passes all on to pip."""
        program = self.folder / "progress.py"
        program.write_text(PROGRESS)
        (tools,) = (BUILD / "wheel/tools").glob(f"{sys.version_info[0]}.{sys.version_info[1]}")
        env = {**environment_of(self.venv), "PYTHONPATH": f"{ROOT / 'cmake'}:{tools}"}
        ended = ranks.start([sys.executable, str(program)], env=env)
        self.assertEqual(ended.returncode, 0, ended.stdout)

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
