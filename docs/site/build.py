#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the site of the documentation. It needs no network, and a warning is an error.

usage: build.py ROOT OUT TOOL LIBRARY COMPILER…
ROOT: the checkout. OUT: a folder, whose html has the site in the end. TOOL, LIBRARY: expar and libexpar.so of the build
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# Debian's theme takes this file from a web server of the host. The site has a copy instead.
NORMALIZE = Path("/usr/share/javascript/normalize.css/normalize.css")


def own_styles(static: Path) -> None:
    """Makes the theme's styles take nothing from elsewhere."""
    styles = static / "styles" / "furo.css"
    text = styles.read_text() if styles.is_file() else ""
    wanted = f"@import url(/{'/'.join(NORMALIZE.parts[3:])});"
    if wanted in text:
        if NORMALIZE.is_file():
            shutil.copyfile(NORMALIZE, static / "styles" / NORMALIZE.name)
        styles.write_text(text.replace(wanted, f"@import url({NORMALIZE.name});" if NORMALIZE.is_file() else ""))


def main(arguments: list[str]) -> int:
    if len(arguments) < 5:
        print("usage: build.py ROOT OUT TOOL LIBRARY COMPILER…", file=sys.stderr)
        return 2
    root, out, tool, library = (Path(argument).resolve() for argument in arguments[:4])
    sys.path[:0] = [str(root / "man"), str(root / "docs" / "site")]
    from stage import Stage

    sources = out / "source"
    Stage(root, sources).all(tool, arguments[4:])
    extra = out / "extra"  # copied as it is
    subprocess.run([str(root / "scripts" / "gallery.sh"), str(tool), str(extra / "gallery")], check=True)
    env = {**os.environ, "EXPAR_DOCS_ROOT": str(root), "EXPAR_DOCS_EXTRA": str(extra), "EXPAR_LIBRARY": str(library)}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    command = ["sphinx-build", "-b", "html", "-q", "-n", "-W", "--keep-going", "-j", "auto"]
    command += ["-c", str(root / "docs" / "site"), "-d", str(out / "doctrees"), str(sources), str(out / "html")]
    ended = subprocess.run(command, env=env).returncode
    own_styles(out / "html" / "_static")
    return ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
