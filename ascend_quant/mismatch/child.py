"""The process of one engine (see engines.py): python -m ascend_quant.mismatch.child FOLDER.

Tokens are sampled at temperature 1 from the whole distribution; log-probabilities are those of that distribution, for
sampling and for scoring alike ("raw_logprobs": float32, before any penalty or filter).
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from tqdm import tqdm
from vllm import LLM, SamplingParams
from vllm import __version__ as vllm_version

from ascend_quant.integrations.vllm import register
from ascend_quant.mismatch.engines import Sampled, Task

TOLD = {"scales": "cache_scales", "balance": "key_balance"}  # by the first worker's cache_scales.Extension


class Progress:
    """Lines of JSON in a file: what is going on, how much of it is done, of how much."""

    def __init__(self, path: Path):
        self.path = path

    def report(self, what: str, done: int, total: int) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([what, done, total]) + "\n")

    def bar(self, what: str):
        """What vLLM's `generate` takes for a bar."""
        report = self.report

        class Bar(tqdm):
            def display(self, *args, **kwargs) -> None:
                report(what, self.n, self.total)

        return Bar


@contextmanager
def started(task: Task, progress: Progress) -> Iterator[LLM]:
    register()  # where the package lies in PYTHONPATH alone
    llm = LLM(**task.engine)
    progress.report("starts", 1, 1)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def sample(task: Task, progress: Progress) -> dict:
    """Sample a response to each prompt."""
    with started(task, progress) as llm:
        return {"sampled": [asdict(one) for one in sampled(llm, task, progress.bar("samples"))]}


def score(task: Task, progress: Progress) -> dict:
    """Score the given sequences."""
    with started(task, progress) as llm:
        return {"scored": scored(llm, [Sampled(**one) for one in task.sequences], progress.bar("scores"))}


def reference(task: Task, progress: Progress) -> dict:
    """Score the given sequences, looking at the layers meanwhile; then sample and score sequences of its own."""
    with started(task, progress) as llm:
        if task.watched:
            llm.collective_rpc("mismatch_watch", args=(task.watched, task.every))
        given = [Sampled(**one) for one in task.sequences]
        bars = [progress.bar(what) for what in ("scores", "samples", "scores its own")]
        result = {"scored": scored(llm, given, bars[0])}
        result["layers"] = llm.collective_rpc("mismatch_errors") if task.watched else []
        own = sampled(llm, task, bars[1])
        result["own"] = {"sampled": [asdict(one) for one in own], "scored": scored(llm, own, bars[2])}
        return result | {"machine": machine()}


def force(task: Task, progress: Progress) -> dict:
    """Decode the given sequences, token by token as they are."""
    with started(task, progress) as llm:
        given = [Sampled(**one) for one in task.sequences]
        found = forced(llm, given, progress.bar("decodes the same tokens"))
        told = {what: llm.collective_rpc(f"mismatch_{of}")[0] for what, of in TOLD.items()}
        return {"forced": found, **told}


def emulate(task: Task, progress: Progress) -> dict:
    """The given sequences by transformers, with a rounded cache and without; no engine."""
    from ascend_quant.mismatch.emulated_cache import emulate

    def on_progress(done: int, total: int) -> None:
        progress.report("computes", done, total)

    return emulate(task.engine["model"], task.engine["kv_cache"], task.sequences, on_progress)


def sampled(llm: LLM, task: Task, bar: type[tqdm]) -> list[Sampled]:
    """A response to each prompt, of one token at least."""
    wanted = SamplingParams(temperature=1.0, logprobs=0, detokenize=False, **task.sampling)
    asked = [{"prompt_token_ids": prompt} for prompt in task.prompts]
    found = []
    for prompt, answer in zip(task.prompts, llm.generate(asked, wanted, use_tqdm=bar), strict=True):
        response = list(answer.outputs[0].token_ids)
        steps = answer.outputs[0].logprobs
        found.append(Sampled(prompt, response, of_tokens(response, steps)))
    return found


def scored(llm: LLM, sequences: list[Sampled], bar: type[tqdm]) -> list[list[float]]:
    """The log-probabilities of each sequence's response."""
    wanted = SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    asked = [{"prompt_token_ids": one.prompt + one.response} for one in sequences]
    answers = llm.generate(asked, wanted, use_tqdm=bar)
    found = []
    for one, answer in zip(sequences, answers, strict=True):
        found.append(of_tokens(one.response, answer.prompt_logprobs[len(one.prompt) :]))
    return found


def forced(llm: LLM, sequences: list[Sampled], bar: type[tqdm]) -> list[list[float]]:
    """The log-probabilities of each sequence's response, each token decoded after those before it.

    Raises:
        ValueError: the engine decoded other tokens.
    """
    from ascend_quant.mismatch import forcing

    asked = [{"prompt_token_ids": one.prompt} for one in sequences]
    answers = llm.generate(asked, [forcing.sampling(one.response) for one in sequences], use_tqdm=bar)
    found = []
    for one, answer in zip(sequences, answers, strict=True):
        written = list(answer.outputs[0].token_ids)
        if written != one.response:
            raise ValueError(f"the engine was given {one.response} to decode, and decoded {written}")
        found.append(of_tokens(written, answer.outputs[0].logprobs))
    return found


def of_tokens(tokens: list[int], steps: list[dict]) -> list[float]:
    """The tokens' own among the log-probabilities that vLLM returns.

    Raises:
        ValueError: one is not finite.
    """
    found = [step[token].logprob for token, step in zip(tokens, steps, strict=True)]
    if bad := [(token, value) for token, value in zip(tokens, found, strict=True) if not isfinite(value)]:
        raise ValueError(f"token {bad[0][0]} has the log-probability {bad[0][1]}: the model's outputs are not finite")
    return found


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    import torch
    from vllm.platforms import current_platform

    return {"device": current_platform.get_device_name(), "vllm": vllm_version, "torch": torch.__version__}


def main(folder: Path) -> None:
    """Read the task, write the result, whole or not at all."""
    task = Task(**json.loads((folder / "task.json").read_text()))
    job = {"sample": sample, "score": score, "reference": reference, "force": force, "emulate": emulate}[task.job]
    result = job(task, Progress(folder / "progress"))
    partial = folder / "result.partial"
    partial.write_text(json.dumps(result))
    partial.rename(folder / "result.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
