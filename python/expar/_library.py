# SPDX-License-Identifier: Apache-2.0
"""Loads libexpar.so, checks that it matches these bindings, and gives its calls their types.

The first of these files is the library: the one that EXPAR_LIBRARY names; the one in this folder, as in a wheel. Then
come those of the source tree around this package (build/release, build/debug), and the one that the system's loader
finds.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from typing import Any

from . import _abi, _interrupt
from ._called import in_python
from ._errors import DroppedError, Error

_raised = _interrupt._raised
_HERE = os.path.dirname(os.path.abspath(__file__))
_SONAME = "libexpar.so." + ".".join(_abi.VERSION.split(".")[:2])
_SCALARS: dict[str, Any] = {
    "size_t": ctypes.c_size_t,
    "void *": ctypes.c_void_p,
    **{f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "char": ctypes.c_char,
    "unsigned char": ctypes.c_ubyte,
}


def _candidates() -> list[str]:
    """Returns the files that may be the library, the best first. The loader searches for a bare name."""
    named = os.environ.get("EXPAR_LIBRARY")
    if named:
        return [named]
    root = os.path.dirname(os.path.dirname(_HERE))
    folders = [_HERE, os.path.join(root, "build", "release", "lib"), os.path.join(root, "build", "debug", "lib")]
    found = [path for path in (os.path.join(folder, _SONAME) for folder in folders) if os.path.exists(path)]
    return found or [_SONAME]


def _open() -> ctypes.CDLL:
    path = _candidates()[0]
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        hint = "named by EXPAR_LIBRARY" if os.environ.get("EXPAR_LIBRARY") else "EXPAR_LIBRARY names another one"
        raise ImportError(f"expar: cannot load {path} ({hint}): {error}", path=path) from None


def _path_of(lib: ctypes.CDLL) -> str:
    """Returns the file that was loaded. The loader may have found it."""
    if os.path.exists(lib._name):
        return os.path.realpath(lib._name)
    with open("/proc/self/maps") as maps:
        found = [line.split(None, 5)[5].strip() for line in maps if "/" + os.path.basename(lib._name) in line]
    return found[0] if found else lib._name


def _ctype(text: str) -> Any:
    """Returns the ctypes type of a member, by its type in C."""
    array = re.fullmatch(r"(.*\S)\[(\d+)\]", text)
    if array:
        return _ctype(array[1]) * int(array[2])
    if text == "const char *":
        return ctypes.c_char_p
    if "*" in text or text.endswith("_fn"):
        return ctypes.c_void_p
    if text in _abi.STRUCTS:
        return _abi.STRUCTS[text]
    return ctypes.c_int if text in _abi.ENUMS else _SCALARS.get(text)


def _struct_differs(name: str, table: dict[str, Any]) -> str | None:
    ours = _abi.STRUCTS[name]
    theirs = {member["name"]: member for member in table["members"]}
    fields: dict[str, Any] = {field[0]: field[1] for field in ours._fields_}
    for member in theirs.keys() ^ fields.keys():
        return f"{name}.{member} is known to {'the library' if member in theirs else 'the bindings'} alone"
    for member, kind in fields.items():
        told = theirs[member]
        own = (getattr(ours, member).offset, ctypes.sizeof(kind))
        if (told["offset"], told["size"]) != own or _ctype(told["type"]) is not kind:
            library = f"{told['type']} of {told['size']} bytes at {told['offset']}"
            return f"{name}.{member} is {library} in the library, {kind.__name__} of {own[1]} at {own[0]} here"
    if table["size"] != ctypes.sizeof(ours):
        return f"{name} has {table['size']} bytes in the library, {ctypes.sizeof(ours)} here"
    return None


def _enum_differs(name: str, table: dict[str, Any]) -> str | None:
    ours = {f"{value.name}": value.value for value in _abi.ENUMS[name]}
    for full, value in table["values"].items():
        match = next((short for short in ours if full.endswith("_" + short) and ours[short] == value), None)
        if match is None:
            return f"{name}: {full} is {value} in the library"
        del ours[match]
    return f"{name} lacks {', '.join(ours)} in the library" if ours else None


def _differs(table: dict[str, Any]) -> str | None:
    """Returns the first difference between the library's table and the bindings, or None."""
    if table["version"].split(".")[:2] != _abi.VERSION.split(".")[:2]:
        return "these do not go together"
    for kind, ours, look in (
        ("structs", set(_abi.STRUCTS), _struct_differs),
        ("enums", set(_abi.ENUMS), _enum_differs),
    ):
        for name in table[kind].keys() ^ ours:
            return f"{name} is known to {'the library' if name in table[kind] else 'the bindings'} alone"
        for name, entry in table[kind].items():
            found = look(name, entry)
            if found:
                return found
    return None


def _compare(lib: ctypes.CDLL) -> None:
    """ImportError if the library does not match these bindings."""
    path = _path_of(lib)
    try:
        lib.expar_abi.restype = ctypes.c_char_p
        table = json.loads(lib.expar_abi())
    except AttributeError:
        raise ImportError(f"expar: {path} is no libexpar: it has no expar_abi", path=path) from None
    found = _differs(table)
    if found:
        ours = f"the bindings in {_HERE} have version {_abi.VERSION}"
        raise ImportError(f"expar: {path} has version {table['version']}, {ours}: {found}", path=path)


def _check(status: int, function: Any, arguments: tuple[Any, ...]) -> int:
    """Raises the exception of a status other than 0. If a signal ended the wait, it raises what the handler raised."""
    if _raised and _interrupt.has_raised():
        raise _interrupt.take(lib)
    if status == 0:
        return status
    kind = DroppedError if status == _abi.Status.ERR_DROPPED else Error
    text = last_error()
    # Without a function the caller is the module deep_ep, whose calls have other names.
    raise kind(_abi.Status(status), text if function is None else in_python(text))


def give_types(function: Any, result: Any, arguments: list[Any]) -> Any:
    """Sets the types of a call of the library, and returns it. If result is Status, a failure raises an exception."""
    function.argtypes = arguments
    function.restype = ctypes.c_int if result is _abi.Status else result
    if result is _abi.Status:
        function.errcheck = _check
    return function


def last_error() -> str:
    """Returns the text of the last failed call of this thread; "" if none has failed."""
    text: bytes = lib.expar_last_error()
    return text.decode(errors="replace")


def version() -> str:
    """Returns the version of the loaded library."""
    text: bytes = lib.expar_version()
    return text.decode()


def library_path() -> str:
    """Returns the file of the loaded library."""
    return _path_of(lib)


lib = _open()
_compare(lib)
for _name, (_result, _arguments) in _abi.CALLS.items():
    give_types(getattr(lib, _name), _result, _arguments)
_interrupt.watch(lib)
