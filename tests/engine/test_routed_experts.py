"""An engine of ours says which experts each token went to, as a trainer that replays them needs it (verl's R3).

Expected are the largest logits that the engine's own router gave for the token, taken where it computes them.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from engines import engine, model_of
from models import KINDS, make
from vllm import LLM, SamplingParams

PROMPTS = ([3, 5, 7, 9, 11], [2, 4, 6])
ANSWER = 6
CHOSEN = KINDS["qwen3-moe"][2]["num_experts_per_tok"]


def returned_and_expected(llm: LLM, prompt: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (tokens, layers, experts a token), sorted: what the request returns, and the largest of the logits."""
    routers = [one for name, one in model_of(llm).named_modules() if name.endswith("mlp.gate")]
    logits: dict[int, list[torch.Tensor]] = {layer: [] for layer in range(len(routers))}
    hooks = [
        router.register_forward_hook(lambda _, __, out, layer=layer: logits[layer].append(out[0].clone()))
        for layer, router in enumerate(routers)
    ]
    sampling = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, detokenize=False)
    (output,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    for hook in hooks:
        hook.remove()
    best = [torch.cat(parts).float().topk(CHOSEN).indices for parts in logits.values()]
    return sorted_ids(torch.from_numpy(output.outputs[0].routed_experts)), sorted_ids(torch.stack(best, dim=1))


def sorted_ids(ids: torch.Tensor) -> torch.Tensor:
    return ids.long().sort(dim=-1).values


@pytest.mark.skipif(
    find_spec("vllm.config.aux_output") is not None,
    reason="vLLM 0.31: AuxOutput Connector requires Model Runner V2, which CPU builds do not have",
)
@pytest.mark.parametrize("scheme", ["int8", "bf16"])
def test_what_is_returned_is_what_the_router_chose(scheme, tmp_path: Path):
    folder = make("qwen3-moe", tmp_path)
    with engine(folder, scheme, enable_return_routed_experts=True, enable_prefix_caching=False) as llm:
        for prompt in PROMPTS:
            returned, expected = returned_and_expected(llm, prompt)
            # of the last token nothing is computed: it is sampled, and read by no layer
            assert returned.shape == (len(prompt) + ANSWER - 1, 2, CHOSEN)
            assert torch.equal(returned, expected)
            assert len(returned.unique()) > CHOSEN  # not one pair for all, such as the zeros of an empty buffer


def test_nothing_is_noted_unless_it_is_asked_for(tmp_path: Path):
    with engine(make("qwen3-moe", tmp_path)) as llm:
        (output,) = llm.generate([{"prompt_token_ids": PROMPTS[0]}], SamplingParams(max_tokens=2), use_tqdm=False)
        assert output.outputs[0].routed_experts is None
