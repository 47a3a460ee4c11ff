"""The router's product in Triton's interpreter."""

from importlib import import_module

import numpy as np
import pytest
import torch
from kernel_modules import interpreter

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def router():
    with interpreter(), np.errstate(all="ignore"):
        yield import_module("ascend_quant.kernels.cuda.serve.triton_router")


@pytest.mark.parametrize(("tokens", "length", "columns"), [(1, 64, 8), (17, 300, 20), (64, 512, 128)])
def test_product(router, tokens, length, columns):
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randint(-8, 9, (tokens, length), generator=generator).half()
    weight = torch.randint(-1, 2, (columns, length), generator=generator).half()  # every sum is exact
    assert router.takes(x, weight)
    assert torch.equal(router.product(x, weight).float(), x.float() @ weight.float().t())


def test_what_it_does_not_take(router):
    x, weight = torch.empty(4, 16, dtype=torch.bfloat16), torch.empty(8, 16, dtype=torch.bfloat16)
    assert router.takes(x, weight)
    assert not router.takes(x.float(), weight) and not router.takes(x.float(), weight.float())
    assert not router.takes(x[None], weight) and not router.takes(x[:0], weight)
    assert not router.takes(x.expand(router.MOST_TOKENS + 1, 4, 16)[:, 0], weight)
