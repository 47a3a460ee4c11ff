"""The kernel modules as tests see them: `cpu`, and `cuda` on a GPU or, where there is none, in Triton's interpreter."""

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import settings
from kernel_modules import Kernels, interpreter

INTERPRETED = pytest.mark.gpu(interpreted=True)  # see tests/conftest.py

settings.register_profile("no clock", deadline=None)  # an example may be slow where others run beside it
settings.load_profile("no clock")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(items):
    for item in items:
        if "cuda" in item.fixturenames:
            item.add_marker(INTERPRETED)


@pytest.fixture
def full_disk() -> Callable[[], AbstractContextManager]:
    """While it is open no file of this process grows, as on a full disk."""

    @contextmanager
    def full() -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        told = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, told)

    return full


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=INTERPRETED)])
def kernels(request) -> Kernels:
    """Each kernel module in turn."""
    if request.param == "cuda":
        return request.getfixturevalue("cuda")
    return Kernels(import_module("ascend_quant.kernels.cpu"), torch.device("cpu"))


@pytest.fixture(scope="module")
def cuda() -> Iterator[Kernels]:
    """The kernel module `cuda`."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    if torch.cuda.is_available():
        yield Kernels(import_module("ascend_quant.kernels.cuda"), torch.device("cuda"))
    else:
        with interpreter(), np.errstate(all="ignore"):  # it computes with numpy
            yield Kernels(import_module("ascend_quant.kernels.cuda"), torch.device("cpu"), interpreted=True)
