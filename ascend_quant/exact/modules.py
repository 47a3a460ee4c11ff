"""Modules that compute with the engine's functions: a module's class is replaced in place, as in fake quantization.

Parameters, their names, state_dict, optimizers and weight syncs are unchanged. FSDP may wrap the model before or after.
The computation of a class's own forward is tested with a few numbers, not inferred from its name, and without the
module's parameters, which may be sharded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn


@cache
def exact_class(mixin: type, kind: type[nn.Module]) -> type[nn.Module]:
    """Subclass a module's class with the forward of `mixin`; keeps the name, on which loaders rely."""
    return type(kind.__name__, (mixin, kind), {})


@contextmanager
def reading(module: nn.Module, **values: Any) -> Iterator[None]:
    """Make attributes of the module, including parameters, return these values inside the block."""
    own = vars(module)  # takes precedence over nn.Module's parameters
    hidden = {name: own[name] for name in values if name in own}  # FSDP1 puts its tensors there
    own.update(values)
    try:
        yield
    finally:
        for name in values:
            del own[name]
        own.update(hidden)


def own_forward(mixin: type, module: nn.Module, **values: torch.Tensor) -> Callable[..., Any]:
    """Return the forward that follows `mixin` in the module's class, with these tensors in place of its parameters."""
    forward = super(mixin, module).forward

    def compute(*args: Any) -> Any:
        with reading(module, **values):
            return forward(*args)

    return compute


def computes(module: nn.Module, formula: Callable[..., torch.Tensor], *inputs: torch.Tensor, **values: Any) -> bool:
    """Return whether the forward of a module's class gives the bits of `formula` for these inputs.

    Args:
        values: attributes of the module during the test, including its parameters; also the last arguments of
            `formula`.
    """
    with torch.no_grad(), reading(module, **values):
        found = type(module).forward(module, *inputs)
    return torch.equal(found, formula(*inputs, *values.values()))
