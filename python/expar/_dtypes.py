# SPDX-License-Identifier: Apache-2.0
"""Element types: their names in NumPy, PyTorch and ml_dtypes, and what to do with other types.

This module imports PyTorch or ml_dtypes only when a caller asks for their arrays.
"""

from __future__ import annotations

import functools
from typing import Any

from . import _values
from ._abi import Dtype
from ._warning import warn

# Element types by NumPy's array interface. bfloat16 and float8_e4m3fn are missing: they are names of other packages'
# types.
BY_TYPESTR = {
    "<f2": Dtype.F16,
    "<f4": Dtype.F32,
    "<i4": Dtype.I32,
    "<i8": Dtype.I64,
    "|u1": Dtype.U8,
    "|b1": Dtype.U8,
    "|i1": Dtype.I8,
}
BY_NAME = {
    "bfloat16": Dtype.BF16,
    "float16": Dtype.F16,
    "float32": Dtype.F32,
    "int32": Dtype.I32,
    "int64": Dtype.I64,
    "uint8": Dtype.U8,
    "bool": Dtype.U8,
    "float8_e4m3fn": Dtype.F8E4M3,
    "int8": Dtype.I8,
}
TYPESTR = {value: text for text, value in BY_TYPESTR.items() if text != "|b1"}
# NumPy has no such types, so it gets their bits.
TYPESTR.update({Dtype.BF16: "<u2", Dtype.F8E4M3: "|u1"})
_TORCH_NAME = {value: name for name, value in BY_NAME.items() if name != "bool"}
ELEMENT_BYTES = {dtype: int(typestr[2]) for dtype, typestr in TYPESTR.items()}
_OF_ML_DTYPES = {Dtype.BF16: "bfloat16", Dtype.F8E4M3: "float8_e4m3fn"}


def dtype_of(dtype: Any) -> Dtype:
    """Returns the expar.Dtype of an expar.Dtype, its name ("bf16"), or a NumPy or PyTorch type. TypeError for anything
    else."""
    if isinstance(dtype, Dtype):
        return dtype
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    name = str(name).replace("torch.", "")
    found = BY_NAME.get(name) or Dtype.__members__.get(name.upper())
    if found is None:
        known = ", ".join(BY_NAME)
        raise TypeError(f"dtype: expar has no element type {_values.shown(dtype)}: expected one of {known}")
    return found


def dtype_of_array(typestr: str, type_name: str, argument: str) -> Dtype:
    """Returns the element type of an array by its array interface. type_name: the name of its NumPy type, which tells
    those of ml_dtypes apart. TypeError, with what to pass for that argument, if expar has no such type."""
    found = BY_TYPESTR.get(typestr) or (BY_NAME.get(type_name) if typestr[1:2] == "V" else None)
    if found is None:
        other = _other_of_numpy(typestr, *_passed(argument))
        raise TypeError(f"expar has no element type {type_name or typestr}: pass {other}")
    return found


def _passed(argument: str) -> tuple[str, bool]:
    """Returns the argument as a program may write it, and whether its elements are whole numbers."""
    return argument if argument.isidentifier() else "array", argument.endswith("topk_idx")


def _other_of_numpy(typestr: str, name: str, whole: bool) -> str:
    kind = typestr[1:2]
    if typestr == "<u2" and not whole:
        return f'expar.View({name}, "bf16") if these are the bits of bfloat16, or {name}.astype("int64")'
    if kind in "iu" or (whole and kind == "f"):
        return f'{name}.astype("int64")'
    if kind in "fc":
        return f'{name}{".real" if kind == "c" else ""}.astype("float32")'
    return f"expar.View({name}, dtype) with the type of its elements"


def dtype_of_torch(dtype: Any, argument: str) -> Dtype:
    """Returns the element type of PyTorch's. TypeError, with what to pass for that argument, if expar has no such
    type."""
    found = BY_NAME.get(str(dtype).replace("torch.", ""))
    if found is None:
        name, whole = _passed(argument)
        part = f"{name}.real" if dtype.is_complex else name
        floating = (dtype.is_floating_point or dtype.is_complex) and not whole
        raise TypeError(f"expar has no element type {dtype}: pass {part}.{'float' if floating else 'long'}()")
    return found


def torch_dtype(dtype: Dtype) -> Any:
    """Returns PyTorch's dtype for it."""
    import torch

    return getattr(torch, _TORCH_NAME[dtype])


@functools.lru_cache(maxsize=None)
def _ml_dtypes() -> Any:
    try:
        import ml_dtypes
    except ImportError:
        warn(
            "NumPy has no bfloat16: numpy() returns the bits as uint16 (float8_e4m3fn as uint8), because ml_dtypes is "
            "not installed; install it for arrays of its types"
        )
        return None
    return ml_dtypes


def typed(bits: Any, dtype: Dtype | None) -> Any:
    """Returns the NumPy array of bits as an array of ml_dtypes' type, if the element type is one that NumPy lacks. If
    ml_dtypes is not installed it returns the bits, and warns once."""
    name = _OF_ML_DTYPES.get(dtype) if dtype is not None else None
    if name is None:
        return bits
    ml_dtypes = _ml_dtypes()
    return bits if ml_dtypes is None else bits.view(getattr(ml_dtypes, name))
