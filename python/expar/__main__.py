# SPDX-License-Identifier: Apache-2.0
"""Runs the expar command that belongs to the library, for `python -m expar` and the program expar of a wheel."""

from __future__ import annotations

import os
import shutil
import sys

from . import library_path


def _tool() -> str:
    """Returns the path of the expar command: in the package, as in a wheel, or beside the library, as in a source tree.
    Otherwise it is another one in PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (os.path.join(here, "bin"), os.path.join(os.path.dirname(library_path()), os.pardir, "bin")):
        if os.access(os.path.join(path, "expar"), os.X_OK):
            return os.path.normpath(os.path.join(path, "expar"))
    own = os.path.realpath(sys.argv[0])
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("expar", path=folder)
        if found is not None and os.path.realpath(found) != own:
            return found
    sys.exit(f"expar: no expar command in {here}, none beside {library_path()}, and none in PATH")


def main() -> None:
    tool = _tool()
    os.execv(tool, [tool, *sys.argv[1:]])


if __name__ == "__main__":
    main()
