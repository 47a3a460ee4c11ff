"""Operators of the installed torch_npu, CANN and chip, detected by probing, with a clear error if one is missing.

Only `check_pair` compares versions. Operators are looked up in torch.ops.npu, because vendors' images contain operators
that their version numbers do not imply.
"""

import functools
import logging
import re
from collections.abc import Callable

import torch

logger = logging.getLogger(__name__)

FRACTAL_NZ = 29
A5_FORMATS = {50: "C0_16", 51: "C0_32", 52: "C0_2", 53: "C0_4", 54: "C0_8"}  # FRACTAL_NZ_.., torch_npu/npu/_format.py
A5_DTYPES = ("torch.float8", "torch.float4")
NZ_DTYPES = (torch.int8, torch.float16, torch.bfloat16)
ASCEND_950 = 260  # SocVersion in torch_npu's NpuVariables.h: A2 is 220 and more, A3 250 and more

FIRST_PAIR = "torch_npu 2.7.1 with CANN 8.3.RC1"  # the oldest versions in which this project's operators were looked up
LATER_PAIRS = {
    # listed in op-plugin 7.3.0's op_plugin_functions.yaml, but missing in the wheel of torch_npu 2.7.1
    "npu_grouped_matmul_swiglu_quant_v2": "torch_npu 2.7.1.post2 with CANN 8.5.0",
}
# The CANN version for which each torch_npu was released: torch_npu's README; from 2.10.0 on, vllm-ascend's
# versioning_policy.md, except for 2.10.0.post4, which is from torch_npu's release notes.
CANN_OF = {
    "2.7.1": "8.3.RC1",
    "2.7.1.post1": "8.3.RC2",
    "2.7.1.post2": "8.5.0",
    "2.8.0": "8.3.RC1",
    "2.8.0.post2": "8.5.0",
    "2.9.0": "8.5.0",
    "2.10.0": "9.0.0",
    "2.10.0.post2": "9.0.1",
    "2.10.0.post4": "9.1.0",
}


class MissingOperator(RuntimeError):
    """The installed torch_npu lacks an operator."""


class WrongPair(RuntimeError):
    """The installed versions of torch_npu, torch and CANN are incompatible."""


def has_operator(name: str) -> bool:
    """Return whether the installed torch_npu has an operator; torch.compile can trace this."""
    import torch_npu  # noqa: F401  registers them

    return hasattr(torch.ops.npu, name)


def operator(name: str) -> Callable:
    """Return torch_npu's operator with this name.

    Raises:
        MissingOperator: the operator does not exist; the message names the installed versions and the first that have
            it.
    """
    if not has_operator(name):
        raise MissingOperator(
            f"{name} is not in {installed()}: it needs {LATER_PAIRS.get(name, FIRST_PAIR)} or newer; install that pair"
        )
    import torch_npu

    return getattr(torch_npu, name)


