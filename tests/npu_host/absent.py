"""Python packages that vllm-ascend imports by name and only a host with CANN has."""

import sys
from types import ModuleType

LINEAR_ATTENTION = "fla_npu.ops.ascendc"  # vllm-ascend 0.30's, on no package index


class Absent(ModuleType):
    """A module with any name in it; what is called refuses."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(f"{self.__name__} stands in for what is not here and has no {name}")

        def refuse(*args, **kwargs):
            raise NotImplementedError(f"{self.__name__}.{name} does not run on host memory")

        return refuse


def stand_in(module: str) -> None:
    """Makes a module and the packages that it is in importable, unless they are there."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        sys.modules.setdefault(name, Absent(name))
