"""Names a wheel after the platform of its program."""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Platform(BuildHookInterface[Any]):
    """WHEEL_PLATFORM, such as macosx_11_0_arm64. The program needs no Python, so any version will do."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ['WHEEL_PLATFORM']}"
