"""The `cpu` platform: verl's trainer and rollout on a machine without an accelerator.

It is registered as "cpu" in verl's PlatformRegistry, and active only with VERL_PLATFORM=cpu. verl's detection never
chooses it, so that a GPU node without a driver still fails.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class CpuDevice(ModuleType):
    """torch.cpu with the torch.cuda functions that verl calls on every device."""

    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)
    manual_seed = staticmethod(torch.manual_seed)
    manual_seed_all = staticmethod(torch.manual_seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def _nothing(self, *_: Any) -> None:
        """Do nothing: a CPU has no caching allocator and no current device."""

    empty_cache = ipc_collect = reset_peak_memory_stats = set_device = _nothing

    def memory_allocated(self, *_: Any) -> int:
        import psutil

        return psutil.Process().memory_info().rss

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        import psutil

        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def get_device_name(self, *_: Any) -> str:
        return "CPU"

    def device_count(self) -> int:
        return 1


class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CpuDevice("ascend_quant.verl.cpu_device")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # only with VERL_PLATFORM=cpu

    def current_device(self) -> str:
        return "cpu"  # verl annotates int, but passes it to torch.device(), where a number means an accelerator

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "VERL_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"  # used only to count: Ray's accelerator ids and verl's resource check support only GPU and NPU

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # weights are then sent through shared memory

    def cudart(self) -> None:
        return None


def register() -> None:
    PlatformRegistry.register(platform="cpu")(PlatformCPU)
