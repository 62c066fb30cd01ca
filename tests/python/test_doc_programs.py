# SPDX-License-Identifier: Apache-2.0
"""The programs of the pages run by the commands of their pages, and print what the pages show."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

import ranks

ROOT = Path(os.environ["EXPAR_TEST_ROOT"])
sys.path.insert(0, str(ROOT / "docs" / "site"))
import programs  # noqa: E402

PAGE = """# T

```c
/* one.c */
int main(void) {}
```

```sh
expar run -n 1 -- ./one
```

```text
[0] 1
```
"""
FRAGMENT = """```python
import expar
with expar.Group.from_env() as group:
    group.put(there, here, 1)
```
"""


class Programs(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def command(self, program: programs.Program) -> list[str]:
        """The page's command, with this build's tool and this interpreter."""
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        places = {"expar": [os.environ["EXPAR_TEST_TOOL"]], "python3": [sys.executable], "torchrun": torchrun}
        return [word for each in program.command for word in places.get(each, [each])]

    def build(self, program: programs.Program) -> None:
        folder = Path(os.environ["EXPAR_LIBRARY"]).parent
        strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
        command = ["cc", *strict, f"-I{ROOT}/include", program.name, f"-L{folder}", "-lexpar", f"-Wl,-rpath,{folder}"]
        ended = ranks.start([*command, "-o", program.name.removesuffix(".c")], cwd=self.folder)
        self.assertEqual(ended.returncode, 0, ended.stdout)

    def build_cuda(self, program: programs.Program) -> None:
        """Compiles it. There is no GPU to run it."""
        nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
        if nvcc is None:
            self.assertNotEqual(os.environ.get("EXPAR_REQUIRE_KERNELS"), "1", "there is no nvcc")
            self.skipTest("there is no nvcc")
        strict = ["-std=c++17", "-arch=sm_90", "-Xcompiler", "-Wall,-Wextra,-Werror", "-Werror", "all-warnings"]
        ended = ranks.start([nvcc, *strict, f"-I{ROOT}/include", "-c", program.name, "-o", "out.o"], cwd=self.folder)
        self.assertEqual(ended.returncode, 0, ended.stdout)

    def check(self, program: programs.Program) -> None:
        if "import torch" in program.text:
            ranks.torch_for(self)
        (self.folder / program.name).write_text(program.text)
        if program.name.endswith(".cu"):
            return self.build_cuda(program)
        if program.name.endswith(".c"):
            self.build(program)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        ended = ranks.start(self.command(program), cwd=self.folder, env=env)
        dies = "--on-death=continue" in program.command  # the page kills a rank
        self.assertEqual(ended.returncode, 137 if dies else 0, ended.stdout)
        self.assertTrue(program.prints or ended.stdout, f"{program.page}: {program.name} says nothing")
        # Under torchrun ranks write to one pipe, so two lines may come as one.
        for line in program.prints:
            self.assertIn(line, ended.stdout, f"{program.page}: {program.name}")

    def test_all(self) -> None:
        found = programs.programs_of(ROOT)
        self.assertGreaterEqual(len(found), 12)
        for program in found:
            with self.subTest(program.page, name=program.name):
                self.check(program)

    def page(self, text: str) -> list[programs.Program]:
        (self.folder / "docs" / "howto").mkdir(parents=True, exist_ok=True)
        (self.folder / "docs" / "howto" / "page.md").write_text(text)
        return programs.programs_of(self.folder)

    def test_extracts(self) -> None:
        (program,) = self.page(PAGE)
        self.assertEqual((program.name, program.prints), ("one.c", ["[0] 1"]))
        self.assertEqual(program.command, ["expar", "run", "-n", "1", "--", "./one"])

    def test_fragments_need_no_name(self) -> None:
        """Python that takes names from the text around it is a fragment."""
        self.assertEqual(len(self.page(PAGE + FRAGMENT)), 1)
        with self.assertRaisesRegex(SystemExit, "a program does not begin with its name: import expar"):
            self.page(PAGE + FRAGMENT.replace("    group.put(there, here, 1)", "    group.barrier()"))

    def test_finds_fault(self) -> None:
        """A program without a name, two with one name, one that no command runs, and one that prints another line."""
        with self.assertRaisesRegex(SystemExit, "docs/howto/page.md: a program does not begin with its name: int main"):
            self.page(PAGE.replace("/* one.c */\n", ""))
        with self.assertRaisesRegex(SystemExit, "docs/howto/page.md: no command runs one.c"):
            self.page(PAGE.replace("./one", "./two"))
        with self.assertRaisesRegex(SystemExit, "docs/howto/page.md: another program is called one.c"):
            self.page(PAGE + PAGE)
        (program,) = self.page(PAGE)
        with self.assertRaisesRegex(AssertionError, "not found"):
            self.check(program)


if __name__ == "__main__":
    unittest.main()
