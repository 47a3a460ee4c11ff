"""Checking the demo's options: one line says which value is wrong and which are right."""

import os
from dataclasses import replace
from pathlib import Path

from launch.demo.recipe import ARMS, HYBRID, IMPORTANCE_SAMPLING, SETUPS, Choices, load_recipe, scheme_of
from launch.stacks import STACK_VARIABLE

FP8_CAPABILITY = (8, 9)  # of the first GPUs with FP8 units


class OptionError(ValueError):
    """A bad option; the message is one line for the user."""


def choices(
    arms: str | None,
    hybrid: bool,
    steps: int | None,
    rollout_is: str,
    seed: int,
    model: str,
    device: str = "cpu",
) -> Choices:
    """The checked options; `steps` and `arms` default to the device's, `arms` to none beside the hybrid arm."""
    one_of("--device", device, tuple(SETUPS))
    setup = SETUPS[device]
    if hybrid and device != "cpu":
        raise OptionError(f"--hybrid: has two replicas on CPUs; with --device {device} leave it out")
    names = () if hybrid and arms is None else setup.arms if arms is None else arm_names(arms)
    names += (HYBRID,) if hybrid else ()
    steps = load_recipe(device)["steps"] if steps is None else steps
    if steps < 1:
        raise OptionError(f"--steps {steps}: at least 1 is needed")
    if seed < 0:
        raise OptionError(f"--seed {seed}: 0 or more is needed")
    one_of("--rollout-is", rollout_is, IMPORTANCE_SAMPLING)
    one_of("--model", model, setup.models)
    return Choices(names, steps, rollout_is, seed, model, device)


def arm_names(arms: str) -> tuple[str, ...]:
    """The arms that --arms names, each once."""
    names = tuple(name.strip() for name in arms.split(","))
    for name in names:
        one_of("--arms", name, ARMS)
    if len(set(names)) < len(names):
        raise OptionError(f"--arms {arms!r}: names an arm twice; give each of {', '.join(ARMS)} at most once")
    return names


def on_device(chosen: Choices, asked: bool) -> tuple[Choices, str | None]:
    """The choices that this machine can run, and a line about what it cannot.

    Args:
        asked: whether the user named the arms; then each must run.

    Raises:
        OptionError: there is no such device, or an arm that the user named needs another one.
    """
    if chosen.device == "cpu":
        if (stack := os.environ.get(STACK_VARIABLE, "cpu")) != "cpu":
            raise OptionError(f"--device cpu: this image is for {stack}: add --device cuda, or use the cpu image")
        return chosen, None
    import torch

    if not torch.cuda.is_available():
        raise OptionError(
            f"--device cuda: torch {torch.__version__} finds no CUDA device here: use --device cpu, or the stack "
            "cuda13 on a machine with an NVIDIA GPU"
        )
    capability = torch.cuda.get_device_capability()
    lacking = tuple(arm for arm in chosen.arms if scheme_of(arm).startswith("fp8"))
    if not lacking or capability >= FP8_CAPABILITY:
        return chosen, None
    line = f"{', '.join(lacking)}: {torch.cuda.get_device_name()} (sm{capability[0]}{capability[1]}) has no FP8 units"
    if asked:
        raise OptionError(f"--arms {line}, which came with sm89: leave it out")
    return replace(chosen, arms=tuple(arm for arm in chosen.arms if arm not in lacking)), f"{line}: left out"


def check_folder(out: Path) -> None:
    """Make the folder of a result, which must not be mixed with another's, nor with other files.

    Raises:
        OptionError: something is in it, or it cannot be made.
    """
    if out.exists() and not out.is_dir():
        raise OptionError(f"--out {str(out)!r}: is a file; give a folder")
    if earlier := [name for name in (*ARMS, HYBRID, "report.json") if (out / name).exists()]:
        raise OptionError(f"--out {str(out)!r}: holds {earlier[0]} of an earlier run; give another folder or remove it")
    try:
        out.mkdir(parents=True, exist_ok=True)
        other = next(out.iterdir(), None)
    except OSError as error:
        raise OptionError(f"--out {str(out)!r}: cannot be made: {error.strerror}; give another folder") from error
    if other is not None:
        raise OptionError(f"--out {str(out)!r}: is not empty, it holds {other.name}; give a new folder")


def one_of(option: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise OptionError(f"{option} {value!r}: choose from {', '.join(valid)}")
