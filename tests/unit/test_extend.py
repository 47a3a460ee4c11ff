"""docs/extend.md: its code runs as it stands there, what it names is there, its scheme goes as far as the page says."""

import inspect
import json
import math
import random
import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from convert_cases import CONFIG, read, run, state, write

from ascend_quant import oracle
from ascend_quant.kernels import NoKernels, cpu, npu, serving_of
from ascend_quant.kernels.registry import check_kind
from ascend_quant.kernels.writes import Job, SchemeWrite
from ascend_quant.mismatch import layer_errors
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.refit import Refit, RefitError, resident_class
from ascend_quant.schemes import SCHEMES, Scheme, definition_of, get_scheme, registry

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/extend.md", ROOT / "docs/extend.zh.md"]
OF_THE_EXAMPLE = {"docker/locks/cpu-vllm0.33.in", "docker/locks/cpu-vllm0.33.txt", "ascend_quant/schemes/mxfp8.py"}
FILE = re.compile(r"(?:ascend_quant|launch|tests|docker|docs|benchmarks|tools)/[\w./-]+\.\w+")
CPU = torch.device("cpu")
E4M3 = [Fraction(torch.tensor(code, dtype=torch.uint8).view(torch.float8_e4m3fn).item()) for code in range(127)]


def codes_of(page: Path) -> list[str]:
    """The page's Python: a scheme, and an engine."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def made_by(code: str) -> dict:
    made = {"__name__": "extended"}
    exec(compile(code, "docs/extend.md", "exec"), made)
    return made


@pytest.fixture
def mxfp8():
    """The page's scheme, known during the test."""
    with patch.dict(SCHEMES), patch.dict(registry._DEFINITIONS):
        made_by(codes_of(PAGES[0])[0])
        yield SCHEMES["mxfp8"]


