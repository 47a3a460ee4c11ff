"""Some sequences computed in three ways with the same weights: whether engine and trainer are one policy, and if not,
which of the two is at fault.

The engine samples (decode), then takes all as a prompt (prefill), then the actor computes the same tokens. Decode
beside prefill shows an engine whose bits depend on the batch; the actor beside prefill shows a trainer that computes
something else. All at temperature 1: vLLM does not divide a prompt's logits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import ray
import torch
from torch.nn.utils.rnn import pad_sequence

from ascend_quant.exact.counters import Compared, compare
from ascend_quant.exact.stages import Recorded

PROMPTS, ANSWER = 8, 64  # of the probe at a run's start; tokens of an answer
SHORTEST, LONGEST = 8, 4096  # tokens of its prompts
PREFILL = {"max_tokens": 1, "prompt_logprobs": 0}  # the log-probability of every token of a prompt
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True, "ignore_eos": True}


class Sampled(NamedTuple):
    """A sequence sampled by one engine, with its log-probabilities from decode and from prefill.

    Attributes:
        tokens: prompt and answer.
        prompt: tokens of the prompt.
        decode: log-probabilities of the answer's tokens, as they were sampled.
        prefill: of all tokens but the first.
    """

    tokens: list[int]
    prompt: int
    decode: list[float]
    prefill: list[float]


class Probed(NamedTuple):
    """Result of a probe: decode and the actor, each compared with the engine's prefill.

    Attributes:
        engine: decode beside prefill.
        trainer: the actor beside prefill, on the rank that differs most.
        longest: tokens of the longest sequence.
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
    """Generate random prompts of SHORTEST tokens to as many as fit, in a geometric series of lengths.

    Args:
        words: of the vocabulary that can be sampled.
        longest: tokens of prompt and answer that an engine takes.
    """
    most = min(LONGEST, longest - answer_of(longest) - 1)
    least = min(SHORTEST, most)
    lengths = [round(least * (most / least) ** (i / (PROMPTS - 1))) for i in range(PROMPTS)]
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(words, (length,), generator=generator).tolist() for length in lengths]


def answer_of(longest: int) -> int:
    """Return the tokens that a probe's answer has, where prompt and answer are at most `longest`."""
    return max(1, min(ANSWER, longest // 2 - 1))


def around(tokens: Sequence[int], place: int, longest: int) -> tuple[list[int], int]:
    """Return a prompt, and the length of an answer that has tokens[place] in its middle, as far as they fit."""
    end = max(1, min(place - ANSWER // 2, longest - 2))
    return list(tokens[:end]), min(ANSWER, longest - 1 - end)


def sample(servers: Sequence[Any], asked: Sequence[list[int]], answer: int) -> list[Sampled]:
    """Return every engine's answers to all prompts: sampled together in a batch, then computed as prompts (prefill).

    Args:
        servers: Ray actors of verl's, one an engine.
        answer: tokens of an answer.
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
        ranks: of each rank of the actor the log-probabilities of every sequence's tokens but the first; None where
            another rank has them.
    """
    own = [one.prefill[one.prompt - 1 :] for one in sampled]
    engine = _compared(own, [one.decode for one in sampled])
    prefill = [one.prefill for one in sampled]
    trainer = max((_compared(prefill, rows) for rows in ranks if rows is not None), key=lambda one: one.unequal)
    return Probed(engine, trainer, max(len(one.tokens) for one in sampled))


def stages(server: Any, tokens: list[int]) -> dict[str, Recorded]:
    """Return the stages of an engine's prefill of a sequence, those of its first worker."""
    return ray.get(server.exact_stages.remote(tokens, {**SAMPLING, **PREFILL}))[0]


def _generate(server: Any, prompt: list[int], **sampling: Any) -> ray.ObjectRef:
    return server.generate.remote(list(prompt), {**SAMPLING, **sampling}, f"exact-{uuid4().hex}")


def _compared(engine: Sequence[list[float]], trainer: Sequence[list[float]]) -> Compared:
    """Compare log-probabilities row by row; rows with one index have one length."""
    sides = [pad_sequence([torch.tensor(row) for row in rows], batch_first=True) for rows in (engine, trainer)]
    mask = pad_sequence([torch.ones(len(row)) for row in engine], batch_first=True)
    return compare(*sides, mask)
