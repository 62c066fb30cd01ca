# SPDX-License-Identifier: Apache-2.0
"""Facts about groups, and what belongs to the communication of buffers rather than to one call."""

from __future__ import annotations

from typing import Any

from ._elastic_sizes import get_logical_domain_size, get_physical_domain_size

__all__ = [
    "NCCLCommHandle",
    "barrier",
    "destroy_all_managed_nccl_comm",
    "get_comm_stream",
    "get_logical_domain_size",
    "get_nccl_comm_handle",
    "get_physical_domain_size",
]


class NCCLCommHandle:
    """Stands for a communicator of NCCL, which expar does not use. It is opaque."""


def get_nccl_comm_handle(group: Any) -> NCCLCommHandle:
    """Returns an opaque object."""
    return NCCLCommHandle()


def destroy_all_managed_nccl_comm() -> None:
    """Does nothing: there are no communicators."""


def get_comm_stream() -> Any:
    """Returns the stream of asynchronous calls; there is one for each process and GPU. On a CPU it is a stream that
    does nothing."""
    from .buffers.elastic_core import comm_stream

    return comm_stream()


def barrier(
    buffer: Any,
    wait_comm_stream: bool = True,
    with_cpu_sync: bool = False,
    sequential: bool = True,
    context_idx: int | None = None,
) -> None:
    """Does what `EPBuffer.barrier` does. Collective."""
    buffer.barrier(wait_comm_stream, with_cpu_sync, sequential, context_idx)
