"""W8A8 linear layers: the engine's own product forward, that of the weight in its dtype backward.

An engine of several tensor parallel ranks cuts the input of o_proj and down_proj: each rank's activations have a scale
of their slice, the weight's scale is that of the whole row, and what the ranks add up has been rounded to BF16. So the
number of ranks is part of the policy, and the trainer, which has whole weights, cuts as they do.

Shape suffixes: M tokens, N output channels, K input channels.
"""

from functools import partial

import torch
from torch import nn

from ascend_quant.exact.straight_through import straight_through
from ascend_quant.kernels import kernels_for, serving_of
from ascend_quant.schemes import get_scheme

INT8 = get_scheme("int8")
ROW_PARALLEL = ("o_proj", "down_proj")  # the last part of a layer's name


class ExactLinear(nn.Linear):
    """A linear layer that has been built as torch's.

    Attributes:
        ranks: among which the engine cuts its input.
    """

    ranks: int

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = () if self.bias is None else (self.bias,)
        return straight_through(partial(product, ranks=self.ranks), _gradients, x, self.weight, *bias)


def product(x: torch.Tensor, w_NK: torch.Tensor, bias_N: torch.Tensor | None = None, *, ranks: int = 1) -> torch.Tensor:
    """x (..., K) times codes of w, in BF16, as an engine of so many ranks has it; rank 0 adds the bias.

    Raises:
        TypeError: another dtype than BF16, which the engine computes in.
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
