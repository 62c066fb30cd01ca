# SPDX-License-Identifier: Apache-2.0
"""Thousands of steps of deep_ep.Buffer, and of ElasticBuffer, on two ranks of torchrun; memory is flat once it is warm.

usage: soak_deep_ep.py STEPS
"""

from __future__ import annotations

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    program = ["--rdzv-endpoint", "127.0.0.1:0", os.path.join(HERE, "deep_ep_ranks.py"), sys.argv[1], "soak"]
    sys.exit(subprocess.run([*torchrun, *program], env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode)
