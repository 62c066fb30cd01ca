# SPDX-License-Identifier: Apache-2.0
"""The notebook among the examples, as `jupyter nbconvert --execute` runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ranks

NOTEBOOK = Path(os.environ["EXPAR_TEST_ROOT"], "examples/python/notebook.ipynb")


class Notebook(unittest.TestCase):
    def setUp(self) -> None:
        if not (find_spec("nbconvert") and find_spec("ipykernel")):
            self.assertNotEqual(os.environ.get("EXPAR_REQUIRE_TORCH"), "1", "scripts/torch.sh installs nbconvert")
            self.skipTest("there is no nbconvert with ipykernel")

    def outputs(self) -> list[list[dict[str, Any]]]:
        """Returns what each cell with code shows."""
        with tempfile.TemporaryDirectory() as home:
            folders = {name: home for name in ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
            command = [str(Path(sys.executable).with_name("jupyter")), "nbconvert", "--execute", "--to", "notebook"]
            ended = subprocess.run(
                [*command, "--stdout", "--log-level", "ERROR", str(NOTEBOOK)],
                env={**os.environ, **folders},
                cwd=home,
                capture_output=True,
                text=True,
                timeout=ranks.DEADLINE_S,
            )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return [cell["outputs"] for cell in json.loads(ended.stdout)["cells"] if cell["cell_type"] == "code"]

    def test_it_runs(self) -> None:
        loaded, layer, failure = self.outputs()
        self.assertEqual(loaded, [])
        (result,) = layer
        received = json.loads("".join(result["data"]["text/plain"]))
        self.assertEqual(len(received), 4)
        self.assertTrue(64 <= sum(received) <= 128, received)  # each of 64 tokens goes to one or two ranks
        said = "".join("".join(each["text"]) for each in failure)
        self.assertEqual(said, "rank 2 of 4 failed: ValueError: no tokens\n")

    def test_it_is_clean(self) -> None:
        """The file has no outputs of a run."""
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            if cell["cell_type"] == "code":
                self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None))


if __name__ == "__main__":
    unittest.main()
