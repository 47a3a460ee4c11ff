"""The quantized forward pass, independent of vLLM: a transformers model in float32 whose matrices are the oracle's."""

from pathlib import Path

import torch
import torch.nn.functional as F
from models import is_quantized
from torch import nn
from transformers import AutoModelForCausalLM

from ascend_quant import oracle
from ascend_quant.schemes import Scheme, get_scheme


class OracleLinear(nn.Module):
    def __init__(self, linear: nn.Linear, scheme: Scheme):
        super().__init__()
        self.codes, self.scale = oracle.quantize(linear.weight.data, scheme)
        self.bias, self.scheme = linear.bias, scheme

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        return oracle.product(flat, self.codes, self.scale, self.scheme, self.bias).view(*x.shape[:-1], -1)


class OracleExperts(nn.Module):
    def __init__(self, experts: nn.Module, scheme: Scheme):
        super().__init__()
        self.w13, self.scheme = oracle.quantize(experts.gate_up_proj.data, scheme), scheme
        self.w2 = oracle.quantize(experts.down_proj.data, scheme)

    def forward(self, x, ids, weights):
        return oracle.experts(x, weights, ids, *self.w13, *self.w2, self.scheme)


def logprobs(folder: Path, prompts: list[dict], scheme: str, ignore: tuple[str, ...] = ()) -> torch.Tensor:
    """Log-probabilities of every prompt token but the first, in float32, by the oracle's products.

    Args:
        ignore: linear layers that stay as they are, by transformers' names.
    """
    model, scheme = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), get_scheme(scheme)
    if scheme.quantized:
        for name, module in list(model.named_modules()):
            owner, _, leaf = name.rpartition(".")
            if isinstance(module, nn.Linear) and is_quantized(f"{name}.weight") and name not in ignore:
                setattr(model.get_submodule(owner), leaf, OracleLinear(module, scheme))
            elif leaf == "experts":
                setattr(model.get_submodule(owner), leaf, OracleExperts(module, scheme))
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt["prompt_token_ids"]])
        with torch.no_grad():
            distribution = F.log_softmax(model(ids).logits[0].double(), dim=-1)
        found.append(distribution[:-1].gather(1, ids[0, 1:, None]).squeeze(1))
    return torch.cat(found)
