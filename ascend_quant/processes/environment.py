"""The variables that every process of a stack has, unless the user sets them; docs/environment.md gives the reasons."""

import os
from collections.abc import Mapping

STACK_VARIABLE = "ASCEND_QUANT_STACK"  # set in our images
CHIP_VARIABLE = "ASCEND_QUANT_CHIP"  # set in our images: A2 or A3
RAY = {"RAY_USAGE_STATS_ENABLED": "0"}
EVERY = {
    "HYDRA_FULL_ERROR": "1",
    "PYTHONUNBUFFERED": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
CPU = {
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
NPU = {"VLLM_ASCEND_ENABLE_NZ": "0"}


def environment(stack: str, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process of this stack that uses one machine.

    Args:
        own: the user's variables, which have priority; by default, those of this process.
    """
    of_stack = CPU if stack == "cpu" else NPU if stack.startswith("ascend") else {}
    return {"GLOO_SOCKET_IFNAME": "lo", **RAY, **EVERY, **of_stack, **(os.environ if own is None else own)}
