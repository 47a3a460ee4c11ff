"""Log-probabilities in chunks against float64, and verl's own function with them inside."""

import pytest
import torch

from ascend_quant.exact import log_probs as rows
from ascend_quant.integrations.verl.training import log_probs


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch):
    monkeypatch.setattr(rows, "ROWS", 5)


def exact(logits: torch.Tensor, labels: torch.Tensor, grad: torch.Tensor):
    """Log-probabilities and the gradient of the logits, in float64."""
    leaf = logits.detach().double().requires_grad_()
    found = leaf.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    found.backward(grad.double())
    return found.detach(), leaf.grad


def problem(dtype: torch.dtype, rows: int = 17):
    torch.manual_seed(0)
    logits = (4 * torch.randn(rows, 300, dtype=torch.float64)).to(dtype).requires_grad_()
    return logits, torch.randint(0, 300, (rows,)), torch.randn(rows, dtype=torch.float64)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "dtype, of_value, of_gradient",
    [(torch.bfloat16, 1e-6, 2**-8), (torch.float32, 1e-6, 1e-6), (torch.float64, 1e-14, 1e-14)],
)
def test_values_and_gradients(dtype, of_value: float, of_gradient: float, in_place: bool):
    leaf, labels, grad = problem(dtype)
    expected, gradient = exact(leaf, labels, grad)
    logits = leaf * 1  # as a model's output: no leaf
    losses, more = log_probs.cross_entropy_loss(logits, labels, inplace_backward=in_place)
    assert losses.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) and not more.any()
    torch.testing.assert_close(-losses.double(), expected, rtol=of_value, atol=of_value)
    before = logits.detach().clone()
    (-losses).backward(grad.to(losses.dtype))
    torch.testing.assert_close(leaf.grad.double(), gradient, rtol=of_gradient, atol=1e-8)
    assert torch.equal(logits, before) is not in_place


@pytest.mark.parametrize("temperature", [1.0, 0.8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_words_that_are_never_sampled(dtype, temperature):
    """verl's engine sets the logits of padding words to -inf before it divides and samples."""
    leaf, labels, grad = problem(dtype)
    labels, words = labels % 250, 250
    masked = leaf.detach().float().clone().requires_grad_()
    engines = masked.masked_fill(torch.arange(300) >= words, -torch.inf) / torch.tensor(temperature)
    expected = engines.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    found = rows.log_probs_of(leaf, labels, temperature, words=words)
    assert torch.equal(found, expected)
    assert not torch.equal(found, rows.log_probs_of(leaf, labels, temperature))
    found.backward(grad.float())
    expected.backward(grad.float())
    assert not leaf.grad[:, words:].any()
    torch.testing.assert_close(leaf.grad.float(), masked.grad, rtol=2**-8, atol=1e-8)


def test_logits_that_someone_else_keeps_are_not_spoiled_in_silence():
    leaf, labels, _ = problem(torch.float32)
    logits = leaf * 1
    squares = logits.square().sum()  # autograd keeps the logits for this
    losses, _ = log_probs.cross_entropy_loss(logits, labels, inplace_backward=True)
    losses.sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.backward()


def test_no_rows():
    logits, labels, _ = problem(torch.bfloat16, rows=0)
    losses, _ = log_probs.cross_entropy_loss(logits, labels)
    assert losses.shape == (0,)


@pytest.mark.parametrize("shape", [(9,), (2, 9)])
def test_verls_function_leaves_its_loop(shape: tuple[int, ...], monkeypatch):
    """In both shapes that verl calls it with; its own variable still asks for the loop."""
    pytest.importorskip("verl", reason="verl's function")
    from verl.utils import torch_functional

    torch.manual_seed(0)
    logits, labels = torch.randn(*shape, 50).bfloat16(), torch.randint(0, 50, shape)
    expected = logits.double().log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    loop = torch.zeros(shape)
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", lambda *_: loop)
    found = torch_functional.logprobs_from_logits(logits, labels)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    monkeypatch.setenv("VERL_DISABLE_FLASH_ATTN_CE", "1")
    assert torch_functional.logprobs_from_logits(logits, labels) is loop


def test_a_temperature_divides_in_float32_as_the_engines_sampler_does(monkeypatch):
    transformer_impl = pytest.importorskip("verl.workers.engine.fsdp.transformer_impl", reason="verl's function")
    from ascend_quant.integrations.verl.training import hooks
    from ascend_quant.integrations.wrapping import install

    torch.manual_seed(0)
    logits, temperature = (8 * torch.randn(7, 300)).bfloat16().requires_grad_(), torch.full((7, 1), 0.8)
    scale = transformer_impl._scale_logits_by_temperature
    verls = scale(logits, temperature, is_unit_temperature=False)
    monkeypatch.setattr(transformer_impl, "_scale_logits_by_temperature", scale)  # put back behind this test
    install(hooks.WITH_EXACT_TEMPERATURE)
    scale = transformer_impl._scale_logits_by_temperature
    expected = logits.detach().float().div_(temperature)  # vLLM's Sampler.apply_temperature
    found = scale(logits, temperature, is_unit_temperature=False)
    assert torch.equal(found, expected) and not torch.equal(verls.float(), expected)
    found.sum().backward()
    assert torch.equal(logits.grad, torch.full_like(logits, 1.25))
    assert scale(logits, torch.ones(7, 1), is_unit_temperature=True) is logits


@pytest.mark.parametrize("flash, npu, ours", [(True, False, False), (False, True, False), (False, False, True)])
def test_faster_kernels_are_left_alone(flash: bool, npu: bool, ours: bool, monkeypatch):
    pytest.importorskip("verl", reason="verl's function")
    from verl.utils import torch_functional

    from ascend_quant.integrations.verl.training import hooks

    monkeypatch.setattr(torch_functional, "cross_entropy_loss", "theirs", raising=False)
    monkeypatch.setattr(torch_functional, "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", flash)
    monkeypatch.setattr(torch_functional, "NPU_CROSS_ENTROPY_LOSS_AVAILABLE", npu)
    hooks.take_log_probs_in_chunks()
    assert (torch_functional.cross_entropy_loss is log_probs.cross_entropy_loss) is ours
    assert torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE is (flash or ours)
