"""python -m npu_smoke.profiled: what msprof watches: refits of a layer of 7B and some experts, then single operators.

A marker stands before and after each section; their names go into the file that NPU_SMOKE_SECTIONS names.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

MARKER = "Sinh"  # the kernel of torch.sinh, which nothing else here launches


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--refits", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    import torch
    import torch_npu  # noqa: F401  gives torch the device

    torch.npu.set_device(options.device)
    torch.npu.config.allow_internal_format = True
    from npu_smoke.checks import Setting
    from npu_smoke.graphs import Residents
    from npu_smoke.quantize import shapes, stack

    on = Setting(torch.device(options.device), options.small)
    refit = Residents(on, [*shapes(on), stack(on)])
    sections = {"refits": lambda: [refit() for _ in range(options.refits)], **_operators(on)}
    for call in (refit, *list(sections.values())[1:]):  # compiled and allocated before
        call()
    mark = torch.ones(16, device=on.device)
    mark.sinh()
    for call in sections.values():
        call()
        torch.npu.synchronize()
        mark.sinh()
    torch.npu.synchronize()
    elements = refit.bytes // 2
    Path(os.environ["NPU_SMOKE_SECTIONS"]).write_text(",".join([str(elements), *sections]))


def _operators(on) -> dict[str, Callable[[], object]]:
    """Single calls, of a matrix as large as the gate projection of 7B."""
    import torch
    import torch_npu

    n, k = (128, 64) if on.small else (18944, 3584)
    x_NK = torch.empty(n, k, dtype=torch.bfloat16, device=on.device).normal_(0, 0.02)
    codes_NK, x32_NK = torch.ones(n, k, dtype=torch.int8, device=on.device), x_NK.float()
    panels, factor_N = torch.empty(n // 32, k, 32, dtype=torch.int8, device=on.device), torch.ones(n, device=on.device)
    digits, one = torch.ones(k, 16, dtype=torch.int8, device=on.device), torch.ones(1, device=on.device)
    counts, index = (
        torch.zeros(4, dtype=torch.int64, device=on.device),
        torch.zeros(n, dtype=torch.int32, device=on.device),
    )
    return {
        "copy": lambda: panels.copy_(panels + 1),
        "float": lambda: x_NK.float(),
        "abs amax": lambda: x_NK.abs().amax(1),
        "vector_norm inf": lambda: torch.linalg.vector_norm(x_NK, float("inf"), dim=1),
        "isfinite not sum": lambda: (~torch.isfinite(x_NK)).sum(1),
        "npu_quantize": lambda: torch_npu.npu_quantize(x32_NK, factor_N, None, torch.qint8, axis=-2, div_mode=False),
        "npu_quant_matmul": lambda: torch_npu.npu_quant_matmul(codes_NK, digits, one, output_dtype=torch.int32),
        "copy into panels": lambda: panels.copy_(codes_NK.view(-1, 32, k).transpose(1, 2)),
        "index_select": lambda: torch.index_select(factor_N, 0, index),
        "index_add int64": lambda: counts.index_add_(0, index, counts),
        "bitwise_xor int32": lambda: factor_N.view(torch.int32) ^ 0x00808080,
    }


if __name__ == "__main__":
    main()
