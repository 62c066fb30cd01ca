# SPDX-License-Identifier: Apache-2.0
"""Sizes of `ElasticBuffer`: memory of calls, numbers of SMs and queue pairs, and numbers of nodes and ranks."""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import expar

from ._checks import integer, real
from ._groups import group_of
from .utils.envs import get_rdma_gbs
from .utils.math import align, ceil_div

UNIT_BYTES = 2 << 20  # sizes are multiples of it
_DEFAULT_TOPK = 32
_TIMEOUT_MS = 300_000  # for waits of the host
_NVLINK_GBS = 450.0
RDMA_GBS = 50.0  # if the host has no RDMA port
_FEWEST_SMS = 4
_SMS_WITHOUT_OVERLAP = 64
_SMS_ALONE = 24  # without links, where memory is the limit: what the library takes inside a node
_MOST_QPS = 9  # without hybrid mode
_QPS, _QPS_HYBRID, _QPS_HYBRID_MT4131 = 17, 129, 65


class Usual(int):
    """A default of `ElasticBuffer`. Its type tells it apart from the same number given by a caller."""


def limits_of(cpu_secs: float, gpu_secs: float, on_gpu: bool) -> dict[str, int]:
    """Returns the time limits of waits, for `group_for`. The host watches a GPU's waits, so both limits count there."""
    seconds = [cpu_secs, gpu_secs] if on_gpu else [cpu_secs]
    named = [each for each in seconds if not isinstance(each, Usual)]
    return {"timeout_ms": _in_ms(min(seconds)), "late_ms": _in_ms(min(named)) if named else 0}


def _in_ms(seconds: float) -> int:
    return max(int(seconds * 1000), 1)


def group_for(group: Any, timeout_ms: int = _TIMEOUT_MS, late_ms: int = 0) -> expar.Group:
    """Returns the expar group of a process group or an mpi4py communicator.

    timeout_ms: how long a rank may be silent. late_ms: how long to wait for a rank that answers; 0: as long as it
    answers. They apply if the group is created now. TypeError for anything else."""
    if hasattr(group, "bcast") and hasattr(group, "Get_rank"):
        return group_of(None, group, timeout_ms, late_ms)
    if not hasattr(group, "rank") or not hasattr(group, "size"):
        raise TypeError(f"group is of type {type(group).__name__}: expected a process group of torch.distributed")
    return group_of(group, None, timeout_ms, late_ms)


def _size_of(group: Any) -> int:
    """Returns N. It is local."""
    size = group.Get_size() if hasattr(group, "Get_size") else group.size()
    return int(size)


@functools.lru_cache(maxsize=None, typed=True)
def _bytes_hint(ranks: int, tokens: int, hidden: int, topk: int) -> int:
    """Returns the bytes of results: the rows of all ranks' tokens, with their scales, indices and weights, and this
    rank's sums. Combined rows are always bf16, so rows are counted as bf16. TypeError or RuntimeError for a wrong
    number of tokens or columns."""
    for name, given in (("num_max_tokens_per_rank", tokens), ("hidden", hidden), ("num_topk", topk)):
        if integer(given, name) < 0:
            raise RuntimeError(f"{name} is {given}: expected 0 or more")
    row_bytes = 2 * hidden + 4 * ceil_div(hidden, 128)
    beside = topk * (8 + 4 + 4) + 4
    return align(max(ranks * tokens * (row_bytes + beside) + tokens * 2 * hidden, 1), UNIT_BYTES)


def buffer_size_hint(group: Any, num_max_tokens_per_rank: int, hidden: int, num_topk: int) -> int:
    return _bytes_hint(_size_of(group), num_max_tokens_per_rank, hidden, num_topk or _DEFAULT_TOPK)


# ---- domains ---------------------------------------------------------------------------------------------------------


def physical_domain_size(group: expar.Group) -> tuple[int, int]:
    """Returns (nodes, ranks a node)."""
    return group.num_nodes, group.ranks_per_node


def logical_domain_size(group: expar.Group, allow_hybrid_mode: bool) -> tuple[int, int]:
    return physical_domain_size(group) if allow_hybrid_mode else (1, group.size)


def get_physical_domain_size(group_or_buffer: Any = None, group: Any = None) -> tuple[int, int]:
    """(nodes, ranks a node) of a group, or of a buffer. Collective for a group that no buffer has been made for. The
    second generation calls the argument `group`."""
    return physical_domain_size(_group_of(group_or_buffer, group))


