# SPDX-License-Identifier: Apache-2.0
"""`EngramBuffer`, which expar does not have: table rows in the memory of all ranks."""

from __future__ import annotations

from .elastic_others import Missing, TABLE


class EngramBuffer(Missing):
    """NotImplementedError: expar does not fetch rows of tables."""

    _missing = TABLE
