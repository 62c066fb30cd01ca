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
import textwrap
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
OTHER_HEADERS = re.compile(r"^(mpi|device|shmem.*)\.h$")


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


# Texts for enumerations that the headers leave without a comment of their own.
PURPOSE = {
    "expar_cmp": "Comparisons of a word with a value, for waits and tests.",
    "expar_device_type": "Devices, with the numbers of DLPack.",
    "expar_dl_code": "Kinds of elements in DLPack.",
    "expar_dl_device_type": "Devices in DLPack.",
    "expar_signal_op": "Says how a put changes its signal.",
    "expar_status": "Says how a call ended. An expar.Error has it as `status`.",
}


def plain(comment):
    """A comment's text in one line."""
    return " ".join(line.strip(" *") for line in comment.strip().splitlines()).strip()


def member_comments(body):
    """The comments of an enumeration's members: after a member on its line, or above it."""
    found, member, end, above = {}, None, 0, None
    for match in re.finditer(r"/\*(.*?)\*/|\b(EXPAR_\w+) = \d+,?", body, re.S):
        if match[2]:
            member, end = match[2], match.end()
            if above is not None:
                found[member] = above
            above = None
        elif member is not None and "\n" not in body[end : match.start()]:
            found[member] = plain(match[1])
        else:
            above = plain(match[1])
    return found


def comments_of(header_text, name):
    """(what the comment above the enumeration says, the comments of its members), or None if it is elsewhere."""
    found = re.search(rf"(?:/\*((?:(?!\*/).)*)\*/\n)?typedef enum {name} {{(.*?)}} {name};", header_text, re.S)
    return None if found is None else (plain(found[1] or ""), member_comments(found[2]))


def statuses(header_text):
    """The texts of the table of statuses."""
    return {f"EXPAR_{name}": text for name, text in re.findall(r'X\((\w+), \d+, +"(.*?)"\)', header_text)}


def enum_docs(include, enums):
    """By enumeration: what it is for, and the texts of its members."""
    docs = {}
    for header in sorted(include.glob("expar/*.h")):
        text = header.read_text()
        docs.update({name: found for name in enums if (found := comments_of(text, name))})
    docs["expar_status"] = ("", statuses((include / "expar" / "status.h").read_text()))
    return docs


def in_python(text, enums):
    """The text with names of Python for members of enumerations."""
    for name, table in enums.items():
        prefix = prefix_of(list(table["values"]))
        for value in table["values"]:
            text = re.sub(rf"\b{value}\b", f"{class_name(name)}.{value[len(prefix):]}", text)
    return text


def write_enum(name, table, docs, enums):
    values = table["values"]
    prefix = prefix_of(list(values))
    about, members = docs[name]
    print(f"\n\nclass {class_name(name)}(Named):")
    lines = textwrap.wrap(in_python(PURPOSE.get(name) or about, enums), 112)
    if members:
        lines.append("")
    for value_name, text in members.items():
        own = f"{value_name[len(prefix):]}: {in_python(text, enums).rstrip('.')}."
        lines += textwrap.wrap(own, 112, subsequent_indent="    ")
    ended = '\n    """' if len(lines) > 1 else '"""'
    print("    " + '"""' + "\n    ".join(lines).replace("\n    \n", "\n\n") + ended + "\n")
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
from typing import Any

from ._named import Named'''


def main():
    table = json.loads(Path(sys.argv[1]).read_text())
    include = Path(sys.argv[2])
    structs, enums = table["structs"], table["enums"]
    print(HEAD)
    print(f'\nVERSION = "{table["version"]}"')
    docs = enum_docs(include, enums)
    for name, enum in enums.items():
        write_enum(name, enum, docs, enums)
    for name, struct in structs.items():
        write_struct(name, struct, structs, enums)
    for title, names in (("STRUCTS: dict[str, type[Structure]]", structs), ("ENUMS: dict[str, type[Named]]", enums)):
        print(f"\n\n# By their names in C.\n{title} = {{")
        for name in names:
            print(f'    "{name}": {class_name(name)},')
        print("}")
    write_calls(include, structs, enums)


if __name__ == "__main__":
    main()
