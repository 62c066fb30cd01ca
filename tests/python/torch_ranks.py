# SPDX-License-Identifier: Apache-2.0
"""As torchrun on one host, by its own agent, with ranks that are forks of it: PyTorch is imported once for all of them.

usage: torch_ranks.py RANKS PROGRAM [ARGUMENT…]
"""

from __future__ import annotations

import os
import runpy
import sys

from torch.distributed.launcher.api import elastic_launch, LaunchConfig


def rank_main(program: str, *arguments: str) -> None:
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(program)
    runpy.run_path(program, run_name="__main__")


def main(size: int, program: str, *arguments: str) -> None:
    meeting = dict(rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", run_id="tests")
    config = LaunchConfig(1, 1, size, start_method="fork", monitor_interval=0.1, **meeting)
    elastic_launch(config, rank_main)(program, *arguments)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
