"""How a reference kernel runs: the real Meta kernel, the rules of the hardware, the arithmetic, then a comparison.

A kernel is a function of one argument, which has the operator's schema arguments as attributes, defaults filled in:

    @reference("npu::npu_swiglu")
    def npu_swiglu(a):
        return ...  # CPU tensors, from a.input and a.dim
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch.utils._pytree import tree_flatten, tree_map

from npu_host import formats, memory, recorder, rules

REFERENCES: dict[str, "Reference"] = {}


class ResultMismatch(AssertionError):
    """A reference kernel's result differs in shape or dtype from what torch_npu's Meta kernel promises."""


@dataclass(frozen=True)
class Reference:
    """A kernel for one operator.

    Attributes:
        name: as the dispatcher spells it, "npu::npu_quantize".
        compute: from the arguments to the result.
        on_device: whether `compute` takes and returns NPU tensors instead of CPU tensors.
    """

    name: str
    compute: Callable[[SimpleNamespace], object]
    on_device: bool

    @property
    def operator(self) -> torch._ops.OpOverload:
        library, _, rest = self.name.partition("::")
        packet, _, overload = rest.partition(".")
        return getattr(getattr(getattr(torch.ops, library), packet), overload or "default")


def reference(name: str, on_device: bool = False):
    """Registers the kernel of an operator."""

    def register(compute):
        if name in REFERENCES:
            raise ValueError(f"{name} has a reference kernel already: {REFERENCES[name].compute}")
        REFERENCES[name] = Reference(name, compute, on_device)
        return compute

    return register


def install(key: str, libraries: list[torch.library.Library]) -> None:
    """Registers the kernels with the dispatcher; the libraries must be kept alive.

    A kernel whose operator the installed torch_npu lacks is forgotten.
    """
    for name in REFERENCES.keys() - set(torch._C._dispatch_get_all_op_names()):
        del REFERENCES[name]
    for found in REFERENCES.values():
        namespace, _, rest = found.name.partition("::")
        library = torch.library.Library(namespace, "IMPL", key)
        library.impl(rest, kernel(found), allow_override=namespace == "npu")
        libraries.append(library)


def bind(schema: torch.FunctionSchema, args, kwargs) -> SimpleNamespace:
    """The schema's arguments by name, defaults filled in."""
    values = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    values.update(zip((argument.name for argument in schema.arguments), args, strict=False))
    return SimpleNamespace(**{**values, **kwargs})


def kernel(found: Reference) -> Callable:
    """What runs on npu:0 for an operator with a reference kernel."""
    operator = found.operator

    def run(*args, **kwargs):
        bound = bind(operator._schema, args, kwargs)
        promised = run_meta(operator, args, kwargs)
        rules.check(found.name, bound)
        if found.on_device:
            result = found.compute(bound)
        else:
            result = found.compute(SimpleNamespace(**tree_map(_to_host, vars(bound))))
        _compare(found.name, promised, result)
        recorder.record(operator._schema, bound)
        return result if found.on_device else tree_map(memory.to_device, result)

    return run


def run_meta(operator: torch._ops.OpOverload, args, kwargs):
    """What torch_npu's own Meta kernel says of a call; None for the few operators that have none."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "Meta"):
        return None

    def to_meta(value):
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return value

    return operator(*tree_map(to_meta, args), **tree_map(to_meta, kwargs))


def _to_host(value):
    return formats.read(value) if isinstance(value, torch.Tensor) and value.device.type == "npu" else value


def _compare(name: str, promised, result) -> None:
    if promised is None:
        return
    there, here = ([(tuple(t.shape), t.dtype) for t in tree_flatten(side)[0]] for side in (promised, result))
    if there != here:
        raise ResultMismatch(f"{name}: the Meta kernel of torch_npu promises {there}, the reference kernel gave {here}")
