#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How a browser shows reports: no overflow at 400 and 1600 pixels, no overlapping labels, no console message.

usage: test_report_browser.py EXPAR GALLERY

Chromium runs without a screen and without a network. Without Chromium the test is skipped, or fails where
EXPAR_REQUIRE_CHROMIUM=1.
"""

import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
WIDTHS = (400, 1600)

# The page lies in frames, so that a script looks at it while the page itself has none.
LOOK = """
<script>
function overlaps(a, b) {
  return a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
}
function look(frame) {
  const page = frame.contentDocument, found = {width: frame.clientWidth, wide: page.documentElement.scrollWidth,
                                              labels: 0, texts: page.body.innerText.length, overlaps: [], small: []};
  for (const picture of page.querySelectorAll("svg")) {
    const box = picture.getBoundingClientRect();
    const labels = [...picture.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
    found.labels += labels.length;
    for (const [text, at] of labels) {
      if (at.height < 8) found.small.push(text);
      if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1)
        found.overlaps.push(["edge", text]);
    }
    for (let i = 0; i < labels.length; i++)
      for (let j = 0; j < i; j++)
        if (overlaps(labels[i][1], labels[j][1])) found.overlaps.push([labels[i][0], labels[j][0]]);
  }
  return found;
}
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(look);
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script><pre id=found></pre>
"""


def missing() -> int:
    """Return the status of a test without Chromium."""
    required = os.environ.get("EXPAR_REQUIRE_CHROMIUM") == "1"
    print("failed: EXPAR_REQUIRE_CHROMIUM=1 asks for chromium" if required else "skipped: there is no chromium")
    return 1 if required else SKIPPED


class Browser:
    """Chromium in a folder of its own."""

    def __init__(self, program: str, folder: pathlib.Path) -> None:
        self._command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                         "--no-first-run", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND",
                         "--proxy-server=127.0.0.1:9", f"--user-data-dir={folder / 'profile'}",
                         "--enable-logging=stderr", "--virtual-time-budget=10000"]

    def dom(self, page: pathlib.Path, *options: str) -> tuple[str, str]:
        """Return the document after its scripts, and what went to stderr."""
        done = subprocess.run([*self._command, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True,
                              timeout=120, check=True)
        return done.stdout, done.stderr


def looked_at(browser: Browser, pages: list[pathlib.Path], folder: pathlib.Path) -> list[dict]:
    """Return what the script finds in frames of all widths of each page."""
    frames = "".join(
        f'<iframe width={width} height=800 style="border:0" srcdoc="{html.escape(page.read_text(), quote=True)}"></iframe>'
        for page in pages for width in WIDTHS)
    outer = folder / "outer.html"
    outer.write_text(f"<!doctype html><meta charset=utf-8>{frames}{LOOK}")
    dom, _ = browser.dom(outer, "--window-size=2000,2000")
    found = re.search(r"<pre id=\"found\">(.*?)</pre>", dom, re.DOTALL)
    assert found, f"the script has found nothing: {dom[-500:]}"
    return json.loads(html.unescape(found.group(1)))


def check_alone(browser: Browser, page: pathlib.Path) -> None:
    """Check the text of one page, and that it is shown without a message."""
    source = page.read_text()
    assert len(source.encode()) <= 2 << 20, f"{page}: more than 2 MB"
    for word in ("<script", "http:", "https:", "src=", "url(", "@import"):
        assert word not in source, f"{page}: it has {word}"
    _, errors = browser.dom(page, f"--window-size={WIDTHS[0]},1000")
    messages = [line for line in errors.splitlines() if "CONSOLE" in line]
    assert not messages, f"{page}: {messages}"


def check_frame(page: pathlib.Path, width: int, found: dict) -> None:
    """Check what the script has found in one frame."""
    assert found["width"] == width, f"{page}: a frame of {found['width']} instead of {width} pixels"
    assert found["wide"] <= width, f"{page}: {found['wide']} pixels are wider than {width}"
    assert found["texts"] > 100 and not found["overlaps"], f"{page}, {width} pixels: {found['overlaps']}"
    assert not found["small"], f"{page}, {width} pixels: too small to read: {found['small']}"


def many_results(file: pathlib.Path) -> None:
    """Write results of 64 ranks in 100 sweeps of ten, with hostile and long words."""
    links = [{"class": "nvlink", "from": a, "to": b, "bytes": 10**12 + a * 10**9, "messages": 3}
             for a in range(64) for b in range(64) if a != b]
    results = [{"op": f"dispatch {sweep}", "mode": "normal", "dtype": "bf16", "path": "<b>'\"&" * 3, "tokens": 1 << power,
                "median_us": 10.0 ** (power / 1.5) * (1 + sweep), "min_us": 1.0, "p99_us": 1e9, "copy_limit_us": 0.001,
                "mpi_us": 1e9, "gbps": 1.5, "bus_gbps": 2.5, "verified": sweep % 2 == 0, "threads": 1,
                "links": links if power == 9 and sweep < 4 else []}
               for sweep in range(100) for power in range(10)]
    document = {"schema_version": 1, "date": "<script>alert(1)</script>", "command": "x" * 5000,
                "machine": {"cpu": "wide" * 200, "cores": 2, "load": [9, 9, 9]}, "config": {"tokens": [1, 2]},
                "expert_load": {"tokens": 5, "choices": [e % 7 for e in range(1000)]}, "results": results}
    file.write_text(json.dumps(document))


def main() -> int:
    expar, gallery = sys.argv[1:]
    program = shutil.which("chromium")
    if not program:
        return missing()
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        browser, many = Browser(program, folder), folder / "many.json"
        many_results(many)
        files = sorted(str(file) for file in pathlib.Path(gallery).glob("*.json"))
        assert files, f"{gallery}: no results"
        pages: list[pathlib.Path] = []
        for chosen in ([str(many)], files, *[[file] for file in files]):
            pages.append(folder / f"{len(pages)}-{pathlib.Path(chosen[0]).stem}.html")
            subprocess.run([expar, "bench", "--report", str(pages[-1]), *chosen], check=True)
            check_alone(browser, pages[-1])
        places = [(page, width) for page in pages for width in WIDTHS]
        for (page, width), found in zip(places, looked_at(browser, pages, folder), strict=True):
            check_frame(page, width, found)
            print(f"good: {page.name}, {width} pixels, {found['labels']} labels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
