# SPDX-License-Identifier: Apache-2.0
"""Forms of calls with PyTorch's tensors, each of which is one function object of Python (`_exchange`).

The first call with some options goes the general way, which checks all arguments. The options, as bytes of the
library's struct, become a form. Later calls with these options only bring tensors, handle, event and stream, and the
library checks these. A call that its form does not take goes the general way, too, and raises the errors of that.
"""

from __future__ import annotations

from ctypes import c_int32, sizeof
from typing import Any, Iterable, Sequence, Tuple

from . import _abi, _exchange, _interrupt
from ._abi import PythonKind
from ._arguments import keep_unordered
from ._device import CPU, current_stream, stream_of, torch_stream
from ._event import Event, keep_until
from ._library import _check
from ._tensor import is_warned_of_gradients, Tensor

_MOST_FORMS = 256
_VIEW_BYTES = sizeof(_abi.Tensor)
_raised = _interrupt._raised
Options = Tuple[Any, ...]


class Call:
    """A call of the library, and the places of a form's items in its arguments."""

    __slots__ = ("kind", "function", "tensors", "words", "parts")

    def __init__(
        self,
        kind: PythonKind,
        function: Any,
        args: Any,
        tensors: Iterable[str],
        words: Iterable[str],
        parts: Sequence[int],
    ) -> None:
        """function: the library's, for errors. tensors, words: members of args; name[index] is one of an array. The
        word "reader" stands for a stream that reads the results."""
        self.kind, self.function, self.parts = kind, function, parts
        self.tensors, self.words = _offsets(args, tensors), _offsets(args, words)


def _offsets(args: Any, members: Iterable[str]) -> Any:
    found = []
    for member in members:
        if member == "reader":
            found.append(_exchange.READER)
            continue
        name, _, index = member.rstrip("]").partition("[")
        found.append(getattr(args, name).offset + int(index or 0) * _VIEW_BYTES)
    return (c_int32 * len(found))(*found)


class Form:
    """The calls of one form on a buffer. Classes of it say what is made of a result's list."""

    __slots__ = ("_call", "_device", "_function", "_struct")

    def __init__(self, call: Call, pointer: int, device: tuple[int, int], args: bytes) -> None:
        """pointer: the library's buffer. args: the arguments of a call, without tensors."""
        self._struct = _exchange.CallForm(call.kind, pointer, args, call.tensors, call.words, call.parts, open=1)
        self._call, self._function, self._device = self._struct.function(), call.function, device

    def takes(self, wait_event: Any, stream: Any) -> bool:
        """Returns whether these may be arguments of a call."""
        return (wait_event is None or type(wait_event) is Event) and (stream is None or self._device != CPU)

    def stream(self, given: Any) -> int | None:
        """Returns the address of a call's stream; None on the CPU."""
        index = self._device[1]
        if given is not None:
            return stream_of(given, index)
        return None if self._device == CPU else current_stream(index)

    def failed(self, status: int | None) -> None:
        """Raises the error of a call that returned this in place of a list. It returns if nothing was called."""
        if status is not None:
            _check(status, self._function, ())

    def end(
        self, event: int, stream: int | None, tensors: Sequence[Any], objects: Sequence[Any], given: bool
    ) -> Event | None:
        """Returns the event of a call, or None. Raises the error of a signal's handler that ran during the call.

        The call's tensors and objects are kept until the event, as far as that is needed, as `keep_call` does. given:
        the caller named the stream. Otherwise it is the current one, on which PyTorch's allocator expects work."""
        made = Event(event) if event else None
        if stream is not None:
            self._tell(stream, tensors, given)
        elif made is not None:
            keep_until(made, [*tensors, *objects])
        if _raised:
            _check(0, None, ())
        return made

    def _tell(self, stream: int, tensors: Sequence[Any], given: bool) -> None:
        """Tells PyTorch's allocator that the stream uses these tensors, if the caller named the stream."""
        reader = None
        for each in tensors:
            if each is None or type(each) is Tensor:
                continue
            if each.is_cuda:
                if not given:
                    continue
                reader = reader or torch_stream(stream, self._device[1])
                each.record_stream(reader)
            else:
                keep_unordered(stream, self._device, [each])


def items_of(tensors: Sequence[Any]) -> Sequence[Any] | None:
    """Returns the tensors as PyTorch's. None if one is of another kind, or requires gradients that the general way
    warns of."""
    kind, items = _exchange.tensor_type, tensors
    for place, each in enumerate(tensors):
        if each is None:
            continue
        if type(each) is kind:
            if each.requires_grad and is_warned_of_gradients():
                return None
            continue
        found = each._as_argument() if type(each) is Tensor else None
        if found is None:
            return None
        items = list(items)
        items[place] = found
    return items


class Forms:
    """The forms of a buffer."""

    __slots__ = ("_forms",)

    def __init__(self) -> None:
        self._forms: dict[Any, Form] = {}

    def find(self, name: str, options: Options, usual: Options) -> Any:
        """Returns the form of calls of that name with these options, or None. usual: the options of most calls."""
        if not self._forms:
            return None
        try:
            return self._forms.get(name if options == usual else (name, options, *map(type, options)))
        except (RuntimeError, TypeError, ValueError):  # an array among them: it has no hash, and is not true or false
            return None

    def wants(self, x: Any) -> bool:
        """Returns whether a form should be made of a call with that x."""
        if type(x) is not Tensor:
            return _exchange.is_tensor(x)
        return _exchange.tensor_type is not _exchange.Nothing and x._as_argument() is not None

    def keep(self, name: str, options: Options, usual: Options, form: Form) -> None:
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        self._forms[name if options == usual else (name, options, *map(type, options))] = form
