"""One step's gradient with importance weights: verl's driver, loss and FSDP2 engine on 1, 2 and 4 gloo ranks, float32.

Against the rule, in float64, in one process that reads one sequence at a time. Micro-batches are dynamic, of unequal
answers; the old policy is not the present one, as at a batch's second update, so that PPO's clip is at work. Every
distinct correction of the recipes is a case. Without the KL term, which no weight touches.
"""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import pytest
import torch
import yaml
from correction_ranks import Case, run_ranks
from packed_engine import PROMPT, SIZES, plain_model
from test_recipe_verl_commit import ON_NPU, on_older_stack
from torch import Tensor

pytest.importorskip("verl", reason="the engine is verl's")

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from ascend_quant.recipes.keys import ACTOR, CORRECTION, POLICY_LOSS
from launch.recipes import load, names, paths_of, resolve
from launch.recipes.fields import Recipe

ANSWERS = (3, 17, 6, 2, 11, 4, 9, 14)  # tokens; a mini-batch of four ranks with two each
CUT = 2.0
MISMATCH, UPDATE = 0.5, 0.2  # spread of a token's log ratio: trainer to rollout; by the updates before this one
PARTS = (CORRECTION, POLICY_LOSS, f"{ACTOR}.clip_ratio", f"{ACTOR}.loss_agg_mode")
GRID = [(level, bypass, norm) for level in ("token", "sequence") for bypass, norm in ((0, 0), (0, 1), (1, 0))]


def lines_of(recipe: Recipe) -> tuple[str, ...]:
    """What of a recipe's command line decides the weights and the loss that they multiply; ++ fits either verl."""
    lines = (line.lstrip("+") for line in resolve(recipe, paths_of(recipe, "/m", "/d", "/o")))
    return tuple(sorted(f"++{line}" for line in lines if line.startswith(PARTS)))


def by_hand(level: str, bypass: int, normalize: int) -> tuple[str, ...]:
    asked = {"rollout_is": level, "rollout_is_batch_normalize": str(bool(normalize)).lower()}
    changes = [
        f"correction={'bypass' if bypass else 'token'}",
        *(f"{CORRECTION}.{key}={one}" for key, one in asked.items()),
    ]
    return lines_of(load("addition-int8", changes))


def corrections() -> dict[tuple[str, ...], str]:
    """The distinct ones, and who has them: the recipes, on both stacks of NPUs, and the grid."""
    found: dict[tuple[str, ...], str] = {}
    for recipe in [*map(load, names()), *map(on_older_stack, ON_NPU)]:
        found.setdefault(lines_of(recipe), f"{recipe.name} on {recipe.stack}")
    for asked in GRID:
        found.setdefault(by_hand(*asked), "{}, bypass {}, normalize {}".format(*asked))
    return found


@dataclass
class Sample:
    """A batch: tokens (prompt + answer), and of each answer, (T,): the log-probabilities and the advantage."""

    ids: list[Tensor]
    sampled: list[Tensor]  # by the engine's policy
    old: list[Tensor]  # by the trainer's, before this batch's updates
    advantages: list[Tensor]


def drawn(log_probs: list[Tensor], ids: list[Tensor]) -> Sample:
    generator = torch.Generator().manual_seed(2)

    def near(values: list[Tensor], spread: float) -> list[Tensor]:
        return [one + spread * torch.randn(len(one), generator=generator) for one in values]

    now = [one.detach().float() for one in log_probs]
    old = near(now, UPDATE)
    return Sample(ids, near(old, MISMATCH), old, [torch.randn(1, generator=generator).expand(len(one)) for one in now])


def texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, SIZES["vocab_size"], (PROMPT + answer,), generator=generator) for answer in ANSWERS]


def exact_log_probs(model: torch.nn.Module, ids: list[Tensor]) -> list[Tensor]:
    """Of the answers' tokens, float64, differentiable."""
    rows = [model(one.unsqueeze(0), use_cache=False).logits[0].log_softmax(-1) for one in ids]
    return [row[PROMPT - 1 : -1].gather(-1, one[PROMPT:, None]).squeeze(-1) for row, one in zip(rows, ids, strict=True)]


def weights(of: list[Tensor], sampled: list[Tensor], level: str | None, cut: float, normalize: bool) -> list[Tensor]:
    """The rule: exp(log ratio) of a token, or of a sequence's sum, cut, and divided by the whole batch's mean."""
    ratios = [a.detach().double() - b.double() for a, b in zip(of, sampled, strict=True)]
    if level is None:
        return [torch.ones_like(one) for one in ratios]
    cut_ones = [(one if level == "token" else one.sum().expand(len(one))).exp().clamp(max=cut) for one in ratios]
    each = torch.cat(cut_ones) if level == "token" else torch.stack([one[0] for one in cut_ones])
    return [one / each.mean() if normalize else one for one in cut_ones]


