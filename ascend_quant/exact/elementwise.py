"""RMSNorm and SiLU * up with the ops that engine and trainer share in the forward pass, and transformers' formulas in
the backward pass; and the angles of rotary embeddings, by which transformers rotates as the engine does."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ascend_quant.exact.modules import computes
from ascend_quant.exact.straight_through import gradients_of, straight_through
from ascend_quant.kernels import exact_ops


class ExactNorm:
    """Mixin before the class of an RMSNorm whose weight multiplies the rounded row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return F.rms_norm(
                x, x.shape[-1:], weight, self.variance_epsilon
            )  # one kernel in each direction, unlike the module's own forward

        engine = partial(exact_ops.rms_norm, eps=self.variance_epsilon)
        return straight_through(engine, gradients_of(reference), x, self.weight)


def is_known_norm(module: nn.Module) -> bool:
    """Return whether a module computes `exact_ops.rms_norm`, with the same rounding."""
    if not hasattr(module, "variance_epsilon"):
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator).bfloat16() for shape in ((7, 96), (96,)))
    return computes(module, lambda x, weight: exact_ops.rms_norm(x, weight, module.variance_epsilon), x, weight=weight)


class ExactAngles:
    """Mixin before the class of a rotary embedding whose angles do not depend on the sequence length.

    Like the engine, it computes powers of the base on the device, since those of a GPU and a CPU differ in the last
    bit, and avoids matrix products, which may be computed in TF32.
    """

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines (B, S, D) in the dtype of x, for positions (B, S)."""
        kind = self.config.rope_parameters["rope_type"]
        init = self.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
        frequencies, scaling = init(self.config, x.device)
        angles = position_ids.unsqueeze(-1).float() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * scaling).to(x.dtype), (angles.sin() * scaling).to(x.dtype)


class ExactMLP:
    """Mixin before the class of an MLP with gate_proj, up_proj and down_proj, and SiLU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate_up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(straight_through(exact_ops.silu_mul_apart, gradients_of(_reference), *gate_up))


def _reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def is_silu(activation: nn.Module) -> bool:
    """Return whether a transformers activation computes torch's SiLU."""
    return computes(activation, F.silu, torch.linspace(-9, 9, 96).bfloat16())
