# SPDX-License-Identifier: Apache-2.0
"""Thousands of steps from Python, of all kinds of calls; memory is flat once it is warm.

usage: soak_python.py threads|processes RANKS STEPS
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy

import expar
from expar import _event, _tensor

WARM_UP = 0.2  # of the steps
# Fewer end before memory has settled: they are only looked at for results.
STEPS_TO_JUDGE = 5000
# Resident memory differs from step to step by the other ranks' work; a leak of a kilobyte a step is more.
RESIDENT_SLACK_BYTES = 6 << 20
# Python's own blocks, of which a step makes thousands: one that stays in each is more.
BLOCKS_SLACK = 2000
SAMPLE_STEPS = 100
TOKENS, HIDDEN, TOPK = 12, 128, 2


class Watch:
    """The most memory of this process while it gets warm, and later."""

    def __init__(self) -> None:
        self.resident, self.blocks = [0, 0], [0, 0]

    def look(self, warm: bool) -> None:
        gc.collect()
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.resident[warm] = max(self.resident[warm], resident)
        self.blocks[warm] = max(self.blocks[warm], sys.getallocatedblocks())

    def judge(self, steps: int) -> None:
        (early, late), (early_blocks, late_blocks) = self.resident, self.blocks
        print(
            f"soak: {steps} steps; resident {early / 2**20:.1f} MiB at most until warm, {late / 2**20:.1f} MiB later; "
            f"{early_blocks} and {late_blocks} blocks of Python's",
            flush=True,
        )
        if steps >= STEPS_TO_JUDGE:
            assert late <= early + RESIDENT_SLACK_BYTES, "resident memory grows"
            assert late_blocks <= early_blocks + BLOCKS_SLACK, "objects of Python's are left"


def same(got: Any, expected: Any) -> None:
    assert (got == expected).all(), (got, expected)


def normal(buffer: expar.Buffer, x: Any, topk_idx: Any, copies: Any, step: int) -> None:
    """A dispatch and its combine; now and then asynchronous, with a handle, or forgotten under way."""
    size = buffer.group.size
    rows = buffer.dispatch(x, topk_idx, num_experts=2 * size, async_finish=step % 3 == 0)
    if rows.event is not None:
        rows.event.wait()
    assert rows.handle is not None
    if step % 4 == 0:
        buffer.dispatch(x, handle=rows.handle, async_finish=step % 8 == 0)
    received = numpy.from_dlpack(rows.x) if step % 2 else rows.x.numpy()
    sums = buffer.combine(received, rows.handle, async_finish=step % 5 == 0)
    if sums.event is not None:
        sums.event.wait()
    same(sums.y.numpy(), x * copies)


def low_latency(buffer: expar.LowLatencyBuffer, x: Any, topk_idx: Any, weights: Any, step: int) -> None:
    rows = buffer.dispatch(x, topk_idx, hook=step % 2 == 0)
    if rows.hook is not None:
        rows.hook()
    sums = buffer.combine(rows.x, topk_idx, weights, rows.handle, hook=step % 3 == 0)
    if sums.hook is not None:
        sums.hook()
    same(sums.y.numpy(), x * TOPK)


def mistakes(group: expar.Group, buffer: expar.Buffer, block: expar.Symmetric, x: Any) -> None:
    """Calls that are refused hold nothing."""
    for call, kind in (
        (lambda: group.put(block, x, 99), ValueError),
        (lambda: group.put(block, block, 99), expar.Error),
        (lambda: buffer.alloc((-1, 3), "f32"), ValueError),
        (lambda: buffer.layout(x, 2), expar.Error),
        (lambda: group.team(0, "far", 1), TypeError),
    ):
        try:
            call()  # type: ignore[no-untyped-call]
        except kind:
            continue
        raise AssertionError("a wrong argument was taken")


def run(group: expar.Group, steps: int, watch: Watch | None) -> None:
    """watch: of the rank that looks at the memory of its process."""
    size, rank = group.size, group.rank
    x = numpy.full((TOKENS, HIDDEN), rank + 1, "float32")
    topk_idx = numpy.random.default_rng(rank).random((TOKENS, 2 * size)).argsort(1)[:, :TOPK].astype("int64")
    weights = numpy.ones((TOKENS, TOPK), "float32")
    block, total = group.zeros(size, "int64"), group.zeros(1, "int64")
    team = group.world()
    with expar.Buffer(group) as buffer, expar.LowLatencyBuffer(
        group, TOKENS, HIDDEN, TOPK, 2 * size, max_row_bytes=4 * HIDDEN
    ) as low:
        copies = buffer.layout(topk_idx, 2 * size).token_in_rank.sum(1)[:, None]
        for step in range(steps):
            normal(buffer, x, topk_idx, copies, step)
            low_latency(low, x, topk_idx, weights, step)
            place = block.numpy()[rank : rank + 1]
            for pe in range(size):
                group.put(place, numpy.full(1, step, "int64"), pe)
            del place
            group.barrier()
            same(block.numpy(), step)
            team.reduce(total, numpy.ones(1, "int64"))
            same(total.numpy(), size)
            if step % 10 == 0:
                mistakes(group, buffer, block, x)
                group.zeros(100).free()
            if watch is not None and step % SAMPLE_STEPS == SAMPLE_STEPS - 1:
                watch.look(step >= steps * WARM_UP)
        buffer.query()
    assert len(_event._under_way) < 100 and len(_tensor._capsules) < 100


def on_threads(size: int, steps: int) -> None:
    watch = Watch()
    failures: list[BaseException] = []

    def rank(group: expar.Group) -> None:
        try:
            with group:
                run(group, steps, watch if group.rank == 0 else None)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=rank, args=(group,)) for group in expar.Group.threads(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    watch.judge(steps)


def main() -> None:
    how, size, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    begin_s = time.monotonic()
    if how == "rank":
        watch = Watch()
        with expar.Group.from_env() as group:
            run(group, steps, watch)
        watch.judge(steps)
        return
    if how == "threads":
        on_threads(size, steps)
    else:
        command = [os.environ["EXPAR_TEST_TOOL"], "run", "-n", str(size), "--", sys.executable, __file__, "rank"]
        if subprocess.run([*command, str(size), str(steps)]).returncode != 0:
            sys.exit("soak: a rank has failed")
    print(f"soak: {how}: {steps} steps on {size} ranks in {time.monotonic() - begin_s:.0f} s")


if __name__ == "__main__":
    main()
