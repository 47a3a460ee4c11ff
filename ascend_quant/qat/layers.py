"""Which layers of a model of torch modules are fake-quantized: those that the vLLM plugin quantizes.

Every `nn.Linear` and every module that holds experts in tensors of three dimensions (transformers 5: gate_up_proj or
up_proj, and down_proj), but for heads, routers and what `ignore` names. Embeddings and norms are neither.
"""

import re
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from ascend_quant.left_alone import BUILT_PLAIN, ROUTERS
from ascend_quant.qat.modules import Applied, Weight, install, matches
from ascend_quant.qat.straight_through import fake_quantize, trainable_scheme
from ascend_quant.schemes import Scheme

HEADS = ("lm_head", "output_layer")
NEVER_QUANTIZED = tuple(rf"re:(.*\.)?{re.escape(name)}$" for name in BUILT_PLAIN)


def apply_fake_quantization(model: nn.Module, scheme: str | Scheme, ignore: Sequence[str] = ()) -> Applied:
    """Let a model compute with fake-quantized weights; its parameters stay as they are. See `modules.py`.

    Args:
        model: before or after FSDP has wrapped it.
        scheme: one of `qat.SCHEMES`.
        ignore: layers that keep their dtype, in vLLM's patterns: full names, or "re:" and a regular expression. Give
            the engine's own, so that both quantize the same layers.

    Raises:
        UnknownScheme, ValueError: see `modules.install`.
    """
    scheme = trainable_scheme(scheme)
    find_head = getattr(model, "get_output_embeddings", None)
    head = find_head() if find_head is not None else None
    return install(
        [model],
        scheme,
        lambda module: _weights_of(module, scheme),
        lambda name, module: module is head or keeps_its_dtype(name, ignore),
    )


def keeps_its_dtype(name: str, ignore: Sequence[str]) -> bool:
    """Whether the layer with this name is a head or a router, or to be ignored, here or by vLLM.

    Experts of their own are ignored by the name of all of them ("model.layers.0.mlp.experts"), as in vLLM.
    """
    if name.rpartition(".")[2] in (*ROUTERS, *HEADS):
        return True
    return matches(re.sub(r"\.experts\..*", ".experts", name), (*ignore, *NEVER_QUANTIZED))


def _weights_of(module: nn.Module, scheme: Scheme) -> dict[str, Weight]:
    if isinstance(module, nn.Linear):
        return {"weight": Weight(module.in_features, partial(fake_quantize, scheme=scheme))}
    tensors = {name: getattr(module, name, None) for name in ("gate_up_proj", "up_proj", "down_proj")}
    experts = {name: w for name, w in tensors.items() if isinstance(w, torch.Tensor) and w.dim() in (1, 3)}
    if "down_proj" not in experts or len(experts) != 2:
        return {}
    if any(w.dim() == 1 for w in experts.values()):
        raise ValueError(
            f"the tensors of {type(module).__name__} are flat shards, as FSDP1 leaves them with use_orig_params=True: "
            "apply fake quantization before it, or use FSDP2"
        )
    if _columns_last(module, experts):
        return {name: Weight(w.shape[2], partial(fake_quantize, scheme=scheme)) for name, w in experts.items()}
    return {name: Weight(w.shape[1], partial(fake_quantize_turned, scheme=scheme)) for name, w in experts.items()}


def fake_quantize_turned(w_EKN: torch.Tensor, scheme: Scheme, **options) -> torch.Tensor:
    """The same for weights whose rows run along the dimension before the last; contiguous, as they are."""
    return fake_quantize(w_EKN.transpose(-1, -2), scheme, **options).transpose(-1, -2).contiguous()


def _columns_last(module: nn.Module, experts: dict[str, torch.Tensor]) -> bool:
    """Whether the tensors are (E, output, input): transformers' classes say it, shapes of gated experts show it."""
    turned = getattr(module, "is_transposed", None)
    if turned is not None:
        return not turned
    if "gate_up_proj" not in experts:
        raise ValueError(f"{type(module).__name__} does not tell (is_transposed) how its experts' tensors lie")
    return experts["gate_up_proj"].shape[1] == 2 * experts["down_proj"].shape[2]
