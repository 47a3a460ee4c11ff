"""Straight-through estimator (Bengio, Leonard and Courville, 2013): the forward of one function with the backward of
another, here the engine's values with transformers' gradients at the same inputs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Gradients = Callable[..., Sequence[torch.Tensor | None]]


def straight_through(engine: Callable[..., torch.Tensor], gradients: Gradients, *tensors: torch.Tensor) -> torch.Tensor:
    """Return `engine(*tensors)`, differentiable by `gradients`; computed outside of autocast, as in the engine.

    Args:
        gradients: maps (gradient of the result, *tensors) to the gradients of the tensors, in order. Only the tensors
            are saved for the backward pass.
    """
    return _StraightThrough.apply(engine, gradients, *tensors)


def gradients_of(reference: Callable[..., torch.Tensor]) -> Gradients:
    """Return the vector-Jacobian product of `reference`, which is evaluated again for it."""

    def gradients(grad: torch.Tensor, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        inputs = [tensor.detach().requires_grad_() for tensor in tensors]
        with torch.enable_grad():
            result = reference(*inputs)
        return torch.autograd.grad(result, inputs, grad)

    return gradients


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, engine: Callable, gradients: Gradients, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        ctx.save_for_backward(*tensors)
        with torch.autocast(tensors[0].device.type, enabled=False):
            return engine(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        with torch.autocast(grad.device.type, enabled=False):
            return (None, None, *ctx.gradients(grad, *ctx.saved_tensors))
