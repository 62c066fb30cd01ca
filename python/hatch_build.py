# SPDX-License-Identifier: Apache-2.0
"""Hooks of hatchling for the distribution expar-deep-ep: its requirements, and a look for another deep_ep."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from expar_deep_ep import message_about, other_in


class Requirements(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [f"expar=={metadata['version']}", "torch>=2.4"]


class OtherDistribution(BuildHookInterface):
    """`pip install` of a source tree builds with the interpreter that it installs for, so the build can look for
    another distribution there. Nothing of ours runs when pip installs a finished wheel; its import looks then."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("DEEP_EP_WHEEL_FOR_ELSEWHERE") == "1":
            return
        folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
        other = other_in(sorted(folders))
        if other is not None:
            elsewhere = "to build a wheel for another environment, set DEEP_EP_WHEEL_FOR_ELSEWHERE=1"
            sys.exit(f"{message_about(other)}; {elsewhere}")


def get_build_hook() -> type[BuildHookInterface]:
    return OtherDistribution


def get_metadata_hook() -> type[MetadataHookInterface]:
    return Requirements
