"""What the BF16 engine's layers see, and what quantizing each of them would do to it.

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
from ascend_quant.integrations.vllm.versions import EXPERTS_LAYER
from ascend_quant.mismatch.layer_errors import EXACT, extra_bytes, mixture, product
from ascend_quant.schemes import Scheme, get_scheme

register()  # where the package lies in PYTHONPATH alone, vLLM's processes do not find it by its entry point


class Extension:
    """Methods that vLLM adds to its worker class."""

    def mismatch_watch(self, scheme: str, every: int) -> None:
        """From now on, look at each layer that `scheme` quantizes, at every `every`-th token."""
        model = self.model_runner.get_model()
        self.mismatch_layers = layers_of(model, self.vllm_config.quant_config, get_scheme(scheme), every)

    def mismatch_errors(self) -> list[dict]:
        """What was seen, a layer each: see `Layer.errors`. Looks no more."""
        found = [layer.errors() for layer in self.mismatch_layers]
        del self.mismatch_layers
        return found


def layers_of(model: torch.nn.Module, config: Any, scheme: Scheme, every: int) -> list["Layer"]:
    """The layers that get another method under `scheme` than they have.

    Args:
        config: the engine's own, of scheme bf16, with the layers to ignore.
    """
    other, found = copy.copy(config), []
    other.scheme = scheme
    for module in model.modules():
        if not isinstance(module, (LinearBase, EXPERTS_LAYER)):
            continue
        method = module.quant_method
        name = module.prefix if isinstance(module, LinearBase) else method.prefix
        if type(other.get_quant_method(module, name)) is not type(method):
            kind = Linear if isinstance(module, LinearBase) else Experts
            found.append(kind(name, module, scheme, every))
    return found


class Layer(ABC):
    """A layer that is looked at from its construction to `errors()`."""

    weights: tuple[str, ...]

    def __init__(self, name: str, module: torch.nn.Module, scheme: Scheme, every: int):
        self.name, self.module, self.scheme, self.every = name, module, scheme, every
        self.seen = 0
        self.squares: list[torch.Tensor] = []  # (2, M): of the error and of the exact output
        self.method, original = module.quant_method, module.quant_method.apply

        def apply(layer: torch.nn.Module, x: torch.Tensor, *args, **kwargs):
            self.look(x, *args, **kwargs)
            return original(layer, x, *args, **kwargs)

        self.method.apply = apply

    def look(self, x: torch.Tensor, *args, **kwargs) -> None:
        """Measure every n-th of the tokens that are about to pass."""
        x_MK = x.reshape(-1, x.shape[-1])
        rows = slice(-self.seen % self.every, None, self.every)
        self.seen += x_MK.shape[0]
        if x_MK[rows].shape[0] == 0:
            return
        exact, rounded = (self.output(scheme, rows, x_MK, *args, **kwargs) for scheme in (EXACT, self.scheme))
        self.squares.append(torch.stack([(rounded - exact).square().sum(-1), exact.square().sum(-1)]).cpu())

    @abstractmethod
    def output(self, scheme: Scheme, rows: slice, x_MK: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        """What the layer gives for some rows of its inputs, without bias: float32 (M, N)."""

    def errors(self) -> dict:
        """End the looking.

        Returns:
            The layer's name, the squared norms of the error and of the exact output of each token, and the bytes that
            it costs not to quantize it; all on this rank.
        """
        del self.method.apply
        error, norm = torch.cat(self.squares, dim=1).tolist() if self.squares else ([], [])
        cost = sum(extra_bytes(getattr(self.module, leaf), self.scheme) for leaf in self.weights)
        return {"name": self.name, "error_squared": error, "norm_squared": norm, "extra_bytes": cost}


class Linear(Layer):
    """A linear layer, fused ones (qkv, gate and up) as a whole."""

    weights = ("weight",)

    def output(self, scheme: Scheme, rows: slice, x_MK: torch.Tensor, *rest, **named) -> torch.Tensor:
        module = self.module
        if not isinstance(module, RowParallelLinear) or module.tp_size == 1:
            return product(x_MK[rows], module.weight, scheme)
        out_MN = product(x_MK[rows], module.weight, scheme, over_ranks(module.weight))
        return tensor_model_parallel_all_reduce(out_MN)


class Experts(Layer):
    """A layer's experts: one figure, of their routed and weighted sum."""

    weights = ("w13_weight", "w2_weight")

    def output(self, scheme: Scheme, rows: slice, x_MK, topk_weights, topk_ids, *rest, **named) -> torch.Tensor:
        module, parallel = self.module, self.module.moe_config.moe_parallel_config
        expert_MT = topk_ids[rows]
        if module.expert_map is not None:
            expert_MT = module.expert_map[expert_MT]
        absmax = over_ranks(module.w2_weight) if parallel.tp_size > 1 else None
        weights = topk_weights[rows], expert_MT, module.w13_weight, module.w2_weight
        out_MK = mixture(x_MK[rows], *weights, scheme, absmax)
        return tensor_model_parallel_all_reduce(out_MK) if parallel.tp_size > 1 or parallel.ep_size > 1 else out_MK


def over_ranks(weight: torch.Tensor) -> torch.Tensor:
    """The largest magnitude (..., N) of the whole rows of which each rank holds a slice."""
    absmax = weight.abs().amax(dim=-1).float().unsqueeze(0).contiguous()
    return tensor_model_parallel_all_gather(absmax, dim=0).amax(dim=0)
