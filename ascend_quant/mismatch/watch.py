"""Inputs of the BF16 engine's layers, and the error that quantizing each of them would make.

Runs inside vLLM's workers, with `enforce_eager`: `Extension` is their `worker_extension_cls`. A layer's own method is
wrapped: before the engine's product goes on, the layer's inputs are put through `layer_errors`, every n-th token.

An error is ||e|| / ||y|| of a token, y the exact output and e what quantization adds. Tokens count alike: over all
elements at once, the few tokens with massive activations (often the first) would hide the others.

With several ranks, outputs are summed over the ranks where the layer sums them. A rank quantizes its own slice of an
activation, as it does in serving.
"""

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch
from vllm.distributed import tensor_model_parallel_all_gather, tensor_model_parallel_all_reduce
from vllm.model_executor.layers.linear import LinearBase, RowParallelLinear

from ascend_quant.integrations.vllm import register
from ascend_quant.integrations.vllm.compat import EXPERTS_LAYER
from ascend_quant.integrations.vllm.inventory import number_of_experts
from ascend_quant.mismatch.layer_errors import EXACT, extra_bytes, mixture, product
from ascend_quant.schemes import Scheme, get_scheme

register()  # where the package lies in PYTHONPATH alone, vLLM's processes do not find it by its entry point


class Extension:
    """Methods that vLLM adds to its worker class."""

    def mismatch_watch(self, scheme: str, every: int) -> None:
        """Watch, from now on, each layer that `scheme` quantizes, at every `every`-th token."""
        model, config = self.model_runner.get_model(), self.vllm_config.quant_config
        self.mismatch_layers = layers_of(model, config, get_scheme(scheme), every)

    def mismatch_errors(self) -> list[dict[str, Any]]:
        """Return the errors seen, a layer each (see `Layer.errors`), and stop watching."""
        found = [layer.errors() for layer in self.mismatch_layers]
        del self.mismatch_layers
        return found


def layers_of(model: torch.nn.Module, config: Any, scheme: Scheme, every: int) -> list["Layer"]:
    """The layers that `scheme` quantizes.

    Args:
        config: the engine's own, of scheme bf16, with the layers to ignore.
    """
    other, found = copy.copy(config), []
    other.scheme = scheme
    for module in model.modules():
        if not isinstance(module, (LinearBase, EXPERTS_LAYER)):
            continue
        linear = isinstance(module, LinearBase)
        name = module.prefix if linear else module.quant_method.prefix
        if other.quantizes(name, 0 if linear else number_of_experts(module)):
            found.append((Linear if linear else Experts)(name, module, scheme, every))
    return found


class Layer(ABC):
    """A layer that is looked at from its construction to `errors()`."""

    weights: tuple[str, ...]

    def __init__(self, name: str, module: torch.nn.Module, scheme: Scheme, every: int):
        self.name, self.module, self.scheme, self.every = name, module, scheme, every
        self.passed = 0
        self.squares: list[torch.Tensor] = []  # (2, M): of the error and of the exact output
        self.method, original = module.quant_method, module.quant_method.apply

        def apply(layer: torch.nn.Module, x: torch.Tensor, *args, **kwargs):
            self.look(x, *args, **kwargs)
            return original(layer, x, *args, **kwargs)

        self.method.apply = apply

    def look(self, x: torch.Tensor, *args, **kwargs) -> None:
        """Measure every n-th of the tokens that are about to pass."""
        x_MK = x.reshape(-1, x.shape[-1])
        rows = slice(-self.passed % self.every, None, self.every)
        self.passed += x_MK.shape[0]
        if x_MK[rows].shape[0]:
            rounded_MN, exact_MN = self.outputs(rows, x_MK, *args, **kwargs)
            pair = (rounded_MN - exact_MN).square().sum(-1), exact_MN.square().sum(-1)
            self.squares.append(torch.stack(pair).cpu())

    @abstractmethod
    def outputs(self, rows: slice, x_MK: torch.Tensor, *args, **kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs for some rows of the inputs, rounded and exact, without bias: float32 (M, N)."""

    def errors(self) -> dict[str, Any]:
        """End the looking.

        Returns:
            name; error, norm: the squares of each token's error and exact output, on this rank; extra_bytes: what it
            costs this rank not to quantize the layer.
        """
        del self.method.apply
        error, norm = torch.cat(self.squares, dim=1).tolist() if self.squares else ([], [])
        weights = [getattr(self.module, leaf) for leaf in self.weights]
        cost = sum(extra_bytes(weight, self.scheme) for weight in weights)
        return {"name": self.name, "error": error, "norm": norm, "extra_bytes": cost}


class Linear(Layer):
    """A linear layer, fused ones (qkv, gate and up) as a whole."""

    weights = ("weight",)

    def outputs(self, rows: slice, x_MK: torch.Tensor, *rest, **named) -> tuple[torch.Tensor, torch.Tensor]:
        module = self.module
        summed = isinstance(module, RowParallelLinear) and module.tp_size > 1
        absmax = over_ranks(module.weight) if summed else None
        rounded, exact = (product(x_MK[rows], module.weight, scheme, absmax) for scheme in (self.scheme, EXACT))
        return tuple(map(tensor_model_parallel_all_reduce, (rounded, exact))) if summed else (rounded, exact)


class Experts(Layer):
    """A layer's experts: their routed and weighted sum."""

    weights = ("w13_weight", "w2_weight")

    def outputs(self, rows: slice, x_MK, topk_weights, topk_ids, *rest, **named) -> tuple[torch.Tensor, torch.Tensor]:
        module, parallel = self.module, self.module.moe_config.moe_parallel_config
        held = module.expert_map
        expert_MT = topk_ids[rows] if held is None else held[topk_ids[rows]]
        absmax = over_ranks(module.w2_weight) if parallel.tp_size > 1 else None
        given = x_MK[rows], topk_weights[rows], expert_MT, module.w13_weight, module.w2_weight
        outs = (mixture(*given, scheme, absmax) for scheme in (self.scheme, EXACT))
        summed = parallel.tp_size > 1 or parallel.ep_size > 1
        return tuple(map(tensor_model_parallel_all_reduce, outs)) if summed else tuple(outs)


def over_ranks(weight: torch.Tensor) -> torch.Tensor:
    """The largest magnitude (..., N) of the whole rows of which each rank holds a slice."""
    absmax = weight.abs().amax(dim=-1).float().unsqueeze(0).contiguous()
    return tensor_model_parallel_all_gather(absmax, dim=0).amax(dim=0)
