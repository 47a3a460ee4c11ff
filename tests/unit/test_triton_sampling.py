"""Tokens drawn in one pass, on a GPU or in Triton's interpreter: those that softmax, division and argmax give."""

import pytest
import torch
from kernel_modules import triton_module

pytestmark = pytest.mark.gpu(interpreted=True)


@pytest.fixture(scope="module")
def sampling():
    with triton_module("ascend_quant.kernels.cuda.serve.triton_sampling") as found:
        yield found


def drawn_by_vllm(logits: torch.Tensor, temperature: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    return ((logits / temperature[:, None]).double().softmax(-1) / noise.double()).argmax(-1)


def random(rows: int, columns: int, device: str, spread: float = 3.0):
    """Logits, temperatures and noise."""
    generator = torch.Generator().manual_seed(columns)
    logits = torch.randn(rows, columns, generator=generator) * spread
    temperature = torch.rand(rows, generator=generator) + 0.1
    noise = torch.empty(rows, columns).exponential_(generator=generator)
    return logits.to(device), temperature.to(device), noise.to(device)


@pytest.mark.parametrize("columns", [1, 5, 2048, 8192, 8193, 20000])
def test_it_is_the_token_that_vllm_draws(sampling, columns):
    module, device = sampling
    given = random(7, columns, device)
    assert torch.equal(module.drawn(*given), drawn_by_vllm(*given))


def test_rows_may_lie_apart_and_tokens_may_be_forbidden(sampling):
    module, device = sampling
    wide, temperature, noise = random(4, 3000, device)
    logits = wide[:, :2500]
    logits[:, 100:] = float("-inf")
    given = (logits, temperature, noise[:, :2500].contiguous())
    found = module.drawn(*given)
    assert torch.equal(found, drawn_by_vllm(*given)) and (found < 100).all()


def test_no_rows(sampling):
    module, device = sampling
    assert module.drawn(*random(0, 100, device)).shape == (0,)


def test_tokens_come_as_often_as_their_probability_says(sampling):
    module, device = sampling
    draws, temperature = 4000, 0.7
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -5.0]]).repeat(draws, 1)
    noise = torch.empty(draws, 5).exponential_(generator=torch.Generator().manual_seed(0))
    found = module.drawn(logits.to(device), torch.full((draws,), temperature, device=device), noise.to(device))
    counts, expected = torch.bincount(found.cpu(), minlength=5), (logits[0] / temperature).softmax(-1) * draws
    assert float(((counts - expected).square() / expected).sum()) < 18.5  # chi square, 4 degrees: one in a thousand
