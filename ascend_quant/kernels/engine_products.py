"""Registry of an engine's own GEMMs and attention, which its integration fills, since `kernels` imports no engine.

int8_linear     (x_codes (M, K), codes (N, K), x_scale (M, 1), scale (N, 1), bias (N) or None, dtype) -> (M, N)
plain_experts   the mixture of experts without quantization; arguments as in `products.experts`, without scales
attention       for exact trainers: (q, k, v (T, H, D), packing.Sequences, scale) -> (T, H, D), causal in each sequence
route           for exact trainers: (logits (M, E), top_k, renormalize) -> weights and experts (M, T)

Schemes that only the engine serves are added to a device's table of `Serving`.
"""

from collections.abc import Callable, Mapping, MutableMapping

import torch

from ascend_quant.kernels.storage import Serving

_products: dict[str, Callable[..., torch.Tensor]] = {}


class NoProduct(RuntimeError):
    """Raised if no engine's integration has registered a required GEMM or attention."""


def register(
    products: Mapping[str, Callable[..., torch.Tensor]],
    serving: Mapping[str, Serving],
    table: MutableMapping[str, Serving],
) -> None:
    """Register an engine's GEMMs, and the schemes that it serves in a device's table; idempotent.

    Args:
        products: products by the names above.
        serving: kernels by the scheme's name.
        table: the device's table, such as `products.SERVING`.

    Raises:
        ValueError: another product is registered under one of the names.
    """
    for held, given in ((_products, products), (table, serving)):
        for name, one in given.items():
            if held.setdefault(name, one) is not one:
                raise ValueError(f"{name} is already registered as {held[name]!r}; it cannot also be {one!r}")


def engine_product(name: str) -> Callable[..., torch.Tensor]:
    """Return a registered GEMM or attention.

    Raises:
        NoProduct: the product is not registered; the message names it.
    """
    if name not in _products:
        raise NoProduct(
            f"GEMM {name!r} belongs to an engine whose integration is not loaded in this process; vLLM's is "
            "ascend_quant.integrations.vllm.layers, whose register_products(device) its plugin calls"
        )
    return _products[name]
