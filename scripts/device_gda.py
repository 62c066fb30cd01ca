#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the part of include/expar/device.h that posts requests to queues of a network device.

Kernels of programs have no other header, so device.h has a copy of the producer in src/net/gda. This script makes the
copy: it renames, and passes the handle along, since waits end by it. Comments at the heads of files, and functions that
kernels of programs do not need, stay out.
usage: device_gda.py [--check]
--check: changes nothing, and fails if device.h is not up to date.
"""
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER = ROOT / "include/expar/device.h"
BEGIN = "/* ---- the copy of src/net/gda begins ".ljust(117, "-") + " */\n"
END = "/* ---- the copy of src/net/gda ends ".ljust(117, "-") + " */\n"
FILES = ("format.h", "queue.h", "keys.h", "words.h", "view.h")
# Functions that device.h writes in its own way, and others that only the library needs.
OMITTED = ("gda_must_end", "gda_try_reserve", "gda_ring_for")
# Functions that stay out of line on GPUs. A kernel has as many registers as the largest function that it calls.
ASIDE = ("gda_encode", "gda_write", "gda_drain", "gda_poll", "gda_commit", "gda_post", "gda_transfer")
# Ordered accesses of access.h, and the target's vocabulary in device.h.
RENAMED = {
    "gda_load": "expar_dev_load_acquire_64",
    "gda_load_system": "expar_dev_load_acquire_64",
    "gda_load_32": "expar_dev_load_acquire_32",
    "gda_store": "expar_dev_store_release_64",
    "gda_store_system": "expar_dev_store_release_64",
    "gda_store_32": "expar_dev_store_release_32",
    "gda_store_register": "expar_dev_store_register",
    "gda_add": "expar_dev_add_64",
}


def pieces_of(text):
    """Gives the declarations of a header: each ends with a line that is blank, outside of braces and comments."""
    piece, depth, in_comment = [], 0, False
    for line in text.split("\n"):
        if not line.strip() and depth == 0 and not in_comment:
            yield "\n".join(piece)
            piece = []
            continue
        piece.append(line)
        code = re.sub(r"/\*.*?\*/", "", line)
        in_comment = (in_comment or "/*" in code) and "*/" not in code
        depth += code.count("{") - code.count("}")
    yield "\n".join(piece)


def body_of(name):
    """Gives what a header declares, without its head, its guard and what it includes."""
    kept = []
    for piece in pieces_of((ROOT / "src/net/gda" / name).read_text()):
        lines = [line for line in piece.split("\n") if not re.match(r"#include|#(ifndef|define) EXPAR_NET_GDA", line)]
        piece = "\n".join(lines).strip()
        if not piece or piece == "#endif" or piece.startswith("/* SPDX") or piece.startswith("/* ----"):
            continue
        if piece.startswith("#if defined(__BYTE_ORDER__)") or "define GDA_BETWEEN_STEPS" in piece:
            continue
        parts = split_functions(piece)
        kept += [part for part in parts if function_of(part) not in OMITTED]
    return "\n\n".join(kept)


def split_functions(piece):
    """Several short functions may stand without blank lines between them."""
    parts, current = [], []
    for line in piece.split("\n"):
        current.append(line)
        if line == "}":
            parts.append("\n".join(current))
            current = []
    if current:
        parts.append("\n".join(current))
    return parts


def function_of(piece):
    found = re.search(r"^PORTABLE_FUNC [^(]*?(\w+)\(", piece, re.M)
    return found.group(1) if found else None


def waiting(parts):
    """Gives the functions that wait: those that call gda_must_end, and those that call them."""
    bodies = {function_of(part): part for part in parts if function_of(part)}
    found = {"gda_must_end"}
    while True:
        more = {name for name, body in bodies.items() if set(re.findall(r"\b(gda_\w+)\(", body)) & found} - found
        if not more:
            return found
        found |= more


def renamed(text):
    text = re.sub(r"PORTABLE_SHARED\((\w+)\)", r"\1", text)
    text = text.replace("/* gda_scope */", "/* as in net/gda/access.h */")
    # The queue is the first argument of all functions that wait. They get the handle before it.
    for name in waiting(text.split("\n\n")):
        text = re.sub(rf"(PORTABLE_FUNC [^(]*\b{name}\()", r"\1const expar_device_handle *h, ", text)
        text = re.sub(rf"\b{name}\(queue\b", f"{name}(h, queue", text)
    for name in ASIDE:
        text = re.sub(rf"PORTABLE_FUNC ([^(]*\b{name}\()", r"EXPAR_DEV_ASIDE \1", text)
    text = text.replace("PORTABLE_FUNC", "EXPAR_DEV_FUNC")
    text = re.sub(r"GDA_BETWEEN_STEPS\(queue\)", "EXPAR_DEVICE_DELAY()", text)
    text = re.sub(r"\bgda_\w+\b", lambda m: RENAMED.get(m.group(0), "expar_dev_" + m.group(0)), text)
    text = re.sub(r"\bGDA_", "EXPAR_DEV_GDA_", text)
    return re.sub(r"\b(u?int)(8|16|32|64)_t\b", r"expar_\1\2", text)


def wrapped(text):
    """Fills comments that have lines of their own."""
    def fill(found):
        words = " ".join(found.group(2).split())
        indent = found.group(1)
        return textwrap.fill(f"/* {words} */", 120, initial_indent=indent, subsequent_indent=indent + "   ",
                             break_long_words=False, break_on_hyphens=False)
    return re.sub(r"^( *)/\* (((?!\*/).)*?) \*/$", fill, text, flags=re.M | re.S)


def made():
    return wrapped(renamed("\n\n".join(body_of(name) for name in FILES)))


def formatted(text):
    return subprocess.run(["clang-format", f"--assume-filename={HEADER}"], input=text, text=True, check=True,
                          capture_output=True).stdout.rstrip("\n") + "\n"


def main():
    before, _, rest = HEADER.read_text().partition(BEGIN)
    copy, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{HEADER}: the lines around the copy of src/net/gda are missing")
    if sys.argv[1:] == ["--check"]:
        # Where lines break is clang-format's concern, which the check does without.
        if "".join(copy.split()) != "".join(made().split()):
            sys.exit("include/expar/device.h has an old copy of src/net/gda: run scripts/device_gda.py")
        return
    if sys.argv[1:]:
        sys.exit(__doc__.strip())
    HEADER.write_text(before + BEGIN + "\n" + formatted(made()) + "\n" + END + after)


if __name__ == "__main__":
    main()
