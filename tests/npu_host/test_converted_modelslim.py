"""`ascend-quant convert --format modelslim`: vllm-ascend itself builds the model from its description and loads it."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from ascend_quant import oracle
from ascend_quant.convert import Request, convert
from npu_host import checkpoint, models, vllm_engine

pytestmark = [
    pytest.mark.each_version,
    pytest.mark.long("ascend_quant/convert", "ascend_quant/integrations/vllm_ascend", "tests/npu_host"),
]


@pytest.fixture(params=list(models.CONFIGS))
def loaded(request, tmp_path):
    """The checkpoint's tensors, whether it has experts, and the model that vllm-ascend has loaded, before any hook."""
    from vllm.model_executor.model_loader import base_loader

    moe, source = "Moe" in request.param, tmp_path / "model"
    models.write_model(source, request.param)
    state = checkpoint.state_of(moe, 0)
    save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    convert(Request(source, tmp_path / "slim", "int8", format="modelslim"))
    with vllm_engine.running(tmp_path, request.param) as config:
        config.quant_config = vllm_engine.modelslim_config()()
        config.quant_config.maybe_update_config(str(tmp_path / "slim"))
        model = base_loader.initialize_model(vllm_config=config, model_config=config.model_config)
        read = model.load_weights(
            (name, t.npu()) for name, t in load_file(tmp_path / "slim" / "model.safetensors").items()
        )
        yield state, moe, model, read


def test_every_parameter_is_loaded_and_is_the_oracles(loaded):
    state, moe, model, read = loaded
    parameters = {name.replace(".routed_experts", ""): one for name, one in model.named_parameters()}  # newer vLLMs'
    read = {name.replace(".routed_experts", "") for name in read}
    assert parameters.keys() <= read | {n for n in parameters if "lm_head" in n}, sorted(parameters.keys() - read)
    for leaf, names in (("qkv_proj", "qkv"), ("o_proj", "o")):
        rows = torch.cat([state[f"{checkpoint.LAYER}.self_attn.{one}_proj.weight"] for one in names])
        codes, scale = oracle.quantize_weight(rows)
        name = f"{checkpoint.LAYER}.self_attn.{leaf}.weight"
        assert torch.equal(parameters[name].cpu(), codes)
        assert torch.equal(parameters[f"{name}_scale"].cpu().float().flatten(), scale.bfloat16().float())
        assert not parameters[name.replace("weight", "weight_offset")].cpu().any()
    if moe:
        held = parameters[f"{checkpoint.LAYER}.mlp.experts.w2_weight"].cpu()
        for expert, layer in enumerate(checkpoint.mlps(True)):
            assert torch.equal(held[expert], oracle.quantize_weight(state[f"{layer}.down_proj.weight"])[0])
        assert parameters[f"{checkpoint.LAYER}.mlp.gate.weight"].dtype == torch.bfloat16
