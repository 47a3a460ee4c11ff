"""The facts about a host that the checks compare with what a run wants of it, each looked up once."""

import os
import platform
from functools import cached_property
from pathlib import Path

from launch.doctor import drivers
from launch.environment import network
from launch.plan import Wanted
from launch.recipes.stacks import pins
from launch.system import software

GIB, MIB = 1 << 30, drivers.MIB


class Facts:
    """The facts about this host that several checks read."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.kind = pins(wanted.stack).devices  # `npu`, `gpu` or `none`
        self.variables = {**os.environ, **wanted.environment}
        self.python = platform.python_version()

    @cached_property
    def devices(self) -> drivers.Devices:
        """Devices of the stack's kind, as reported by their driver."""
        return drivers.devices(self.kind)

    @cached_property
    def packages(self) -> dict[str, software.Package]:
        """Installed packages by normalized name."""
        return software.installed_packages()

    @cached_property
    def cann(self) -> tuple[str | None, str]:
        """The version of the CANN toolkit and its file; or None, and the places that were searched."""
        return software.cann_version(Path("/"), self.variables)

    @cached_property
    def nics(self) -> dict[str, list[str]]:
        """Interfaces that are up, with their addresses."""
        return network.nics()
