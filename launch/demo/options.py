"""Checking the demo's options: one line says which value is wrong and which are right."""

from pathlib import Path

from launch.demo.model import MODELS
from launch.demo.recipe import ARMS, DEFAULT_ARMS, HYBRID, IMPORTANCE_SAMPLING, Choices, load_recipe


class OptionError(ValueError):
    """A bad option; the message is one line for the user."""


def choices(arms: str | None, hybrid: bool, steps: int | None, rollout_is: str, seed: int, model: str) -> Choices:
    """The checked options; `steps` defaults to the recipe's, `arms` to two, or to none beside the hybrid arm."""
    names = () if hybrid and arms is None else arm_names(arms)
    names += (HYBRID,) if hybrid else ()
    steps = load_recipe()["steps"] if steps is None else steps
    if steps < 1:
        raise OptionError(f"--steps {steps}: at least 1 is needed")
    if seed < 0:
        raise OptionError(f"--seed {seed}: 0 or more is needed")
    one_of("--rollout-is", rollout_is, IMPORTANCE_SAMPLING)
    one_of("--model", model, MODELS)
    return Choices(names, steps, rollout_is, seed, model)


def arm_names(arms: str | None) -> tuple[str, ...]:
    """The arms that --arms names, each once."""
    if arms is None:
        return DEFAULT_ARMS
    names = tuple(name.strip() for name in arms.split(","))
    for name in names:
        one_of("--arms", name, ARMS)
    if len(set(names)) < len(names):
        raise OptionError(f"--arms {arms!r}: names an arm twice; give each of {', '.join(ARMS)} at most once")
    return names


def check_folder(out: Path) -> None:
    """A result must not be mixed with another's."""
    if out.exists() and not out.is_dir():
        raise OptionError(f"--out {str(out)!r}: is a file; give a folder")
    if earlier := [name for name in (*ARMS, HYBRID, "report.json") if (out / name).exists()]:
        raise OptionError(f"--out {str(out)!r}: holds {earlier[0]} of an earlier run; give another folder or remove it")


def one_of(option: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise OptionError(f"{option} {value!r}: choose from {', '.join(valid)}")
