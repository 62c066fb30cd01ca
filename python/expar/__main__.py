# SPDX-License-Identifier: Apache-2.0
"""python -m expar: the expar command that belongs to the library."""

import os
import shutil
import sys

from . import library_path


def _tool() -> str:
    """Beside the library, as a build tree, an installed one and a wheel have it; else the one in PATH."""
    folder = os.path.dirname(library_path())
    for path in (os.path.join(folder, os.pardir, "bin", "expar"), os.path.join(folder, "bin", "expar")):
        if os.access(path, os.X_OK):
            return os.path.normpath(path)
    found = shutil.which("expar")
    if found is None:
        sys.exit(f"expar: no expar command beside {library_path()}, and none in PATH")
    return found


if __name__ == "__main__":
    tool = _tool()
    os.execv(tool, [tool, *sys.argv[1:]])
