# SPDX-License-Identifier: Apache-2.0
"""A layer on the operators of `deep_ep`, as one graph, by the default compiler of torch.compile. It takes a C++
compiler and a minute, in `make nightly`. By day test_deep_ep_elastic.py has the graph without it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest
from typing import Any

import torch
from deep_ep_elastic_calls import HINTS
from deep_ep_elastic_layer import dense, layer, step
from deep_ep_elastic_reference import Elastic, World
from deep_ep_threads import in_turn

import deep_ep
import expar
import ranks
from deep_ep import operators

RANKS = 2


def compiled(group: expar.Group) -> None:
    """Both forms of rows, with as many of them as come and with the most; arithmetic is the compiler's own, so to some
    digits what it is in double."""

    def body(comm: Any) -> None:
        buffer = deep_ep.ElasticBuffer(comm, **HINTS)
        number = operators.number_of(buffer)
        for expand, synced in ((False, True), (True, False)):
            e = Elastic(World(RANKS, 4, 2, 32, 9, 4), 90 + expand)
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            run = torch.compile(layer, fullgraph=True)
            for one, other in zip(step(run, number, e, buffer.rank_idx, expand, synced), dense(e, buffer.rank_idx)):
                torch.testing.assert_close(one.double(), other, rtol=0.03, atol=0.03)
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
            assert torch._dynamo.utils.counters["inductor"], "it was compiled by another one"

    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=cache, TORCHINDUCTOR_COMPILE_THREADS="1")
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            in_turn(group, (body,))


class Inductor(unittest.TestCase):
    def test_layer(self) -> None:
        if not shutil.which(os.environ.get("CXX", "g++")):
            self.skipTest("there is no C++ compiler")
        ranks.on_processes(RANKS, "test_deep_ep_inductor", "compiled")


if __name__ == "__main__":
    unittest.main()
