"""Converted checkpoints in a real vLLM on CPU: what it has kernels for generates, what it refuses is named.

vLLM 0.28's CPU build multiplies int8, fp8 per channel and, on processors with AVX512, int4 in dense layers. It has no
quantized experts in these formats, no way to give fused layers one fp8 scale, and fp8 blocks only on processors with
AMX, where it has more, and some of that fails: but for int4, these tests ask for the kernels that every processor has.
"""

import gc
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from engines import logprobs, model_of
from models import checkpoint, make
from safetensors.torch import load_file
from vllm import LLM

from ascend_quant import oracle
from ascend_quant.convert import Request, convert
from ascend_quant.schemes import SCHEMES

pytestmark = pytest.mark.usefixtures("no_amx")  # any processor
WIDTHS = {
    "qwen2": {"hidden_size": 256, "intermediate_size": 256},
    "qwen3-moe": {"hidden_size": 256, "moe_intermediate_size": 128, "head_dim": 64},
}
INT4 = pytest.mark.skipif(
    not torch.cpu._is_avx512_supported(), reason="vLLM's library for processors without AVX512 has no int4 product"
)
SERVED = ("int8", "fp8", *(pytest.param(scheme, marks=INT4) for scheme in ("int4_g128", "int4_g32")))
NO_AMX = "CPUFp8BlockScaledMMKernel requires AMX"
EXPERTS_REFUSED = {
    "int8": (NotImplementedError, "No Int8 MoE backend supports the deployment configuration"),
    "fp8": (ValueError, "Unsupported FP8 MoE backend"),
    "int4_g128": (NotImplementedError, "No WNA16 MoE backend supports the deployment configuration"),
    "int4_g32": (NotImplementedError, "No WNA16 MoE backend supports the deployment configuration"),
}


@pytest.fixture(scope="module")
def bf16(tmp_path_factory) -> dict[str, Path]:
    """The checkpoints to convert; read, not edited."""
    return {kind: make(kind, tmp_path_factory.mktemp(kind), **more) for kind, more in WIDTHS.items()}


@contextmanager
def served(folder: Path):
    """An engine on a checkpoint as it is: its config.json says what it is."""
    llm = LLM(str(folder), dtype="bfloat16", enforce_eager=True, max_model_len=64, max_num_seqs=16)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def converted(source: Path, out: Path, scheme: str, **options) -> Path:
    convert(Request(source, out, scheme, **options))
    return out


def undone(source: Path, out: Path, scheme: str) -> Path:
    """The same weights in BF16, by the way back."""
    return converted(converted(source, out / "there", scheme), out / "back", "bf16")


@pytest.mark.parametrize("scheme", SERVED)
def test_a_dense_model_generates_what_its_weights_say(scheme, bf16, tmp_path):
    """As the dequantized weights do in BF16, but for the rounding of activations, which int4 does not have."""
    with served(converted(bf16["qwen2"], tmp_path / "out", scheme)) as llm:
        assert llm.llm_engine.vllm_config.model_config.quantization == "compressed-tensors"
        quantized = logprobs(llm)
    with served(undone(bf16["qwen2"], tmp_path, scheme)) as llm:
        plain = logprobs(llm)
    with served(make("qwen2", tmp_path, seed=9, **WIDTHS["qwen2"])) as llm:
        other = logprobs(llm)
    assert quantized.isfinite().all()
    assert (quantized - plain).abs().mean() < 0.1 * (other - plain).abs().mean()


@pytest.mark.parametrize("scheme", SERVED)
def test_ignored_layers_and_experts_keep_their_dtype(scheme, bf16, tmp_path):
    """Attention is quantized, experts are not: with names and patterns that vLLM understands as we do."""
    ignore = (r"re:.*\.experts\.", "model.layers.1.self_attn.o_proj")
    out = converted(bf16["qwen3-moe"], tmp_path / "out", scheme, ignore=ignore)
    with served(out) as llm:
        dtypes = {name: parameter.dtype for name, parameter in model_of(llm).named_parameters()}
        plain = {name for name, dtype in dtypes.items() if dtype == torch.bfloat16}
        assert {"model.layers.1.self_attn.o_proj.weight", "model.layers.0.mlp.gate.weight"} <= plain
        assert any("w13_weight" in name for name in plain)
        assert not {name for name in plain if name.endswith(("qkv_proj.weight", "layers.0.self_attn.o_proj.weight"))}
        assert logprobs(llm).isfinite().all()


@pytest.mark.parametrize("scheme", EXPERTS_REFUSED)
def test_this_build_of_vllm_has_no_quantized_experts(scheme, bf16, tmp_path):
    """fp8 is refused when all experts have been loaded. Where an engine starts, compare as for the dense model."""
    error, reason = EXPERTS_REFUSED[scheme]
    out = converted(bf16["qwen3-moe"], tmp_path / "out", scheme)
    with pytest.raises(error, match=reason), served(out):
        pass


@pytest.mark.parametrize("kind", WIDTHS)
def test_blocks_are_refused_by_name_without_amx(kind, bf16, tmp_path):
    out = converted(bf16[kind], tmp_path / "out", "fp8_block")
    with pytest.raises(ValueError, match=NO_AMX), served(out):
        pass


@pytest.mark.parametrize("kind, format", [("qwen2", "compressed-tensors"), ("qwen2", "fp8"), ("qwen3-moe", "fp8")])
def test_one_scale_a_tensor_is_read_but_this_build_cannot_fuse_layers(kind, format, bf16, tmp_path):
    """All tensors are loaded; then q, k and v are to have one scale, and the operator for it is for GPUs."""
    out = converted(bf16[kind], tmp_path / "out", "fp8_tensor", format=format)
    with pytest.raises(RuntimeError, match="static_scaled_fp8_quant"), served(out):
        pass


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("scheme", ["int8", "fp8_block", "int4_g32"])
def test_the_way_back_is_served_as_bf16(kind, scheme, bf16, tmp_path):
    out = undone(bf16[kind], tmp_path, scheme)
    state = {name: t for path in out.glob("*.safetensors") for name, t in load_file(path).items()}
    for name, tensor in checkpoint(bf16[kind]).items():
        if name.endswith("_proj.weight"):
            tensor = oracle.dequantize(*oracle.quantize(tensor, SCHEMES[scheme])).to(torch.bfloat16)
        assert torch.equal(state[name], tensor), name
    with served(out) as llm:
        assert llm.llm_engine.vllm_config.model_config.quantization is None
        assert logprobs(llm).isfinite().all()
