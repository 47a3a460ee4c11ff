"""npu_grouped_matmul and its fusions with SwiGLU and quantization, against the oracle."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ascend_quant import oracle
from npu_smoke import data
from npu_smoke.checks import IN_SHORT, Setting, check, require
from npu_smoke.compare import difference
from npu_smoke.data import Tokens
from npu_smoke.products import note_products, require_near

CODES_APART = 0.01  # share of the codes after SwiGLU that may be one off: its exponential is not IEEE's
SCALES_APART = 1e-5
SCALE_OFF = "largest relative error of a scale"


@dataclass
class Layer:
    """A stack of experts' weights (E, N, K) with tokens for them."""

    codes_ENK: torch.Tensor
    scale_EN: torch.Tensor
    tokens: Tokens

    @classmethod
    def of(cls, on: Setting, unaligned: bool = False) -> "Layer":
        experts, width, length, rows = (4, 128, 64, 37) if on.small else (8, 1536, 2048, 512)
        if unaligned:
            width, length = 72, 40
        made = data.generator(51)
        codes = torch.randint(-127, 128, (experts, width, length), generator=made, dtype=torch.int8)
        scale = (torch.rand(experts, width, generator=made) + 0.5) * 0.02 / length**0.5
        return cls(codes, scale, Tokens.of(rows, length, seed=52))

    def shares(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Kinds of distribution, and the rows of each expert."""
        found = data.shares(len(self.tokens.x_MK), len(self.codes_ENK))
        yield from ((name, torch.tensor(counts)) for name, counts in found.items())

    def sums(self, counts: torch.Tensor) -> torch.Tensor:
        """(M, N) float32: the exact products, rounded once."""
        parts = self.tokens.codes_MK.split(counts.tolist())
        return torch.cat([x.double() @ w_NK.double().T for x, w_NK in zip(parts, self.codes_ENK, strict=True)]).float()

    def scales(self, counts: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """(M, N) float32: for each row its expert's scales, rounded to a dtype."""
        return self.scale_EN.to(dtype).float().repeat_interleave(counts, 0)


@check("experts.nd", claim="rule")
def nd(on: Setting, numbers: dict) -> None:
    """Are npu_grouped_matmul's results the oracle's to 1 unit in the last place, plain weights?"""
    _grouped(on, numbers, Layer.of(on), nz=False)


@check("experts.nz", claim="rule")
def nz(on: Setting, numbers: dict) -> None:
    """The same, FRACTAL_NZ weights?"""
    _grouped(on, numbers, Layer.of(on), nz=True)


@check("experts.fp16", needed=False, claim="rule")
def fp16(on: Setting, numbers: dict) -> None:
    """The same, float16 results?"""
    _grouped(on, numbers, Layer.of(on), nz=True, dtype=torch.float16)


@check("experts.unaligned", needed=False, claim="rule")
def unaligned(on: Setting, numbers: dict) -> None:
    """The same, FRACTAL_NZ where K is no multiple of 16 and N none of 32?"""
    _grouped(on, numbers, Layer.of(on, unaligned=True), nz=True)


@check("experts.dequant_swiglu_quant", claim="rule")
def dequant_swiglu_quant(on: Setting, numbers: dict) -> None:
    """Is npu_grouped_matmul to int32 exact, and npu_dequant_swiglu_quant after it near the oracle's?"""
    layer = Layer.of(on)
    w_EKN = data.transposed(layer.codes_ENK, on, nz=True)
    for name, counts in layer.shares():
        sums = grouped(on, layer.tokens.codes_MK, w_EKN, counts, output_dtype=torch.int32)
        exact = layer.sums(counts)
        require(torch.equal(sums.cpu().float(), exact), f"{name}: the int32 products are not exact")
        found = data.operator("npu_dequant_swiglu_quant")(
            sums,
            weight_scale=on.put(layer.scale_EN),
            activation_scale=on.put(layer.tokens.scale_M),
            group_index=on.put(counts),
            activate_left=True,
            quant_mode=1,
        )
        _note_codes(found, layer, counts, numbers, name)
    _require_near_codes(numbers)


@check("experts.swiglu_quant", claim="rule")
def swiglu_quant(on: Setting, numbers: dict) -> None:
    """Is npu_grouped_matmul_swiglu_quant near the oracle's?"""
    operator, layer = data.operator("npu_grouped_matmul_swiglu_quant"), Layer.of(on)
    w_EKN = data.transposed(layer.codes_ENK, on, nz=True)
    for name, counts in layer.shares():
        tokens = (on.put(layer.tokens.codes_MK), on.put(layer.tokens.scale_M))
        found = operator(tokens[0], w_EKN, on.put(counts.cumsum(0)), on.put(layer.scale_EN), tokens[1])
        _note_codes(found, layer, counts, numbers, name)
    _require_near_codes(numbers)


@check("experts.swiglu_quant_v2", needed=False, claim="rule")
def swiglu_quant_v2(on: Setting, numbers: dict) -> None:
    """Is npu_grouped_matmul_swiglu_quant_v2 near the oracle's?"""
    operator, layer = data.operator("npu_grouped_matmul_swiglu_quant_v2"), Layer.of(on)
    w_EKN = data.transposed(layer.codes_ENK, on, nz=True)
    for name, counts in layer.shares():
        tokens = (on.put(layer.tokens.codes_MK), on.put(layer.tokens.scale_M))
        scale_EN, counts_E = on.put(layer.scale_EN), on.put(counts)
        found = operator(tokens[0], [w_EKN], [scale_EN], tokens[1], counts_E, group_list_type=1)
        _note_codes(found, layer, counts, numbers, name)
    _require_near_codes(numbers)


def grouped(on: Setting, x_MK: torch.Tensor, w_EKN: torch.Tensor, counts: torch.Tensor, **more) -> torch.Tensor:
    """npu_grouped_matmul of rows sorted by expert."""
    return data.operator("npu_grouped_matmul")(
        [on.put(x_MK)],
        [w_EKN],
        group_list=on.put(counts),
        group_list_type=1,
        group_type=0,
        split_item=2,
        **more,
    )[0]


def _grouped(on: Setting, numbers: dict, layer: Layer, nz: bool, dtype: torch.dtype = torch.bfloat16) -> None:
    w_EKN = data.transposed(layer.codes_ENK, on, nz)
    tokens_M1 = layer.tokens.scale_M.unsqueeze(1)
    scale_dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32  # the documented combinations
    for name, counts in layer.shares():
        found = grouped(
            on,
            layer.tokens.codes_MK,
            w_EKN,
            counts,
            scale=[on.put(layer.scale_EN.to(scale_dtype))],
            per_token_scale=[on.put(layer.tokens.scale_M)],
            output_dtype=dtype,
        )
        sums, scales = layer.sums(counts), layer.scales(counts, scale_dtype)
        expected = [sums * tokens_M1 * scales, sums * scales * tokens_M1]
        note_products(found, [one.to(dtype) for one in expected], numbers, name)
    require_near(numbers)


def _note_codes(found, layer: Layer, counts: torch.Tensor, numbers: dict, name: str) -> None:
    """How far SwiGLU's codes and scales are from the oracle's."""
    values = layer.sums(counts) * layer.scales(counts) * layer.tokens.scale_M.unsqueeze(1)
    gate, up = values.chunk(2, dim=-1)
    codes, scale = oracle.quantize_rows(F.silu(gate) * up)
    off = float(((found[1].cpu() - scale).abs() / scale).nan_to_num(nan=float("inf")).max())
    numbers[name] = {**difference(found[0], codes), SCALE_OFF: off}


def _require_near_codes(numbers: dict) -> None:
    """The device's exponential is not the host's, so codes and scales are near and not equal."""
    noted = [(name, one) for name, one in numbers.items() if isinstance(one, dict) and SCALE_OFF in one]
    for name, one in noted:
        share = one["differ"] / one["of"]
        text = f"{name}: {100 * share:.2f} % of the codes differ, by {one['largest']}; scales by {one[SCALE_OFF]:.3g}"
        require(one["largest"] <= 1 and share <= CODES_APART and one[SCALE_OFF] <= SCALES_APART, text)
    numbers[IN_SHORT] = f"{sum(one['differ'] for _, one in noted)} of {sum(one['of'] for _, one in noted)} codes differ"