def expected_loss(now: list[Tensor], sample: Sample, actor, asked, level: str | None) -> Tensor:
    """Compute the loss: in bypass the policy gradient with the present policy's weights, else PPO's doubly clipped one.

    In bypass without weights (an exact actor): PPO's too, and the old policy is the engine's.
    """
    bypass, clips = asked.bypass_mode, not asked.bypass_mode or asked.rollout_is is None
    used = weights(now if bypass else sample.old, sample.sampled, level, CUT, asked.rollout_is_batch_normalize)
    losses, before = [], sample.sampled if bypass else sample.old
    for log_prob, old, w, advantage in zip(now, before, used, sample.advantages, strict=True):
        ratio, a = (log_prob - old.double()).exp(), advantage.double()
        clipped = torch.minimum(ratio * a, ratio.clamp(1 - actor.clip_ratio_low, 1 + actor.clip_ratio_high) * a)
        clipped = torch.where(a < 0, torch.maximum(clipped, actor.clip_ratio_c * a), clipped)
        losses.append(-w * (clipped if clips else a * log_prob))
    if actor.loss_agg_mode == "token-mean":
        return torch.cat(losses).mean()
    assert actor.loss_agg_mode == "seq-mean-token-mean", actor.loss_agg_mode
    return torch.stack([one.mean() for one in losses]).mean()


def case_of(name: str, lines: tuple[str, ...], sample: Sample, gradient: Callable, weighted: bool = True) -> Case:
    """Not `weighted`: what the rule gives without weights, whatever verl is asked."""
    from verl.utils.config import omega_conf_to_dataclass

    config = composed()
    for key, value in (line.removeprefix("++").split("=", 1) for line in lines):
        OmegaConf.update(config, key, yaml.safe_load(value), force_add=True)
    actor, asked = omega_conf_to_dataclass(config.actor_rollout_ref.actor), config.algorithm.rollout_correction
    assert asked.rollout_is_threshold == CUT
    given = {"advantages": sample.advantages, "old_log_probs": sample.old}
    if asked.bypass_mode:
        given["old_log_probs"] = sample.sampled  # as verl's trainer does
    else:
        given["rollout_is_weights"] = by_driver(sample, asked)
    level = asked.rollout_is if weighted else None

    def loss(now: list[Tensor]) -> Tensor:
        return expected_loss(now, sample, actor, asked, level)

    return Case(name, actor, given, gradient(loss))


@cache
def _defaults() -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"{ACTOR}.use_dynamic_bsz=true"])


def composed() -> DictConfig:
    """verl's own configuration, to be changed."""
    return copy.deepcopy(_defaults())


def by_driver(sample: Sample, asked) -> list[Tensor]:
    """The weights as verl's driver computes them: once, of the whole batch, padded."""
    from verl import DataProto
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

    padded = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    mask = padded([torch.ones(len(one)) for one in sample.old])
    batch = {"old_log_probs": padded(sample.old), "rollout_log_probs": padded(sample.sampled), "response_mask": mask}
    data, _ = compute_rollout_correction_and_add_to_batch(DataProto.from_dict(batch), asked)
    return [row[: len(one)] for row, one in zip(data.batch["rollout_is_weights"], sample.old, strict=True)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The model's folder, with the cases beside it."""
    folder = tmp_path_factory.mktemp("gradients")
    plain_model().save_pretrained(folder / "model")
    model, ids = plain_model().double().train(), texts()
    now = exact_log_probs(model, ids)
    sample = drawn(now, ids)

    def gradient(loss: Callable[[list[Tensor]], Tensor]) -> dict[str, Tensor]:
        found = torch.autograd.grad(loss(now), list(model.parameters()), retain_graph=True)
        return dict(zip([name for name, _ in model.named_parameters()], found, strict=True))

    cases = [case_of(name, lines, sample, gradient) for lines, name in corrections().items()]
    refused = tuple(one.replace("normalize=false", "normalize=true") for one in by_hand("sequence", 1, 0))
    assert refused != by_hand("sequence", 1, 0)
    wrong = case_of("bypass and batch_normalize", refused, sample, gradient)
    off = case_of("no weights", refused, sample, gradient, weighted=False)
    (folder / "cases").write_bytes(pickle.dumps((ids, cases, wrong, off)))
    return folder


def test_verls_gradient_is_that_of_the_rule(prepared):
    """Beside it, what recipes refuse: bypass and batch_normalize is far off, whatever the log says."""
    run_ranks(prepared)


@pytest.mark.parametrize("name", ON_NPU)
def test_the_older_verl_is_asked_for_the_same(name: str):
    """Its weights and its loss are the same code, by reading."""
    assert lines_of(on_older_stack(name)) == lines_of(load(name)) != ()
