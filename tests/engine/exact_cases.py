"""What an exact engine samples, and a trainer's log-probabilities of the same tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from models import checkpoint, make, save
from transformers import AutoModelForCausalLM
from vllm import SamplingParams

from ascend_quant.exact import apply_exact, log_probs_of
from ascend_quant.integrations.vllm.layers import register_products

TOKENS = 32  # of an answer
ENGINE = {"max_model_len": 256, "logprobs_mode": "processed_logprobs", "quantization_config": {"exact": True}}


class Sampled(NamedTuple):
    """Token ids of prompts and answers, the answers' log-probabilities (float32, all in a row), the temperature."""

    prompts: list[list[int]]
    answers: list[list[int]]
    log_probs: torch.Tensor
    temperature: float

    def some(self, rows: Sequence[int]) -> "Sampled":
        parts = self.log_probs.split([len(answer) for answer in self.answers])
        own = [[given[row] for row in rows] for given in (self.prompts, self.answers, parts)]
        return Sampled(own[0], own[1], torch.cat(own[2]), self.temperature)


def sharp(kind: str, folder: Path, **overrides) -> Path:
    """A checkpoint whose log-probabilities are far apart, and whose norms have weights other than 1."""
    folder = make(kind, folder, **overrides)
    state = checkpoint(folder)
    for name, w in state.items():
        if "norm" in name:
            w += 0.1 * torch.randn_like(w)
    state["lm_head.weight"] = state["lm_head.weight"] * 4
    save(state, folder)
    return folder


def sample(llm, temperature: float, seed: int = 0) -> Sampled:
    """Six answers to prompts of 3 to 143 tokens, so that some need two pages of keys."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(2, 60, (3 + 28 * row,), generator=generator).tolist() for row in range(6)]
    options = {"temperature": temperature, "max_tokens": TOKENS, "logprobs": 0, "ignore_eos": True, "detokenize": False}
    asked = [SamplingParams(seed=seed + row, **options) for row in range(len(prompts))]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], asked, use_tqdm=False)
    answers = [output.outputs[0] for output in outputs]
    found = [steps[token].logprob for one in answers for token, steps in zip(one.token_ids, one.logprobs, strict=True)]
    return Sampled(
        prompts, [list(one.token_ids) for one in answers], torch.tensor(found, dtype=torch.float32), temperature
    )


def trainer(folder: Path, dtype: torch.dtype = torch.bfloat16, ranks: int | None = 1) -> torch.nn.Module:
    """transformers' model of a checkpoint; `ranks` of the engine that it computes as, None for transformers' own."""
    register_products("cpu")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    if ranks is not None:
        apply_exact(model, ranks)
    return model


def logits_and_labels(model: torch.nn.Module, sampled: Sampled) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the answers' tokens, from one packed forward as verl calls a model."""
    rows = [prompt + answer for prompt, answer in zip(sampled.prompts, sampled.answers, strict=True)]
    ids = torch.cat([torch.tensor(row) for row in rows]).unsqueeze(0)
    positions = torch.cat([torch.arange(len(row)) for row in rows]).unsqueeze(0)
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
    ends = torch.tensor([len(row) for row in rows]).cumsum(0).tolist()
    at = torch.cat([torch.arange(end - len(a) - 1, end - 1) for end, a in zip(ends, sampled.answers, strict=True)])
    return logits[at], ids[0, at + 1]


def trained(model: torch.nn.Module, sampled: Sampled) -> torch.Tensor:
    """The trainer's log-probabilities of the answers."""
    return log_probs_of(*logits_and_labels(model, sampled), sampled.temperature)


def unequal(found: torch.Tensor, sampled: Sampled) -> int:
    """Tokens whose log-probabilities are not the same float32."""
    assert found.dtype == sampled.log_probs.dtype == torch.float32 and found.shape == sampled.log_probs.shape
    return (found.detach().view(torch.int32) != sampled.log_probs.view(torch.int32)).sum().item()


def loss_of(found: torch.Tensor, sampled: Sampled) -> torch.Tensor:
    """PPO's, with the engine's log-probabilities as the old ones; every other answer is a good one."""
    sizes = [len(answer) for answer in sampled.answers]
    advantages = torch.cat([torch.full((size,), 1.0 - 2 * (row % 2)) for row, size in enumerate(sizes)])
    ratio = (found - sampled.log_probs).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
