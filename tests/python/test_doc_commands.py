# SPDX-License-Identifier: Apache-2.0
"""The commands, manifests and fragments of the pages are sound. What needs hardware is read as far as it can be without
it: options exist, scripts parse, manifests have known members, files and programs are there, fragments compile."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable

import ranks

ROOT = Path(os.environ["EXPAR_TEST_ROOT"])
sys.path.insert(0, str(ROOT / "docs" / "site"))
import commands  # noqa: E402
import programs  # noqa: E402

TOOL = os.environ["EXPAR_TEST_TOOL"]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in [*programs.pages_of(ROOT), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]}
BLOCKS = [block for page, text in PAGES.items() for block in commands.blocks_of(page, text)]
PROGRAMS = {program.name for program in programs.programs_of(ROOT)}
# Programs of the reader's that pages start.
OF_READERS = {"program.py", "program.c", "program.cu", "./program", "./a.out", "prog", "prog.c", "./app"}
# Programs of the reader's system. Nothing is known of their options here.
OF_SYSTEMS = {"gdb", "jq", "kill", "openssl", "pip", "py-spy", "ip", "nc", "numactl", "ulimit", "."}
# Options of Slurm's programs that pages use, from their manual pages (Slurm 24.05).
OF_SLURM = {"-N", "-n", "--mpi", "--nodes", "--ntasks-per-node", "--cpu-bind"}
# Declarations that fragments in C take from the text around them.
AROUND_C = """
#include <expar/device.h>
#include <expar/expar.h>
#include <expar/memory.h>
#include <expar/rma.h>
#include <expar/wait.h>
#include <stdio.h>
#include <stdlib.h>
extern expar_group *given_group;
extern expar_device_handle handle;
extern int index, local_rank, rank, size;
extern double mine[1024];
extern float x[64][1024], y[64][1024], topk_weights[64][4];
extern int32_t topk_idx[64][4];
"""
MUST_C = """
static void must(expar_status status)
{
    if (status != EXPAR_OK) exit(1);
}
"""
# Members of a Kubernetes job, from its API reference (batch/v1, 1.32), as far as pages use them.
JOB = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "metadata": {"name"},
    "spec": {"completionMode", "completions", "parallelism", "template"},
    "spec.template": {"spec"},
    "spec.template.spec": {"subdomain", "restartPolicy", "containers"},
    "spec.template.spec.containers": {"name", "image", "env", "command", "args"},
    "spec.template.spec.containers.env": {"name", "value", "valueFrom"},
    "spec.template.spec.containers.env.valueFrom": {"secretKeyRef"},
    "spec.template.spec.containers.env.valueFrom.secretKeyRef": {"name", "key"},
}
INSTRUCTIONS = {"FROM", "LABEL", "COPY", "RUN", "USER", "WORKDIR", "CMD", "ENV"}


def variables() -> set[str]:
    """Variables of the library, of its tests and of its scripts."""
    texts = [(ROOT / "src/base/env_table.h").read_text(), (ROOT / "tests/environment.md").read_text()]
    return set(re.findall(r"\bEXPAR_[A-Z_0-9]+", "\n".join(texts)))


def options_said(command: list[str]) -> set[str]:
    """The options in the help of a program."""
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    said = ranks.start(command, seconds=60, env=env).stdout
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", said))


def usage_of(words: list[str]) -> subprocess.CompletedProcess[str]:
    """The tool's answer to --usage after these words. A word that takes it as a value writes no file here."""
    with tempfile.TemporaryDirectory() as folder:
        return ranks.start([TOOL, *words, "--usage"], seconds=60, cwd=folder)


def is_usage(ended: subprocess.CompletedProcess[str]) -> bool:
    """Whether the tool gave its usage, or its version where that was asked for."""
    return ended.returncode == 0 and ended.stdout.startswith(("Usage: ", "expar "))


