#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completion, asked of the shells themselves: types into bash, zsh and fish on a terminal, with Tab, and reads which
arguments the command then gets. The scripts are checked against the help and the parser of each subcommand.

usage: test_completion.py EXPAR; status 77: a shell is missing (EXPAR_REQUIRE_SHELLS=1: it must not be)
"""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

LONGEST_S = 60  # for one line; it ends as soon as its arguments are there

# Text after `expar `, as a user types it, and the arguments that the command then gets.
LINES = [
    ("ben\tlay\t--dev\tcu\t", "bench layout --device cuda"),
    ("bench dispatch --routing zi\t", "bench dispatch --routing zipf"),
    ("bench --routing recor\t", "bench --routing recorded.npy"),
    ("bench rec\t--report page.html", "bench recorded.npy --report page.html"),
    ("bench --hook=bo\t", "bench --hook both"),
    ("bench --tokens \t8 rma", "bench --tokens 8 rma"),
    ("ru\t-n 2 --on-d\tcon\t-- only-this-pro\tfol\t", "run -n 2 --on-death continue -- only-this-program folder-of-model"),
    ("demo --mod\tfol\t", "demo --model folder-of-model"),
    ("demo --decode low\t", "demo --decode low-latency"),
    ("info --kno\t", "info --knobs"),
    ("info --color ne\t", "info --color never"),
    ("completion fi\t", "completion fish"),
    ("--vers\t", "--version"),
]

START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "PS1='> '; bind 'set enable-bracketed-paste off'; source SCRIPT"),
    "zsh": (["zsh", "-f", "-i"], "PS1='> '; unsetopt zle_bracketed_paste; autoload -U compinit; compinit -D; source SCRIPT"),
    "fish": (["fish", "--no-config", "-i"], "source SCRIPT"),
}
# The command prints its arguments.
FUNCTION = {
    "bash": "expar() { printf 'A%s:' RGS; printf '%s;' \"$@\"; echo; }",
    "zsh": "expar() { printf 'A%s:' RGS; printf '%s;' \"$@\"; echo; }",
    "fish": "function expar; printf 'A%s:' RGS; printf '%s;' $argv; echo; end",
}
GOT = re.compile(rb"ARGS:([^\r\n]*);\r?\n")


class Terminal:
    """A shell on a terminal."""

    def __init__(self, shell: str, script: str, folder: str) -> None:
        argv, start = START[shell]
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            path = f"{folder}/bin:{os.environ['PATH']}"
            os.execvpe(argv[0], argv, {"PATH": path, "HOME": folder, "TERM": "dumb", "LC_ALL": "C.UTF-8", "INPUTRC": "/dev/null"})
        self.type(start.replace("SCRIPT", script) + "\n" + FUNCTION[shell] + "\n" + "expar ready\n")
        assert self.arguments() == ["ready"]

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def arguments(self) -> list[str]:
        """Reads until the command has printed its arguments."""
        seen = b""
        end = time.monotonic() + LONGEST_S
        while not (got := GOT.search(seen)):
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"no arguments came: {seen!r}")
            seen += os.read(self.fd, 65536)
        return got.group(1).decode().split(";")

    def close(self) -> None:
        os.close(self.fd)  # the shell gets a hang-up
        os.waitpid(self.pid, 0)


def script_of(expar: str, shell: str) -> str:
    return subprocess.run([expar, "completion", shell], stdout=subprocess.PIPE, text=True, check=True).stdout


def ask(expar: str, shell: str, folder: str) -> None:
    path = f"{folder}/script.{shell}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(script_of(expar, shell))
    terminal = Terminal(shell, path, folder)
    for typed, expected in LINES:
        terminal.type(f"expar {typed}\n")
        # zsh takes the slash at the end of a line away.
        got = " ".join(terminal.arguments()).replace("=", " ").rstrip("/")
        assert got == expected, f"{shell}: {typed!r} gives {got!r}, expected {expected!r}"
        print(f"{shell}: {typed!r}: {got}", flush=True)
    terminal.close()


def tool(expar: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([expar, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)


def check_options(expar: str) -> None:
    """Each option that a subcommand's help lists is in all scripts, and so is each subcommand."""
    scripts = {shell: script_of(expar, shell) for shell in START}
    commands = re.findall(r"^  ([a-z]+) +\S", tool(expar, "--help").stdout.split("--version")[0], re.MULTILINE)
    assert "run" in commands and "completion" in commands, commands
    for command in commands:
        full = tool(expar, command, "--help=full").stdout
        help_text = full or tool(expar, command, "--help").stdout
        options = re.findall(r"^  (?:-\S, |    )--([a-z][a-z-]*)", help_text, re.MULTILINE)
        assert "help" in options and "color" in options, (command, options)
        for option in set(options) - {"help", "usage"}:
            assert re.search(rf"{command}\)(?:(?!;;\n    ).)*--{option}\b", scripts["bash"], re.DOTALL), (command, option)
            assert f"--{option}" in scripts["zsh"], (command, option)
            assert f"'__expar_at {command}' -l {option}" in re.sub(" -s .", "", scripts["fish"]), (command, option)


def check_words(expar: str) -> None:
    """The parser accepts each word that completes; --usage ends it before anything runs."""
    bash = script_of(expar, "bash")
    count = 0
    for command, body in re.findall(r"^        ([a-z]+)\)\n(.*?)^            ;;", bash, re.DOTALL | re.MULTILINE):
        for option, words in re.findall(r"(--[a-z-]+)[^)\n]*\) words='([^']*)'", body):
            for word in words.split():
                result = tool(expar, command, f"{option}={word}", "--usage")
                assert result.returncode == 0, (command, option, word, result.stderr)
                count += 1
    assert count > 40, count
    assert tool(expar, "bench", "--path=no-path", "--usage").returncode == 64
    for shell in re.findall(r"operands='(bash[^']*)'", bash)[0].split():
        assert script_of(expar, shell), shell


def main() -> int:
    expar = os.path.abspath(sys.argv[1])
    check_options(expar)
    check_words(expar)
    missing = [shell for shell in START if not shutil.which(shell)]
    for shell in START:
        if shell in missing:
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(f"{folder}/folder-of-model")
            os.makedirs(f"{folder}/bin")
            os.symlink("/bin/true", f"{folder}/bin/only-this-program")
            with open(f"{folder}/recorded.npy", "wb"):
                pass
            ask(expar, shell, folder)
    if missing:
        print("completion: not there, so not asked:", *missing)
        return 1 if os.environ.get("EXPAR_REQUIRE_SHELLS") == "1" else 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