def get_logical_domain_size(
    group_or_buffer: Any = None, allow_hybrid_mode: bool | None = None, group: Any = None
) -> tuple[int, int]:
    """(scale-out ranks, scale-up ranks): nodes and ranks a node, or without hybrid mode 1 and all. Of a buffer it is
    its own, whatever the flag says. Collective for a group that no buffer has been made for."""
    own = getattr(group_or_buffer, "allow_hybrid_mode", None)
    hybrid = own if own is not None else allow_hybrid_mode is None or allow_hybrid_mode
    return logical_domain_size(_group_of(group_or_buffer, group), hybrid)


def _group_of(group_or_buffer: Any, group: Any) -> expar.Group:
    given = group if group_or_buffer is None else group_or_buffer
    own = getattr(given, "_group", None)
    return own if isinstance(own, expar.Group) else group_for(given)


# ---- SMs and queue pairs ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None, typed=True)
def theoretical_num_sms(
    scaleout: int,
    scaleup: int,
    num_experts: int,
    num_topk: int,
    num_scaleout_topk: int,
    rdma_gbs: float,
    nvlink_gbs: float,
    sm_read_gbs: float,
    sm_write_gbs: float,
    overlaps: bool,
    most: int | None,
) -> int:
    """Returns the number of SMs that keeps the slowest link busy. An SM reads a token once, and writes it once for each
    destination rank."""
    for name, given in (
        ("num_experts", num_experts),
        ("num_topk", num_topk),
        ("num_scaleout_topk", num_scaleout_topk),
    ):
        integer(given, name)
    for name, rate in (("rdma_gbs", rdma_gbs), ("nvlink_gbs", nvlink_gbs)):
        if real(rate, name) < 0:
            raise AssertionError(f"{name} is {rate}: expected 0, for what the host has, or more")
    for name, rate in (("sm_read_gbs", sm_read_gbs), ("sm_write_gbs", sm_write_gbs)):
        if real(rate, name) <= 0:
            raise AssertionError(f"{name} is {rate}: expected more than 0")
    ranks = scaleout * scaleup
    if num_experts % ranks:
        raise AssertionError(f"num_experts is {num_experts}: expected a multiple of the {ranks} ranks")
    copies = _expected_owners(ranks, num_experts, num_topk)
    nodes = min(_expected_owners(scaleout, num_experts, num_topk), num_scaleout_topk or scaleout)
    # Seconds for each GB of tokens: on one SM, and on the links.
    of_sm = 1 / sm_read_gbs + copies / sm_write_gbs
    of_links = copies * (scaleup - 1) / scaleup / (nvlink_gbs or _NVLINK_GBS)
    if scaleout > 1:
        of_links = max(of_links, nodes * (scaleout - 1) / scaleout / (rdma_gbs or get_rdma_gbs() or RDMA_GBS))
    number = align(math.ceil(of_sm / of_links), 2) if of_links else _SMS_ALONE
    number = max(number, _FEWEST_SMS if overlaps else _SMS_WITHOUT_OVERLAP)
    return number if most is None else max(min(number, most // 2 * 2), _FEWEST_SMS)


def _expected_owners(owners: int, num_experts: int, num_topk: int) -> float:
    """Returns the average number of owners that a token's distinct experts have."""
    none = 1.0
    for taken in range(min(num_topk, num_experts)):
        others = num_experts - num_experts // owners
        none *= max(others - taken, 0) / (num_experts - taken)
    return owners * (1 - none)


def theoretical_num_qps(num_sms: int, hybrid: bool, allocated: int) -> int:
    """Returns the number of queue pairs. hybrid: allow_hybrid_mode, also on one node."""
    integer(num_sms, "num_sms")
    return min(16 * num_sms + 1 if hybrid else min(num_sms, _MOST_QPS), allocated)


def allocated_qps(given: int, hybrid: bool) -> int:
    if given:
        return given
    if not hybrid:
        return _QPS
    return _QPS_HYBRID_MT4131 if _has_mt4131() else _QPS_HYBRID


def _has_mt4131() -> bool:
    """Returns whether the host has a network card of type MT4131."""
    folder = "/sys/class/infiniband"
    for device in os.listdir(folder) if os.path.isdir(folder) else []:
        try:
            with open(f"{folder}/{device}/hca_type") as file:
                if file.read().strip() == "MT4131":
                    return True
        except OSError:
            continue
    return False
