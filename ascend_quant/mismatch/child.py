"""The process of one engine (see engines.py): python -m ascend_quant.mismatch.child FOLDER.

Tokens are sampled at temperature 1 from the whole distribution; log-probabilities are those of that distribution, for
sampling and for scoring alike ("raw_logprobs": float32, before any penalty or filter). Sampling decodes, token by
token, from the engine's cache; scoring takes a sequence as one prompt.
"""

import json
import sys
from math import isfinite
from pathlib import Path
from typing import Any

from tqdm import tqdm
from vllm import LLM, SamplingParams
from vllm import __version__ as vllm_version

from ascend_quant.integrations.vllm import register
from ascend_quant.mismatch.engines import Task


class Progress:
    """Lines of JSON in a file: what is going on, how much of it is done, of how much."""

    def __init__(self, path: Path):
        self.path = path

    def report(self, what: str, done: int, total: int) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([what, done, total]) + "\n")

    def bar(self, what: str) -> type[tqdm]:
        """What vLLM's `generate` takes for a bar."""
        report = self.report

        class Bar(tqdm):
            def display(self, *args, **kwargs) -> None:
                report(what, self.n, self.total)

        return Bar


def work(task: Task, progress: Progress) -> dict[str, Any]:
    """Score the given sequences, looking at the layers while the first policy's pass; then sample.

    Returns:
        scored: by policy, each token's log-probability; layers: what each rank saw of each layer; sampled: sequences
        with `prompt`, `response` and `rollout`, its tokens' log-probabilities; rescored: those of the same tokens as
        a prompt, where others were scored too; machine.
    """
    register()  # where the package lies in PYTHONPATH alone
    llm = LLM(**task.engine)
    try:
        progress.report("starts", 1, 1)
        found: dict[str, Any] = {"scored": {}, "layers": [], "rescored": []}
        for number, (name, sequences) in enumerate(task.sequences.items()):
            watching = task.watched is not None and number == 0
            if watching:
                llm.collective_rpc("mismatch_watch", args=(task.watched, task.every))
            found["scored"][name] = scored(llm, sequences, progress.bar(f"scores {name}"))
            if watching:
                found["layers"] = llm.collective_rpc("mismatch_errors")
        found["sampled"] = sampled(llm, task, progress.bar("samples"))
        if task.sequences:
            found["rescored"] = scored(llm, found["sampled"], progress.bar("scores its own"))
        return found | {"machine": machine()}
    finally:
        llm.llm_engine.engine_core.shutdown()


def sampled(llm: LLM, task: Task, bar: type[tqdm]) -> list[dict[str, Any]]:
    """A response to each prompt, of one token at least."""
    wanted = SamplingParams(temperature=1.0, logprobs=0, detokenize=False, **task.sampling)
    asked = [{"prompt_token_ids": prompt} for prompt in task.prompts]
    found = []
    for prompt, answer in zip(task.prompts, llm.generate(asked, wanted, use_tqdm=bar), strict=True):
        response = list(answer.outputs[0].token_ids)
        rollout = of_tokens(response, answer.outputs[0].logprobs)
        found.append({"prompt": prompt, "response": response, "rollout": rollout})
    return found


def scored(llm: LLM, sequences: list[dict[str, Any]], bar: type[tqdm]) -> list[list[float]]:
    """The log-probabilities of each sequence's response."""
    wanted = SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    asked = [{"prompt_token_ids": one["prompt"] + one["response"]} for one in sequences]
    answers = llm.generate(asked, wanted, use_tqdm=bar)
    return [
        of_tokens(one["response"], answer.prompt_logprobs[len(one["prompt"]) :])
        for one, answer in zip(sequences, answers, strict=True)
    ]


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
    result = work(task, Progress(folder / "progress"))
    partial = folder / "result.partial"
    partial.write_text(json.dumps(result))
    partial.rename(folder / "result.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
