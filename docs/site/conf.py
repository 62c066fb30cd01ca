# SPDX-License-Identifier: Apache-2.0
"""Configuration of Sphinx for the site (build.py). The sources are staged copies; EXPAR_DOCS_ROOT is the checkout."""

import os
import re
import sys
from pathlib import Path

ROOT = Path(os.environ["EXPAR_DOCS_ROOT"])
sys.path[:0] = [str(ROOT / "docs" / "site"), str(ROOT / "python")]

numbers = dict(re.findall(r"#define EXPAR_VERSION_(\w+) +(\d+)", (ROOT / "include/expar/status.h").read_text()))
project = "expar"
author = "the authors of expar"
copyright = "the authors of expar. Apache License 2.0"
release = version = ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))

extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings", "names"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nitpicky = True
smartquotes = False  # quotes of code stay as they are
# Types of C's library, and of Python packages whose pages this site does not have.
nitpick_ignore_regex = [
    ("c:identifier", r"(u?int\d+_t|s?size_t|ptrdiff_t|FILE|va_list|bool|MPI_Comm|T|TYPE|complex|shmem_(ctx|team)(_config)?_t)"),
    ("py:.*", r".*"),
]
suppress_warnings = ["autosectionlabel"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# GPUs and PyTorch are not needed to read the signatures of what uses them.
autodoc_mock_imports = ["mpi4py", "numpy", "torch"]

html_theme = "furo"
html_title = f"expar {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = []
html_extra_path = [os.environ["EXPAR_DOCS_EXTRA"]]
# Versions of the site that lie beside this one, each in a folder of its name (the html of its build).
html_context = {"versions": os.environ.get("SITE_VERSIONS", release).split()}
templates_path = [str(ROOT / "docs" / "site" / "templates")]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "versions.html",
        "sidebar/scroll-end.html",
    ]
}
