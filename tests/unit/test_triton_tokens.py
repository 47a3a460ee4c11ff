"""The kernel that makes codes of activations, on a GPU or in Triton's interpreter, against the oracle."""

import pytest
import torch
from kernel_modules import triton_module

from ascend_quant import oracle

pytestmark = pytest.mark.gpu(interpreted=True)
NAME = "ascend_quant.kernels.cuda.serve.triton_tokens"
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(scope="module")
def tokens():
    """The module of the kernel, and where its tensors are."""
    with triton_module(NAME) as found:
        yield found


def agrees(tokens, x: torch.Tensor) -> None:
    module, device = tokens
    codes, scale = module.quantize_tokens(x.to(device))
    expected_codes, expected_scale = oracle.quantize_rows(x)
    assert codes.is_contiguous() and scale.shape == (len(x), 1)
    assert torch.equal(codes.cpu(), expected_codes)
    assert torch.equal(scale[:, 0].cpu(), expected_scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 16, 100, 3584])
def test_rows_of_every_dtype(tokens, dtype, columns):
    rows = torch.randn(5, columns, generator=torch.Generator().manual_seed(columns))
    agrees(tokens, (rows * 2.0 ** torch.arange(-6, 4, 2)[:, None]).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_longer_than_a_program_holds(tokens, monkeypatch, dtype):
    monkeypatch.setattr(tokens[0], "WIDEST", 256)
    agrees(tokens, torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).to(dtype))


def test_ties_and_steps_of_every_mantissa(tokens):
    """A row for each BF16 mantissa of the largest magnitude, with every BF16 number that has another code than 0."""
    largest = torch.arange(128, 256) / 64.0
    steps = (torch.arange(128, 256)[:, None] * 2.0 ** torch.arange(-15, -5)).flatten()
    rows = torch.cat([largest[:, None], steps.repeat(128, 1).clamp(max=largest[:, None])], 1)
    agrees(tokens, torch.cat([rows, -rows]).to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_at_the_ends_of_the_range(tokens, dtype):
    rows = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).clamp(-2, 2)
    powers = 2.0 ** torch.tensor([-98, -100, -101, 126], dtype=torch.float64)
    agrees(tokens, (rows * powers[:, None]).to(dtype))
    agrees(tokens, torch.zeros(2, 64, dtype=dtype))


def test_halves_of_wider_rows_and_no_rows(tokens):
    wide = torch.randn(4, 96, generator=torch.Generator().manual_seed(2)).bfloat16()
    agrees(tokens, wide[:, 48:])
    agrees(tokens, wide.t())
    agrees(tokens, wide[:0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_spoils_its_row_alone(tokens, bad, dtype):
    module, device = tokens
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(3)).to(dtype)
    good_codes, good_scale = oracle.quantize_rows(x)
    x[1, 7] = bad
    codes, scale = (found.cpu() for found in module.quantize_tokens(x.to(device)))
    assert torch.isfinite(scale[:, 0]).tolist() == [True, False, True]
    assert torch.equal(codes[::2], good_codes[::2]) and torch.equal(scale[::2, 0], good_scale[::2])


@pytest.mark.parametrize(
    ("capability", "driver", "early"),
    [((9, 0), 13000, True), ((10, 0), 12030, True), ((9, 0), 12020, False), ((8, 6), 13000, False)],
)
def test_kernels_start_early_where_gpu_and_driver_can(monkeypatch, capability, driver, early):
    module = pytest.importorskip("ascend_quant.kernels.cuda.triton_early")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(module, "_driver", lambda: driver)
    module.starts_early.cache_clear()
    assert module.starts_early(torch.device("cuda", 7)) is early and not module.starts_early(torch.device("cpu"))
    monkeypatch.setattr(module, "gdc_wait", None)  # as an older Triton has it
    module.starts_early.cache_clear()
    assert not module.starts_early(torch.device("cuda", 7))
    module.starts_early.cache_clear()
