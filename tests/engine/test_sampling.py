"""vLLM's engines with our draw put into their sampler: the same tokens, and vLLM's way wherever more is asked for."""

import pytest
import torch

pytest.importorskip("vllm")

from engines import engine, worker_of
from models import make
from vllm import SamplingParams
from vllm.v1.sample.sampler import Sampler

from ascend_quant.integrations.vllm import compat, hooks, sampling
from ascend_quant.integrations.wrapping import install

PROMPTS = [{"prompt_token_ids": [5 + row, 9, 2 * row]} for row in range(4)]
FREE = {"temperature": 0.8, "max_tokens": 6, "ignore_eos": True, "detokenize": False}
SEEDED = [{"seed": 3}, {"seed": 4}, {"seed": 5}, {"seed": 6}]


@pytest.fixture
def drawn(monkeypatch):
    """How many rows we drew each time; torch's ops on the CPU take the kernel's place."""
    rows = []

    def draw(logits, temperature, noise):
        rows.append(len(logits))
        return (logits / temperature[:, None] - noise.log()).argmax(-1)

    monkeypatch.setattr(Sampler, "sample", Sampler.sample)
    monkeypatch.setattr(sampling, "_drawn", draw)
    return rows


@pytest.fixture
def llm(tmp_path):
    with engine(make("qwen2", tmp_path), skip_tokenizer_init=True) as made:
        as_on_cuda(made)
        yield made


def as_on_cuda(llm) -> None:
    """CPUs have a way of their own to draw."""
    sampler = worker_of(llm).model_runner.sampler.topk_topp_sampler
    sampler.forward = sampler.forward_native


def tokens(llm, options: list[dict]) -> list[list[int]]:
    torch.manual_seed(7)
    answers = llm.generate(PROMPTS, [SamplingParams(**FREE | more) for more in options], use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


@pytest.mark.parametrize("options", [[{}] * 4, SEEDED, [{}, {"seed": 3}, {}, {"temperature": 1.5}]])
def test_an_engine_that_runs_already_draws_the_same_tokens(llm, drawn, options):
    theirs = tokens(llm, options)
    install(hooks.WITH_FIRST_RUNNER_ON_CUDA)
    install(hooks.WITH_FIRST_RUNNER_ON_CUDA)  # once is enough
    assert drawn == []
    assert tokens(llm, options) == theirs
    assert drawn == [4] * 6


@pytest.mark.parametrize("filtered", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"temperature": 0.0}])
def test_filters_and_greedy_requests_are_vllms(llm, drawn, filtered):
    options = [{}, filtered, {}, {}]
    theirs = tokens(llm, options)
    install(hooks.WITH_FIRST_RUNNER_ON_CUDA)
    assert tokens(llm, options) == theirs
    assert drawn == [1]  # once, for the compiler; its token is nobody's


def test_logprobs_are_those_that_vllm_returns(llm, drawn):
    install(hooks.WITH_FIRST_RUNNER_ON_CUDA)
    [answer] = llm.generate(PROMPTS[:1], SamplingParams(**FREE, logprobs=0), use_tqdm=False)
    assert drawn == [1] * 6 and len(answer.outputs[0].logprobs) == 6


def test_what_a_sampler_returns_is_told_by_its_annotation():
    def alone(self, logits, metadata) -> torch.Tensor: ...
    def both(self, logits, metadata) -> tuple[torch.Tensor, torch.Tensor | None]: ...
    def later(self, logits, metadata) -> "tuple[torch.Tensor, torch.Tensor | None]": ...

    assert [compat.samples_with_logprobs(sample) for sample in (alone, both, later)] == [False, True, True]
    assert compat.samples_with_logprobs(Sampler.sample)


@pytest.mark.parametrize("mode", ["processed_logits", "processed_logprobs"])
def test_processed_logits_are_returned_by_vllm(tmp_path, drawn, mode):
    with engine(make("qwen2", tmp_path), skip_tokenizer_init=True, logprobs_mode=mode) as llm:
        install(hooks.WITH_FIRST_RUNNER_ON_CUDA)
        tokens(llm, [{"logprobs": 0}] * 4)
    assert drawn == []
