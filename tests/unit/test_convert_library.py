"""transformers and compressed-tensors load a converted model whole and decompress it to our values, bit for bit."""

import checkpoint_pairs
import convert_cases as cases
import pytest
import torch

from ascend_quant import oracle
from ascend_quant.schemes import SCHEMES

pytest.importorskip("compressed_tensors")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Every width is a multiple of 128; read, not edited."""
    folder = tmp_path_factory.mktemp("source") / "in"
    return checkpoint_pairs.make_bf16("qwen2", folder, hidden_size=256, intermediate_size=256)


@pytest.mark.parametrize("scheme", ["int8", "fp8", "fp8_tensor", "int4_g128", "int4_g32"])
def test_a_model_is_decompressed_to_our_values(scheme, source, tmp_path):
    """In float32, which keeps the scales as they are."""
    cases.run(source, tmp_path / "out", scheme)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out",
        quantization_config=transformers.CompressedTensorsConfig(run_compressed=False),
        dtype=torch.float32,
    )
    found = model.state_dict()
    for name, tensor in cases.read(source).items():
        wanted = tensor.float()
        if cases.is_quantized(name):
            wanted = oracle.dequantize(*oracle.quantize(tensor, SCHEMES[scheme]))
        assert torch.equal(found[name], wanted), name
