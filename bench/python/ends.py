#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How soon waits end: of a rank after another one's abandon, and of `expar bench` after Ctrl-C.

Ranks of a job wait in a barrier, or in a dispatch, while rank 1 abandons the group or the buffer. The time goes from
there to the last rank's error. Then `expar bench` waits in barriers, and gets a SIGINT as a terminal sends it. The time
goes from there to the end of all its processes. Medians and the longest of each, in milliseconds.
usage: PYTHONPATH=python bench/python/ends.py EXPAR [ROUNDS]      EXPAR: the tool, beside the library
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time

try:
    import numpy
    import expar
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error}: pip has it; expar and deep_ep come with the wheel (make wheel), or from the tree by PYTHONPATH=python"
    ) from None

RANKS = 3
MOMENT_S = 0.3  # the time that a rank needs until it waits


def tell(what: str, times_ms: list[float]) -> None:
    print(f"{what}: median {statistics.median(times_ms):.2f} ms, longest {max(times_ms):.2f} ms", flush=True)


# ---- a rank of the job -----------------------------------------------------------------------------------------------


def milliseconds_to_learn(outer: expar.Group, wait_in: str, leave: str) -> float:
    """Measures in a new group. The ranks exchange their times in the outer one."""
    group = expar.Group.from_env()
    buffer = expar.Buffer(group)
    x, experts = numpy.zeros((4, 8), "float32"), numpy.zeros((4, 1), "int32")
    buffer.dispatch(x, experts, num_experts=RANKS)
    group.barrier()
    if group.rank == 1:
        time.sleep(MOMENT_S)
        moment_ns = time.monotonic_ns()
        (group if leave == "group" else buffer).abandon()
    else:
        try:
            if wait_in == "barrier":
                group.barrier()
            else:
                buffer.dispatch(x, experts, num_experts=RANKS)
            raise AssertionError("the wait ended well")
        except expar.Error as error:
            if error.status != expar.Status.ERR_PEER:
                raise
        moment_ns = time.monotonic_ns()
    told = [int(each) for each in outer.allgather(str(moment_ns).zfill(24).encode())]
    buffer.abandon()
    group.abandon()
    return (max(told) - told[1]) / 1e6


def be_a_rank(rounds: int) -> None:
    outer = expar.Group.from_env()
    for wait_in, leave in (("barrier", "group"), ("dispatch", "group"), ("dispatch", "buffer")):
        times_ms = [milliseconds_to_learn(outer, wait_in, leave) for _ in range(rounds)]
        if outer.rank == 0:
            tell(f"{wait_in}, the {leave} is abandoned", times_ms)


# ---- the tool --------------------------------------------------------------------------------------------------------


def milliseconds_to_end(tool: str) -> float:
    command = [tool, "bench", "rma", "-n", str(RANKS), "--transports", "p2p", "--ops", "barrier", "--iters", "50000"]
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    time.sleep(MOMENT_S)
    begin_ns = time.monotonic_ns()
    os.killpg(job.pid, signal.SIGINT)
    text, _ = job.communicate()  # until the last process has closed its end
    end_ns = time.monotonic_ns()
    if job.returncode != 128 + signal.SIGINT:
        raise SystemExit(f"{tool} bench ended with {job.returncode}: {text}")
    return (end_ns - begin_ns) / 1e6


def main() -> None:
    if sys.argv[1:2] == ["rank"]:
        be_a_rank(int(sys.argv[2]))
        return
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    tool, text = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "20"
    if not os.access(tool, os.X_OK) or os.path.isdir(tool):
        raise SystemExit(f"EXPAR is {tool!r}: expected the path of the tool, as build/release/bin/expar")
    if not text.isdecimal() or int(text) == 0:
        raise SystemExit(f"ROUNDS is {text!r}: expected a whole number, 1 or more")
    rounds = int(text)
    rank = [sys.executable, __file__, "rank", text]
    ended = subprocess.run([tool, "run", "-n", str(RANKS), "--no-prefix", "--", *rank])
    if ended.returncode != 0:
        raise SystemExit(f"the ranks ended with {ended.returncode}, for what they say above")
    tell("expar bench, Ctrl-C", [milliseconds_to_end(tool) for _ in range(rounds)])


if __name__ == "__main__":
    main()
