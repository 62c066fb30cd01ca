# SPDX-License-Identifier: Apache-2.0
"""Calls of one form: layouts, dispatches or combines whose arguments differ only in the addresses of their tensors.

Where PyTorch shows its tensors to C (DLPack's exchange), such a call is one function object of Python (expar/python.h).
It checks the tensors, calls without the interpreter's lock, and makes tensors of the results. Elsewhere the same steps
run here in Python.
"""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_int32, c_void_p, sizeof
from typing import Any, Callable, Dict

from expar import _abi
from expar._abi import PythonKind
from expar._exchange import CallForm, READER
from expar._library import lib

from . import _call
from ._call import check, held, Output, Parts, plain, put, put_address

_VIEW_BYTES = sizeof(_abi.Tensor)
_DATA_BYTES = sizeof(c_void_p)  # the address, a view's first member
_LIKE_FIRST = slice(_DATA_BYTES, _VIEW_BYTES)
_NO_PARTS = Parts((), ())


# Says whether calls are function objects. Otherwise their steps run in Python.
shown = _call.exchange is not None

_MOST_FORMS = 1024
Forms = Dict[Any, Any]  # a buffer's forms, by the key that their calls share


def keep_form(forms: Forms, key: tuple[Any, ...], form: Any) -> None:
    """Keeps a form under that key. If there are too many forms, all are dropped first."""
    if len(forms) >= _MOST_FORMS:
        forms.clear()
    forms[key] = form


# ---- kinds of calls --------------------------------------------------------------------------------------------------

_read_on = held("expar_ep_output_read_on", c_void_p, c_void_p)


def _offset_of(args: Any, member: str) -> int:
    """Returns the offset of a member. member: its name, name[index] in an array of tensors, or struct.name."""
    offset, kind = 0, args
    for part in member.split("."):
        name, _, index = part.rstrip("]").partition("[")
        offset += getattr(kind, name).offset + int(index or 0) * _VIEW_BYTES
        kind = dict(kind._fields_)[name]
    return offset


class Kind:
    """A call of the library, and the places of a call's items in its arguments."""

    def __init__(
        self, number: PythonKind, name: str, args: Any, result: Any, tensors: dict[str, str], words: tuple[str, ...]
    ) -> None:
        """tensors: maps members of args to the caller's names. words: other members; "reader" stands for a stream."""
        self.number = number
        self.args, self.result = args, result
        self.names = tuple(tensors.values())
        self.tensors = tuple(_offset_of(args, member) for member in tensors)
        self.members = dict(zip(tensors, zip(self.tensors, self.names)))
        self.words = tuple(READER if member == "reader" else _offset_of(args, member) for member in words)
        self.tensors_array = (c_int32 * len(self.tensors))(*self.tensors)
        self.words_array = (c_int32 * len(self.words))(*self.words)
        self.function = self._function(name)
        self.query = plain("expar_ll_query" if name.startswith("expar_ll") else "expar_ep_query", c_void_p)

    def _function(self, name: str) -> Callable[..., int]:
        return plain(name, c_void_p, c_void_p, c_void_p)

    def carry_out(self, pointer: int, args: Any) -> tuple[int, Any]:
        """Calls the library. Returns the status and the result."""
        result = self.result(sizeof(self.result))
        return self.function(pointer, addressof(args), addressof(result)), result

    def put(self, args: Any, member: str, tensor: Any) -> None:
        """Writes the view of that tensor, as `_call.put` does."""
        offset, name = self.members[member]
        put(args, offset, tensor, name)


class FreshKind(Kind):
    """A dispatch without a handle; its arguments are an expar_python_fresh."""

    def __init__(self, tensors: dict[str, str], words: tuple[str, ...]) -> None:
        given = "expar_ep_dispatch", _abi.PythonFresh, _abi.EpDispatchResult
        super().__init__(PythonKind.FRESH, *given, tensors, words)

    def carry_out(self, pointer: int, args: Any) -> tuple[int, Any]:
        """Does the same. A dispatch that drops rows fills its result although it fails."""
        args.args.recv_counts = addressof(args.counts) if args.counts.struct_size else None
        status, result = super().carry_out(pointer, args)  # the dispatch's are the first member
        if status:
            Output(result.output or 0)
            _Objects(self.number, result).end()
        return status, result


class LayoutKind(Kind):
    """A layout; its arguments are an expar_python_layout."""

    def __init__(self, tensors: dict[str, str], words: tuple[str, ...]) -> None:
        super().__init__(PythonKind.LAYOUT, "expar_ep_get_layout", _abi.PythonLayout, None, tensors, words)

    def _function(self, name: str) -> Callable[..., int]:
        return plain(name, c_void_p, c_void_p, c_int32, c_void_p)

    def carry_out(self, pointer: int, args: Any) -> tuple[int, Any]:
        at = addressof(args)
        return self.function(pointer, at, args.num_experts, at + _abi.PythonLayout.layout.offset), None


