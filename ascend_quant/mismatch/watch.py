"""Measures the inputs of the BF16 engine's layers, and the error that quantizing each layer would cause.

This runs inside vLLM's workers, with `enforce_eager`: `Extension` is their `worker_extension_cls`. A layer's own method
is wrapped: before the engine's product, `layer_errors` processes every n-th token of the layer's inputs.

A token's error is ||e|| / ||y||, where y is the exact output and e the error of quantization. Tokens have equal weight:
over all elements at once, the few tokens with massive activations (often the first) would dominate.

With several ranks, outputs are reduced if the layer reduces them. Each rank quantizes its own slice of an activation,
as in serving.
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

register()  # with the package only in PYTHONPATH, vLLM's processes do not find its entry point


class Extension:
    """Methods that vLLM adds to its worker class."""

    def mismatch_watch(self, scheme: str, every: int) -> None:
        """Start measuring each layer that `scheme` quantizes, at every `every`-th token."""
        model, config = self.model_runner.get_model(), self.vllm_config.quant_config
        self.mismatch_layers = layers_of(model, config, get_scheme(scheme), every)

    def mismatch_errors(self) -> list[dict[str, Any]]:
        """Return the measured errors of each layer (see `Layer.errors`), and stop measuring."""
        found = [layer.errors() for layer in self.mismatch_layers]
        del self.mismatch_layers
        return found


def layers_of(model: torch.nn.Module, config: Any, scheme: Scheme, every: int) -> list["Layer"]:
    """Return the layers that `scheme` quantizes.

    Args:
        config: the engine's quantization config, with scheme bf16 and the layers to ignore.
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
    """A layer that is measured from its construction to `errors()`."""

    weights: tuple[str, ...]

    def __init__(self, name: str, module: torch.nn.Module, scheme: Scheme, every: int):
        self.name, self.module, self.scheme, self.every = name, module, scheme, every
        self.passed = 0
        self.squares: list[torch.Tensor] = []  # (2, M): squared norms of the error and of the exact output
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
        """Return rounded and exact outputs for some rows of the inputs, without bias: float32 (M, N)."""

    def errors(self) -> dict[str, Any]:
        """Stop measuring, and return the errors.

        Returns:
            A dict with name; error and norm: squared norms of each token's error and exact output, on this rank;
            extra_bytes: additional bytes of the unquantized layer on this rank.
        """
        del self.method.apply
        error, norm = torch.cat(self.squares, dim=1).tolist() if self.squares else ([], [])
        weights = [getattr(self.module, leaf) for leaf in self.weights]
        cost = sum(extra_bytes(weight, self.scheme) for weight in weights)
        return {"name": self.name, "error": error, "norm": norm, "extra_bytes": cost}


class Linear(Layer):
    """A linear layer; fused ones (qkv, gate and up) as a whole."""

    weights = ("weight",)

    def outputs(self, rows: slice, x_MK: torch.Tensor, *rest, **named) -> tuple[torch.Tensor, torch.Tensor]:
        module = self.module
        summed = isinstance(module, RowParallelLinear) and module.tp_size > 1
        absmax = over_ranks(module.weight) if summed else None
        rounded, exact = (product(x_MK[rows], module.weight, scheme, absmax) for scheme in (self.scheme, EXACT))
        return tuple(map(tensor_model_parallel_all_reduce, (rounded, exact))) if summed else (rounded, exact)


class Experts(Layer):
    """A layer's experts: their routed, weighted sum."""

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
    """Return the absmax (..., N) of whole rows, of which each rank has a slice."""
    absmax = weight.abs().amax(dim=-1).float().unsqueeze(0).contiguous()
    return tensor_model_parallel_all_gather(absmax, dim=0).amax(dim=0)
