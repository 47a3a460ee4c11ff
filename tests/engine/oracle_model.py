"""The quantized forward pass, independent of vLLM: a transformers model in float32 whose matrices are the oracle's."""

from pathlib import Path

import torch
import torch.nn.functional as F
from models import is_quantized
from torch import nn
from transformers import AutoModelForCausalLM

from ascend_quant import oracle


class OracleLinear(nn.Module):
    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.codes, self.scale = oracle.quantize_weight(linear.weight.data)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        return oracle.matmul(flat, self.codes, self.scale, self.bias).view(*x.shape[:-1], -1)


class OracleExperts(nn.Module):
    def __init__(self, experts: nn.Module):
        super().__init__()
        self.w13 = oracle.quantize_weight(experts.gate_up_proj.data)
        self.w2 = oracle.quantize_weight(experts.down_proj.data)

    def forward(self, x, ids, weights):
        return oracle.experts(x, weights, ids, *self.w13, *self.w2)


def logprobs(folder: Path, prompts: list[dict], quantized: bool) -> torch.Tensor:
    """Log-probabilities of every prompt token but the first, in float32, with or without the int8 scheme."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if quantized:
        for name, module in list(model.named_modules()):
            owner, _, leaf = name.rpartition(".")
            if isinstance(module, nn.Linear) and is_quantized(f"{name}.weight"):
                setattr(model.get_submodule(owner), leaf, OracleLinear(module))
            elif leaf == "experts":
                setattr(model.get_submodule(owner), leaf, OracleExperts(module))
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt["prompt_token_ids"]])
        with torch.no_grad():
            distribution = F.log_softmax(model(ids).logits[0].double(), dim=-1)
        found.append(distribution[:-1].gather(1, ids[0, 1:, None]).squeeze(1))
    return torch.cat(found)
