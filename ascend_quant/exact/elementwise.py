"""RMSNorm and SiLU * up: the ops that engine and trainer share forward, transformers' own formulas backward."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ascend_quant.exact.modules import computes, own_forward
from ascend_quant.exact.straight_through import gradients_of, straight_through
from ascend_quant.kernels import exact_ops


class ExactNorm:
    """Mixed in before the class of an RMSNorm whose weight multiplies the row once it is rounded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return own_forward(ExactNorm, self, weight=weight)(x)

        engine = partial(exact_ops.rms_norm, eps=self.variance_epsilon)
        return straight_through(engine, gradients_of(reference), x, self.weight)


def is_known_norm(module: nn.Module) -> bool:
    """Whether a module computes what `exact_ops.rms_norm` does, rounding as it rounds."""
    if not hasattr(module, "variance_epsilon"):
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator).bfloat16() for shape in ((7, 96), (96,)))
    return computes(module, lambda x, weight: exact_ops.rms_norm(x, weight, module.variance_epsilon), x, weight=weight)


class ExactMLP:
    """Mixed in before the class of an MLP of gate_proj, up_proj and down_proj with SiLU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate_up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(straight_through(_silu_mul, gradients_of(_reference), *gate_up))


def _silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return exact_ops.silu_mul(torch.cat((gate, up), -1))


def _reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def is_silu(activation: nn.Module) -> bool:
    """Whether a module of transformers computes torch's SiLU."""
    return computes(activation, F.silu, torch.linspace(-9, 9, 96).bfloat16())
