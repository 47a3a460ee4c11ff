"""W8A8 linear layers: the engine's product in the forward pass, that of the unquantized weight in the backward pass.

An engine with several tensor-parallel ranks splits the input of o_proj and down_proj: each rank's activations have a
scale for their slice, the weight's scale is that of the whole row, and the partial results are rounded to BF16 before
the all-reduce. So the number of ranks is part of the policy, and the trainer, which has whole weights, splits in the
same way.

Shape suffixes: M tokens, N output channels, K input channels.
"""

from functools import partial

import torch
from torch import nn

from ascend_quant.exact.straight_through import straight_through
from ascend_quant.kernels import kernels_for, serving_of
from ascend_quant.schemes import get_scheme

INT8 = get_scheme("int8")
ROW_PARALLEL = ("o_proj", "down_proj")  # the last component of a layer's name


class ExactLinear(nn.Linear):
    """A linear layer that was built as a torch layer.

    Attributes:
        ranks: number of ranks over which the engine splits the input.
    """

    ranks: int

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = () if self.bias is None else (self.bias,)
        return straight_through(partial(product, ranks=self.ranks), _gradients, x, self.weight, *bias)


def product(x: torch.Tensor, w_NK: torch.Tensor, bias_N: torch.Tensor | None = None, *, ranks: int = 1) -> torch.Tensor:
    """Multiply x (..., K) by codes of w, in BF16, as an engine with this many ranks does; rank 0 adds the bias.

    Raises:
        TypeError: the dtype is not BF16, in which the engine computes.
    """
    if x.dtype != torch.bfloat16 or w_NK.dtype != torch.bfloat16:
        raise TypeError(
            f"an exact linear layer needs bfloat16 activations and weights, not {x.dtype} and {w_NK.dtype}: "
            "train with FSDP2's param_dtype=torch.bfloat16, or a model in bfloat16"
        )
    codes_NK, scale_N = kernels_for(w_NK.device).quantize_rows(w_NK)
    linear = serving_of(INT8, x.device).linear
    if ranks == 1:
        return linear(x, codes_NK, scale_N, bias_N)
    slices = zip(x.chunk(ranks, -1), codes_NK.chunk(ranks, -1), strict=True)
    parts = [
        linear(part.contiguous(), codes.contiguous(), scale_N, None if rank else bias_N)
        for rank, (part, codes) in enumerate(slices)
    ]
    return sum(parts[1:], start=parts[0])


def _gradients(grad: torch.Tensor, x: torch.Tensor, w_NK: torch.Tensor, *bias: torch.Tensor) -> list[torch.Tensor]:
    grad_MN = grad.reshape(-1, grad.shape[-1])
    found = [grad @ w_NK, grad_MN.T @ x.reshape(-1, x.shape[-1])]
    return found + [grad_MN.sum(0) for _ in bias]
