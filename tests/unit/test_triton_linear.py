"""The int8 product's Triton kernel against the oracle's, bit for bit; in the interpreter where there is no GPU."""

from importlib import import_module

import pytest
import torch

from ascend_quant import oracle
from ascend_quant.kernels.cuda.serve import shared_tiles
from ascend_quant.kernels.tuned import Tiles

SMALL = [
    Tiles(16, 32, 64, 1, 4, 2),  # tokens are columns
    Tiles(32, 32, 32, 2, 4, 2),
    Tiles(64, 32, 64, 1, 4, 2),
    Tiles(64, 64, 32, 3, 4, 2),
    Tiles(64, 32, 32, 2, 4, 2, tma=True),
    Tiles(32, 32, 64, 1, 4, 2, tma=True),
]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(scope="module")
def product(cuda):
    linear = import_module("ascend_quant.kernels.cuda.serve.triton_linear")

    def of(x, codes_NK, scale_N1, bias_N, tiles):
        x_codes, x_scale = oracle.quantize_rows(x)
        return linear.int8_product(x_codes, codes_NK, x_scale.view(-1, 1), scale_N1, bias_N, x.dtype, tiles)

    of.device, of.int8_product = cuda.device, linear.int8_product
    return of


def layer(rows, columns, length, dtype, device, low=-127):
    """x, codes, scales, bias; with `low` near 127 the sums have more bits than float32 holds."""
    generator = torch.Generator(device=device).manual_seed(rows + columns + length)
    x = torch.randn(rows, length, device=device, generator=generator)
    x = x.abs() * 0.1 + 3 if low > 0 else x
    codes = torch.randint(low, 128, (columns, length), dtype=torch.int8, device=device, generator=generator)
    scale = torch.rand(columns, 1, device=device, generator=generator) * 0.01
    bias = torch.randn(columns, device=device, generator=generator)
    return x.to(dtype), codes, scale, bias.to(dtype)


@pytest.mark.parametrize("tiles", SMALL, ids=str)
@pytest.mark.parametrize("shape", [(1, 16, 32), (5, 48, 100), (70, 40, 272), (600, 96, 96)], ids=str)
def test_it_is_the_oracles_product_bit_for_bit(product, shape, tiles):
    for dtype in DTYPES:
        x, codes, scale, bias = layer(*shape, dtype, product.device)
        for given in (None, bias):
            expected = oracle.matmul(x, codes, scale.view(-1), given).to(dtype)
            assert torch.equal(product(x, codes, scale, given, tiles), expected), (dtype, given is None)


@pytest.mark.parametrize("tiles", [SMALL[0], SMALL[3]], ids=str)
def test_sums_are_integers_beyond_what_float32_holds(product, tiles):
    x, codes, scale, bias = layer(3, 20, 3000, torch.float32, product.device, low=96)
    sums = oracle.quantize_rows(x)[0].double() @ codes.double().T  # exact; CUDA multiplies no int64
    assert sums.min() > 2**24  # or else the test shows nothing
    assert torch.equal(product(x, codes, scale, bias, tiles), oracle.matmul(x, codes, scale.view(-1), bias))


@pytest.mark.parametrize("parts", [2, 5, 64])
def test_the_number_of_parts_changes_nothing(product, parts):
    x, codes, scale, bias = layer(9, 40, 200, torch.float32, product.device)
    whole = product(x, codes, scale, bias, SMALL[2])
    assert torch.equal(product(x, codes, scale, bias, SMALL[2]._replace(split_k=parts)), whole)


def test_no_tokens_are_no_rows(product):
    x, codes, scale, _ = layer(0, 16, 32, torch.bfloat16, product.device)
    found = product(x, codes, scale, None, SMALL[0])
    assert found.shape == (0, 16) and found.dtype == torch.bfloat16


def test_a_scale_that_is_no_number_spoils_its_row_alone(product):
    x, codes, scale, _ = layer(3, 16, 32, torch.float32, product.device)
    x_codes, x_scale = oracle.quantize_rows(x)
    x_scale[1] = torch.nan
    found = product.int8_product(x_codes, codes, x_scale.view(-1, 1), scale, None, torch.bfloat16, SMALL[0])
    assert found.isnan().all(1).tolist() == [False, True, False] and not found[[0, 2]].isnan().any()


def test_sums_that_could_overflow_are_refused(product):
    x = torch.zeros(1, 2**17, dtype=torch.int8, device=product.device)
    one = torch.ones(1, 1, device=product.device)
    with pytest.raises(ValueError, match=r"131072 int8 codes.*overflow"):
        product.int8_product(x, x, one, one, None, torch.float32, SMALL[0])


def test_k_is_cut_into_no_more_parts_than_steps_and_not_where_tiles_are_many():
    tiles, cpu = Tiles(16, 32, 64, 5, 4, 2), torch.device("cpu")
    parts, sums, arrived = shared_tiles.workspace(tiles, 7, 100, cpu)
    assert parts == 2 and sums.numel() == 7 * 2 * 16 * 32 and not arrived.any() and len(arrived) >= 7
    assert shared_tiles.workspace(tiles, shared_tiles.COUNTERS, 1000, cpu)[0] == 5
    assert shared_tiles.workspace(tiles, shared_tiles.COUNTERS + 1, 1000, cpu) == (1, None, None)
    assert shared_tiles.workspace(tiles._replace(split_k=1), 7, 1000, cpu) == (1, None, None)
