# SPDX-License-Identifier: Apache-2.0
"""expar: expert-parallel communication for Mixture-of-Experts models.

The package binds the calls of libexpar by ctypes: groups of ranks, and their common operations. A call that fails
raises expar.Error with the library's text. Other Python threads run while a call waits. A signal whose handler raises,
such as Ctrl-C, ends the call.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._abi import Cmp, Dtype, HeapKind, HeapPages, LlFormat, LlSum, EpPath, SignalOp, Status, EpSumOrder, EpWeightsOf
from ._buffer import Buffer
from ._errors import DroppedError, Error
from ._event import Event
from ._group import Group, UniqueId
from ._library import library_path, version
from ._low_latency import Hook, LowLatencyBuffer, LowLatencyCombined, LowLatencyDispatched, LowLatencyHandle
from ._results import Combined, Dispatched, Handle, Layout, RecvCounts, Route
from ._symmetric import Lock, Symmetric
from ._team import Team
from ._tensor import Tensor, View

if TYPE_CHECKING:
    from ._log import log_to
    from ._spawn import SpawnError, spawn

__version__ = version()
__all__ = [
    "Buffer",
    "Cmp",
    "Combined",
    "Dispatched",
    "DroppedError",
    "Dtype",
    "Error",
    "Event",
    "Group",
    "Handle",
    "HeapKind",
    "HeapPages",
    "Hook",
    "Layout",
    "LlFormat",
    "LlSum",
    "Lock",
    "LowLatencyBuffer",
    "LowLatencyCombined",
    "LowLatencyDispatched",
    "LowLatencyHandle",
    "EpPath",
    "RecvCounts",
    "Route",
    "SignalOp",
    "SpawnError",
    "Status",
    "EpSumOrder",
    "Symmetric",
    "Team",
    "Tensor",
    "UniqueId",
    "View",
    "EpWeightsOf",
    "library_path",
    "log_to",
    "spawn",
    "version",
]

_LATER = {"log_to": "._log", "spawn": "._spawn", "SpawnError": "._spawn"}


def __getattr__(name: str) -> Any:
    """Imports names that few programs need when they are first read. PyTorch is only loaded by expar.torch."""
    if name == "torch":
        return importlib.import_module(".torch", __name__)
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
