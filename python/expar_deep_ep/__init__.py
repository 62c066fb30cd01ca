# SPDX-License-Identifier: Apache-2.0
"""Guards the name `deep_ep` where the distribution expar-deep-ep is installed.

The distribution has the package deep_ep inside of this folder, so pip overwrites no files of another distribution that
has a deep_ep, and removes none. A .pth file puts this folder at the end of the module path and calls `watch`. The first
import of deep_ep then raises an ImportError if another distribution has installed that name as well.
"""

from __future__ import annotations

import os
import sys
from typing import Any

OURS = "expar-deep-ep"


def _has_package(distribution: Any) -> bool:
    """True if this distribution installs a top-level deep_ep."""
    names = (distribution.read_text("top_level.txt") or "").split()
    record = "\n" + (distribution.read_text("RECORD") or "")
    return "deep_ep" in names or "\ndeep_ep/" in record


def other_in(paths: list[str]) -> str | None:
    """Returns name, version and folder of another distribution with a top-level deep_ep, from the metadata in these
    folders. It reads the metadata of all distributions there."""
    from importlib.metadata import distributions

    for each in distributions(path=paths):
        name = each.metadata["Name"] or ""
        if name.replace("_", "-").lower() != OURS and _has_package(each):
            return f"{name} {each.version} in {each.locate_file('')}"
    return None


def message_about(other: str) -> str:
    name = other.split(" ")[0]
    return (
        f"deep_ep: {OURS} and another distribution have a package of this name: {other}. Keep one of them: "
        f"'pip uninstall {name}' to use expar, or 'pip uninstall {OURS}' to use the other"
    )


def _find_other() -> str | None:
    """Looks for another deep_ep as cheaply as it can be, since every first import calls it."""
    from importlib.machinery import PathFinder
    from importlib.metadata import PackageNotFoundError, distribution

    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("deep_ep", [path for path in sys.path if os.path.abspath(path) != here])
    if spec is not None:
        found = list(spec.submodule_search_locations or []) or [spec.origin or ""]
        # A folder that no distribution owns is the program's choice, such as a source tree in PYTHONPATH.
        return other_in([os.path.dirname(found[0])])
    try:  # an editable installation lies elsewhere, and brings a finder of its own
        named = distribution("deep_ep")
    except PackageNotFoundError:
        return None
    return f"{named.metadata['Name']} {named.version} in {named.locate_file('')}"


class _Watch:
    """A finder that finds nothing. It raises the error, at each import of deep_ep until one has succeeded."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "deep_ep":
            other = _find_other()
            if other is not None:
                raise ImportError(message_about(other), name=name)


def watch() -> None:
    """Makes imports of deep_ep look for another distribution. The .pth file calls it when the interpreter starts."""
    sys.meta_path.insert(0, _Watch)
