"""The supervised warm-up: imitate the task's careless teacher, so that RL has something to correct.

A model that imitates the teacher well answers about half of the problems right when sampled at temperature 1: every
prompt gets right and wrong samples, from which GRPO learns. This accuracy is computed from the logits over the task's
exam, so it has no sampling noise.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from ascend_quant.demo import DemoError
from ascend_quant.demo.task import (
    END,
    PAD,
    SPACE,
    Addition,
    build_model,
    save_tokenizer,
    vocabulary,
    write_parquet,
)  # fmt: skip
from ascend_quant.demo.training import Choices

IGNORED = -100


def write_inputs(choices: Choices, folder: Path, on_update: Callable[[int], None] = lambda done: None) -> float:
    """Write what `training.inputs` names, prompts and model, and return the model's accuracy.

    Raises:
        DemoError: the warm-up failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_parquet(folder / "prompts.parquet", choices.prompts, choices.seed, choices.setup.task)
    return make_start(choices, folder / "start", on_update)


def make_start(choices: Choices, folder: Path, on_update: Callable[[int], None] = lambda done: None) -> float:
    """Train the BF16 checkpoint from which all arms start, save it, and return its sampled accuracy.

    Raises:
        DemoError: it exceeds the time limit, or its accuracy is outside of the range in which RL can learn.
    """
    task, plan = choices.setup.task, choices.setup.warm_up
    torch.set_num_threads(1)  # these matrices are too small for several threads
    disable_progress_bar()  # the demo has its own
    model = build_model(choices.model, choices.seed, choices.setup.shape, task.alphabet)
    optimizer, begun = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate), time.monotonic()
    for update, lesson in enumerate(task.lessons(choices.seed, plan.batch)):
        if (rate := plan.rate(update, model)) is None:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate
        tokens, labels = encode(lesson, task)
        model(input_ids=tokens, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        on_update(update + 1)
        if time.monotonic() - begun > plan.seconds:
            raise DemoError(
                f"the warm-up made {update + 1} updates in {plan.seconds:.0f} s: are the CPU cores busy, or "
                "much slower than those of the demo's estimate?"
            )
    model = model.to(torch.bfloat16)
    accuracy, (low, high) = sampled_accuracy(model, task), plan.band
    if not low <= accuracy <= high:
        raise DemoError(f"the warm-up ended at accuracy {accuracy:.2f}, outside {low}-{high}: try another --seed")
    model.save_pretrained(folder)
    save_tokenizer(folder, task.alphabet)
    return accuracy


def encode(pairs: list[tuple[str, str]], task: Addition) -> tuple[Tensor, Tensor]:
    """Encode prompts and answers as right-padded rows; labels cover the answer and its end token."""
    numbers = vocabulary(task.alphabet)
    numbers[" "] = numbers[SPACE]
    tokens = torch.full((len(pairs), task.width), numbers[PAD])
    labels = torch.full((len(pairs), task.width), IGNORED)
    for row, (prompt, answer) in enumerate(pairs):
        start, end = len(prompt), len(prompt) + len(answer) + 1
        tokens[row, :end] = torch.tensor([*(numbers[character] for character in prompt + answer), numbers[END]])
        labels[row, start:end] = tokens[row, start:end]
    return tokens, labels


@torch.no_grad()
def sampled_accuracy(model: torch.nn.Module, task: Addition) -> float:
    """Return the expected fraction of right answers to the exam at temperature 1."""
    tokens, labels = encode([(problem.prompt, problem.answer) for problem in task.exam()], task)
    log_probs = model(input_ids=tokens).logits[:, :-1].float().log_softmax(-1)
    targets = labels[:, 1:]
    chosen = log_probs.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (chosen * (targets != IGNORED)).sum(-1).exp().mean().item()