def weights(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Rows of many sizes, of which one is zeros of both signs and one too small for a scale."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(shape, generator=generator) * torch.logspace(-6, 3, shape[-2]).unsqueeze(-1)
    w[..., 1, :], w[..., 2, :] = -0.0, 2.0**-101
    return w.bfloat16()


def nearest(value: Fraction) -> Fraction:
    """Of E4M3's numbers; of two that are as near the one whose last bit is 0; the largest for all beyond."""
    index = min(range(len(E4M3)), key=lambda i: (abs(E4M3[i] - abs(value)), i % 2))
    return math.copysign(1, value) * E4M3[index]


def test_both_pages_have_the_same_code_and_table():
    en, zh = (page.read_text() for page in PAGES)
    assert codes_of(PAGES[0]) == codes_of(PAGES[1])
    assert rows_of(en) == rows_of(zh) == [row_of(scheme) for scheme in SCHEMES.values()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path):
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.DOTALL)
    named = {span for span in re.findall(r"`([^`\n]+)`", text) if FILE.fullmatch(span)}
    assert len(named) > 20 and [file for file in named - OF_THE_EXAMPLE if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_the_engine_serves_what_the_definition_says_and_refuses_otherwise(scheme: str):
    engine = made_by(codes_of(PAGES[0])[1])["ToyEngine"](8, 64, scheme)
    generator = torch.Generator().manual_seed(0)
    w, x = (torch.randn(rows, 64, generator=generator).bfloat16() for rows in (8, 3))
    with pytest.raises(RefitError):
        engine.forward(x)
    engine.load_weights([("linear.weight", w)])
    codes, scale = oracle.quantize(w, get_scheme(scheme))
    assert torch.equal(engine.buffers.codes.float(), codes.float())
    assert torch.equal(engine.buffers.scale.view(-1), scale)
    assert torch.allclose(engine.forward(x).float(), oracle.product(x, codes, scale, get_scheme(scheme)), rtol=2**-7)
    for wrong in ([("linear.weight", w * torch.nan)], []):
        with pytest.raises(RefitError):
            engine.load_weights(wrong)
        with pytest.raises(RefitError):
            engine.forward(x)
    engine.load_weights([("linear.weight", w)])
    assert engine.forward(x).shape == (3, 8)


def rows_of(page: str) -> list[str]:
    return [line for line in page.splitlines() if re.match(r"\| \w+ \| \w+\.py \|", line)]


def row_of(scheme: Scheme) -> str:
    """Of the pages' table, from what is registered."""
    definition = definition_of(scheme)
    held = definition.stored.formats if definition.stored else ("-",)
    looks = "-"
    if scheme.quantized:
        dtype, (along_n, along_k) = definition.scales(1024, 2048)
        per_n, per_k = 1024 // along_n, 2048 // along_k
        sizes = f"{'N' if per_n == 1 else f'N/{per_n}'}, {1 if along_k == 1 else f'K/{per_k}'}"
        looks = f"{definition.codes_dtype}, {dtype} ({sizes})"
    file = Path(inspect.getfile(type(definition))).name
    return f"| {scheme.name} | {file} | {looks} | {', '.join(held)} |"


def test_codes_and_scales_are_those_of_exact_fractions(mxfp8):
    w_NK = weights((12, 64))
    codes_NK, exponent_NG = oracle.quantize(w_NK.float(), mxfp8)
    values_NK = oracle.dequantize(codes_NK, exponent_NG, mxfp8)
    for row in range(12):
        for group in range(2):
            columns = slice(32 * group, 32 * group + 32)
            exact = [Fraction(value) for value in w_NK[row, columns].tolist()]
            absmax = max(map(abs, exact))
            if absmax < Fraction(2) ** -100:
                assert exponent_NG[row, group] == 0 and not codes_NK[row, columns].view(torch.int8).any()
                continue
            power = max(e for e in range(-120, 120) if Fraction(2) ** e <= absmax) - 8
            assert exponent_NG[row, group] == power + 127
            scale = Fraction(2) ** power
            assert values_NK[row, columns].tolist() == [float(nearest(value / scale) * scale) for value in exact]


def test_products_are_of_what_is_rounded(mxfp8):
    x_MK, w_NK = weights((5, 64), 3), weights((12, 64))
    x_64, w_64 = (oracle.dequantize(*oracle.quantize(one, mxfp8), mxfp8).double() for one in (x_MK, w_NK))
    found = oracle.product(x_MK, *oracle.quantize(w_NK, mxfp8), mxfp8)
    assert torch.equal(found, (x_64 @ w_64.T).float())
    assert torch.allclose(layer_errors.product(x_MK, w_NK, mxfp8), found, rtol=1e-4, atol=1e-6 * found.abs().max())


def test_a_row_that_cannot_be_cut_is_refused(mxfp8):
    with pytest.raises(ValueError, match="40"):
        oracle.quantize(torch.ones(2, 40), mxfp8)


def resident_of(scheme: Scheme, shape: tuple[int, ...]):
    storage = cpu.storage(scheme, shape)
    return resident_class(scheme)("w", storage.codes, storage.scale, shape[-1]), storage


def refit(engine: Refit, w_NK: torch.Tensor, cuts: list[int], seed: int) -> str:
    """One refit, in shards of rows that come in any order; the receipt's digest."""
    (resident,) = engine.residents
    flat = w_NK.reshape(-1, *w_NK.shape[-2:])
    shards = [(matrix, *ends) for matrix in range(len(flat)) for ends in pairwise(cuts)]
    random.Random(seed).shuffle(shards)
    with engine.session():
        for matrix, start, stop in shards:
            shard = flat[matrix, start:stop].clone()
            slot = engine.batch.new_sources([(f"w.{matrix}.{start}", shard.numel())])
            target = resident.data.view(flat.shape)[matrix] if w_NK.dim() == 3 else resident.data
            engine.write(slot, resident, target[start:stop], shard)
    return engine.last_receipt.digest


@pytest.mark.parametrize("shape", [(200, 96), (3, 130, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_resident_bytes_are_the_oracles_in_any_bucketing(mxfp8, shape, dtype):
    for seed, cuts in enumerate(([0, shape[-2]], [0, 77, shape[-2]], [0, 1, 2, 64, 129, shape[-2]])):
        resident, storage = resident_of(mxfp8, shape)
        engine = Refit([resident])
        for step in range(2):
            w_NK = weights(shape, step)
            found = refit(engine, w_NK.to(dtype), cuts, seed)
            codes, scale = oracle.quantize(w_NK, mxfp8)
            assert torch.equal(storage.codes.view(torch.int8), codes.view(torch.int8))
            assert torch.equal(storage.scale, scale)
            digests = oracle.digest(codes), oracle.digest(scale)
            wanted = oracle.add_digests(*digests, weights=[resident.weight, 3 * resident.weight])
            assert found == engine.digest() == f"{wanted:016x}"
        assert engine.last_receipt.changed > 0.5
        refit(engine, w_NK.to(dtype), cuts, seed + 1)
        assert engine.last_receipt.changed == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_name(mxfp8, bad, tmp_path):
    w_NK = weights((8, 64))
    w_NK[5, 40] = bad
    assert not definition_of(mxfp8).finite(oracle.quantize(w_NK, mxfp8)[1])[5, 1]
    with pytest.raises(RefitError, match=r"w\.0\.4"):
        refit(Refit([resident_of(mxfp8, (8, 64))[0]]), w_NK, [0, 4, 8], 0)
    source = write(tmp_path / "in", {"model.layers.0.mlp.up_proj.weight": w_NK}, 1)
    with pytest.raises(BadCheckpoint, match=r"layers\.0\.mlp\.up_proj"):
        run(source, tmp_path / "out", "mxfp8")


def test_a_cpu_serves_what_was_refitted(mxfp8):
    x_MK, w_NK = weights((7, 64), 3), weights((12, 64))
    resident, storage = resident_of(mxfp8, w_NK.shape)
    refit(Refit([resident]), w_NK, [0, 12], 0)
    serving, bias_N = serving_of(mxfp8, CPU), torch.arange(12.0).bfloat16()
    found = serving.linear(x_MK, storage.codes, storage.served_scale, bias_N)
    wanted = oracle.product(x_MK, *oracle.quantize(w_NK, mxfp8), mxfp8, bias_N)
    assert torch.equal(found, wanted.bfloat16())


def test_a_cpu_serves_its_experts(mxfp8):
    experts = [*oracle.quantize(weights((3, 128, 32), 1) / 100, mxfp8)]
    experts += oracle.quantize(weights((3, 32, 64), 2) / 100, mxfp8)
    chosen = torch.tensor([[0, 2], [1, 1], [2, 0]]), torch.tensor([[0.5, 0.5], [0.1, 0.2], [1.0, 0.0]])
    x_MK = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = serving_of(mxfp8, CPU).experts(x_MK, chosen[1], chosen[0], *experts)
    wanted = oracle.experts(x_MK, chosen[1], chosen[0], *experts, scheme=mxfp8)
    assert torch.equal(found, wanted.bfloat16())


def test_convert_writes_it(mxfp8, tmp_path):
    tensors = state()
    summary = run(write(tmp_path / "in", tensors), tmp_path / "out", "mxfp8", workers=1)
    found = read(tmp_path / "out")
    assert summary.format == "compressed-tensors"
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            codes, scale = oracle.quantize(tensor, mxfp8)
            assert torch.equal(found[name].view(torch.uint8), codes.view(torch.uint8))
            assert torch.equal(found[f"{name}_scale"], scale) and found[f"{name}_scale"].dtype == torch.uint8
        else:
            assert found[name].dtype == tensor.dtype
    config = json.loads((tmp_path / "out/config.json").read_text())
    said = config["quantization_config"]
    weights_of = said["config_groups"]["group_0"]["weights"]
    asked = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    assert asked.items() <= weights_of.items() and said["format"] == "mxfp8-quantized"
    assert CONFIG.items() <= config.items()


def test_other_backends_say_what_they_have(mxfp8):
    with pytest.raises(NoKernels, match=r"mxfp8.*int8"):
        npu.SERVING.of(mxfp8)
    resident, _ = resident_of(mxfp8, (8, 64))
    write = resident.example()
    assert isinstance(write, SchemeWrite) and write.kind == "mxfp8"
    with pytest.raises(NoKernels, match=r"mxfp8.*int8"):
        npu.write([Job.of(write, weights((8, 64)))], npu.Counters(CPU))
    with pytest.raises(NoKernels, match=r"mxfp8.*int8"):
        check_kind(write.kind, ("copy", "int8"), "cuda")


def test_it_is_gone_after_the_test():
    assert "mxfp8" not in SCHEMES and "mxfp8" not in registry._DEFINITIONS
