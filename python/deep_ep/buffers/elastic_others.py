# SPDX-License-Identifier: Apache-2.0
"""Names that expar lacks of later generations, which move data in other ways than dispatch and combine."""

from __future__ import annotations

from typing import Any, Callable, NoReturn


def _missing(name: str, what: str, instead: str) -> Callable[..., NoReturn]:
    def call(*arguments: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not there: expar has no {what}; {instead}")

    call.__name__ = name
    call.__doc__ = f"NotImplementedError: there is no {what}."
    return call


_GATHER = ("all-gather by copy engines", "torch.distributed.all_gather_into_tensor gathers")
NEIGHBOURS = ("send and receive between ring neighbours", "torch.distributed.send and recv carry tensors")
TABLE = ("fetch of table rows from host memory", "expar.Group has get and put on symmetric memory")


class Missing:
    """Base of classes that can be imported, but not made."""

    _missing: tuple[str, str]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        what, instead = self._missing
        raise NotImplementedError(f"{type(self).__name__} is not there: expar has no {what}; {instead}")


class Others:
    """Defines the names, for programs that try whether they work."""

    get_agrs_num_max_session_bytes = staticmethod(_missing("get_agrs_num_max_session_bytes", *_GATHER))
    get_agrs_buffer_size_hint = staticmethod(_missing("get_agrs_buffer_size_hint", *_GATHER))
    agrs_set_config = _missing("agrs_set_config", *_GATHER)
    create_agrs_session = _missing("create_agrs_session", *_GATHER)
    destroy_agrs_session = _missing("destroy_agrs_session", *_GATHER)
    agrs_new_session = _missing("agrs_new_session", *_GATHER)
    agrs_get_inplace_tensor = _missing("agrs_get_inplace_tensor", *_GATHER)
    all_gather = _missing("all_gather", *_GATHER)

    get_pp_buffer_size_hint = staticmethod(_missing("get_pp_buffer_size_hint", *NEIGHBOURS))
    pp_set_config = _missing("pp_set_config", *NEIGHBOURS)
    pp_send = _missing("pp_send", *NEIGHBOURS)
    pp_recv = _missing("pp_recv", *NEIGHBOURS)

    get_engram_storage_size_hint = staticmethod(_missing("get_engram_storage_size_hint", *TABLE))
    engram_write = _missing("engram_write", *TABLE)
    engram_fetch = _missing("engram_fetch", *TABLE)
