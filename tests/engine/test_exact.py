"""Option exact: an engine's decode gives each token the log-probability, to the bit, that its prefill gives."""

from types import SimpleNamespace

import pytest
import torch
from engines import engine, model_of
from models import make
from vllm import SamplingParams, _custom_ops
from vllm.config import VllmConfig

from ascend_quant.engine.options import Options
from ascend_quant.integrations.vllm.exact import install as exact
from ascend_quant.integrations.vllm.exact import log_probs as exact_log_probs
from ascend_quant.integrations.vllm.exact.attention import each_query
from ascend_quant.refit import RefitError

CONTEXT, SAMPLED = 900, 24  # more keys than a tile of vLLM's CPU attention holds
SIZES = {"hidden_size": 256, "num_hidden_layers": 4, "max_position_embeddings": 1024}
ENGINE = {"max_model_len": 1024, "logprobs_mode": "processed_logprobs", "enable_prefix_caching": False}


def decoded_and_prefilled(llm, lengths=(CONTEXT, 2, 30)) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probabilities of sampled tokens, when they were sampled and as parts of a prompt."""
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(2, 60, (length,), generator=generator).tolist() for length in lengths]
    options = {"temperature": 1.0, "ignore_eos": True}
    sampling = SamplingParams(max_tokens=SAMPLED, logprobs=0, **options)
    sampled = llm.generate([{"prompt_token_ids": tokens} for tokens in prompts], sampling, use_tqdm=False)
    answers = [list(one.outputs[0].token_ids) for one in sampled]
    whole = [{"prompt_token_ids": prompt + answer} for prompt, answer in zip(prompts, answers, strict=True)]
    again = llm.generate(whole, SamplingParams(max_tokens=1, prompt_logprobs=0, **options), use_tqdm=False)
    decode = [at[token].logprob for one, answer in zip(sampled, answers, strict=True)
              for at, token in zip(one.outputs[0].logprobs, answer, strict=True)]  # fmt: skip
    prefill = [at[token].logprob for one, answer in zip(again, answers, strict=True)
               for at, token in zip(one.prompt_logprobs[-SAMPLED:], answer, strict=True)]  # fmt: skip
    return torch.tensor(decode), torch.tensor(prefill)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "qwen3-moe"])
def test_decode_and_prefill_give_the_same_bits(tmp_path, kind):
    with engine(make(kind, tmp_path, **SIZES), quantization_config={"exact": True}, **ENGINE) as llm:
        decode, prefill = decoded_and_prefilled(llm)
    assert torch.equal(decode, prefill) and decode.std() > 0.5


def test_without_the_option_they_do_not(tmp_path, monkeypatch):
    for name in ("cpu_attn_get_scheduler_metadata", "cpu_attention_with_kv_cache"):
        own = getattr(_custom_ops, name)  # replaced, once an exact engine was in the process
        monkeypatch.setattr(_custom_ops, name, getattr(own, "__wrapped__", own))
    longer = {**ENGINE, "max_model_len": 2304}
    with engine(make("qwen2", tmp_path, **{**SIZES, "max_position_embeddings": 2304}), **longer) as llm:
        decode, prefill = decoded_and_prefilled(llm, [2200, 2100])
    assert (decode != prefill).float().mean() > 0.05


@pytest.mark.long
@pytest.mark.parametrize("settings", [{"max_num_batched_tokens": 128}, {"enforce_eager": False}])
def test_in_chunks_and_compiled(tmp_path, settings):
    with engine(make("qwen3", tmp_path, **SIZES), quantization_config={"exact": True}, **ENGINE, **settings) as llm:
        decode, prefill = decoded_and_prefilled(llm)
    assert torch.equal(decode, prefill)


def test_each_query_is_a_request_of_its_own():
    """Of a request of 7 keys the last three are queries; of one of 2 both are; one of 9 has its last."""
    starts, lengths, request = each_query(torch.tensor([0, 3, 5, 6]).int(), torch.tensor([7, 2, 9]).int())
    assert starts.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert lengths.tolist() == [5, 6, 7, 1, 2, 9] and request.tolist() == [0, 0, 0, 1, 1, 2]
    assert starts.dtype == lengths.dtype == torch.int32


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scheme", "fp8"),
        ("ignore", ["re:.*down_proj"]),
        ("kv_cache", "fp8"),
        ("lm_head_fp32", True),
        ("profile", "profile.json"),
    ],
)
def test_options_that_are_not_exact_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"exact\b.*\b{name}="):
        Options(**{"exact": True, name: value})


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"dtype": "float32"}, "dtype"), ({"enable_lora": True}, "enable_lora"), ({"kv_cache_dtype": "fp8"}, "kv_cache_")],
)
def test_settings_that_are_not_exact_are_refused(tmp_path, settings, name):
    with (
        pytest.raises(RefitError, match=name),
        engine(make("qwen2", tmp_path), quantization_config={"exact": True}, **settings),
    ):
        pass


@pytest.mark.parametrize(("device", "family"), [("cuda", 80), ("cuda", 100), ("npu", 0)])
def test_devices_that_are_not_exact_are_refused(monkeypatch, device, family):
    platform = SimpleNamespace(
        device_type=device,
        is_cpu=lambda: False,
        is_cuda=lambda: device == "cuda",
        is_device_capability_family=lambda asked: asked == family,
    )
    monkeypatch.setattr(exact, "current_platform", platform)
    with pytest.raises(RefitError, match=device):
        exact.check(VllmConfig())


def test_layers_of_other_formulas_are_refused(tmp_path):
    """A rotation scaled as YaRN does, which multiplies cosines by a factor of its own."""
    scaled = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    folder = make("qwen2", tmp_path, rope_parameters=scaled)
    with pytest.raises(RefitError, match="rotary_emb"), engine(folder, quantization_config={"exact": True}):
        pass


def test_another_engine_of_the_process_keeps_vllms_layers(tmp_path):
    with engine(make("qwen2", tmp_path)) as llm:
        layer = model_of(llm).model.layers[0]
        assert layer.input_layernorm._forward_method.__self__ is layer.input_layernorm


def test_the_second_model_runners_log_probabilities_are_torchs():
    """Three rows of logits of two requests, one of which asks for the likeliest word; more rows than a part has."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1100, 61, generator=generator).bfloat16()
    chosen = torch.randint(0, 61, (1100, 3), generator=generator, dtype=torch.int32)
    found = exact_log_probs.by_torch(None)(logits, chosen)
    assert torch.equal(found, logits.float().log_softmax(-1).gather(-1, chosen.long()))
    scaled, request = logits[:3].float(), torch.tensor([1, 0, 1], dtype=torch.int32)
    exact_log_probs.divided_by_torch(None)(scaled, request, torch.tensor([0.0, 0.8]))
    assert torch.equal(scaled, torch.stack([logits[0].float() / 0.8, logits[1].float(), logits[2].float() / 0.8]))
