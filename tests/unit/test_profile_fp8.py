"""FP8 checkpoints: which names are quantized, and that the rest is the same model."""

import json

import checkpoint_pairs
import pytest
import torch

from ascend_quant import oracle
from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.profile.files import load, save
from ascend_quant.profile.fp8 import compare_fp8

NAME = "model.layers.0.mlp.up_proj.weight"


def quantize(state: dict, kind: str) -> None:
    """All projections of a state dict, in place."""
    for name in [name for name in state if name.endswith("_proj.weight")]:
        if kind == "block":
            codes, scale = oracle.quantize_fp8_blocks(state[name])
            state[f"{name}_scale_inv"] = scale
        elif kind == "tensor":
            codes, scale = oracle.quantize_fp8_tensor(state[name])
            state[f"{name}_scale"] = scale.reshape(1)
        else:
            codes, scale = oracle.quantize_fp8_rows(state[name])
            state[f"{name}_scale"] = scale.unsqueeze(1)
        state[name] = codes


@pytest.fixture(params=["channel", "tensor", "block"])
def checkpoints(request, tmp_path) -> tuple[Checkpoint, Checkpoint]:
    """The BF16 one and the FP8 one."""
    for name in ("bf16", "fp8"):
        checkpoint_pairs.make_bf16("qwen2", tmp_path / name)
    checkpoint_pairs.edit(tmp_path / "fp8", lambda state: quantize(state, request.param))
    path = tmp_path / "fp8" / "config.json"
    section = {"quant_method": "fp8", "weight_block_size": [128, 128] if request.param == "block" else None}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": section}))
    return Checkpoint(tmp_path / "bf16"), Checkpoint(tmp_path / "fp8")


def test_the_projections_are_listed(checkpoints, tmp_path):
    bf16, fp8 = checkpoints
    wanted = {name for name in bf16.names if name.endswith("_proj.weight")}
    for reference in (bf16, None):
        result = compare_fp8(fp8, reference)
        assert result.profile.rules.keys() == wanted
        assert result.kinds == {"quantized": len(wanted), "not quantized": len(bf16.names) - len(wanted)}
    save(result.profile, tmp_path / "profile")
    assert load(tmp_path / "profile").rules == result.profile.rules


@pytest.mark.parametrize("name", [NAME, "model.layers.0.input_layernorm.weight"])
def test_another_models_weights_are_refused_by_name(name, checkpoints):
    bf16, fp8 = checkpoints
    checkpoint_pairs.edit(bf16.folder, lambda state: state[name].mul_(1.5))
    with pytest.raises(BadCheckpoint, match=name):
        compare_fp8(fp8, Checkpoint(bf16.folder))


def test_weights_and_scales_that_do_not_go_together_are_refused_by_name(checkpoints):
    bf16, fp8 = checkpoints
    with pytest.raises(BadCheckpoint, match="FP8"):
        compare_fp8(bf16, None)
    checkpoint_pairs.edit(fp8.folder, lambda state: state.update({f"{NAME}_scale": torch.ones(7, 1)}))
    with pytest.raises(BadCheckpoint, match="scales"):
        compare_fp8(Checkpoint(fp8.folder), bf16)
    checkpoint_pairs.edit(
        fp8.folder, lambda state: [state.pop(f"{NAME}_{one}", None) for one in ("scale", "scale_inv")]
    )
    with pytest.raises(BadCheckpoint, match=f"{NAME}: no weight_scale"):
        compare_fp8(Checkpoint(fp8.folder), bf16)
