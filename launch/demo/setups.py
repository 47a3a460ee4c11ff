"""What the demo is on each kind of device: its stack, recipe, task, model and warm-up."""

from collections.abc import Mapping
from dataclasses import dataclass

from launch.demo.addition import Addition
from launch.demo.ledger import Ledger
from launch.demo.model import MODELS, SMALL, TINY
from launch.demo.task import Task


@dataclass(frozen=True)
class WarmUp:
    """The supervised training before RL.

    Attributes:
        longest: updates at the full learning rate, at most: it ends when the model's likeliest answers are right.
        fall: updates after that, in which the rate falls linearly to a twentieth, and what is left of noise goes.
        batch: answers an update.
        learning_rate: at its highest.
        ramp: updates until it is there.
        band: the accuracy when sampled at temperature 1 must lie between these.
        seconds: more is an error.
    """

    longest: int
    fall: int
    batch: int
    learning_rate: float
    ramp: int
    band: tuple[float, float]
    seconds: float


@dataclass(frozen=True)
class Setup:
    """The demo of one kind of device.

    Attributes:
        stack: whose environment variables a run has.
        recipe: in configs/recipes.
        models: names that --model may have.
        arms: those that run unless others are chosen.
    """

    stack: str
    recipe: str
    task: Task
    models: tuple[str, ...]
    shape: Mapping[str, int]
    warm_up: WarmUp
    arms: tuple[str, ...]


SETUPS = {
    "cpu": Setup(
        stack="cpu",
        recipe="demo",
        task=Addition(),
        models=MODELS,
        shape=TINY,
        warm_up=WarmUp(0, fall=800, batch=128, learning_rate=2e-3, ramp=1, band=(0.40, 0.60), seconds=600),
        arms=("bf16", "int8"),
    ),
    "cuda": Setup(
        stack="cuda13",
        recipe="demo-cuda",
        task=Ledger(),
        models=("qwen2",),
        shape=SMALL,
        # How soon 91 M parameters learn to copy and to carry was not seen yet: some 500 updates for 0.3 M and 8 lines.
        warm_up=WarmUp(3000, fall=500, batch=64, learning_rate=5e-4, ramp=100, band=(0.30, 0.50), seconds=240),
        arms=("bf16", "int8", "fp8", "int8-uncorrected"),
    ),
}
