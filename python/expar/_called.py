# SPDX-License-Identifier: Apache-2.0
"""The names that programs call, in errors of the library, which begin with names of C."""

from __future__ import annotations

from typing import Any

from ._errors import Error

# Calls that take a device, or work on one.
_NAMES = {
    "expar_ep_alloc": "Buffer.alloc",
    "expar_ep_combine": "Buffer.combine",
    "expar_ep_create": "Buffer",
    "expar_ep_dispatch": "Buffer.dispatch",
    "expar_ep_get_buffer_size": "Buffer.bytes_needed",
    "expar_ep_get_layout": "Buffer.layout",
    "expar_ep_query": "Buffer.query",
    "expar_ep_route": "Buffer.route",
    "expar_ep_trim": "Buffer.trim",
    "expar_event_record": "Event.record",
    "expar_event_stream_wait": "Event.stream_wait",
    "expar_ll_combine": "LowLatencyBuffer.combine",
    "expar_ll_create": "LowLatencyBuffer",
    "expar_ll_dispatch": "LowLatencyBuffer.dispatch",
    "expar_ll_get_buffer_size": "LowLatencyBuffer.bytes_needed",
    "expar_ll_get_combine_buffer": "LowLatencyBuffer.combine_buffer",
    "expar_ll_hook_call": "Hook",
    "expar_ll_mask_clean": "LowLatencyBuffer.mask_clean",
    "expar_ll_mask_query": "LowLatencyBuffer.mask_query",
    "expar_ll_mask_set": "LowLatencyBuffer.mask_set",
    "expar_ll_query": "LowLatencyBuffer.query",
    "expar_ll_set_shape": "LowLatencyBuffer.set_shape",
}


def in_python(text: str) -> str:
    """Returns the error text with the name of the Python call in place of that of the C call at its start."""
    end = next((i for i, letter in enumerate(text) if not (letter.isalnum() or letter == "_")), len(text))
    name = _NAMES.get(text[:end])
    return text if name is None else f"expar.{name}{text[end:]}"


def create(kind: str, device: Any, function: Any, *arguments: Any) -> None:
    """Makes the call that creates an object of this class. Its error names the device as the caller did."""
    try:
        function(*arguments)
    except Error as error:
        called = f"expar.{kind}"
        if device is None or not error._text.startswith(called):
            raise
        raise Error(error.status, f"{called}(device={str(device)!r}){error._text[len(called):]}") from None
