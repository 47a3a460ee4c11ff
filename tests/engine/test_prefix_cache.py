"""What earlier requests left in the prefix cache was computed with earlier weights: a refit makes vLLM forget it."""

import pytest
from engines import engine, model_of
from models import checkpoint, make, perturbed, save
from vllm import SamplingParams

LENGTH = 200  # tokens of a prompt: a whole block of a CPU engine, and more


def answers(llm) -> list:
    """Tokens and their log-probabilities."""
    prompts = [{"prompt_token_ids": [start + i % 50 for i in range(LENGTH)]} for start in (3, 9)]
    wanted = SamplingParams(max_tokens=6, temperature=0, logprobs=0, ignore_eos=True, detokenize=False)
    outputs = [request.outputs[0] for request in llm.generate(prompts, wanted, use_tqdm=False)]
    return [(o.token_ids, [step[t].logprob for t, step in zip(o.token_ids, o.logprobs, strict=True)]) for o in outputs]


@pytest.mark.parametrize("way", ["through the engine", "past it", "into another process"])
def test_a_refitted_engine_answers_as_one_that_never_saw_the_old_weights(tmp_path, monkeypatch, way):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", str(int(way == "into another process")))
    old, new = make("qwen2", tmp_path / "old"), make("qwen2", tmp_path / "new")
    save(perturbed(checkpoint(old), 1), new)
    settings = {"max_model_len": 256, "enable_prefix_caching": True}
    with engine(new, **settings) as llm:
        expected = answers(llm)
    with engine(old, **settings) as llm:
        before = answers(llm)
        assert before != expected and answers(llm) == before
        for path, wanted in ((new, expected), (old, before)):
            if way == "past it":
                model_of(llm).load_weights(checkpoint(path).items())
            else:
                llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})
            assert answers(llm) == wanted