class _Steps:
    """The same as a function object, step by step in Python."""

    __slots__ = ("_kind", "_buffer", "_args", "_parts", "_forget", "_query")

    def __init__(self, kind: Kind, buffer: Any, args: bytes, parts: Parts, forget: bool, query: bool) -> None:
        self._kind, self._buffer, self._args, self._parts = kind, buffer, args, parts
        self._forget, self._query = forget, query

    def alike(self, *items: Any) -> Any:
        """Makes a call. Returns None if the tensors do not look like the first ones, or an item is no tensor."""
        return self.all(*items, alike=True)

    def all(self, *items: Any, alike: bool = False) -> Any:
        """Makes a call with any tensors. AssertionError or RuntimeError if an item is no tensor."""
        kind, reader = self._kind, 0
        args = kind.args.from_buffer_copy(self._args)
        for offset, name, item in zip(kind.tensors, kind.names, items):
            try:
                if item is not None:
                    put(args, offset, item, name)
            except (AssertionError, RuntimeError):
                if not alike:
                    raise
                return None
            if alike and not self._is_as_first(args, offset, item):
                return None
        for offset, word in zip(kind.words, items[len(kind.tensors) :]):
            if offset == READER:
                reader = word
            else:
                put_address(args, offset, word)
        return self._carry_out(args, reader)

    def _is_as_first(self, args: Any, offset: int, item: Any) -> bool:
        first = self._args[offset : offset + _VIEW_BYTES]
        if item is None:
            return not any(first)
        return ctypes.string_at(addressof(args) + offset, _VIEW_BYTES)[_LIKE_FIRST] == first[_LIKE_FIRST]

    def _carry_out(self, args: Any, reader: int) -> Any:
        kind, pointer = self._kind, self._buffer.pointer
        status, result = kind.carry_out(pointer, args)
        if status:
            return status
        output = Output(result.output or 0) if hasattr(result, "output") else None
        made = _Objects(kind.number, result)
        try:
            if reader and output is not None and output.pointer:
                check(_read_on(output.pointer, reader))
            if self._forget:
                made.forget_event()
            if self._query:
                check(kind.query(pointer))
            tensors = []
            if output is not None and self._parts.wanted:
                tensors = [each for each in output.tensors(self._parts) if each is not None]
            return [*tensors, *made.items(result)]
        except BaseException:
            made.end()
            raise


class Form:
    """The calls of one form.

    call(*tensors, *words) makes a call, and returns what expar_python_run describes. That is None if the tensors do not
    look like those of the first arguments, which need not live any more. steps: makes a call with any tensors."""

    __slots__ = ("call", "steps", "_struct")

    def __init__(
        self, kind: Kind, buffer: Any, args: Any, parts: Parts | None = None, forget: bool = False, query: bool = False
    ) -> None:
        """buffer: an expar buffer. parts: parts of the output to return as tensors. forget: the event is released at
        once. query: errors of earlier calls are raised."""
        given, parts = bytes(args), parts or _NO_PARTS
        steps = _Steps(kind, buffer, given, parts, forget, query)
        self.steps = steps.all
        self.call: Callable[..., Any] = steps.alike
        self._struct: CallForm | None = None
        if shown:
            numbers = [number for number in parts.numbers if number >= 0]
            form = kind.number, buffer.pointer, given, kind.tensors_array, kind.words_array, numbers
            self._struct = CallForm(*form, forget_event=forget, query=query)
            self.call = self._struct.function()


class _Objects:
    """The library's objects of one call; 0 stands for none."""

    def __init__(self, kind: PythonKind, result: Any) -> None:
        self._kind = kind
        self.event: int = getattr(result, "event", None) or 0
        self.hook: int = getattr(result, "hook", None) or 0
        self.handle: int = getattr(result, "handle", None) or 0

    def items(self, result: Any) -> list[Any]:
        """Returns what the kind's list has after the tensors."""
        if self._kind == PythonKind.LAYOUT:
            return []
        if self._kind == PythonKind.FRESH:
            lib.expar_ep_output_retain(result.output)
            numbers = result.num_recv_tokens, result.recv_tokens_per_expert or 0
            return [self.handle, result.output, self.event, *numbers]
        if self._kind == PythonKind.LL_DISPATCH:
            return [*_call.handle_tensors(self.handle), self.handle, self.hook, self.event]
        return [self.hook, self.event] if self._kind == PythonKind.LL_COMBINE else [self.event]

    def forget_event(self) -> None:
        if self.event:
            lib.expar_event_release(self.event)
        self.event = 0

    def end(self) -> None:
        self.forget_event()
        lib.expar_ll_hook_release(self.hook)
        fresh = self._kind == PythonKind.FRESH
        (lib.expar_ep_handle_release if fresh else lib.expar_ll_handle_release)(self.handle)