def grouped_matmul_swiglu_quant(
    x_codes_RK: torch.Tensor,
    codes_EKN: torch.Tensor,
    scale_EN: torch.Tensor,
    x_scale_R: torch.Tensor,
    end_E: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes (R, N / 2) and float32 scales (R) of silu(gate) * up, by the newest available fused operator.

    Args:
        codes_EKN: int8 in FRACTAL_NZ. The first version does not check the format, and gives wrong results for others.
        scale_EN: float32.
        end_E: int64, the end of each expert's rows; rows beyond the last end are left undefined. Only some releases of
            the second version support counts instead of ends.
    """
    if has_operator("npu_grouped_matmul_swiglu_quant_v2") and second_swiglu_quant_traces():
        second = operator("npu_grouped_matmul_swiglu_quant_v2")
        return second(x_codes_RK, [codes_EKN], [scale_EN], x_scale_R, end_E)
    first = operator("npu_grouped_matmul_swiglu_quant")
    codes_RH, scale_R, _ = first(x_codes_RK, codes_EKN, end_E, scale_EN, x_scale_R)
    return codes_RH, scale_R


@torch.compiler.assume_constant_result  # torch.compile evaluates this, and does not trace it
def second_swiglu_quant_traces() -> bool:
    """Return whether the Meta kernel of npu_grouped_matmul_swiglu_quant_v2 accepts the operator's own defaults.

    That of torch_npu 2.10.0.post4 does not: it rejects dequant_dtype 0, which is the default and the only documented
    value. Devices do not run the Meta kernel, but torch.compile, torch.export and fake tensors do. The first version
    gives the same bytes.
    """
    return _second_swiglu_quant_traces()


@functools.cache
def _second_swiglu_quant_traces() -> bool:
    x_RK, codes_EKN = (torch.empty(shape, dtype=torch.int8, device="meta") for shape in ((1, 32), (1, 32, 64)))
    scale_EN, x_scale_R = (torch.empty(shape, device="meta") for shape in ((1, 64), (1,)))
    end_E = torch.empty(1, dtype=torch.int64, device="meta")
    try:
        operator("npu_grouped_matmul_swiglu_quant_v2")(x_RK, [codes_EKN], [scale_EN], x_scale_R, end_E)
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        logger.warning(
            "npu_grouped_matmul_swiglu_quant is used instead of its second version: the Meta kernel in %s rejects the "
            "second version's own defaults: %s",
            installed(),
            reason,
        )
        return False
    return True


def installed() -> str:
    """Return the versions of torch_npu and, if the runtime reports it, CANN."""
    import torch_npu

    cann = cann_version()
    return f"torch_npu {torch_npu.__version__}" + (f" with CANN {cann}" if cann else "")


def cann_version() -> str:
    """Return the version of the CANN runtime, such as "8.5.0"; empty before 8.1.RC1, which does not report it."""
    from torch_npu.npu.utils import get_cann_version

    return get_cann_version()


def check_pair() -> None:
    """Check that torch_npu is compatible with torch, and with CANN if both versions are known.

    Raises:
        WrongPair: the versions are incompatible; the message names them and what to install.
    """
    import torch_npu

    found, torch_found = torch_npu.__version__, torch.__version__
    if _numbers(found)[:3] != _numbers(torch_found)[:3]:
        wanted = ".".join(map(str, _numbers(found)[:3]))
        raise WrongPair(f"torch_npu {found} needs torch {wanted}, not {torch_found}: install torch=={wanted}")
    cann, needed = cann_version(), CANN_OF.get(found.partition("+")[0], "")
    if cann and _numbers(cann)[:2] < _numbers(needed)[:2]:
        raise WrongPair(
            f"torch_npu {found} was released for CANN {needed}, but CANN {cann} is installed: install CANN "
            f"{needed}, or a torch_npu for the installed CANN"
        )


def check_dtype(dtype: torch.dtype) -> None:
    """Return whether the chip supports a dtype.

    Raises:
        ValueError: fp8 or fp4 on a chip older than Ascend 950.
    """
    if str(dtype).startswith(A5_DTYPES) and not _is_a5():
        raise ValueError(f"{dtype} needs Ascend 950 (A5), but this is {_chip()}: choose the scheme int8")


def check_cast(tensor: torch.Tensor, acl_format: int) -> None:
    """Check that npu_format_cast supports a tensor and format on this chip; torch_npu may silently cast to ND instead.

    Raises:
        ValueError: the format or the dtype needs Ascend 950, or FRACTAL_NZ does not support the tensor here.
    """
    check_dtype(tensor.dtype)
    if acl_format in A5_FORMATS and not _is_a5():
        name = f"FRACTAL_NZ_{A5_FORMATS[acl_format]}"
        raise ValueError(
            f"format {acl_format} ({name}) needs Ascend 950 (A5), but this is {_chip()}: use FRACTAL_NZ ({FRACTAL_NZ})"
        )
    if acl_format != FRACTAL_NZ or _is_a5():
        return
    if tensor.dtype not in NZ_DTYPES:
        names = ", ".join(str(dtype) for dtype in NZ_DTYPES)
        raise ValueError(f"FRACTAL_NZ cannot hold {tensor.dtype}, only {names}: cast it to one of them or keep it ND")
    if tensor.dim() not in (2, 3):
        raise ValueError(
            f"FRACTAL_NZ is for matrices (K, N) and stacks (E, K, N), not for shape {tuple(tensor.shape)}: "
            "reshape the tensor or keep it ND"
        )


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of a version: [8, 3] of 8.3.RC1, [2, 7, 1] of 2.7.1.post2."""
    return [int(number) for number in re.match(r"[\d.]*", version)[0].split(".") if number]


def _is_a5() -> bool:
    import torch_npu

    return torch_npu.npu.get_soc_version() >= ASCEND_950


def _chip() -> str:
    import torch_npu

    return torch_npu.npu.get_device_name()
