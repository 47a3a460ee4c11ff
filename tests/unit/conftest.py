"""The kernel modules as tests see them: `cpu`, and `cuda` on a GPU or, where there is none, in Triton's interpreter."""

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import torch

import ascend_quant.kernels

PACKAGE = ascend_quant.kernels
SWAPPED = re.compile(r"triton(?!\._C)(\.|$)|ascend_quant\.kernels\.(cuda|triton)_?")  # a C extension loads once


class Kernels(NamedTuple):
    """A kernel module, where its tensors are, and whether it runs in Triton's interpreter."""

    module: ModuleType
    device: torch.device
    interpreted: bool = False


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def kernels(request) -> Iterator[Kernels]:
    """Each kernel module in turn."""
    if request.param == "cpu":
        yield Kernels(importlib.import_module("ascend_quant.kernels.cpu"), torch.device("cpu"))
    else:
        yield request.getfixturevalue("cuda")


@pytest.fixture(scope="module")
def cuda() -> Iterator[Kernels]:
    """The kernel module `cuda`."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    if torch.cuda.is_available():
        yield Kernels(importlib.import_module("ascend_quant.kernels.cuda"), torch.device("cuda"))
    else:
        with interpreter(), np.errstate(all="ignore"):  # it computes with numpy
            yield Kernels(importlib.import_module("ascend_quant.kernels.cuda"), torch.device("cpu"), interpreted=True)


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
                if name.startswith(PACKAGE.__name__):  # `from package import module` reads the attribute
                    setattr(PACKAGE, name.rpartition(".")[2], module)


def _taken_out() -> dict[str, ModuleType]:
    """The imported modules that are swapped, which are then as if they had never been imported."""
    found = {name: module for name, module in sys.modules.items() if SWAPPED.match(name)}
    for name in found:
        del sys.modules[name]
        if name.startswith(PACKAGE.__name__):
            vars(PACKAGE).pop(name.rpartition(".")[2], None)
    return found
