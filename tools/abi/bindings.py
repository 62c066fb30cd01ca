#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes python/expar/_abi.py: the public structs, enumerations and calls as ctypes has them.

usage: bindings.py ABI_JSON INCLUDE_DIR > python/expar/_abi.py

Structs and enumerations come from the table that the compiler makes (abi.json), calls from the headers'
declarations. test_python_import fails where the file in the tree is not what this writes.
"""

import json
import re
import sys
from pathlib import Path

# ctypes has the same names as C; all other pointers go as addresses.
PLAIN = {
    "bool": "c_bool",
    "char": "c_char",
    "double": "c_double",
    "float": "c_float",
    "int": "c_int",
    "int16_t": "c_int16",
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "int8_t": "c_int8",
    "ptrdiff_t": "c_ssize_t",
    "size_t": "c_size_t",
    "uint16_t": "c_uint16",
    "uint32_t": "c_uint32",
    "uint64_t": "c_uint64",
    "uint8_t": "c_uint8",
    "unsigned": "c_uint",
    "unsigned char": "c_ubyte",
}
# Headers of other libraries' names, and of types that only a C compiler knows.
OTHER_HEADERS = re.compile(r"^(mpi|shmem.*)\.h$")


def class_name(name):
    """expar_ll_dispatch_args: LlDispatchArgs."""
    return "".join(part.capitalize() for part in name.split("_")[1:])


def prefix_of(names):
    """The common start of all, up to an underscore."""
    first, last = min(names), max(names)
    length = next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), len(first))
    return first[: first.rfind("_", 0, length) + 1]


def ctype(text, structs, enums):
    """The ctypes expression of a C type, as the table and the headers write it."""
    array = re.fullmatch(r"(.*\S)\s*\[(\d+)\]", text)
    if array:
        return f"{ctype(array[1], structs, enums)} * {array[2]}"
    bare = re.sub(r"\bconst\b", "", text).strip()
    if "*" in bare or bare.endswith("_fn") or bare.endswith("]"):
        return "c_char_p" if re.fullmatch(r"const char ?\*", text.strip()) else "c_void_p"
    if bare in structs:
        return class_name(bare)
    return "c_int" if bare in enums else PLAIN[bare]


def python_type(expression):
    """The Python type of such a member."""
    if "*" in expression:
        return f"Array[{expression.split(' *')[0]}]"
    if expression == "c_void_p":
        return "int | None"
    if expression == "c_char_p":
        return "bytes | None"
    return "int" if expression.startswith("c_") else expression


def write_struct(name, table, structs, enums):
    types = [(m["name"], ctype(m["type"], structs, enums)) for m in table["members"]]
    print(f"\n\nclass {class_name(name)}(Structure):")
    for member, expression in types:
        print(f"    {member}: {python_type(expression)}")
    print("    _fields_ = [")
    for member, expression in types:
        print(f'        ("{member}", {expression}),')
    print("    ]")


def write_enum(name, table):
    values = table["values"]
    prefix = prefix_of(list(values))
    print(f"\n\nclass {class_name(name)}(IntEnum):")
    for value_name, value in values.items():
        print(f"    {value_name[len(prefix):]} = {value}")


def declarations(header):
    """(name, what it returns, its parameters) of the calls that a header declares, those of macros left out."""
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.S)
    text = re.sub(r"^#.*(\\\n.*)*", "", text, flags=re.M)
    for match in re.finditer(r"EXPAR_API\s+([^;]*?)(expar_\w+)\s*\(([^;]*?)\);", text, flags=re.S):
        yield match[2], " ".join(match[1].split()), " ".join(match[3].split())


def parameter_type(text):
    """Without the parameter's name; an array is a pointer."""
    text = re.sub(r"\[\w*\]$", "*", text.strip())
    return re.sub(r"\w+(\*?)$", r"\1", text).strip()


def write_calls(include, structs, enums):
    print("\n\n# Results and arguments of each call. The loader of the library has each Status checked.")
    print("CALLS: dict[str, tuple[Any, list[Any]]] = {")
    for header in sorted(include.glob("expar/*.h")):
        if OTHER_HEADERS.match(header.name):
            continue
        for name, returned, parameters in declarations(header):
            texts = [] if parameters == "void" else [parameter_type(p) for p in parameters.split(",")]
            arguments = ", ".join(ctype(text, structs, enums) for text in texts)
            result = "None" if returned == "void" else ctype(returned, structs, enums)
            if returned == "expar_status":
                result = "Status"
            line = f'    "{name}": ({result}, [{arguments}]),'
            if len(line) <= 120:
                print(line)
                continue
            print(f'    "{name}": (\n        {result},\n        [')
            for text in texts:
                print(f"            {ctype(text, structs, enums)},")
            print("        ],\n    ),")
    print("}")


HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""The public structs, enumerations and calls of libexpar, for ctypes.

Written by tools/abi/bindings.py from the headers: change those, and run it again.
"""
# fmt: off

from __future__ import annotations

from ctypes import (
    Array,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int8,
    c_int16,
    c_int32,
    c_int64,
    c_size_t,
    c_ssize_t,
    c_ubyte,
    c_uint,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Any'''


def main():
    table = json.loads(Path(sys.argv[1]).read_text())
    include = Path(sys.argv[2])
    structs, enums = table["structs"], table["enums"]
    print(HEAD)
    print(f'\nVERSION = "{table["version"]}"')
    for name, enum in enums.items():
        write_enum(name, enum)
    for name, struct in structs.items():
        write_struct(name, struct, structs, enums)
    for title, names in (("STRUCTS: dict[str, type[Structure]]", structs), ("ENUMS: dict[str, type[IntEnum]]", enums)):
        print(f"\n\n# By their names in C.\n{title} = {{")
        for name in names:
            print(f'    "{name}": {class_name(name)},')
        print("}")
    write_calls(include, structs, enums)


if __name__ == "__main__":
    main()
