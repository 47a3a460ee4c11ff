"""vLLM decodes a given response: at each step every other token is ruled out.

Given to the engine as `logits_processors`. Keys and values of every token then go through the engine's cache as they do
in a rollout, while the log-probabilities that it returns ("raw_logprobs") are those before anything was ruled out.
"""

from functools import partial

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

TOKENS = "ascend_quant_forced"  # of SamplingParams.extra_args


class Forced(AdapterLogitsProcessor):
    """Rules out all but the next token of the response that a request was given; leaves other requests alone."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> partial | None:
        tokens = (params.extra_args or {}).get(TOKENS)
        return None if tokens is None else partial(only, tokens)


def only(tokens: list[int], written: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Logits (V,) with the token of this step alone, `written` being those before it."""
    token = tokens[len(written)]
    kept = logits[token].item()
    logits.fill_(-torch.inf)
    logits[token] = max(kept, torch.finfo(logits.dtype).min)
    return logits


def sampling(tokens: list[int]) -> SamplingParams:
    """That of a request whose response is to be `tokens`."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=len(tokens),
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        extra_args={TOKENS: tokens},
    )