class Checker:
    """Looks at one command after the other; faults are texts. `seen` counts commands by name."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.seen: dict[str, int] = {}
        self.variables = variables()
        self.targets = set(re.findall(r"(?m)^([a-z][\w-]*)(?: [\w-]+)*:", (ROOT / "Makefile").read_text()))
        for row in re.findall(r"(?m)^([a-z][\w -]*):", (ROOT / "Makefile").read_text()):
            self.targets |= set(row.split())
        self.rules: dict[str, Callable[[commands.Command], None]] = {
            "expar": self.expar, "make": self.make, "python3": self.python, "torchrun": self.torchrun,
            "mpirun": self.mpirun, "srun": self.srun, "docker": self.container, "podman": self.container,
            "bash": self.shell, "unshare": self.shell, "cc": self.compiler, "nvcc": self.compiler, "oshcc": self.compiler,
            "oshrun": self.oshrun,
        }

    def fault(self, command: commands.Command, what: str) -> None:
        self.faults.append(f"{command.page}:{command.line}: {what} ({' '.join(command.words)})")

    def check(self, command: commands.Command) -> None:
        for name in command.variables:
            if name.startswith("EXPAR_") and name not in self.variables:
                self.fault(command, f"there is no variable {name}")
        if not command.words:
            return
        name = command.words[0].rsplit("/", 1)[-1]
        self.seen[name] = self.seen.get(name, 0) + 1
        if name in self.rules:
            self.rules[name](command)
        elif "/" in command.words[0]:
            self.script(command)
        elif name not in OF_SYSTEMS:
            self.fault(command, f"no rule is known for {name}")

    def inner(self, command: commands.Command, words: list[str]) -> None:
        """Checks the program that a launcher starts."""
        if not words:
            return self.fault(command, "the launcher has no program")
        if words[0] in OF_READERS or words[0].removeprefix("./") in {name.removesuffix(".c").removesuffix(".cu") for name in PROGRAMS}:
            return None
        if words[0].startswith("build/release/examples/"):
            if not (ROOT / "examples" / (Path(words[0]).name + ".c")).is_file():
                self.fault(command, f"there is no example {words[0]}")
            return None
        return self.check(commands.Command(command.page, command.line, {}, words))

    # ---- programs of the repository ----------------------------------------------------------------------------------

    def expar(self, command: commands.Command) -> None:
        """The tool reads all options before --usage: a wrong one, or a wrong value, ends with 64."""
        words = command.words[1:]
        inside = words[words.index("--") + 1 :] if "--" in words else []
        outside = words[: words.index("--")] if "--" in words else words
        ended = usage_of(outside)
        if not is_usage(ended):
            self.fault(command, ended.stdout.splitlines()[0] if ended.stdout else "the tool says nothing")
        if inside:
            self.inner(command, inside)

    def mentioned(self, command: commands.Command) -> None:
        """A command in a sentence may lack the value of its last option."""
        outside = command.words[: command.words.index("--")] if "--" in command.words else command.words
        last = outside[-1]
        said = options_said([TOOL, outside[1], "--help=full" if outside[1] == "bench" else "--help"])
        # The last option would take --usage as its value.
        ended = usage_of(outside[1:-1] if last in said else outside[1:])
        if not is_usage(ended):
            self.fault(command, ended.stdout.splitlines()[0] if ended.stdout else "the tool says nothing")

    def make(self, command: commands.Command) -> None:
        for word in command.words[1:]:
            if "=" not in word and word not in self.targets:
                self.fault(command, f"the Makefile has no target {word}")

    def script(self, command: commands.Command) -> None:
        path = ROOT / command.words[0]
        if command.words[0].startswith(("env/", "DIR/gpu.sh")):
            name = Path(command.words[0]).name
            if name == "gpu.sh":
                self.steps(command)
            elif name not in ("pip", "torchrun", "python3"):
                self.fault(command, f"no rule is known for {name}")
        elif not path.is_file() or not os.access(path, os.X_OK):
            self.fault(command, f"{command.words[0]} is no program of the repository")
        elif path.name == "gpu.sh":
            self.steps(command)

    def steps(self, command: commands.Command) -> None:
        """Steps of gpu.sh: each is a word of its list of commands, or a function of it."""
        text = (ROOT / "scripts/gpu.sh").read_text()
        for word in command.words[1:]:
            step = word.split("=")[0]
            if re.fullmatch(r"[a-z_]+", step) and not re.search(rf"(?m)^ *([\w |]*\b)?{step}(\(\)|\)| [|])|^#.*\b{step}\b", text):
                self.fault(command, f"gpu.sh has no step {step}")

    def python(self, command: commands.Command) -> None:
        for word in command.words[1:]:
            if word.endswith(".py"):
                known = word in PROGRAMS or word in OF_READERS or (ROOT / word).is_file()
                if not known:
                    self.fault(command, f"no page and no folder has {word}")
                return

    def compiler(self, command: commands.Command) -> None:
        for word in command.words[1:]:
            if word.endswith((".c", ".cu")) and word not in PROGRAMS and word not in OF_READERS:
                self.fault(command, f"no page has {word}")

    def oshrun(self, command: commands.Command) -> None:
        if command.words[1] != "-np":
            self.fault(command, f"oshrun has no option {command.words[1]}")
        self.inner(command, command.words[3:])

    # ---- programs of others ------------------------------------------------------------------------------------------

    def shell(self, command: commands.Command) -> None:
        if "-c" not in command.words:
            return self.fault(command, "-c is expected")
        text = command.words[command.words.index("-c") + 1]
        for inner in commands.commands_of(commands.Block(command.page, command.line, "sh", text)):
            if inner.words and inner.words[0] not in ("echo",):
                self.check(inner)
        return None

    def torchrun(self, command: commands.Command) -> None:
        words = [re.sub(r"\$[A-Z_]+", "1", word) for word in command.words[1:]]
        if find_spec("torch") is not None:
            parser = importlib.import_module("torch.distributed.run").get_args_parser()
            said = io.StringIO()
            try:
                with contextlib.redirect_stderr(said):
                    parsed = parser.parse_args(words)
            except SystemExit:
                return self.fault(command, said.getvalue().strip().splitlines()[-1])
            words = [parsed.training_script, *parsed.training_script_args]
            if parsed.no_python:
                return self.inner(command, words)
        if not any(word in PROGRAMS | OF_READERS or (ROOT / word).is_file() for word in words):
            self.fault(command, "no page has the program")
        return None

    def known(self, command: commands.Command, known: set[str]) -> None:
        for word in command.words[1:]:
            if word == "--":
                return
            if re.match(r"--?[a-zA-Z]", word) and word.split("=")[0] not in known:
                self.fault(command, f"{command.words[0]} has no option {word}")

    def mpirun(self, command: commands.Command) -> None:
        if shutil.which("mpirun"):
            self.known(command, options_said(["mpirun", "--help", "full"]))
        self.inner(command, command.words[-1:])

    def srun(self, command: commands.Command) -> None:
        words = command.words[1:]
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if option.split("=")[0] not in OF_SLURM:
                self.fault(command, f"srun has no option {option} that this test knows")
            if "=" not in option:
                words.pop(0)
        self.inner(command, words)

    def container(self, command: commands.Command) -> None:
        """podman has docker's options."""
        program = shutil.which(command.words[0]) or shutil.which("docker") or shutil.which("podman")
        end = next((at for at, word in enumerate(command.words) if word in ("your-image", "expar")), len(command.words))
        if program:
            known = options_said([program, command.words[1], "--help"])
            self.known(commands.Command(command.page, command.line, {}, command.words[:end]), known)
        if command.words[end + 1 :]:
            self.inner(command, command.words[end + 1 :])


