"""Serving on CPUs: int8 uses torch's integer GEMM; other schemes are computed in float32, as in the oracle.

fp8 and int4 weights are unpacked in every GEMM, as are schemes without kernels (`by_definition`): this serves to try a
scheme, not for speed.
"""

import logging
from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F

from ascend_quant import oracle
from ascend_quant.kernels.int4_layouts import PackedRows
from ascend_quant.kernels.registry import ServingTable
from ascend_quant.kernels.storage import Serving, Storage, laid_out
from ascend_quant.schemes import Definition, Scheme, arithmetic, definition_of

logger = logging.getLogger(__name__)

Product = Callable[..., torch.Tensor]  # x (M, K), codes, scale, bias (N) or None -> float32 (M, N)


def storage(scheme: Scheme, shape: tuple[int, ...]) -> Storage:
    """Allocate the buffers of a weight (.., N, K).

    Raises:
        UnregisteredScheme: the scheme is not registered.
        NoKernels: the scheme is not served on CPUs; the message names those that are.
    """
    return SERVING.of(scheme).storage(scheme, shape)


def packed_rows(scheme: Scheme, shape: tuple[int, ...]) -> Storage:
    """Allocate the buffers of an int4 weight: packed codes and group scales."""
    layout = PackedRows(shape, scheme.group)
    return laid_out(layout, layout.scales)


