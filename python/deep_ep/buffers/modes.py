# SPDX-License-Identifier: Apache-2.0
"""The two modes of `Buffer`, which its calls share."""

from __future__ import annotations

from expar import Group
from expar._copies import Shared

from .. import _place
from .._low_latency import LowLatencyMode
from .._normal import NormalMode


class Modes(Shared):
    """The modes of a buffer, one pair for each place of tensors."""

    _group: Group
    _modes: dict[_place.Place, tuple[NormalMode, LowLatencyMode]] | None

    def _check_open(self) -> None:
        if self._modes is None:
            raise AssertionError("the buffer has been destroyed")

    def _make(self, place: _place.Place) -> tuple[NormalMode, LowLatencyMode]:
        """Makes the modes of a place. Collective."""
        raise NotImplementedError

    def _at(self, place: _place.Place) -> tuple[NormalMode, LowLatencyMode]:
        """Returns the modes for tensors in that place. Collective if they must be created, as calls are."""
        self._check_open()
        assert self._modes is not None
        return self._modes.get(place) or self._make(place)