class Commands(unittest.TestCase):
    maxDiff = None

    def faults_of(self, text: str) -> list[str]:
        """The faults of a page with that block of sh."""
        checker = Checker()
        for block in commands.blocks_of("page.md", f"```sh\n{text}\n```\n"):
            for command in commands.commands_of(block):
                checker.check(command)
        return checker.faults

    def test_commands_of_pages(self) -> None:
        checker = Checker()
        for block in BLOCKS:
            for command in commands.commands_of(block) if block.language == "sh" else []:
                checker.check(command)
        self.assertEqual(checker.faults, [])
        for name, least in {"expar": 50, "make": 20, "torchrun": 5, "srun": 3, "mpirun": 1, "docker": 1, "podman": 2}.items():
            self.assertGreaterEqual(checker.seen.get(name, 0), least, name)

    def test_commands_of_sentences(self) -> None:
        checker = Checker()
        found = [command for page, text in PAGES.items() for command in commands.commands_in_text(page, text)]
        self.assertGreater(len(found), 40)
        for command in found:
            checker.mentioned(command)
        self.assertEqual(checker.faults, [])

    def test_commands_of_two_lines_are_seen(self) -> None:
        """A command in a sentence may go on in the next line; blocks and other paragraphs are apart."""
        text = "One `expar bench\n  --tokns 5` two `expar info`.\n\n```sh\nexpar chek `\n```\n| `expar run` | `x` |\n"
        words = [(command.line, command.words) for command in commands.commands_in_text("page.md", text)]
        self.assertEqual(words, [(1, ["expar", "bench", "--tokns", "5"]), (1, ["expar", "info"]), (7, ["expar", "run"])])

    def test_the_last_option_of_a_sentence_may_lack_its_value(self) -> None:
        checker = Checker()
        for command in commands.commands_in_text("page.md", "`expar bench --report`, `expar bench --reprt`, `expar --version`\n"):
            checker.mentioned(command)
        self.assertEqual(len(checker.faults), 1)
        self.assertIn("--reprt", checker.faults[0])

    def test_finds_faults(self) -> None:
        for text, fault in (
            ("expar bench dispatch --tokns 5", "tokns"),
            ("expar bench dispatch --tokens many", "many"),
            ("expar run -n 2 -- expar chek", "chek"),
            ("EXPAR_TIMEOT=5 expar info", "there is no variable EXPAR_TIMEOT"),
            ("make && make everything", "no target everything"),
            ("scripts/absent.sh", "no program of the repository"),
            ("scripts/gpu.sh call DIR 300 mesure", "no step mesure"),
            ("srun --mpy=pmix ./program", "no option --mpy"),
            ("srun bash -c 'expar chek'", "chek"),
            ("python3 absent.py", "no page and no folder has absent.py"),
            ("frobnicate x", "no rule is known for frobnicate"),
            ("expar run -n 2 -- ./absent", "no program of the repository"),
        ):
            faults = self.faults_of(text)
            self.assertEqual(len(faults), 1, (text, faults))
            self.assertIn(fault, faults[0])
        self.assertEqual(self.faults_of("EXPAR_SPIN=S expar run -n N -- expar bench ll --tokens T # a word"), [])

    def test_options_of_launchers_are_found(self) -> None:
        if find_spec("torch") is not None:
            self.assertIn("unrecognized", self.faults_of("torchrun --nodez 2 program.py")[0] + "unrecognized")
            self.assertEqual(len(self.faults_of("torchrun --nnodes 2 --nproc-per-nod 8x --rdzv program.py")), 1)
        if shutil.which("docker"):
            self.assertIn("no option --gpuz", self.faults_of("docker run --gpuz all your-image expar info")[0])
        if shutil.which("mpirun"):
            self.assertIn("no option --hozt", self.faults_of("mpirun --hozt a:2 ./program")[0])

    def test_blocks_parse(self) -> None:
        for block in BLOCKS:
            if block.language == "sh":
                ended = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True)
                self.assertEqual(ended.stderr, "", f"{block.page}:{block.line}")
                for option in re.findall(r"(?m)^#SBATCH (.*)$", block.text):
                    self.assertLessEqual(set(re.findall(r"--[\w-]+", option)), OF_SLURM, block.page)
            elif block.language == "json":
                json.loads(block.text)

    def test_blocks_without_a_language_are_found(self) -> None:
        for text, fault in (
            ("a\n\n    b\n", "page.md:3: a block is indented"),
            ("```\na\n```\n", "page.md:1: a block is of ''"),
            ("```basic\na\n```\n", "page.md:1: a block is of 'basic'"),
            ("```c\na\n", "page.md:1: a block does not end"),
        ):
            with self.assertRaisesRegex(SystemExit, re.escape(fault)):
                commands.blocks_of("page.md", text)
        self.assertEqual(commands.blocks_of("page.md", "1. a\n\n    b\n\n   ```sh\n   c\n   ```\n")[0].text, "c\n")


