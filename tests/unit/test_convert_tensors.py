"""Tensors that cannot be quantized or carried over: their dtypes, shapes and values, refused by name."""

import convert_cases as cases
import pytest
import torch

from ascend_quant.convert import ConvertError
from ascend_quant.profile.rules import ProfileError

NAME = "model.layers.0.mlp.up_proj.weight"
QUANTIZED = "model.layers.0.mlp.up_proj.weight_scale"
STACK = "model.layers.1.mlp.experts"


def refused(source, out, said) -> str:
    """The error's text; OUT is not there."""
    with pytest.raises((ConvertError, ProfileError), match=said) as error:
        cases.run(source, out, "int8")
    assert "\n" not in str(error.value) and not out.exists()
    return str(error.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64, torch.float8_e5m2])
@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.bias"]
)
def test_weights_that_are_carried_over_must_be_floats(name, dtype, tmp_path):
    tensors = cases.state()
    tensors[name] = tensors[name].to(dtype)
    assert name in refused(cases.write(tmp_path / "in", tensors), tmp_path / "out", "weights are BF16, F16, F32, F64")


@pytest.mark.parametrize(
    "name, tensor, said",
    [
        (NAME, torch.ones(128), "a linear layer is .outputs, inputs"),
        (NAME, torch.ones(2, 128, 8), "a linear layer is .outputs, inputs"),
        (NAME, torch.ones(0, 128), "nothing in it"),
        (NAME, torch.ones(128, 0), "nothing in it"),
        (QUANTIZED, torch.ones(128, 1), "quantized weight"),
        (f"{STACK}.w13", torch.ones(3, 256, 128), "stacks are gate_up_proj"),
        (f"{STACK}.gate_up_proj_blocks", torch.ones(3, 8, 2, dtype=torch.uint8), "stacks are|weights are"),
        ("model.layers.0.self_attn.q_proj.bias", torch.ones(cases.HIDDEN), r"\brows .* outputs"),
    ],
)
def test_what_cannot_be_quantized_is_refused_by_name(name, tensor, said, tmp_path):
    kept = tensor if tensor.dtype == torch.uint8 else tensor.to(torch.bfloat16)
    source = cases.write(tmp_path / "in", cases.state() | {name: kept})
    assert name in refused(source, tmp_path / "out", said)
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_a_causal_mask_is_no_weight(dtype, tmp_path):
    mask = {"model.layers.0.self_attn.bias": torch.ones(1, 1, 4, 4).tril().to(dtype)}
    cases.run(cases.write(tmp_path / "in", cases.state() | mask), tmp_path / "out", "int8")
    assert torch.equal(cases.read(tmp_path / "out")["model.layers.0.self_attn.bias"], *mask.values())


@pytest.mark.parametrize("leaf", ["gate_up_proj", "down_proj"])
def test_a_stack_of_experts_that_is_a_matrix_is_refused_by_name(leaf, tmp_path):
    tensors = cases.stacked(cases.state())
    tensors[f"{STACK}.{leaf}"] = tensors[f"{STACK}.{leaf}"][0].clone()
    refused(cases.write(tmp_path / "in", tensors), tmp_path / "out", rf"experts\.{leaf}")


def test_gpt2s_weights_are_inputs_by_outputs_and_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=50)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "in")
    refused(tmp_path / "in", tmp_path / "out", r"\brows .* outputs")


@pytest.mark.parametrize("value, dtype", [(3.4e38, torch.float32), (-1e300, torch.float64)])
def test_weights_beyond_bf16_are_named_as_such(value, dtype, tmp_path):
    tensors = cases.state(dtype=dtype)
    tensors[NAME][3, 5] = value
    said = f"{NAME}: 1 of {tensors[NAME].numel()} elements are beyond BF16's range"
    refused(cases.write(tmp_path / "in", tensors), tmp_path / "out", said)
