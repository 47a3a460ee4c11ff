"""Operands for our serving functions on npu:0, and what they should give: integers and float32, expert by expert.

Shape suffixes as in kernels/npu/serve/experts.py.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_quant.kernels.npu import ops as npu_ops
from ascend_quant.kernels.npu.refit.formats import new_codes
from ascend_quant.kernels.npu.serve import experts as npu_experts
from ascend_quant.kernels.npu.serve import linear as npu_linear
from npu_host import formats

BF16, F16, F32, I8, I32 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int32
ROUNDING = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-24}  # half a step, relative
FORMS = {"apart": npu_experts.experts, "fused": npu_experts.fused_experts}
# For direct calls of the second version: its default where its Meta kernel takes that, else what it takes for float32.
SECOND_NEEDS = {} if npu_ops.second_swiglu_quant_traces() else {"dequant_dtype": F32}
SWIGLU_QUANT = ("npu_dequant_swiglu_quant", "npu_grouped_matmul_swiglu_quant", "npu_grouped_matmul_swiglu_quant_v2")


class Results(TorchDispatchMode):
    """Keeps what NPU operators return, by their names."""

    def __init__(self):
        super().__init__()
        self.of: dict[str, tuple] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == "npu":
            self.of[func.__name__.split(".")[0]] = result
        return result

    @property
    def hidden(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales between the experts' two products."""
        codes, scale = next(self.of[name] for name in SWIGLU_QUANT if name in self.of)[:2]
        return codes.cpu(), scale.cpu()


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def int8(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, dtype=I8, generator=generator(seed))


def activations(seed: int, m: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    """One row is zero, another is large."""
    x_MK = torch.randn(m, k, generator=generator(seed))
    x_MK[0] *= 10
    x_MK[1:2] = 0
    return x_MK.to(dtype)


def scales(seed: int, *shape: int) -> torch.Tensor:
    return (torch.rand(shape, generator=generator(seed)) + 0.1) / 500


def resident(codes_NK: torch.Tensor, nz: bool) -> torch.Tensor:
    """Codes (.., N, K) where an engine keeps them: (.., K, N) on the NPU, written row by row."""
    *stack, n, k = codes_NK.shape
    with torch.device("npu"):
        layout = new_codes((*stack, k, n), nz)
    layout.write(0, codes_NK.reshape(-1, k).npu())
    assert formats.format_of(layout.tensor) == (formats.NZ if nz else formats.ND)
    return layout.tensor


def sums_of(x_codes_MK: torch.Tensor, codes_NK: torch.Tensor) -> torch.Tensor:
    return (x_codes_MK.long() @ codes_NK.long().T).float()


class Case:
    """A layer of experts and some tokens; w2's scales and the routing weights are bfloat16's, the others float32's."""

    def __init__(self, seed: int, expert_MT: torch.Tensor, e: int, k: int, h: int, dtype=BF16, local_G=None, nz=True):
        m, t = expert_MT.shape
        self.x_MK, self.expert_MT, self.local_G = activations(seed, m, k, dtype), expert_MT.to(I32), local_G
        self.weight_MT = torch.rand(m, t, generator=generator(seed)).to(BF16).float()
        self.w13 = int8(seed, e, 2 * h, k), scales(seed, e, 2 * h) * (12 / k**0.5)
        self.w2 = int8(seed + 1, e, k, h), scales(seed + 1, e, k).to(BF16).float()
        self.residents = resident(self.w13[0], nz), resident(self.w2[0], nz)
        self.dtype = dtype

    def run(self, form: str) -> torch.Tensor:
        return FORMS[form](*self.arguments()).cpu()

    def arguments(self) -> tuple:
        w13, w2 = (part.transpose(1, 2) for part in self.residents)
        tensors = (self.x_MK, self.weight_MT, self.expert_MT, w13, self.w13[1], w2, self.w2[1], self.local_G)
        return tuple(None if value is None else value.npu() for value in tensors)

    @property
    def local_MT(self) -> torch.Tensor:
        return self.expert_MT if self.local_G is None else self.local_G[self.expert_MT.long()]

    def slots(self) -> list[tuple[int, int, int]]:
        """(expert, token, slot) of each row, in the order of the rows."""
        m, t = self.expert_MT.shape
        here = [(int(self.local_MT[i, j]), i, j) for i in range(m) for j in range(t) if self.local_MT[i, j] >= 0]
        return sorted(here, key=lambda entry: entry[0])

    def hidden(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The formula of the documentation in float32, expert by expert."""
        x_codes_MK, x_scale_M = (part.cpu() for part in npu_linear.quantize_rows(self.x_MK.npu()))
        values = [torch.empty(0, self.w13[0].shape[1])]
        for expert, token, _ in self.slots():
            sums_1N = sums_of(x_codes_MK[token : token + 1], self.w13[0][expert])
            values.append(sums_1N * self.w13[1][expert] * x_scale_M[token])
        gate, up = torch.cat(values).chunk(2, dim=-1)
        activated_RH = gate * torch.sigmoid(gate) * up
        scale_R = activated_RH.abs().amax(-1) / torch.tensor(127.0)
        ratio_RH = torch.where(scale_R.unsqueeze(1) > 0, activated_RH / scale_R.unsqueeze(1), 0.0)
        return ratio_RH.round().to(I8), scale_R

    def mixed(self, codes_RH: torch.Tensor, scale_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum over a token's experts in float64, from hidden codes, and the sum of magnitudes."""
        out_MK = torch.zeros(self.x_MK.shape, dtype=torch.float64)
        size_MK = torch.zeros_like(out_MK)
        for row, (expert, token, slot) in enumerate(self.slots()):
            down_1K = sums_of(codes_RH[row : row + 1], self.w2[0][expert]) * self.w2[1][expert] * scale_R[row]
            part_K = self.weight_MT[token, slot].double() * down_1K.to(self.dtype).double()[0]
            out_MK[token] += part_K
            size_MK[token] += part_K.abs()
        return out_MK, size_MK
