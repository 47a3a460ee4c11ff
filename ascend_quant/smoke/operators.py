"""A probe of a device's kernels: a few weights in each supported scheme, compared with the oracle on the host.

Codes, scales, digests and fake-quantized values must have the oracle's bits. GEMMs round to BF16 and have their own
summation order, so their error relative to the norm is checked.
"""

from itertools import pairwise
from types import ModuleType

import torch

from ascend_quant import oracle, qat
from ascend_quant.integrations.vllm.layers import register_products
from ascend_quant.kernels import kernels_for
from ascend_quant.kernels.storage import Storage
from ascend_quant.refit import Refit, resident_class
from ascend_quant.schemes import SCHEMES, Scheme
from ascend_quant.smoke.probes import On, Seen, differing, need, probe

SHAPES = ((448, 512), (128, 1024), (1024, 896))  # (N, K) that all schemes and kernels support
ODD = (173, 90)  # divisible by nothing; for int8 only
TOKENS = (1, 17, 64)
ERROR = 0.006  # relative to the product's norm: BF16 has 8 bits, and a few codes are off by one


@probe("operators.schemes", "every scheme's codes, scales, digests and products are the definition's", ("cpu", "cuda"))
def schemes(on: On) -> Seen:
    """Test every scheme that the device serves; unsupported ones (such as fp8 on old GPUs) are skipped."""
    need("vllm")  # registers its products
    seen = Seen()
    register_products(on.device.type)
    kernels = kernels_for(on.device)
    for name, serving in kernels.SERVING.items():
        scheme, errors = SCHEMES[name], []
        for shape in [*SHAPES, ODD] if name == "int8" else SHAPES:
            try:
                with on.device:
                    storage = kernels.storage(scheme, shape)
            except ValueError as why:
                seen.values[name] = f"not here: {why}"
                break
            w_NK = _random(shape, seed=sum(shape))
            found = [*written(storage, scheme, w_NK, on.device), *_faked(kernels, scheme, w_NK, on.device)]
            seen.problems += [f"{name}, {shape[0]} x {shape[1]}: {problem}" for problem in found]
            errors += [_product_error(kernels, storage, scheme, w_NK, tokens, on.device) for tokens in TOKENS]
        else:
            worst = max(errors, key=lambda error: (error != error, error))  # NaN is the worst
            seen.values[name] = {"by": serving.by, "product error": worst}
            seen.holds(
                worst <= ERROR, f"{name}: products are off by {worst:.3g} of their norm; rounding explains {ERROR}"
            )
    return seen


def _random(shape: tuple[int, int], seed: int) -> torch.Tensor:
    """Return random BF16 with a row of zeros, and rows of very different magnitude."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    values *= torch.logspace(-6, 2, shape[0]).unsqueeze(-1)
    values[shape[0] // 2] = 0
    return values.to(torch.bfloat16)


def written(storage: Storage, scheme: Scheme, w_NK: torch.Tensor, device: torch.device) -> list[str]:
    """Refit the buffers with a weight, in shards if no scale spans them; return what is wrong with the result.

    The last shard is written first.

    Args:
        w_NK: (.., N, K).
    """
    layout, codes = storage.layout, storage.codes
    data = codes if layout is None else torch.empty(w_NK.shape, dtype=torch.int8, device="meta")
    resident = resident_class(scheme)("w", data, storage.scale, w_NK.shape[-1], layout=layout)
    refit, there = Refit([resident]), w_NK.to(device)
    ends = [0, len(w_NK)] if scheme.shares == "tensor" else sorted({0, len(w_NK) // 3, len(w_NK) // 2, len(w_NK)})
    with refit.session():
        for start, stop in reversed([*pairwise(ends)]):
            slot = refit.batch.new_sources([("w", there[start:stop].numel())])
            refit.write(slot, resident, data[start:stop], there[start:stop].contiguous())
    wanted, scale = oracle.quantize(w_NK.flatten(0, -2), scheme)
    if scheme.shares == "tensor":
        scale = scale.expand(len(wanted))
    found = {"codes": (codes if layout is None else layout[0 : len(w_NK.flatten(0, -2))], wanted)}
    found["scales"] = storage.scale.reshape(scale.shape), scale
    problems = [f"{what}: {apart}" for what, pair in found.items() if (apart := differing(*pair))]
    weights = [resident.weight, 3 * resident.weight]
    digest = f"{oracle.add_digests(oracle.digest(wanted), oracle.digest(scale), weights=weights):016x}"
    for whose, one in (("written", refit.last_receipt.digest), ("read back", refit.digest())):
        if one != digest:
            problems.append(f"the digest of what was {whose} is {one}, by the definition {digest}")
    return problems


def _faked(kernels: ModuleType, scheme: Scheme, w_NK: torch.Tensor, device: torch.device) -> list[str]:
    if scheme.name not in qat.SCHEMES:
        return []
    wanted = oracle.dequantize(*oracle.quantize(w_NK, scheme)).to(torch.bfloat16)
    apart = differing(kernels.fake_quantize(w_NK.to(device), scheme), wanted)
    return [f"dequantized values: {apart}"] if apart else []


def _product_error(
    kernels: ModuleType, storage: Storage, scheme: Scheme, w_NK: torch.Tensor, tokens: int, device: torch.device
) -> float:
    """Return the error of the product with the buffers' codes, relative to the norm of the oracle's product."""
    x_MK = torch.randn(tokens, w_NK.shape[1], generator=torch.Generator().manual_seed(tokens)).to(torch.bfloat16)
    found = kernels.SERVING[scheme.name].linear(x_MK.to(device), storage.codes, storage.served_scale, None)
    wanted = oracle.product(x_MK, *oracle.quantize(w_NK, scheme), scheme)
    return float((found.cpu().float() - wanted).norm() / wanted.norm())
