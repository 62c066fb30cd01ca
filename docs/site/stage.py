# SPDX-License-Identifier: Apache-2.0
"""Put the sources of the site together in a folder of the build: pages with links that hold there, and made pages.

Files are written only if they changed, so that Sphinx reads only these again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import c_pages
from headers import Manual

# Pages from outside of docs/, by their place in the site.
OTHERS = {"CHANGELOG.md": "project/changelog.md", "CONTRIBUTING.md": "project/contributing.md", "SECURITY.md": "project/security.md"}
# Their readers find the site's index in the place of these.
INDEXES = ("README.md", "docs/README.md")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")

IMAGE = re.compile(r"!\[[^\[\]]*\]\(([^)#\s:]+)\)")
# In the page about them, files of the gallery are links to the pages that build.py makes of them.
GALLERY = "docs/gallery/README.md"
RESULTS = re.compile(r"`([\w-]+)\.(?:json|html)`")


class Stage:
    """The checkout at `root`, and the sources of the site at `out`."""

    def __init__(self, root: Path, out: Path) -> None:
        self.root, self.out = root, out
        self.made: set[Path] = set()
        notebooks = sorted(root.glob("examples/python/*.ipynb"))
        self.notebooks = {str(path.relative_to(root)): f"tutorials/{path.stem}.md" for path in notebooks}
        self.pages = {f"docs/{path}": path for path in self.pages_of_docs()} | OTHERS | dict.fromkeys(INDEXES, "index.md")
        self.pages |= self.notebooks

    def pages_of_docs(self) -> list[str]:
        docs = self.root / "docs"
        found = [str(path.relative_to(docs)) for path in sorted(docs.rglob("*.md"))]
        return [path for path in found if path != "README.md" and not path.startswith("site/")]

    def write(self, path: str | Path, text: str) -> None:
        target = self.out / path
        self.made.add(target)
        if not target.is_file() or target.read_text() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def copy(self, source: Path, path: str) -> None:
        target = self.out / path
        self.made.add(target)
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    # ---- links -------------------------------------------------------------------------------------------------------

    def link(self, page: str, place: str, found: re.Match[str]) -> str:
        """A link of that page, which has that place in the site, as it holds there."""
        text, target, anchor = found[1], found[2], found[3] or ""
        path = os.path.normpath(os.path.join(os.path.dirname(page), target))
        here = os.path.dirname(place)
        if path in self.pages:
            return f"[{text}]({os.path.relpath(self.pages[path], here)}{anchor})"
        if (self.root / path).is_dir():
            return text
        if (self.root / path).is_file():
            self.copy(self.root / path, f"files/{path}")
            return "{download}`" + text.replace("`", "") + f" <{os.path.relpath(f'files/{path}', here)}>`"
        return found[0]

    def notebook(self, page: str) -> str:
        """A notebook as a page: its texts, and its code. A test runs it (test_python_notebook)."""
        name = Path(page).name
        parts = [f"The notebook itself: {{download}}`{name} <../files/{page}>`."]
        self.copy(self.root / page, f"files/{page}")
        for cell in json.loads((self.root / page).read_text())["cells"]:
            text = "".join(cell["source"])
            parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
        parts[0:2] = [parts[1], parts[0]]  # a page begins with its title
        return "\n\n".join(parts) + "\n"

    def page(self, page: str, place: str) -> None:
        text = self.notebook(page) if page in self.notebooks else (self.root / page).read_text()
        if page == GALLERY:
            text = RESULTS.sub(r'<a href="\1.html">\1.html</a>', text)
        for image in IMAGE.findall(text):
            self.copy(self.root / os.path.dirname(page) / image, os.path.join(os.path.dirname(place), image))
        rows = text.split("\n")
        fenced = False
        for at, row in enumerate(rows):
            if row.lstrip().startswith("```"):
                fenced = not fenced
            if not fenced and not row.startswith("    "):
                rows[at] = LINK.sub(lambda found: self.link(page, place, found), row)
        self.write(place, "\n".join(rows))

    # ---- pages that are made -----------------------------------------------------------------------------------------

    def environment(self, manual: Manual) -> None:
        """A page of all variables, from the table of which the library is made."""
        text = (self.root / "src/base/env_table.h").read_text()
        rows = re.findall(
            r'X\("(EXPAR_\w+)",\s*"([^"]*)",\s*(?:"([^"]*)"|\w+),\s*"([^"]*)"\)', re.sub(r"\\\n", "\n", text)
        )
        lines = ["# Environment variables", "", "`expar info --env` prints this list, for the library that is installed.", ""]
        for name, values, fallback, meaning in rows:
            fallback = fallback or "all transports of the build"
            lines += [f"(env-{name.lower()})=", f"## `{name}`", "", f"{meaning[:1].upper()}{meaning[1:]}.", ""]
            lines += [f"- values: {values}", f"- default: {fallback}", ""]
        self.write("reference/environment.md", "\n".join(lines))
        self.places |= {row[0]: ("reference/environment", f"env-{row[0].lower().replace('_', '-')}") for row in rows}
        if {row[0] for row in rows} != {name for name, _ in manual.variables}:
            raise SystemExit("stage.py: src/base/env_table.h has rows that it cannot read")

    def commands(self, tool: Path) -> None:
        """A page of the commands: what --help says, of the tool and of each command that it names."""
        env = {**os.environ, "COLUMNS": "80"}

        def said(*arguments: str) -> str:
            return subprocess.run([str(tool), *arguments], capture_output=True, text=True, check=True, env=env).stdout

        lines = ["# Commands", "", "`man expar-run` and `expar run --help` have the same.", ""]
        overview = said("--help")
        for command in ["", *re.findall(r"(?m)^  ([a-z]+) +[a-z]", overview.split("Examples:")[0])]:
            text = said(command, "--help=full") if command == "bench" else said(command, "--help") if command else overview
            lines += [f"## `{f'expar {command}'.strip()}`", "", "```text", text.rstrip(), "```", ""]
        self.write("reference/commands.md", "\n".join(lines))

    def statuses(self, manual: Manual) -> None:
        """docs/reference/statuses.md has a section for each status; names in backticks lead there."""
        text = (self.root / "docs/reference/statuses.md").read_text()
        told = set(re.findall(r"(?m)^## `(EXPAR_\w+)`$", text))
        names = {name for name, _, _ in manual.statuses if name != "EXPAR_OK"}
        if told != names:
            raise SystemExit(f"docs/reference/statuses.md: it lacks, or has too many: {', '.join(sorted(told ^ names))}")
        self.places |= {name: ("reference/statuses", name.lower().replace("_", "-")) for name in names}

    def all(self, tool: Path, compiler: list[str]) -> None:
        manual = Manual(self.root / "include", self.root, compiler)
        self.places = c_pages.places(manual)
        for page, place in self.pages.items():
            if page not in INDEXES:
                self.page(page, place)
        for path, text in c_pages.write(manual, Path("reference/c")).items():
            self.write(path, text)
        self.environment(manual)
        self.commands(tool)
        self.statuses(manual)
        self.write("places.json", json.dumps(self.places, indent=0, sort_keys=True))
        for old in self.out.rglob("*"):
            if old.is_file() and old not in self.made:
                old.unlink()
