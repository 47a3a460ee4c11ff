"""The supervised warm-up: imitate the task's careless teacher, so that RL has something to put right.

A model that imitates well answers about half of the problems right when sampled at temperature 1: every prompt gets
right and wrong samples, which is what GRPO learns from. That accuracy is computed from the logits over the task's
exam, so it has no sampling noise.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from launch import LaunchError
from launch.demo.task import END, PAD, SPACE, Addition, build_model, save_tokenizer, vocabulary
from launch.demo.training import Choices, WarmUp

FINAL_SHARE = 0.05  # of the learning rate
LOOK_EVERY = 50  # updates
PASSED = 0.98  # of the exam's answers are the likeliest ones
IGNORED = -100

Encoded = tuple[Tensor, Tensor]  # tokens and labels, one row a problem


def make_start(choices: Choices, folder: Path, on_update: Callable[[int], None]) -> float:
    """Train the BF16 checkpoint that all arms start from, save it, and return its sampled accuracy."""
    setup = choices.setup
    torch.set_num_threads(1)  # these matrices are too small to share out
    disable_progress_bar()  # the demo has its own
    model = build_model(choices.model, choices.seed, setup.shape, setup.task.alphabet)
    exam = encode([(problem.prompt, problem.answer) for problem in setup.task.exam()], setup.task)
    imitate_teacher(model, setup.task, setup.warm_up, choices.seed, exam, on_update)
    model = model.to(torch.bfloat16)
    accuracy = sampled_accuracy(model, exam)
    check_band(accuracy, setup.warm_up.band)
    model.save_pretrained(folder)
    save_tokenizer(folder, setup.task.alphabet)
    return accuracy


def imitate_teacher(
    model: Any, task: Addition, plan: WarmUp, seed: int, exam: Encoded, on_update: Callable[[int], None]
) -> None:
    """Train the model, supervised, on the teacher's lessons.

    Raises:
        LaunchError: it takes longer than the plan allows.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate)
    begun, falls_from = time.monotonic(), None if plan.longest else 0
    for update, lesson in enumerate(task.lessons(seed, plan.batch)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(update, falls_from, plan)
        tokens, labels = encode(lesson, task)
        model(input_ids=tokens, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        on_update(update + 1)
        if falls_from is None and is_learnt(model, exam, update + 1, plan):
            falls_from = update + 1
        if falls_from is not None and update + 1 == falls_from + plan.fall:
            return
        if time.monotonic() - begun > plan.seconds:
            raise LaunchError(
                f"the warm-up made {update + 1} updates in {plan.seconds:.0f} s: are the cores in use by others, or "
                "much slower than those that the demo is for?"
            )


def learning_rate(update: int, falls_from: int | None, plan: WarmUp) -> float:
    """Return the learning rate of an update, counted from 0; `falls_from` None: it does not fall yet."""
    fallen = 0 if falls_from is None else (update - falls_from) / plan.fall
    return plan.learning_rate * min((update + 1) / plan.ramp, 1 - (1 - FINAL_SHARE) * fallen)


def is_learnt(model: Any, exam: Encoded, updates: int, plan: WarmUp) -> bool:
    """Return whether the rate is to fall from here: the likeliest answers are right, or that took as long as it may."""
    return updates == plan.longest or (updates % LOOK_EVERY == 0 and likeliest_accuracy(model, exam) >= PASSED)


def encode(pairs: list[tuple[str, str]], task: Addition) -> Encoded:
    """Encode prompts and answers as right-padded rows of the task's width; labels count the answer and its end."""
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
def likeliest_accuracy(model: Any, encoded: Encoded) -> float:
    """Return the share of answers of which every token is the likeliest after those before it."""
    tokens, labels = encoded
    likeliest = model(input_ids=tokens).logits[:, :-1].argmax(-1)
    targets = labels[:, 1:]
    return ((likeliest == targets) | (targets == IGNORED)).all(-1).float().mean().item()


@torch.no_grad()
def sampled_accuracy(model: Any, encoded: Encoded) -> float:
    """Return the expected share of right answers at temperature 1."""
    tokens, labels = encoded
    log_probs = model(input_ids=tokens).logits[:, :-1].float().log_softmax(-1)
    targets = labels[:, 1:]
    chosen = log_probs.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (chosen * (targets != IGNORED)).sum(-1).exp().mean().item()


def check_band(accuracy: float, band: tuple[float, float]) -> None:
    """Raise LaunchError unless the accuracy lies in the band: all arms need something to learn and to learn from."""
    low, high = band
    if not low <= accuracy <= high:
        raise LaunchError(f"the warm-up ended at accuracy {accuracy:.2f}, outside {low}-{high}: try another --seed")
