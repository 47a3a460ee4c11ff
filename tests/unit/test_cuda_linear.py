"""Int8 linear layers on a GPU: every kernel that may be chosen, against int32 sums, bit for bit, and under graphs."""

import pytest
import torch

from ascend_quant.kernels import tuned
from ascend_quant.kernels.cuda.serve import linear_choice
from ascend_quant.kernels.tuned import HopperTiles, Tiles
from ascend_quant.schemes.arithmetic import dequantized_sums
from benchmarks.tune.table import save

pytestmark = pytest.mark.gpu

RAGGED = [(1, 48, 512), (61, 208, 1040), (150, 2000, 4992), (160, 37888, 3584), (300, 1024, 768), (300, 20000, 400)]
HOPPER = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="for Hopper"
)
NEWER = pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="no TMA")
TILES = [
    *(tiles._replace(split_k=parts) for tiles in linear_choice.BY_ROWS.values() for parts in (1, 3)),
    pytest.param(Tiles(64, 128, 128, 2, 4, 4, tma=True, pdl=True, ahead=4), marks=NEWER),
    pytest.param(Tiles(64, 64, 256, 1, 4, 5, tma=True, pdl=True, late=True), marks=NEWER),
    pytest.param(Tiles(128, 128, 128, 1, 8, 3, pdl=True), marks=NEWER),
    pytest.param(HopperTiles(64, 128, 128, 4, 8), marks=HOPPER),
    pytest.param(HopperTiles(128, 128, 128, 8, 6), marks=HOPPER),
    pytest.param(HopperTiles(256, 64, 128, 8, 5), marks=HOPPER),
    pytest.param(HopperTiles(64, 64, 128, 4, 12, stream_k=True), marks=HOPPER),
    pytest.param(HopperTiles(128, 64, 128, 8, 7, more=64), marks=HOPPER),
    pytest.param(HopperTiles(128, 128, 128, 8, 5, stream_k=True, more=64), marks=HOPPER),
    pytest.param(HopperTiles(128, 128, 128, 8, 6, stream_k=True), marks=HOPPER),
]


def layer(rows, columns, length, dtype=torch.bfloat16):
    """Codes, scales and bias, with sums of more bits than float32 holds."""
    generator = torch.Generator(device="cuda").manual_seed(rows)
    draw = {"dtype": torch.int8, "device": "cuda", "generator": generator}
    x = torch.randint(64, 128, (rows, length), **draw)
    codes = torch.randint(-127, 128, (columns, length), **draw)
    x_scale = torch.rand(rows, 1, device="cuda", generator=generator)
    scale = torch.rand(columns, 1, device="cuda", generator=generator)
    return x, codes, x_scale, scale, torch.randn(columns, device="cuda", generator=generator).to(dtype)


def expected(x, codes, x_scale, scale, bias, dtype):
    sums = (x.double() @ codes.double().T).float()
    return dequantized_sums(sums, x_scale.view(-1), scale.view(-1), bias).to(dtype)


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("shape", RAGGED, ids=str)
def test_every_kernel_has_the_definitions_bits(shape, tiles):
    from ascend_quant.kernels.cuda.serve.triton_linear import int8_product

    for dtype in (torch.bfloat16, torch.float32):
        *product, bias = layer(*shape, dtype)
        for given in (None, bias):
            for _ in range(3):  # counters are left as they were found
                found = int8_product(*product, given, dtype, tiles)
                assert torch.equal(found, expected(*product, given, dtype)), (dtype, given is None)


def test_vllms_cutlass_has_the_same_bits():
    pytest.importorskip("vllm")
    from ascend_quant.integrations.vllm.layers.cuda_products import int8_linear

    for shape in [(1, 4608, 3584), (64, 1024, 4992), (300, 2048, 768), (1000, 3584, 18944)]:
        for dtype in (torch.bfloat16, torch.float16):
            x, codes, x_scale, scale, bias = layer(*shape, dtype)
            for given in (None, bias):
                found = int8_linear(x, codes, x_scale, scale, given, dtype)
                assert torch.equal(found, expected(x, codes, x_scale, scale, given, dtype)), (shape, given is None)


@pytest.mark.parametrize("tiles", TILES[1:2] + TILES[-10:-6] + TILES[-2:], ids=str)
def test_a_captured_product_follows_its_inputs_also_beside_another_stream(tiles):
    from ascend_quant.kernels.cuda.serve.triton_linear import int8_product

    *product, bias = layer(64, 1024, 2048)
    side, graph, outputs = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []

    def both():
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            outputs.append(int8_product(*product, bias, torch.bfloat16, tiles))
        outputs.append(int8_product(*product, bias, torch.bfloat16, tiles))
        main.wait_stream(side)

    both()
    torch.cuda.synchronize()
    outputs.clear()
    with torch.cuda.graph(graph):
        both()
    for _ in range(3):
        product[0].copy_(torch.randint_like(product[0], -127, 128))
        product[1].copy_(torch.randint_like(product[1], -127, 128))
        graph.replay()
        for found in outputs:
            assert torch.equal(found, expected(*product, bias, torch.bfloat16))


def test_the_op_takes_the_tuned_kernel_by_the_number_of_rows_and_is_one_op_when_compiled(tmp_path, monkeypatch):
    pytest.importorskip("vllm")
    from ascend_quant.kernels.cuda.serve import products as cuda_serving
    from ascend_quant.kernels.cuda.serve import triton_linear

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    choices = {rows: {"by": "triton", **linear_choice.BY_ROWS[rows]._asdict()} for rows in (16, 64)}
    save(tuned.user_file(tuned.gpu_name()), {"linear": {(208, 1040): choices}})
    tuned.forget()
    linear_choice.forget()
    taken, launch = [], triton_linear.int8_product
    monkeypatch.setattr(cuda_serving, "int8_product", lambda *given: taken.append(given[-1]) or launch(*given))

    @torch.compile(dynamic=True, fullgraph=True)
    def compiled(x, codes, x_scale, scale):
        return cuda_serving.scaled_product(x, codes, x_scale, scale, None, torch.bfloat16) * 2

    for rows in (7, 16, 33, 64):
        *product, _ = layer(rows, 208, 1040)
        found = compiled(*product)
        assert torch.equal(found, expected(*product, None, torch.bfloat16) * 2)
    blocks = [tiles.block_m for tiles in taken]
    tuned.forget()
    linear_choice.forget()
    assert blocks == [16, 16, 64, 64]
