"""Versions, the chip, and which of the operators that we use exist."""

import os
import platform
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from npu_smoke.checks import Setting, check, require, without_traces

PACKAGES = ("torch", "torch-npu", "numpy", "vllm", "vllm-ascend", "transformers", "verl", "triton-ascend", "rich")
VARIABLES = (
    *("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_RT_VISIBLE_DEVICES"),
    *("ASCEND_LAUNCH_BLOCKING", "ASCEND_GLOBAL_LOG_LEVEL", "TASK_QUEUE_ENABLE", "CPU_AFFINITY_CONF"),
    *("PYTORCH_NPU_ALLOC_CONF", "INF_NAN_MODE_ENABLE", "INF_NAN_MODE_FORCE_DISABLE", "COMBINED_ENABLE"),
    *("ACL_OP_COMPILER_CACHE_MODE", "MULTI_STREAM_MEMORY_REUSE", "STREAMS_PER_DEVICE", "OMP_NUM_THREADS"),
    *("TORCH_DEVICE_BACKEND_AUTOLOAD", "VLLM_ASCEND_ENABLE_NZ", "HCCL_OP_EXPANSION_MODE"),
)
CANN_FILES = ("*-linux/ascend_toolkit_install.info", "*-linux/ascend_*_install.info", "compiler/version.info")
WITHOUT_THEM_NOTHING_WORKS = ("npu_format_cast", "npu_dynamic_quant", "npu_quant_matmul", "npu_grouped_matmul")
OPERATORS = (
    *WITHOUT_THEM_NOTHING_WORKS,
    *("npu_grouped_matmul_swiglu_quant", "npu_grouped_matmul_swiglu_quant_v2", "npu_dequant_swiglu_quant"),
    *("npu_swiglu", "npu_quantize", "npu_trans_quant_param", "npu_format_cast_", "empty_with_format"),
    *("copy_memory_", "npu_moe_init_routing_v2", "npu_moe_token_unpermute", "npu_moe_gating_top_k"),
)
PRIVATE = ("_construct_storage_from_data_pointer", "_construct_NPU_Tensor_From_Storage_And_Metadata")


@check("environment.versions", needed=False)
def versions(on: Setting, numbers: dict) -> None:
    """Which versions, and which chip?"""
    import torch_npu

    numbers["packages"] = {name: _installed(name) for name in PACKAGES}
    numbers["python"], numbers["machine"] = platform.python_version(), platform.machine()
    numbers["host cores"] = os.cpu_count()
    for part in ("driver", "firmware"):
        numbers[part] = _attempt(lambda part=part: _version_in(Path(f"/usr/local/Ascend/{part}/version.info")))
    home = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH") or ""
    numbers["cann by torch_npu"] = _attempt(lambda: torch.npu.utils.get_cann_version())
    numbers["cann by its folder"] = _attempt(lambda: _version_in(_one_of(home, *CANN_FILES)))
    numbers["chip"] = _attempt(lambda: torch.npu.get_device_name(on.device))
    numbers["soc version"] = _attempt(lambda: torch_npu._C._npu_get_soc_version())
    numbers["devices"] = _attempt(torch.npu.device_count)
    numbers["free and total bytes"] = _attempt(lambda: list(torch.npu.mem_get_info(on.device)))
    numbers["properties"] = _attempt(lambda: _properties(on.device))
    numbers["jit compile is off"] = _attempt(torch.npu.is_jit_compile_false)
    numbers["variables"] = {name: _shown(os.environ[name]) for name in VARIABLES if name in os.environ}


@check("environment.operators", claim="versions")
def operators(on: Setting, numbers: dict) -> None:
    """Does this torch_npu have the operators that nothing works without?"""
    import torch_npu

    numbers["schemas"] = {name: _schemas(name) for name in OPERATORS}
    numbers["private"] = {name: hasattr(torch_npu._C, name) for name in PRIVATE}
    numbers["graphs"] = hasattr(torch.npu, "NPUGraph")
    missing = [name for name in WITHOUT_THEM_NOTHING_WORKS if not numbers["schemas"][name]]
    require(not missing, f"torch_npu {torch_npu.__version__} has no {', '.join(missing)}")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _attempt(ask: Callable[[], object]) -> object:
    """What it returns, or why not: one unknown must not hide the others."""
    try:
        return ask()
    except Exception as why:
        return without_traces(f"unknown: {type(why).__name__}: {why}")[:200]


def _version_in(file: Path) -> str:
    """The first line of a version file that has a version."""
    found = re.search(r"(?im)^version *[=:] *([\w.-]+)", file.read_text())
    if found is None:
        raise ValueError(f"no version in {file.name}")
    return found[1]


def _one_of(folder: str, *patterns: str) -> Path:
    found = [path for pattern in patterns for path in sorted(Path(folder or "/nonexistent").glob(pattern))]
    if not found:
        raise FileNotFoundError(f"no {' or '.join(patterns)} where ASCEND_TOOLKIT_HOME points")
    return found[0]


def _properties(device: torch.device) -> dict[str, object]:
    properties = torch.npu.get_device_properties(device)
    names = ("total_memory", "cube_core_num", "vector_core_num", "L2_cache_size")
    return {name: getattr(properties, name, None) for name in names}


def _schemas(name: str) -> list[str]:
    """The operator's overloads as torch_npu declares them; none where there is no such operator."""
    packet = getattr(torch.ops.npu, name, None)
    return [] if packet is None else [str(getattr(packet, overload)._schema) for overload in packet.overloads()]


def _shown(value: str) -> str:
    return "(a path)" if "/" in value else value
