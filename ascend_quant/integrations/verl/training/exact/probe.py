"""A probe of some sequences, computed in three ways with the same weights: it tells whether engine and trainer have the
same policy, and if not, which of them is at fault.

The engine samples (decode), then processes the same tokens as a prompt (prefill), then the actor computes them. A
difference between decode and prefill means that the engine is not batch-invariant; a difference between the actor and
prefill means that the trainer computes something else. All use temperature 1, since vLLM does not divide a prompt's
logits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import ray
import torch
from torch.nn.utils.rnn import pad_sequence

from ascend_quant.exact.counters import Compared, compare
from ascend_quant.exact.stages import Recorded

PROMPTS, ANSWER = 8, 64  # prompts of the probe at a run's start; tokens per answer
SHORTEST, LONGEST = 8, 4096  # tokens per prompt
PREFILL = {"max_tokens": 1, "prompt_logprobs": 0}  # requests the log-probability of every prompt token
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True, "ignore_eos": True}


class Sampled(NamedTuple):
    """A sequence sampled by one engine, with its log-probabilities from decode and from prefill.

    Attributes:
        tokens: tokens of prompt and answer.
        prompt: number of prompt tokens.
        decode: log-probabilities of the answer's tokens when they were sampled.
        prefill: log-probabilities of all tokens but the first.
    """

    tokens: list[int]
    prompt: int
    decode: list[float]
    prefill: list[float]


class Probed(NamedTuple):
    """The result of a probe: decode and the actor, each compared with the engine's prefill.

    Attributes:
        engine: decode compared with prefill.
        trainer: the actor compared with prefill, on the rank that differs most.
        longest: number of tokens of the longest sequence.
    """

    engine: Compared
    trainer: Compared
    longest: int

    @property
    def worst(self) -> Compared:
        return max(self.engine, self.trainer, key=lambda one: one.unequal / max(one.tokens, 1))

    def __str__(self) -> str:
        ways = (("decode and prefill of the engine", self.engine), ("the engine and the trainer", self.trainer))
        return f"sequences of up to {self.longest} tokens: " + "; ".join(f"{name} {_said(one)}" for name, one in ways)


def _said(found: Compared) -> str:
    if found.first is None:
        return f"agree in all of {found.tokens} tokens"
    row, position = found.first
    return (
        f"differ in {found.unequal} of {found.tokens} tokens, first in token {position} of sequence {row}, by at most "
        f"{found.max_diff:.3g}"
    )


def prompts(words: int, longest: int) -> list[list[int]]:
    """Generate random prompts with lengths in a geometric series, from SHORTEST up to the maximum.

    Args:
        words: size of the vocabulary that can be sampled.
        longest: maximum tokens of prompt and answer.
    """
    most = min(LONGEST, longest - answer_of(longest) - 1)
    least = min(SHORTEST, most)
    lengths = [round(least * (most / least) ** (i / (PROMPTS - 1))) for i in range(PROMPTS)]
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(words, (length,), generator=generator).tolist() for length in lengths]


def answer_of(longest: int) -> int:
    """Return the number of answer tokens of a probe, given the maximum of prompt and answer."""
    return max(1, min(ANSWER, longest // 2 - 1))


def around(tokens: Sequence[int], place: int, longest: int) -> tuple[list[int], int]:
    """Return a prompt, and the length of an answer that has tokens[place] in its middle if possible."""
    end = max(1, min(place - ANSWER // 2, longest - 2))
    return list(tokens[:end]), min(ANSWER, longest - 1 - end)


def sample(servers: Sequence[Any], asked: Sequence[list[int]], answer: int) -> list[Sampled]:
    """Return every engine's answers to all prompts: sampled together in a batch, then computed as prompts (prefill).

    Args:
        servers: verl's Ray actors, one per engine.
        answer: number of answer tokens.
    """
    pairs = [(server, prompt) for server in servers for prompt in asked]
    sampled = ray.get([_generate(server, prompt, max_tokens=answer) for server, prompt in pairs])
    wholes = [[*prompt, *one.token_ids] for (_, prompt), one in zip(pairs, sampled, strict=True)]
    prefilled = ray.get([_generate(server, whole, **PREFILL) for (server, _), whole in zip(pairs, wholes, strict=True)])
    return [
        Sampled(whole, len(prompt), one.log_probs, [value for (value,) in other.extra_fields["prompt_logprobs"][:-1]])
        for (_, prompt), whole, one, other in zip(pairs, wholes, sampled, prefilled, strict=True)
    ]


def judge(sampled: Sequence[Sampled], ranks: Sequence[list[list[float]] | None]) -> Probed:
    """Compare the engine's decode and the actor's log-probabilities with the engine's prefill.

    Args:
        ranks: for each rank of the actor, the log-probabilities of every sequence's tokens but the first; None if
            another rank has them.
    """
    own = [one.prefill[one.prompt - 1 :] for one in sampled]
    engine = _compared(own, [one.decode for one in sampled])
    prefill = [one.prefill for one in sampled]
    trainer = max((_compared(prefill, rows) for rows in ranks if rows is not None), key=lambda one: one.unequal)
    return Probed(engine, trainer, max(len(one.tokens) for one in sampled))


def stages(server: Any, tokens: list[int]) -> dict[str, Recorded]:
    """Return the stages of an engine's prefill of a sequence, from its first worker."""
    return ray.get(server.exact_stages.remote(tokens, {**SAMPLING, **PREFILL}))[0]


def _generate(server: Any, prompt: list[int], **sampling: Any) -> ray.ObjectRef:
    return server.generate.remote(list(prompt), {**SAMPLING, **sampling}, f"exact-{uuid4().hex}")


def _compared(engine: Sequence[list[float]], trainer: Sequence[list[float]]) -> Compared:
    """Compare log-probabilities row by row; rows with equal indexes have equal lengths."""
    sides = [pad_sequence([torch.tensor(row) for row in rows], batch_first=True) for rows in (engine, trainer)]
    mask = pad_sequence([torch.ones(len(row)) for row in engine], batch_first=True)
    return compare(*sides, mask)
