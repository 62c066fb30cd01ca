# SPDX-License-Identifier: Apache-2.0
"""Buffers of both generations on communicators of the real mpi4py. Each rank imports PyTorch."""

from __future__ import annotations

import unittest

import ranks


class Mpi(unittest.TestCase):
    def test_ranks(self) -> None:
        ranks.mpirun(self, 3, "deep_ep")


if __name__ == "__main__":
    unittest.main()
