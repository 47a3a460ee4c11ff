"""One vLLM engine at a time in a separate process, so that each has the whole device.

Tokens are sampled at temperature 1 from the whole distribution. Log-probabilities are those of that distribution, in
both sampling and scoring ("raw_logprobs": float32, before any penalty or filter). Sampling decodes token by token from
the engine's cache; scoring processes a sequence as one prompt.
"""

import logging
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm import LLM

logger = logging.getLogger(__name__)

LAST_WORDS = 8  # lines of the log that an error quotes
ERRORS = 5
ERROR = re.compile(r"\b[\w.]*(Error|Exception): .+")
GRACE_SECONDS = 10
SPAWN = multiprocessing.get_context("spawn")


class EngineFailed(RuntimeError):
    """Raised if an engine's process ended without a result; the message has the last lines of its log."""


@dataclass(frozen=True)
class Task:
    """The task of an engine: to sample, and to score sequences of other engines.

    Attributes:
        engine: vLLM's engine arguments.
        prompts: token ids to sample from.
        sampling: arguments of vllm.SamplingParams.
        sequences: sequences to score, by the name of the policy that sampled them, each with the token ids `prompt` and
            `response`.
        watched: scheme whose layer errors are measured while the first policy's sequences are scored; None for no
            measurement.
        every: every n-th token is measured.
    """

    engine: dict[str, Any]
    prompts: list[list[int]]
    sampling: dict[str, Any]
    sequences: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    watched: str | None = None
    every: int = 1


def run(task: Task) -> dict[str, Any]:
    """Run a task in a new process, and return the result of `work`.

    Raises:
        EngineFailed: the engine failed; the message has the end of its log, which is kept.
    """
    _leave_flashrl_out()
    folder = Path(tempfile.mkdtemp(prefix="ascend-quant-mismatch-"))
    log, result = folder / "log", None
    reader, writer = SPAWN.Pipe(duplex=False)
    child = SPAWN.Process(target=_in_child, args=(task, writer, log))
    child.start()
    writer.close()
    try:
        wait([reader, child.sentinel])
        if reader.poll():
            with suppress(EOFError):
                result = reader.recv()
    finally:
        _end(child)
    if result is None:
        how = f"was killed by signal {-child.exitcode}" if child.exitcode < 0 else f"ended with {child.exitcode}"
        words = last_words(log.read_text(errors="replace") if log.exists() else "")
        raise EngineFailed(f"the engine {how}; end of its output:\n{words}\nFull log: {log}")
    shutil.rmtree(folder)
    return result


def _leave_flashrl_out() -> None:
    """Unset FlashRL's variables for this process and its children, since they would change a BF16 engine."""
    if found := [name for name in os.environ if name.startswith("FLASHRL_")]:
        logger.warning("the engines ignore %s: they use this command's options instead", ", ".join(found))
        for name in found:
            del os.environ[name]


def _end(child: Any) -> None:
    """End all processes of the child's session, including vLLM's."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
        child.join(GRACE_SECONDS)


def last_words(log: str) -> str:
    """Return the last lines of a log, after its error lines: vLLM's processes report the cause first, far above."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = dict.fromkeys(match[0] for line in lines if (match := ERROR.search(line)))
    return "\n".join([*list(errors)[-ERRORS:], "...", *lines[-LAST_WORDS:]])


def _in_child(task: Task, writer: Connection, log: Path) -> None:
    """Run the task in the child process, in its own session, with all output in the log."""
    os.setsid()
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    writer.send(work(task))


def work(task: Task) -> dict[str, Any]:
    """Score the given sequences, measuring layers during the first policy's; then sample.

    Returns:
        A dict with scored: each token's log-probability, by policy; layers: the errors of each layer on each rank;
        sampled: sequences with `prompt`, `response` and `rollout`, the log-probabilities of its tokens; rescored: those
        of the same tokens as a prompt, if other sequences were scored too; machine.
    """
    from vllm import LLM

    from ascend_quant.integrations.vllm import register

    register()  # for a package only in PYTHONPATH
    llm = LLM(**task.engine)
    try:
        found: dict[str, Any] = {"scored": {}, "layers": [], "rescored": []}
        for number, (name, sequences) in enumerate(task.sequences.items()):
            watching = task.watched is not None and number == 0
            if watching:
                llm.collective_rpc("mismatch_watch", args=(task.watched, task.every))
            found["scored"][name] = scored(llm, sequences)
            if watching:
                found["layers"] = llm.collective_rpc("mismatch_errors")
        found["sampled"] = sampled(llm, task)
        if task.sequences:
            found["rescored"] = scored(llm, found["sampled"])
        return found | {"machine": machine()}
    finally:
        llm.llm_engine.engine_core.shutdown()


def sampled(llm: "LLM", task: Task) -> list[dict[str, Any]]:
    """Return a response to each prompt, with at least one token."""
    from vllm import SamplingParams

    wanted = SamplingParams(temperature=1.0, logprobs=0, detokenize=False, **task.sampling)
    asked = [{"prompt_token_ids": prompt} for prompt in task.prompts]
    found = []
    for prompt, answer in zip(task.prompts, llm.generate(asked, wanted, use_tqdm=False), strict=True):
        response = list(answer.outputs[0].token_ids)
        rollout = of_tokens(response, answer.outputs[0].logprobs)
        found.append({"prompt": prompt, "response": response, "rollout": rollout})
    return found


def scored(llm: "LLM", sequences: list[dict[str, Any]]) -> list[list[float]]:
    """Return the log-probabilities of each sequence's response."""
    from vllm import SamplingParams

    wanted = SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    asked = [{"prompt_token_ids": one["prompt"] + one["response"]} for one in sequences]
    answers = llm.generate(asked, wanted, use_tqdm=False)
    return [
        of_tokens(one["response"], answer.prompt_logprobs[len(one["prompt"]) :])
        for one, answer in zip(sequences, answers, strict=True)
    ]


def of_tokens(tokens: list[int], steps: list[dict]) -> list[float]:
    """Return the log-probabilities of the tokens themselves from those that vLLM returns.

    Raises:
        ValueError: a log-probability is not finite.
    """
    found = [step[token].logprob for token, step in zip(tokens, steps, strict=True)]
    if bad := [(token, value) for token, value in zip(tokens, found, strict=True) if not isfinite(value)]:
        raise ValueError(f"token {bad[0][0]} has the log-probability {bad[0][1]}: the model's outputs are not finite")
    return found


def machine() -> dict[str, str]:
    """Return the device and versions of the measurement."""
    import torch
    from vllm import __version__
    from vllm.platforms import current_platform

    return {"device": current_platform.get_device_name(), "vllm": __version__, "torch": torch.__version__}
