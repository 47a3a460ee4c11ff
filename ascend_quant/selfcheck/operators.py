"""What a device's kernels make of a few weights, against the oracle on the host, for each scheme that is served there.

Codes, scales, digests and fake-quantized values must have the oracle's bits. Products round to BF16 and sum in an order
of their own: their error is a part of the norm.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType

import torch

from ascend_quant import oracle
from ascend_quant.integrations.vllm.layers.products import register_products
from ascend_quant.kernels import kernels_for
from ascend_quant.kernels.storage import Storage
from ascend_quant.refit import Refit, resident_class
from ascend_quant.schemes import SCHEMES, Scheme

SHAPES = ((448, 512), (128, 1024), (1024, 896))  # (N, K) that every scheme and every kernel takes
ODD = (173, 90)  # no multiple of anything: int8 alone
TOKENS = (1, 17, 64)
ERROR = 0.006  # of a product's norm: BF16 has 8 bits, and a code flips here and there
TRAINED = ("int8", "int4_g128", "int4_g32")  # that have fake quantization


@dataclass(frozen=True)
class Checked:
    """What came of one scheme.

    Attributes:
        shapes: (N, K) that were tried.
        product_error: the largest of all products, of the norm.
        problems: what differs from the oracle, a line each.
        refused: why the device does not hold this scheme; "" where it does.
    """

    scheme: str
    by: str
    shapes: list[tuple[int, int]] = field(default_factory=list)
    product_error: float = 0.0
    problems: list[str] = field(default_factory=list)
    refused: str = ""


def check_operators(device: torch.device) -> list[Checked]:
    """Every scheme that the device serves.

    Raises:
        NoKernels: none is served there.
    """
    register_products(device.type)
    kernels = kernels_for(device)
    return [_check(SCHEMES[name], serving.by, kernels, device) for name, serving in kernels.SERVING.items()]


def _check(scheme: Scheme, by: str, kernels: ModuleType, device: torch.device) -> Checked:
    shapes = [*SHAPES, ODD] if scheme.name == "int8" else list(SHAPES)
    problems, errors = [], [0.0]
    for shape in shapes:
        try:
            storage = _storage(kernels, scheme, shape, device)
        except ValueError as why:  # a GPU without FP8
            return Checked(scheme.name, by, refused=str(why))
        w_NK = _random(shape, seed=sum(shape))
        found = [*_written(storage, scheme, w_NK, device), *_faked(kernels, scheme, w_NK, device)]
        problems += [f"{shape[0]} x {shape[1]}: {problem}" for problem in found]
        errors += [_product_error(kernels, storage, scheme, w_NK, tokens, device) for tokens in TOKENS]
    worst = max(errors, key=lambda error: (error != error, error))  # NaN is the worst
    if not worst <= ERROR:
        problems.append(f"products are off by {worst:.3g} of their norm; {ERROR} is what rounding explains")
    return Checked(scheme.name, by, shapes, worst, problems)


def _random(shape: tuple[int, int], seed: int) -> torch.Tensor:
    """BF16 with a row of zeros, and rows of very different sizes."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    values *= torch.logspace(-6, 2, shape[0]).unsqueeze(-1)
    values[shape[0] // 2] = 0
    return values.to(torch.bfloat16)


def _storage(kernels: ModuleType, scheme: Scheme, shape: tuple[int, int], device: torch.device) -> Storage:
    with device:
        return kernels.storage(scheme, shape)


def _written(storage: Storage, scheme: Scheme, w_NK: torch.Tensor, device: torch.device) -> list[str]:
    """Refit the buffers with the weight, in two shards where a scale does not span both; what is wrong with them."""
    place, codes = storage.place, storage.codes
    data = codes if place is None else torch.empty(w_NK.shape, dtype=torch.int8, device="meta")
    resident = resident_class(scheme)("w", data, storage.scale, w_NK.shape[1], place=place)
    refit, there = Refit([resident]), w_NK.to(device)
    ends = [0, len(w_NK)] if scheme.shares == "tensor" else [0, len(w_NK) // 2, len(w_NK)]
    with refit.session():
        for start, stop in pairwise(ends):
            slot = refit.batch.new_sources([("w", there[start:stop].numel())])
            refit.write(slot, resident, data[start:stop], there[start:stop].contiguous())
    wanted, scale = oracle.quantize(w_NK, scheme)
    if scheme.shares == "tensor":
        scale = scale.expand(len(w_NK))
    problems = [*_differing("codes", codes if place is None else place[0 : len(w_NK)], wanted)]
    problems += _differing("scales", storage.scale.reshape(scale.shape), scale)
    digest = oracle.add_digests(
        oracle.digest(wanted), oracle.digest(scale), weights=[resident.weight, 3 * resident.weight]
    )
    for whose, one in (("written", refit.last_receipt.digest), ("read back", refit.digest())):
        if one != f"{digest:016x}":
            problems.append(f"the digest of what was {whose} is {one}, by the oracle {digest:016x}")
    return problems


def _faked(kernels: ModuleType, scheme: Scheme, w_NK: torch.Tensor, device: torch.device) -> list[str]:
    if scheme.name not in TRAINED:
        return []
    wanted = oracle.dequantize(*oracle.quantize(w_NK, scheme)).to(torch.bfloat16)
    return _differing("dequantized values", kernels.fake_quantize(w_NK.to(device), scheme), wanted)


def _differing(what: str, found: torch.Tensor, wanted: torch.Tensor) -> list[str]:
    """A line if any bit differs."""
    found, wanted = (oracle.as_integers(oracle.as_matrix(tensor.cpu().contiguous())) for tensor in (found, wanted))
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return [f"{what} of {tuple(found.shape)} {found.dtype}, by the oracle {tuple(wanted.shape)} {wanted.dtype}"]
    count = int((found != wanted).sum())
    return [f"{count} of {wanted.numel()} {what} differ from the oracle's"] if count else []


def _product_error(
    kernels: ModuleType, storage: Storage, scheme: Scheme, w_NK: torch.Tensor, tokens: int, device: torch.device
) -> float:
    """How far the product with what the buffers hold is from the oracle's, of its norm."""
    x_MK = torch.randn(tokens, w_NK.shape[1], generator=torch.Generator().manual_seed(tokens)).to(torch.bfloat16)
    found = kernels.SERVING[scheme.name].linear(x_MK.to(device), storage.codes, storage.served_scale, None)
    wanted = oracle.product(x_MK, *oracle.quantize(w_NK, scheme), scheme)
    return float((found.cpu().float() - wanted).norm() / wanted.norm())
