# SPDX-License-Identifier: Apache-2.0
"""`BufferBase`: how buffers of the third generation end."""

from __future__ import annotations

import abc
import contextlib
import warnings
from typing import Any


class BufferBase(abc.ABC):
    """Base of buffers that are destroyed by `destroy()` or by the garbage collector.

    explicitly_destroy: the caller will call `destroy()`. Without it the garbage collector releases the buffer."""

    explicitly_destroy = False  # until there is something to destroy
    _ended = False

    def __init__(self, explicitly_destroy: bool = False) -> None:
        self.explicitly_destroy = explicitly_destroy

    @abc.abstractmethod
    def _close(self) -> None:
        """Destroys what the buffer has; called once by `destroy`."""

    def destroy(self) -> None:
        """Destroys the buffer. Collective. Results and handles stay valid. A second call has no effect. AssertionError
        for a buffer without explicitly_destroy."""
        if not self.explicitly_destroy:
            raise AssertionError(
                "destroy() is for buffers with explicitly_destroy=True; the garbage collector releases other buffers"
            )
        if not self._ended:
            self._ended = True
            self._close()

    def __del__(self, warn: Any = warnings.warn) -> None:
        if self.explicitly_destroy and not self._ended:
            name = type(self).__name__
            with contextlib.suppress(Exception):  # the interpreter may be shutting down
                warn(f"{name} with explicitly_destroy=True ends without destroy()", RuntimeWarning, 2)
