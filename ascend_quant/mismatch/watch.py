"""What the BF16 engine's layers see, and what quantizing each of them would do to it.

Runs inside vLLM's workers, with `enforce_eager`: `Extension` is their `worker_extension_cls`. A layer's own method is
wrapped: before the engine's product goes on, the layer's inputs are put through `layer_errors`, every n-th token. What
was seen is kept in seen.py, which needs no vLLM. Embedding and head are no layers of a scheme; their own outliers are
looked at, since layers and logits inherit them.

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
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from ascend_quant.integrations.vllm import register
from ascend_quant.integrations.vllm.compat import EXPERTS_LAYER
from ascend_quant.integrations.vllm.inventory import number_of_experts
from ascend_quant.mismatch.layer_errors import EXACT, mixtures, product
from ascend_quant.mismatch.seen import EmbeddingSeen, HeadSeen, Seen
from ascend_quant.schemes import Scheme, get_scheme

register()  # where the package lies in PYTHONPATH alone, vLLM's processes do not find it by its entry point


class Extension:
    """Methods that vLLM adds to its worker class."""

    def mismatch_watch(self, scheme: str, every: int) -> None:
        """From now on, look at each layer that `scheme` quantizes, at every `every`-th token."""
        model = self.model_runner.get_model()
        self.mismatch_layers = layers_of(model, self.vllm_config.quant_config, get_scheme(scheme), every)
        self.mismatch_tables = tables_of(model)

    def mismatch_errors(self) -> dict[str, list[dict]]:
        """What was seen, a layer each (see `Seen.summary`), and of embedding and head. Looks no more."""
        found = {
            "layers": [layer.errors() for layer in self.mismatch_layers],
            "tables": [table.summary() for table in self.mismatch_tables],
        }
        del self.mismatch_layers, self.mismatch_tables
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


def tables_of(model: torch.nn.Module) -> list[EmbeddingSeen | HeadSeen]:
    """Looks at the embedding and the head; a head that is tied to the embedding has its name."""
    found: list[EmbeddingSeen | HeadSeen] = []
    for name, module in model.named_modules():
        if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead):
            found.append(EmbeddingSeen(name))
            found[-1].hook = module.register_forward_hook(lambda _, given, out, seen=found[-1]: seen.add(out))
        elif isinstance(module, LogitsProcessor):
            names = {id(part): name for name, part in model.named_modules()}
            found.append(HeadSeen())

            def look(_, given, seen=found[-1], names=names):
                head, hidden_MK = given[:2]
                seen.add(names[id(head)], head.weight, hidden_MK)

            found[-1].hook = module.register_forward_pre_hook(look)
    return found


class Layer(ABC):
    """A layer that is looked at from its construction to `errors()`."""

    weights: tuple[str, ...]

    def __init__(self, name: str, module: torch.nn.Module, scheme: Scheme, every: int):
        self.module, self.scheme, self.every = module, scheme, every
        self.passed = 0
        self.seen = Seen(name, self.first_channel())
        self.method, original = module.quant_method, module.quant_method.apply

        def apply(layer: torch.nn.Module, x: torch.Tensor, *args, **kwargs):
            self.look(x, *args, **kwargs)
            return original(layer, x, *args, **kwargs)

        self.method.apply = apply

    def first_channel(self) -> int:
        """Of the inputs that this rank holds."""
        return 0

    def look(self, x: torch.Tensor, *args, **kwargs) -> None:
        """Measure every n-th of the tokens that are about to pass."""
        x_MK = x.reshape(-1, x.shape[-1])
        rows = slice(-self.passed % self.every, None, self.every)
        self.passed += x_MK.shape[0]
        if x_MK[rows].shape[0]:
            self.seen.add(x_MK[rows], *self.outputs(rows, x_MK, *args, **kwargs))

    @abstractmethod
    def outputs(self, rows: slice, x_MK: torch.Tensor, *args, **kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        """What the layer gives for some rows of its inputs, rounded and exact, without bias: float32 (M, N)."""

    def errors(self) -> dict:
        """End the looking: see `Seen.summary`."""
        del self.method.apply
        return self.seen.summary([getattr(self.module, leaf) for leaf in self.weights], self.scheme)


class Linear(Layer):
    """A linear layer, fused ones (qkv, gate and up) as a whole."""

    weights = ("weight",)

    def first_channel(self) -> int:
        return self.module.tp_rank * self.module.weight.shape[-1] if isinstance(self.module, RowParallelLinear) else 0

    def outputs(self, rows: slice, x_MK: torch.Tensor, *rest, **named) -> tuple[torch.Tensor, torch.Tensor]:
        module = self.module
        summed = isinstance(module, RowParallelLinear) and module.tp_size > 1
        absmax = over_ranks(module.weight) if summed else None
        rounded, exact = (product(x_MK[rows], module.weight, scheme, absmax) for scheme in (self.scheme, EXACT))
        return tuple(map(tensor_model_parallel_all_reduce, (rounded, exact))) if summed else (rounded, exact)


class Experts(Layer):
    """A layer's experts: a figure of their routed and weighted sum, and one of each."""

    weights = ("w13_weight", "w2_weight")

    def outputs(self, rows: slice, x_MK, topk_weights, topk_ids, *rest, **named) -> tuple[torch.Tensor, torch.Tensor]:
        module, parallel = self.module, self.module.moe_config.moe_parallel_config
        held = module.expert_map
        expert_MT = topk_ids[rows] if held is None else held[topk_ids[rows]]
        absmax = over_ranks(module.w2_weight) if parallel.tp_size > 1 else None
        given = topk_weights[rows], expert_MT, module.w13_weight, module.w2_weight
        *outs, ratios = mixtures(x_MK[rows], *given, scheme=self.scheme, w2_absmax_EK=absmax)
        for expert, ratio in ratios.items():
            self.seen.add_expert(expert if held is None else int((held == expert).nonzero()), ratio)
        summed = parallel.tp_size > 1 or parallel.ep_size > 1
        return tuple(map(tensor_model_parallel_all_reduce, outs)) if summed else tuple(outs)


def over_ranks(weight: torch.Tensor) -> torch.Tensor:
    """The largest magnitude (..., N) of the whole rows of which each rank holds a slice."""
    absmax = weight.abs().amax(dim=-1).float().unsqueeze(0).contiguous()
    return tensor_model_parallel_all_gather(absmax, dim=0).amax(dim=0)
