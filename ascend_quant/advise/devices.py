"""Devices by name: what their data sheets promise, and what a program reaches of it.

One device is what the engine counts with `--tp`: a GPU, an Ascend 910B (A2), or one of the two dies of an Ascend 910C
(A3). Only the H200 was measured by this project. The others are taken to reach the same fractions of their data sheets.
Rates are of dense products, without sparsity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ascend_quant.advise import AdviceError

SCHEMES = ("bf16", "int8", "fp8")
GIB = 2**30
FIGURES = 1e6, 1e21  # a second: between them lies what any device does


@dataclass(frozen=True)
class Device:
    """What one device can do.

    Attributes:
        about: which product this is.
        bandwidth: of its memory, bytes/s.
        rates: of dense products, operations/s by scheme; a scheme that it has no units for is left out.
        memory: bytes.
        link: to the other devices of one engine, bytes/s in one direction.
        all_reduce_seconds: of a message so small that its bytes do not count.
        npu: whether vllm-ascend serves on it.
        source: where bandwidth and rates come from.
    """

    name: str
    about: str
    bandwidth: float
    rates: Mapping[str, float]
    memory: int
    link: float
    all_reduce_seconds: float
    npu: bool = False
    source: str = "data sheet"


# Latencies: a custom all-reduce of up to 32 KiB takes 3.7 to 5.9 us inside 2, 4 or 8 H100 (sgl-project/sglang pull
# request 2904), taken for all three GPUs; Ascend/msmodeling counts 10 us a collective for A2 and A3.
GPU_ALL_REDUCE, NPU_ALL_REDUCE = 5e-6, 10e-6

DATA_SHEETS = {
    sheet.name: sheet
    for sheet in (
        # Ascend/msmodeling, tensor_cast/device.py, ATLAS_800_A2_313T_64G: 294.9 TFLOP/s in bf16 (313 in fp16), 626
        # TOP/s in int8, 64 GiB, 1.6 TB/s, 196 GB/s of HCCS. Other 910B: 376T (353.9 bf16, 752 int8), 280T (245.8, 560).
        Device(
            "A2",
            "Ascend 910B3 of an Atlas 800T A2 (the variant of 313 TFLOP/s fp16 and 64 GiB)",
            1.6e12,
            {"bf16": 294.9e12, "int8": 626e12},
            64 * GIB,
            196e9,
            NPU_ALL_REDUCE,
            npu=True,
        ),
        # The same file, ATLAS_800_A3_752T_128G_DIE, one die: 353.9 TFLOP/s in bf16 (376 in fp16), 752 TOP/s in int8,
        # 64 GiB, 1.6 TB/s, 196 GB/s to other packages. The package has twice that (arXiv 2506.12708, CloudMatrix384).
        Device(
            "A3",
            "one die of the two of an Ascend 910C: what npu-smi and vLLM call a device",
            1.6e12,
            {"bf16": 353.9e12, "int8": 752e12},
            64 * GIB,
            196e9,
            NPU_ALL_REDUCE,
            npu=True,
        ),
        # NVIDIA A100 data sheet, SXM 80 GB: 2039 GB/s, 312 TFLOP/s bf16, 624 TOP/s int8, NVLink 600 GB/s both ways.
        Device(
            "A100",
            "A100 SXM, 80 GB",
            2.039e12,
            {"bf16": 312e12, "int8": 624e12},
            80 * GIB,
            300e9,
            GPU_ALL_REDUCE,
        ),
        # NVIDIA H100 data sheet, SXM: 3.35 TB/s, half of 1979 (bf16) and of 3958 (int8, fp8) with sparsity, NVLink 900.
        Device(
            "H100",
            "H100 SXM, 80 GB",
            3.35e12,
            {"bf16": 989.5e12, "int8": 1979e12, "fp8": 1979e12},
            80 * GIB,
            450e9,
            GPU_ALL_REDUCE,
        ),
        # NVIDIA H200 data sheet, SXM: 4.8 TB/s and 141 GB, else as the H100. nvidia-smi shows 143771 MiB = 140.4 GiB.
        Device(
            "H200",
            "H200 SXM, 141 GB",
            4.8e12,
            {"bf16": 989.5e12, "int8": 1979e12, "fp8": 1979e12},
            140 * GIB,
            450e9,
            GPU_ALL_REDUCE,
        ),
    )
}

# Measured on one H200 (DESIGN.md; vLLM 0.23.0, torch 2.11.0): a large copy, and products of 8192 x 8192 x 8192.
H200 = replace(
    DATA_SHEETS["H200"],
    bandwidth=4.27e12,
    rates={"bf16": 695e12, "int8": 1279e12, "fp8": 1210e12},
    source="measured: a large copy, products of 8192^3",
)


def get_device(name: str, bandwidth: float | None = None, rates: Mapping[str, float | None] | None = None) -> Device:
    """What the device called `name` reaches.

    Args:
        bandwidth: bytes/s of a large copy, in place of the table's.
        rates: operations/s of large products by scheme, in place of the table's; None leaves the table's.

    Raises:
        AdviceError: no such device, a figure that no device has, a rate for a scheme that the device does not have.
    """
    if name not in DATA_SHEETS:
        raise AdviceError(f"no device {name!r:.80}; known: {', '.join(DATA_SHEETS)}")
    device = H200 if name == "H200" else _as_the_h200(DATA_SHEETS[name])
    given = {scheme: rate for scheme, rate in (rates or {}).items() if rate is not None}
    for scheme in given:
        if scheme not in device.rates:
            raise AdviceError(f"{name} has no {scheme} units: leave out --{scheme}-rate")
    for what, figure in {"bandwidth": bandwidth, **{f"{s}-rate": rate for s, rate in given.items()}}.items():
        if figure is not None and not FIGURES[0] <= figure <= FIGURES[1]:
            least, most = (figure / 1e12 for figure in FIGURES)
            raise AdviceError(f"--{what} must be a number from {least:g} to {most:g}, not {figure / 1e12:g}")
    if bandwidth is None and not given:
        return device
    changed = ", ".join([*(["bandwidth"] if bandwidth is not None else []), *(f"{scheme} rate" for scheme in given)])
    return replace(
        device,
        bandwidth=device.bandwidth if bandwidth is None else bandwidth,
        rates={**device.rates, **given},
        source=f"{changed} given; the rest {device.source}",
    )


def _as_the_h200(sheet: Device) -> Device:
    """A device that reaches of its data sheet what the H200 reaches of its own: 0.89 of the bandwidth, and so on."""
    promised = DATA_SHEETS["H200"]
    return replace(
        sheet,
        bandwidth=sheet.bandwidth * H200.bandwidth / promised.bandwidth,
        rates={scheme: rate * H200.rates[scheme] / promised.rates[scheme] for scheme, rate in sheet.rates.items()},
        source="data sheet, times the fractions of it that a measured H200 reaches; nobody measured this device here",
    )
