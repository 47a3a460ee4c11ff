"""The values that the checks read: a run's requirements for a host, and facts about it, each looked up once."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from launch.cluster.inventory import Ports
from launch.doctor import drivers
from launch.environment import network
from launch.plan import Inputs
from launch.recipes.stacks import pins
from launch.system import software

GIB, MIB = 1 << 30, drivers.MIB


@dataclass(frozen=True)
class Wanted(Inputs):
    """A run's requirements for one host; sent there as JSON."""

    stack: str = "cpu"
    hosts: int = 1  # in the whole run
    head: bool = True  # whether this is the first host
    address: str | None = None  # as in the inventory; None if the run uses only this machine
    nic: str = "auto"
    devices: Literal["auto"] | int | list[int] = "auto"
    ports: Mapping[str, int | str] = field(default_factory=lambda: Ports().model_dump())  # none: Ray runs already
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that the user sets on this host
    device_gib: int | None = None  # required by the recipe
    host_gib: int | None = None
    targets: list[tuple[str, int]] = field(default_factory=list)  # (host, port) that must be reached from here
    sleeps: bool = True  # whether the engine releases its memory between rollouts (vLLM's sleep mode)


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
