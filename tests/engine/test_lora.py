"""LoRA on a quantized base: the adapter stays BF16, works on what the codes stand for, and stays across refits."""

import json
from pathlib import Path

import pytest
import torch
from architectures import ROWS, make
from engines import addresses, apart, differing, engine, prompts, resident, send
from models import VOCAB, checkpoint, perturbed
from safetensors.torch import save_file
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

pytestmark = pytest.mark.usefixtures("no_amx")  # until a machine with AMX has seen this
[ROW] = [row for row in ROWS if row.name == "Qwen3"]
RANK, MODULES = 8, ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")
OPTIONS = {"max_num_seqs": 4, "enable_lora": True, "max_lora_rank": RANK, "max_logprobs": VOCAB}


def adapter(folder: Path, state: dict[str, torch.Tensor]) -> LoRARequest:
    """As PEFT saves one; large enough to be seen in every log-probability."""
    torch.manual_seed(9)
    tensors = {}
    for name, tensor in state.items():
        layer = name.removesuffix(".weight")
        if layer.endswith(MODULES):
            rows, columns = tensor.shape
            tensors[f"base_model.model.{layer}.lora_A.weight"] = 0.2 * torch.randn(RANK, columns)
            tensors[f"base_model.model.{layer}.lora_B.weight"] = 0.2 * torch.randn(rows, RANK)
    folder.mkdir()
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(MODULES), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return LoRARequest("adapter", 1, str(folder))


def answers(llm, lora: LoRARequest | None) -> torch.Tensor:
    """Log-probabilities of all words behind each of four prompts: with LoRA vLLM's CPU build gives none of prompts."""
    wanted = SamplingParams(max_tokens=1, temperature=0, logprobs=-1)
    found = llm.generate(prompts(4, 24), wanted, use_tqdm=False, lora_request=lora)
    return torch.tensor(
        [[step[word].logprob for word in sorted(step)] for one in found for step in one.outputs[0].logprobs]
    )


def test_an_adapter_works_on_a_quantized_base_across_refits(tmp_path):
    folder = make(ROW, tmp_path / "model")
    state = checkpoint(folder)
    lora = adapter(tmp_path / "adapter", state)
    with engine(folder, quantization=None, hf_overrides={}, **OPTIONS) as llm:
        plain, plain_adapted = answers(llm, None), answers(llm, lora)
    with engine(folder, "int8", **OPTIONS) as llm:
        base, adapted = answers(llm, None), answers(llm, lora)
        held, at = resident(llm), addresses(llm)
        send(llm, perturbed(state, 3))
        later, changed = answers(llm, lora), differing(held, resident(llm))
        send(llm, state)
        assert torch.equal(answers(llm, lora), adapted) and torch.equal(answers(llm, None), base)
        assert (differing(held, resident(llm)), addresses(llm)) == ([], at)
    effect, rounding = apart(plain_adapted, plain), apart(base, plain)
    print(f"FIGURES adapter {effect:.3f} int8 {rounding:.4f} with it {apart(adapted, plain_adapted):.4f}")
    assert changed and apart(later, adapted) > 3 * rounding
    assert effect > 10 * rounding and 0 < apart(adapted, plain_adapted) < 3 * rounding
