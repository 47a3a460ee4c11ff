"""A last bit planted in one operation of the trainer is found by the stages of engine and trainer."""

import pytest
import torch
from engines import engine, worker_of
from exact_cases import ENGINE, sharp, trainer
from torch import nn
from vllm import SamplingParams

from ascend_quant.exact.stages import Recorder, checksums, first_difference

TOKENS = torch.randint(2, 60, (37,), generator=torch.Generator().manual_seed(0)).tolist()
LAYER = "layers.1"
# the module of transformers that gets the bit, and whether in its input: the stage that has to be named
PLANTED = {
    "input_layernorm": ("input_layernorm", False),
    "self_attn.qkv_proj": ("self_attn.k_proj", False),
    "attention": ("self_attn.o_proj", True),
    "self_attn.o_proj": ("self_attn.o_proj", False),
    "post_attention_layernorm": ("post_attention_layernorm", False),
    "mlp.gate_up_proj": ("mlp.up_proj", False),
    "activation": ("mlp.down_proj", True),
    "mlp.down_proj": ("mlp.down_proj", False),
}
WITHIN_MLP = ("mlp.gate_up_proj", "activation", "mlp.down_proj")  # experts are one stage, mlp
CASES = [("qwen2", name, *case) for name, case in PLANTED.items()]
CASES += [("qwen3-moe", name, *case) for name, case in PLANTED.items() if name not in WITHIN_MLP]
CASES += [("qwen3-moe", "mlp", "mlp", False)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """By kind: the checkpoint's folder, and the engine's stages of a prefill."""
    found = {}
    for kind in ("qwen2", "qwen3-moe"):
        folder = sharp(kind, tmp_path_factory.mktemp(kind))
        with engine(folder, **ENGINE) as llm:
            recorder = Recorder(worker_of(llm).model_runner.get_model())
            llm.generate(
                [{"prompt_token_ids": TOKENS}], SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False
            )
            found[kind] = folder, recorder.close()
    return found


def stages_of(model: nn.Module):
    recorder = Recorder(model)
    with torch.no_grad():
        model(input_ids=torch.tensor([TOKENS]), position_ids=torch.arange(len(TOKENS)).unsqueeze(0), use_cache=False)
    return recorder.close()


def off_by_a_bit(x: torch.Tensor) -> torch.Tensor:
    """The last bit of one element of token 5 is the other one."""
    x = x.clone()
    x.view(torch.int16).flatten(0, -2)[5, 3] ^= 1
    return x


@pytest.mark.parametrize("kind", ["qwen2", "qwen3-moe"])
def test_equal_policies_have_equal_stages(kind, recorded):
    folder, engines = recorded[kind]
    own = stages_of(trainer(folder))
    assert own.keys() == engines.keys() and all(own[name][0] == engines[name][0] for name in own)
    assert "lm_head" in first_difference(engines, [own], len(TOKENS))
    halves = [{name: halved(stage, part) for name, stage in own.items()} for part in (slice(20), slice(20, None))]
    assert "lm_head" in first_difference(engines, halves, len(TOKENS)), "each rank has a part of the sequence"


def halved(stage, part):
    return stage[0], stage[1][part]


@pytest.mark.parametrize(("kind", "stage", "module", "of_input"), CASES)
def test_a_planted_bit_names_its_operation(kind, stage, module, of_input, recorded):
    folder, engines = recorded[kind]
    model = trainer(folder)
    there = model.get_submodule(f"model.{LAYER}.{module}")
    if of_input:
        there.register_forward_pre_hook(lambda module, args: (off_by_a_bit(args[0]), *args[1:]))
    else:
        there.register_forward_hook(lambda module, args, output: off_by_a_bit(output))
    said = first_difference(engines, [stages_of(model)], len(TOKENS))
    assert said.split()[0] == f"{LAYER}.{stage}" and said.split()[-2] == "5", said


def test_checksums_tell_bits_and_their_places_and_add_up():
    x_MK = torch.randn(300, 12, generator=torch.Generator().manual_seed(1)).bfloat16()
    parts = checksums(x_MK[:, :5]) + checksums(x_MK[:, 5:], 5)
    assert torch.equal(parts, checksums(x_MK))
    assert torch.equal(checksums(x_MK[17:18]), checksums(x_MK)[17:18])
    others = [off_by_a_bit(x_MK), x_MK.flip(1), x_MK.where(torch.arange(12) != 2, x_MK[:, 3:4])]
    assert all(not torch.equal(checksums(other)[5:6], checksums(x_MK)[5:6]) for other in others)
