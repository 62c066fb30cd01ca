# SPDX-License-Identifier: Apache-2.0
"""`PPBuffer`, which expar does not have: send and receive between ring neighbours."""

from __future__ import annotations

from .elastic_others import NEIGHBOURS, Missing


class PPBuffer(Missing):
    """NotImplementedError: expar does not send between ring neighbours."""

    _missing = NEIGHBOURS
