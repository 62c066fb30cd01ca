# SPDX-License-Identifier: Apache-2.0
"""The examples in Python run, and so do the programs that docs/howto/python.md and README.md show."""

from __future__ import annotations

import os
import re
import sys
import unittest
from pathlib import Path

import ranks

ROOT = Path(os.environ["EXPAR_TEST_ROOT"])
EXAMPLES = ROOT / "examples" / "python"
# Definitions that the few lines of the README leave out.
BEFORE = """
import numpy
import expar
num_experts = 8
x, topk_weights = numpy.ones((6, 8), "float32"), numpy.ones((6, 2), "float32")
topk_idx = numpy.tile(numpy.array([0, 5], "int64"), (6, 1))
def experts(rows):
    return rows.x.numpy() * 3
"""


def shown(page: str, title: str) -> str:
    """The first program in Python after that title."""
    found = re.search(r"```python\n(.*?)```", (ROOT / page).read_text().split(title, 1)[1], re.DOTALL)
    assert found is not None, f"{page} shows no Python"
    return found[1]


class Examples(unittest.TestCase):
    def says(self, size: int, said: str, *command: str) -> str:
        # Threads of NumPy's beside those of ranks would only wait for each other on few cores.
        ended = ranks.launched(size, *command, env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn(said, ended.stdout)
        self.assertNotIn("WRONG", ended.stdout)
        return ended.stdout

    def test_training_step(self) -> None:
        self.says(3, "3 ranks: gradients are those", str(EXAMPLES / "training_step.py"))

    def test_bench(self) -> None:
        sizes = ("--tokens", "32", "--hidden", "128", "--iters", "3", "--warmup", "1")
        said = self.says(2, "2 ranks, 32 tokens of 128", str(EXAMPLES / "bench.py"), *sizes)
        for call in ("dispatch", "dispatch with a handle", "combine", "copy of the rows"):
            self.assertRegex(said, rf"(?m){call} +\d+\.\d us +\d+\.\d\d GB/s$")

    def test_without_the_package(self) -> None:
        """Each says what to do."""
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for program in [*EXAMPLES.glob("*.py"), *(ROOT / "bench" / "python").glob("*.py")]:
            ended = ranks.start([sys.executable, "-S", str(program)], env=env)
            self.assertEqual(ended.returncode, 1, program)
            self.assertRegex(ended.stdout, "^No module named '.*': pip has it; .*PYTHONPATH=python\n$")

    def test_bench_rejects(self) -> None:
        ended = ranks.launched(1, str(EXAMPLES / "bench.py"), "--topk", "9")
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("--topk is 9: expected at most the 4 experts", ended.stdout)

    def test_ten_minutes(self) -> None:
        self.says(4, "rank 3 had ", "-c", shown("docs/howto/python.md", "## Ten minutes"))

    def test_readme(self) -> None:
        after = "\nassert (y.numpy() == 6).all()\nprint('six')"
        self.says(4, "six", "-c", BEFORE + shown("README.md", "# expar") + after)

    def test_readme_begins_with_both(self) -> None:
        """The first programs are for `expar`, and for `deep_ep`; the first screen names what expar replaces."""
        lines = (ROOT / "README.md").read_text().splitlines()
        for name in ("DeepEP", "V1", "V2", "vLLM", "SGLang", "Megatron-LM", "torchtitan", "make run", "make test"):
            self.assertIn(name, "\n".join(lines[:40]))
        programs = re.findall(r"```python\n(.*?)```", "\n".join(lines[:80]), re.DOTALL)
        self.assertEqual(len(programs), 2)
        self.assertIn("expar.Buffer(group)", programs[0])
        self.assertIn("deep_ep.Buffer(", programs[1])


if __name__ == "__main__":
    unittest.main()