class Manifests(unittest.TestCase):
    def members(self, place: str, value: Any) -> list[str]:
        """Members of a job that are not known."""
        if isinstance(value, list):
            return [fault for each in value for fault in self.members(place, each)]
        if not isinstance(value, dict):
            return []
        known = JOB.get(place, set())
        wrong = [f"{place}.{name}" for name in value if name not in known]
        for name, each in value.items():
            wrong += self.members(f"{place}.{name}".lstrip("."), each)
        return wrong

    def yaml(self, text: str) -> Any:
        """The text as a Python object. MyST, which makes the site, comes with a reader of YAML for its own Python."""
        program = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"
        for python in (sys.executable, "python3", "/usr/bin/python3"):
            ended = subprocess.run([python, "-c", program], input=text, capture_output=True, text=True, timeout=60)
            if ended.returncode == 0:
                return json.loads(ended.stdout)
            if "No module named 'yaml'" not in ended.stderr:
                self.fail(ended.stderr)
        self.assertNotEqual(os.environ.get("EXPAR_REQUIRE_PYTHON"), "1", "there is no PyYAML: scripts/setup.sh docs")
        self.skipTest("there is no PyYAML")

    def test_kubernetes(self) -> None:
        found = [block for block in BLOCKS if block.language == "yaml"]
        self.assertGreater(len(found), 0)
        for block in found:
            job = self.yaml(block.text)
            self.assertEqual((job["apiVersion"], job["kind"]), ("batch/v1", "Job"))
            self.assertEqual(self.members("", job), [])
            spec = job["spec"]
            self.assertIn(spec["completionMode"], ("Indexed", "NonIndexed"))
            self.assertEqual(spec["completions"], spec["parallelism"])  # all pods of a group run at once
            pod = spec["template"]["spec"]
            self.assertIn(pod["restartPolicy"], ("Never", "OnFailure"))
            for container in pod["containers"]:
                self.assertLessEqual({each["name"] for each in container["env"]}, variables())
                self.assertEqual(container["command"], ["sh", "-c"])
                (text,) = container["args"]
                checker = Checker()
                for command in commands.commands_of(commands.Block(block.page, block.line, "sh", text)):
                    checker.check(command)
                self.assertEqual(checker.faults, [])
                self.assertEqual(checker.seen, {"torchrun": 1})

    def test_unknown_members_are_found(self) -> None:
        job = {"apiVersion": "batch/v1", "spec": {"template": {"spec": {"containers": [{"name": "a", "imge": "b"}]}}}}
        self.assertEqual(self.members("", job), ["spec.template.spec.containers.imge"])

    def test_workflow(self) -> None:
        """The workflow calls what the repository has."""
        (path,) = (ROOT / ".github" / "workflows").glob("*.yml")
        flow = self.yaml(path.read_text())
        self.assertEqual(set(flow), {"name", "true", "permissions", "jobs"})  # YAML 1.1 reads `on` as true
        self.assertEqual(set(flow["true"]), {"push", "pull_request", "schedule"})
        called = []
        for job in flow["jobs"].values():
            self.assertIn("runs-on", job)
            for step in job["steps"]:
                self.assertEqual(len({"uses", "run"} & set(step)), 1, step)
                if "uses" in step:
                    self.assertRegex(step["uses"], r"^[\w.-]+/[\w.-]+@\w[\w.-]*$")
                    continue
                ended = subprocess.run(["bash", "-n"], input=step["run"], text=True, capture_output=True)
                self.assertEqual(ended.stderr, "")
                called += [word for word in step["run"].split() if word.startswith((".ci/", "scripts/"))]
        self.assertIn(".ci/run", called)
        for word in called:
            self.assertTrue(os.access(ROOT / word, os.X_OK), word)

    def instructions(self, text: str) -> list[tuple[str, str]]:
        """The instructions of a Containerfile."""
        rows = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", text)).splitlines()
        return [(row.split(None, 1)[0], row.split(None, 1)[1]) for row in rows if row.strip()]

    def check_container(self, text: str, stages: set[str]) -> None:
        found = self.instructions(text)
        self.assertLessEqual({name for name, _ in found}, INSTRUCTIONS)
        self.assertEqual(found[0][0], "FROM")
        users = [value for name, value in found if name == "USER"]
        self.assertNotIn(users[-1], ("root", "0"), "the image runs as root")
        for name, value in found:
            if name == "FROM" and " AS " in value:
                stages.add(value.split(" AS ")[1])
            if name == "RUN":
                ended = subprocess.run(["bash", "-n"], input=value, text=True, capture_output=True)
                self.assertEqual(ended.stderr, "")
            if name == "CMD":
                self.assertIsInstance(json.loads(value), list)
            source = re.match(r"--from=(\w+) ", value)
            if source:
                self.assertIn(source[1], stages)
            for script in re.findall(r"/src/(scripts/[\w.]+)", value):
                self.assertTrue(os.access(ROOT / script, os.X_OK), script)

    def test_containerfiles(self) -> None:
        self.check_container((ROOT / "Containerfile").read_text(), set())
        found = [block for block in BLOCKS if block.language == "dockerfile"]
        self.assertGreater(len(found), 0)
        for block in found:
            self.check_container(block.text, {"expar"})

    def test_the_image_makes_steps_of_its_script(self) -> None:
        """Each step of the Containerfile is one of container.sh, and the copied tree leaves what was built here out."""
        text, script = (ROOT / "Containerfile").read_text(), (ROOT / "scripts" / "container.sh").read_text()
        steps = re.findall(r"container\.sh (\w+)", text)
        self.assertEqual(steps, ["build", "install"])
        for step in steps:
            self.assertRegex(script, rf"(?m)^ *{step}\)")
        self.assertIn("build", (ROOT / ".containerignore").read_text().split())


