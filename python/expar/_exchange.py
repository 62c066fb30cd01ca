# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors for C code (DLPack's exchange), and calls of the library that are function objects of Python.

Such a call looks at tensors, calls without the interpreter's lock, and makes tensors of the results in one step
(expar/python.h). It needs a PyTorch that shows its tensors to C. This module does not import PyTorch: `table` does, and
`is_tensor` asks a program that has imported it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import weakref
from ctypes import addressof, c_int32, c_void_p
from typing import Any, Callable, Sequence

from . import _abi
from ._abi import PythonKind
from ._library import lib

READER = -1  # EXPAR_PYTHON_READER
_NAME = b"dlpack_exchange_api"
VERSION = 1 << 16 | 1  # of DLPack, of the tensors that the table's functions take
_FASTCALL = 0x80


class Exchange(ctypes.Structure):
    """DLPack's DLPackExchangeAPI, version 1.x: functions of a Python library that C code may call."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("before", c_void_p),  # the table of an earlier version, or NULL
        ("allocate", c_void_p),
        ("managed_of", c_void_p),
        ("object_of", c_void_p),
        ("view_of", c_void_p),
        ("current_stream", c_void_p),
    ]


class _Method(ctypes.Structure):
    """PyMethodDef"""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def _of_python(name: str) -> int | None:
    return ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p).value


# With tensor_new, results become tensors at once. Without it they become capsules.
objects = _abi.PythonObjects(_of_python("PyCapsule_New"), _of_python("PyList_SetItem"), None)
functions = _abi.PythonFunctions(
    objects=addressof(objects),
    none=id(None),
    **{
        member: _of_python(name)
        for member, name in {
            "address": "PyLong_AsVoidPtr",
            "number": "PyLong_FromVoidPtr",
            "list_new": "PyList_New",
            "retain": "Py_IncRef",
            "release": "Py_DecRef",
            "error": "PyErr_Occurred",
            "clear": "PyErr_Clear",
            "unlock": "PyEval_SaveThread",
            "lock": "PyEval_RestoreThread",
        }.items()
    },
)
_method = _Method(b"call", ctypes.cast(lib.expar_python_run, c_void_p), _FASTCALL, None)
_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.py_object, c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)
is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
pointer_in = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _table_of(torch: Any) -> Any:
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    at = pointer_in(capsule, _NAME) if is_valid(capsule, _NAME) else None
    try:
        torch.utils.dlpack.from_dlpack(torch.empty(1, dtype=torch.float8_e4m3fn, device="cpu"))
    except Exception:  # whatever PyTorch says of what it does not know
        return None
    while at:
        found = Exchange.from_address(at)
        if found.major == 1:
            return found
        at = found.before
    return None


@functools.lru_cache(maxsize=None)
def table() -> Any:
    """Returns PyTorch's table, after which function objects work. None if it has no table, or one that does not know
    FP8; FP8 then goes as bytes."""
    import torch
    import torch.utils.dlpack

    found = _table_of(torch)
    if found is not None:
        objects.tensor_new, functions.view = found.object_of, found.view_of
        lib.expar_python_use(addressof(functions))
    return found


_release = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))
_Maker = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.POINTER(ctypes.py_object))


@functools.lru_cache(maxsize=None)
def maker() -> Callable[[int], Any] | None:
    """Returns a function that makes PyTorch's tensor of a managed one of that version, and owns that even if it fails.
    None without a table."""
    found = table()
    if found is None:
        return None
    call = _Maker(found.object_of)

    def make(managed: int) -> Any:
        made: Any = ctypes.py_object()
        call(managed, ctypes.byref(made))
        tensor = made.value
        _release(tensor)  # the call's own reference, beside that of `tensor`
        return tensor

    return make


class Nothing:
    """No value has this type."""


# The type of tensors that function objects take, once `is_tensor` was asked after the program has imported PyTorch.
tensor_type: Any = Nothing
_asked = False


def is_tensor(value: Any) -> bool:
    """Returns whether function objects take the value as a tensor."""
    global tensor_type, _asked
    if not _asked:
        torch = sys.modules.get("torch")
        kind = getattr(torch, "Tensor", None)
        if kind is None or not isinstance(value, kind):  # PyTorch may be in the middle of its import
            return False
        if table() is not None:
            tensor_type = kind
        _asked = True  # after the type, because other threads look at it then
    return type(value) is tensor_type


class CallForm:
    """An expar_python_form, with the memory that it points to."""

    __slots__ = ("struct", "_kept", "__weakref__")

    def __init__(
        self,
        kind: PythonKind,
        pointer: int,
        args: bytes,
        tensors: ctypes.Array[c_int32],
        words: ctypes.Array[c_int32],
        parts: Sequence[int] = (),
        **options: int,
    ) -> None:
        """pointer: the library's object. args: its arguments. tensors, words: offsets in them. options: other members
        of the struct."""
        memory, numbers = ctypes.create_string_buffer(args, len(args)), (c_int32 * len(parts))(*parts)
        self._kept = memory, numbers, tensors, words
        self.struct = _abi.PythonForm(
            kind=kind,
            num_tensors=len(tensors),
            num_words=len(words),
            num_parts=len(numbers),
            tensor_offsets=addressof(tensors),
            word_offsets=addressof(words),
            parts=addressof(numbers),
            args=addressof(memory),
            object=pointer,
            **options,
        )
        _forms.add(self)

    def function(self) -> Callable[..., Any]:
        """Returns a function object. It works while this object lives."""
        made: Callable[..., Any] = _new_function(addressof(_method), addressof(self.struct), None)
        return made


_forms: weakref.WeakSet[CallForm] = weakref.WeakSet()


def _end_functions() -> None:
    """Runs in a forked child, which is no rank. No call matches a form there any more, so the general path runs and
    raises the error that says so."""
    for each in _forms:
        each.struct.num_words = -1


os.register_at_fork(after_in_child=_end_functions)
