"""The supervised warm-up: imitate a careless teacher, who adds or subtracts, so that RL has something to put right.

A model that imitates well answers about half of the problems right when sampled at temperature 1: every prompt gets
right and wrong samples, which is what GRPO learns from. That accuracy is computed from the logits over all problems,
so it has no sampling noise.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from launch.demo.errors import DemoError
from launch.demo.model import build_model
from launch.demo.task import all_problems
from launch.demo.tokenizer import build_tokenizer, save_tokenizer

UPDATES = 800
BATCH = 128
LEARNING_RATE = 2e-3  # falls linearly to a twentieth
TEACHER_RIGHT = 0.4  # of the answers; where one operand is 0, adding and subtracting agree and all are right
BAND = (0.40, 0.60)
IGNORED = -100

Encoded = tuple[Tensor, Tensor]  # tokens and labels, one row a problem


def make_start(model_name: str, seed: int, folder: Path, on_update: Callable[[int], None]) -> float:
    """Train, save the BF16 checkpoint that all arms start from, and return its sampled accuracy."""
    torch.set_num_threads(1)  # these matrices are too small to share out
    disable_progress_bar()  # the demo has its own
    model = build_model(model_name, seed)
    right = encode([(problem.prompt, problem.answer) for problem in all_problems()])
    imitate_teacher(model, right, seed, on_update)
    model = model.to(torch.bfloat16)
    accuracy = sampled_accuracy(model, right)
    check_band(accuracy)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return accuracy


def imitate_teacher(model: Any, right: Encoded, seed: int, on_update: Callable[[int], None]) -> None:
    """Supervised training on problems drawn at random, with the right answer or the mistake."""
    wrong = encode([(problem.prompt, problem.mistake) for problem in all_problems()])
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, UPDATES)
    for update in range(UPDATES):
        rows = torch.randint(len(right[0]), (BATCH,), generator=generator)
        careful = torch.rand(BATCH, 1, generator=generator) < TEACHER_RIGHT
        tokens, labels = (torch.where(careful, r[rows], w[rows]) for r, w in zip(right, wrong, strict=True))
        model(input_ids=tokens, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        on_update(update + 1)


def encode(pairs: list[tuple[str, str]]) -> Encoded:
    """Prompts with answers as right-padded rows, all of one width; the labels count the answer and its end only."""
    tokenizer = build_tokenizer()
    width = max(len(problem.prompt + problem.answer) for problem in all_problems()) + 1
    tokens = torch.full((len(pairs), width), tokenizer.pad_token_id)
    labels = torch.full((len(pairs), width), IGNORED)
    for row, (prompt, answer) in enumerate(pairs):
        start, end = len(prompt), len(prompt) + len(answer) + 1
        tokens[row, :end] = torch.tensor([*tokenizer.encode(prompt + answer), tokenizer.eos_token_id])
        labels[row, start:end] = tokens[row, start:end]
    return tokens, labels


@torch.no_grad()
def sampled_accuracy(model: Any, encoded: Encoded) -> float:
    """The expected exact-match reward at temperature 1."""
    tokens, labels = encoded
    log_probs = model(input_ids=tokens).logits[:, :-1].float().log_softmax(-1)
    targets = labels[:, 1:]
    chosen = log_probs.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (chosen * (targets != IGNORED)).sum(-1).exp().mean().item()


def check_band(accuracy: float) -> None:
    """Both arms must have something to learn and something to learn from."""
    low, high = BAND
    if not low <= accuracy <= high:
        raise DemoError(f"the warm-up ended at accuracy {accuracy:.2f}, outside {low}-{high}: try another --seed")