class Fragments(unittest.TestCase):
    def compiled(self, text: str) -> str:
        """Returns what the compiler says of a fragment: functions at its start, and then statements."""
        functions = ""
        while text.startswith("static "):
            end = text.index("\n}\n") + 3
            functions, text = functions + text[:end], text[end:].lstrip("\n")
        group = "" if "expar_group *group" in text else "    expar_group *group = given_group;\n"
        around = AROUND_C + ("" if "void must(" in functions else MUST_C) + functions
        whole = f"{around}\nvoid fragment(void);\nvoid fragment(void)\n{{\n{group}{text}}}\n"
        with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
            file.write(whole)
            file.flush()
            strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused"]
            ended = ranks.start(["cc", *strict, f"-I{ROOT}/include", "-fsyntax-only", file.name])
        return ended.stdout

    def test_fragments_of_c_compile(self) -> None:
        found = [block for block in BLOCKS if block.language == "c" and not programs.NAMED.match(block.text)]
        self.assertGreaterEqual(len(found), 3)
        for block in found:
            with self.subTest(block.page, line=block.line):
                self.assertEqual(self.compiled(block.text), "")

    def test_faults_are_found(self) -> None:
        self.assertIn("absent", self.compiled("must(expar_absent(group));\n"))
        self.assertIn("too few arguments", self.compiled("must(expar_malloc(group, 5));\n"))


if __name__ == "__main__":
    unittest.main()
