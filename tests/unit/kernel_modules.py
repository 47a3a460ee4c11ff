"""A kernel module with its device, and the import of Triton's kernels where there is no GPU."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import torch

from ascend_quant import kernels

# a C extension loads once; what imports Triton's functions is as fresh as they are
SWAPPED = re.compile(
    r"triton(?!\._C)(\.|$)|ascend_quant\.kernels\.cuda(\.(refit|serve)|\.refit\.(write|grouping|digests)|(\.\w+)*\.triton_\w+)?$"
)


class Kernels(NamedTuple):
    """A kernel module, where its tensors are, and whether it runs in Triton's interpreter."""

    module: ModuleType
    device: torch.device
    interpreted: bool = False


@contextmanager
def interpreter() -> Iterator[None]:
    """Imports of Triton and of our kernels inside are fresh ones, in its interpreter; afterwards all is as before.

    Triton decides at import whether its functions are interpreted, those of its own library (tl.sum) among them, and
    torch.compile or an engine in this process may have imported it before, or will afterwards.
    """
    before = _taken_out()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        try:
            yield
        finally:
            _taken_out()
            for name, module in before.items():
                sys.modules[name] = module
            for name, module in before.items():
                if name.startswith(kernels.__name__):  # `from package import module` reads the attribute
                    package, _, leaf = name.rpartition(".")
                    setattr(sys.modules[package], leaf, module)


@contextmanager
def triton_module(name: str) -> Iterator[tuple[ModuleType, str]]:
    """A module of Triton kernels and where its tensors are: on a GPU, or on the CPU in Triton's interpreter."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        yield import_module(name), "cuda"
    else:
        with interpreter(), np.errstate(all="ignore"):  # it computes with numpy
            yield import_module(name), "cpu"


def _taken_out() -> dict[str, ModuleType]:
    """The imported modules that are swapped, which are then as if they had never been imported."""
    found = {name: module for name, module in sys.modules.items() if SWAPPED.match(name)}
    for name in found:
        del sys.modules[name]
        package, _, leaf = name.rpartition(".")
        if name.startswith(kernels.__name__) and package in sys.modules:
            vars(sys.modules[package]).pop(leaf, None)
    return found