def matmul(
    x: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute the W8A8 product of `oracle.matmul` for x (..., K), in x's dtype."""
    return _linear(_int8_product, x, codes_NK, scale_N, bias_N)


def fp8_matmul(x, codes_NK, scale_N, bias_N=None) -> torch.Tensor:
    """Multiply x by fp8 codes (N, K) with one scale per output channel, in x's dtype."""
    return _linear(_fp8_product, x, codes_NK, scale_N, bias_N)


def fp8_block_matmul(x, codes_NK, scale_IJ, bias_N=None) -> torch.Tensor:
    """Multiply x by fp8 codes with 128x128 block scales; activations have a scale per 128 channels."""
    return _linear(_block_product, x, codes_NK, scale_IJ, bias_N)


def int4_matmul(x, packed, scale_NG, bias_N=None) -> torch.Tensor:
    """Multiply x by BF16(code * scale), for packed int4 codes (N, K/8)."""
    return _linear(_int4_product, x, packed, scale_NG, bias_N)


def _linear(product: Product, x, codes, scale, bias_N) -> torch.Tensor:
    out_MN = product(x.reshape(-1, x.shape[-1]), codes, scale, bias_N)
    return out_MN.to(x.dtype).view(*x.shape[:-1], out_MN.shape[-1])


def int_mm_is_exact() -> bool:
    """Return whether torch._int_mm is exact on this processor, tested with the largest codes.

    Without VNNI, some builds accumulate pairs of products in saturating int16.
    """
    x, w = torch.full((2, 64), 127, dtype=torch.int8), torch.full((3, 64), -127, dtype=torch.int8)
    exact = bool((torch._int_mm(x, w.t()) == -127 * 127 * 64).all())
    if not exact:
        logger.warning("torch._int_mm saturates on this CPU: int8 GEMMs run in float64 (exact but slow)")
    return exact


INT_MM_IS_EXACT = int_mm_is_exact()  # evaluated once, at import, since torch.compile traces the callers


def _integer_product(x_codes_MK: torch.Tensor, codes_NK: torch.Tensor) -> torch.Tensor:
    if codes_NK.shape[1] == 1:  # torch 2.13's _int_mm is wrong for K = 1
        return x_codes_MK.int() * codes_NK.int().T
    if INT_MM_IS_EXACT:
        return torch._int_mm(x_codes_MK, codes_NK.t())
    return x_codes_MK.double() @ codes_NK.double().T


def _int8_product(x_MK, codes_NK, scale_N, bias_N=None) -> torch.Tensor:
    x_codes_MK, x_scale_M = oracle.quantize_rows(x_MK)
    sum_MN = _integer_product(x_codes_MK, codes_NK)
    return arithmetic.dequantized_sums(sum_MN.float(), x_scale_M, scale_N.view(-1), bias_N)


def _fp8_product(x_MK, codes_NK, scale_N, bias_N=None) -> torch.Tensor:
    x_codes_MK, x_scale_M = oracle.quantize_fp8_tokens(x_MK)
    sum_MN = F.linear(x_codes_MK.float(), codes_NK.float())
    return arithmetic.dequantized_sums(sum_MN, x_scale_M, scale_N.view(-1), bias_N)


def _block_product(x_MK, codes_NK, scale_IJ, bias_N=None) -> torch.Tensor:
    w_NK = oracle.dequantize(codes_NK, scale_IJ)
    return F.linear(oracle.round_trip_fp8_groups(x_MK), w_NK, None if bias_N is None else bias_N.float())


def _int4_product(x_MK, packed, scale_NG, bias_N=None) -> torch.Tensor:
    w_NK = oracle.dequantize(oracle.unpack_int4(packed), scale_NG).to(torch.bfloat16)
    return F.linear(x_MK.float(), w_NK.float(), None if bias_N is None else bias_N.float())


def _as_op(function: Callable[..., torch.Tensor], name: str) -> Callable[..., torch.Tensor]:
    """Register the function as a custom op, since torch.compile cannot trace a loop over routed experts."""
    op = torch.library.custom_op(f"ascend_quant::cpu_{name}", function, mutates_args=())
    op.register_fake(lambda x_MK, *_: torch.empty_like(x_MK))
    return op


def _mixture(product: Product, name: str) -> Callable[..., torch.Tensor]:
    """Compute the mixture of `oracle.experts` with the given product."""

    def experts(
        x_MK: torch.Tensor,
        weight_MT: torch.Tensor,
        expert_MT: torch.Tensor,
        w13_codes: torch.Tensor,
        w13_scale: torch.Tensor,
        w2_codes: torch.Tensor,
        w2_scale: torch.Tensor,
        local_G: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the mixture of `oracle.experts`, in x's dtype.

        Args:
            expert_MT: the routed experts, below E, or below G with `local_G`.
            local_G: int32, maps each of the model's G experts to its index in E, or to -1 on other ranks.
        """

        def gate_up(x: torch.Tensor, expert: int) -> torch.Tensor:
            return product(x, w13_codes[expert], w13_scale[expert])

        def down(x: torch.Tensor, expert: int) -> torch.Tensor:
            return product(x, w2_codes[expert], w2_scale[expert])

        return _mixed(x_MK, weight_MT, expert_MT, len(w13_codes), local_G, gate_up, down)

    return _as_op(experts, f"experts_{name}")


experts = _mixture(_int8_product, "int8")


def _plain_experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_ENK: torch.Tensor,
    w2_EKN: torch.Tensor,
    local_G: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the mixture without quantization: each product in x's dtype, summed in float32; see `experts`."""

    def gate_up(x: torch.Tensor, expert: int) -> torch.Tensor:
        return F.linear(x, w13_ENK[expert])

    def down(x: torch.Tensor, expert: int) -> torch.Tensor:
        return F.linear(x, w2_EKN[expert])

    return _mixed(x_MK, weight_MT, expert_MT, len(w13_ENK), local_G, gate_up, down)


plain_experts = _as_op(_plain_experts, "experts_plain")


def _mixed(x_MK, weight_MT, expert_MT, count: int, local_G, gate_up: Callable, down: Callable) -> torch.Tensor:
    """Return the sum over a token's experts of weight * down(silu(gate(x)) * up(x)), in x's dtype."""
    expert_MT = expert_MT if local_G is None else local_G[expert_MT]
    out_MK = torch.zeros(x_MK.shape, dtype=torch.float32, device=x_MK.device)
    for expert in range(count):
        token, slot = (expert_MT == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate, up = gate_up(x_MK[token], expert).chunk(2, dim=-1)
        result = down(F.silu(gate) * up, expert)
        out_MK.index_add_(0, token, result.float() * weight_MT[token, slot].float().unsqueeze(-1))
    return out_MK.to(x_MK.dtype)


def by_definition(scheme: Scheme) -> Serving:
    """Return the products of a scheme that has no kernels, derived from its definition."""
    return _served_by(definition_of(scheme))


@cache
def _served_by(definition: Definition) -> Serving:
    name, per_row = definition.scheme.name, definition.scheme.shares == "row"

    def product(x_MK, codes_NK, scale_NS, bias_N=None) -> torch.Tensor:
        return definition.product(x_MK, codes_NK, scale_NS.view(-1) if per_row else scale_NS, bias_N)

    logger.warning("scheme %s has no CPU kernels: its reference implementation is used (float64, exact but slow)", name)
    return Serving(partial(_linear, product), _mixture(product, name), "the scheme's definition, in float64")


SERVING = ServingTable("cpu", by_definition)
SERVING.register(Serving(matmul, experts, "torch._int_mm" if INT_MM_IS_EXACT else "torch in float64"), "int8")
SERVING.register(Serving(fp8_matmul, _mixture(_fp8_product, "fp8"), "torch in float32"), "fp8", "fp8_tensor")
SERVING.register(Serving(fp8_block_matmul, _mixture(_block_product, "fp8_block"), "torch in float32"), "fp8_block")
SERVING.register(
    Serving(int4_matmul, _mixture(_int4_product, "int4"), "torch in float32", packed_rows), "int4_g128", "int4_g32"
)
