"""Selection of the torch modules that are fake-quantized: those that the vLLM plugin quantizes.

These are every `nn.Linear` and every module with experts in three-dimensional tensors (transformers 5: gate_up_proj or
up_proj, and down_proj), except for heads, routers and matches of `ignore`. Embeddings and norms are never quantized.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from ascend_quant.qat.modules import Applied, Candidate, Weight, candidates, install, named_modules
from ascend_quant.qat.straight_through import fake_quantize, trainable_scheme
from ascend_quant.schemes import Scheme
from ascend_quant.schemes.layer_names import Ignored, Unquantized, keeps_its_dtype, layers_of


def apply_fake_quantization(model: nn.Module, scheme: str | Scheme, ignore: Sequence[str] = ()) -> Applied:
    """Make a model compute with fake-quantized weights; its parameters do not change. See `modules.py`.

    Args:
        model: the model, before or after FSDP has wrapped it.
        scheme: one of `qat.SCHEMES`.
        ignore: layers that keep their dtype, see `schemes.layer_names`. Use the engine's list, so that both quantize
            the same layers.

    Raises:
        UnknownScheme, ValueError: see `modules.install`.
        PatternError: a pattern of `ignore` matches only part of a fused layer, or nothing.
    """
    scheme = trainable_scheme(scheme)
    return install(*layers_to_quantize(model, scheme, ignore), scheme)


def layers_to_quantize(
    model: nn.Module, scheme: Scheme, ignore: Sequence[str] = ()
) -> tuple[list[Candidate], list[str], Unquantized]:
    """Return the layers that may be quantized, the names of ignored ones, and the latter by the engine's names.

    Raises:
        PatternError: see `apply_fake_quantization`.
    """
    find_head = getattr(model, "get_output_embeddings", None)
    head = find_head() if find_head is not None else None
    found = candidates([model], lambda module: _weights_of(module, scheme))
    ignored = _ignored(model, found, Ignored(ignore))
    heads = [one.name for one in found if one.module is head]
    unquantized = [one.name for one in found if one.name in (*ignored, *heads) or keeps_its_dtype(one.name)]
    return found, unquantized, Unquantized.of(scheme.name, (name for name in unquantized if name not in heads))


def _ignored(model: nn.Module, found: Sequence[Candidate], ignored: Ignored) -> set[str]:
    """Return the candidates that are ignored; raise PatternError as above."""
    stacks = {one.name: _experts(one) for one in found if _experts(one)}
    layers = layers_of((one.name for one in found), stacks)
    names = {name for name, layer in layers.items() if ignored.covers(layer)}
    for name, module in named_modules([model]):  # which the engine also has as layers
        if isinstance(module, nn.Embedding) or keeps_its_dtype(name):
            ignored.meet(name)
    ignored.check_used(type(model).__name__)
    return names


def _experts(one: Candidate) -> int:
    """Return the number of experts in a layer's tensors; 0 for a linear layer."""
    w = getattr(one.module, next(iter(one.weights)))
    return w.shape[0] if w.dim() == 3 else 0


def _weights_of(module: nn.Module, scheme: Scheme) -> dict[str, Weight]:
    if isinstance(module, nn.Linear):
        return {"weight": Weight(module.in_features, partial(fake_quantize, scheme=scheme))}
    tensors = {name: getattr(module, name, None) for name in ("gate_up_proj", "up_proj", "down_proj")}
    experts = {name: w for name, w in tensors.items() if isinstance(w, torch.Tensor) and w.dim() in (1, 3)}
    if "down_proj" not in experts or len(experts) != 2:
        return {}
    if any(w.dim() == 1 for w in experts.values()):
        raise ValueError(
            f"the tensors of {type(module).__name__} are flat shards of FSDP1 (use_orig_params=True): apply "
            "fake quantization before wrapping, or use FSDP2"
        )
    if _columns_last(module, experts):
        return {name: Weight(w.shape[2], partial(fake_quantize, scheme=scheme)) for name, w in experts.items()}
    return {name: Weight(w.shape[1], partial(fake_quantize_turned, scheme=scheme)) for name, w in experts.items()}


def fake_quantize_turned(w_EKN: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """Fake-quantize weights whose rows run along the second-to-last dimension; the result is contiguous."""
    return fake_quantize(w_EKN.transpose(-1, -2), scheme).transpose(-1, -2).contiguous()


def _columns_last(module: nn.Module, experts: dict[str, torch.Tensor]) -> bool:
    """Return whether tensors are (E, output, input), by their class, or else by the shapes of gated experts."""
    turned = getattr(module, "is_transposed", None)
    if turned is not None:
        return not turned
    if "gate_up_proj" not in experts:
        raise ValueError(
            f"{type(module).__name__} has no attribute is_transposed, so the layout of its expert weights is unknown"
        )
    return experts["gate_up_proj"].shape[1] == 2 * experts["down_proj"].shape[2]
