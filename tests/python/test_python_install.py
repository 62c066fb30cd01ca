# SPDX-License-Identifier: Apache-2.0
"""`pip install .`, which compiles the library as it is in this tree, into an empty environment: part of `make nightly`.
By day test_python_wheel.py has the wheel of this build, and what ranks do with one.
"""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

import ranks
from test_python_wheel import LAYER, ROOT, environment_of

COMPILES_S = 3000


class Install(unittest.TestCase):
    def test_a_layer_on_two_ranks(self) -> None:
        """Ranks use the library that was installed, and the tool beside it, from another folder."""
        with tempfile.TemporaryDirectory() as made:
            venv = Path(made).resolve() / "venv"
            ended = ranks.start([sys.executable, "-m", "venv", str(venv)])
            self.assertEqual(ended.returncode, 0, ended.stdout)
            # The compiler's environment; where PyPI is not reached, no build can begin.
            pip = [str(venv / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
            ended = ranks.start([*pip, str(ROOT)], seconds=COMPILES_S)
            self.assertEqual(ended.returncode, 0, ended.stdout)
            program = Path(made, "layer.py")
            program.write_text(LAYER)
            for launcher in (["expar"], ["python", "-m", "expar"]):
                command = [str(venv / "bin" / launcher[0]), *launcher[1:]]
                ended = ranks.start(
                    [*command, "run", "-n", "2", "--", "python", str(program)], env=environment_of(venv), cwd="/"
                )
                self.assertEqual(ended.returncode, 0, ended.stdout)
                for rank in range(2):
                    self.assertIn(f"rank {rank} of 2 is right with {venv}/lib/", ended.stdout)


if __name__ == "__main__":
    unittest.main()
