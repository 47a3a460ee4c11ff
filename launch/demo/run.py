"""The demo from its options to its report: model and data, warm-up, one verl run for each arm, the table of results.

The options are checked before anything is made: one line says which value is wrong and which are right.
"""

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from ascend_quant.schemes.caches import KV_CACHES, no_cache_on_cpus
from ascend_quant.schemes.constants import FP8_CAPABILITY
from launch.demo.caches import named
from launch.demo.recipe import (
    ARMS,
    HYBRID,
    IMPORTANCE_SAMPLING,
    SETUPS,
    Choices,
    load_recipe,
    scheme_of,
)
from launch.demo.report import build_report, draw, replica_summary, summary, write_report
from launch.demo.tasks import EXAM_SEED, write_parquet
from launch.demo.training import POLL_SECONDS, Training, Watched
from launch.stacks import STACK_VARIABLE

LAST_SEED = EXAM_SEED - 1  # the last that numpy takes, too


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
    kv_cache: str = "auto",
) -> Choices:
    """The checked options; `steps` and `arms` default to the device's, `arms` to none beside the hybrid arm."""
    one_of("--device", device, tuple(SETUPS))
    setup = SETUPS[device]
    if hybrid and device != "cpu":
        raise OptionError(f"--hybrid: has two replicas on CPUs; with --device {device} leave it out")
    names = () if hybrid and arms is None else setup.arms if arms is None else listed("--arms", arms, "an arm", ARMS)
    names += (HYBRID,) if hybrid else ()
    steps = load_recipe(setup.recipe)["steps"] if steps is None else steps
    if steps < 1:
        raise OptionError(f"--steps {steps}: at least 1 is needed")
    if not 0 <= seed <= LAST_SEED:
        raise OptionError(f"--seed {seed}: a number from 0 to {LAST_SEED} is needed")
    one_of("--rollout-is", rollout_is, IMPORTANCE_SAMPLING)
    one_of("--model", model, setup.models)
    one_of("--kv-cache", kv_cache, KV_CACHES)
    if hybrid and kv_cache != "auto":
        raise OptionError(f"--kv-cache {kv_cache}: replicas of --hybrid share their options: leave it out")
    return Choices(names, steps, rollout_is, seed, model, device, kv_cache)


def listed(option: str, text: str, what: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The parts of a list with commas, each once; where some are `known`, no other."""
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts if known else ():
        one_of(option, part, known)
    if len(set(parts)) < len(parts):
        of = f" of {', '.join(known)}" if known else ""
        raise OptionError(f"{option} {text!r}: names {what} twice; give each{of} at most once")
    return parts


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
        if why := no_cache_on_cpus(chosen.kv_cache):
            raise OptionError(f"--kv-cache {chosen.kv_cache}: {why}: use another one, or a GPU")
        return chosen, None
    import torch

    if not torch.cuda.is_available():
        raise OptionError(
            f"--device cuda: torch {torch.__version__} finds no CUDA device here: use --device cpu, or the stack "
            "cuda13 on a machine with an NVIDIA GPU"
        )
    capability = torch.cuda.get_device_capability()
    if chosen.kv_cache == "fp8" and capability < FP8_CAPABILITY:
        raise OptionError(f"--kv-cache fp8: {torch.cuda.get_device_name()} has no FP8 units: use int8")
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
    if os.path.exists(out) and not os.path.isdir(out):
        raise OptionError(f"--out {str(out)!r}: is a file; give a folder")
    if earlier := [name for name in (*ARMS, HYBRID, "report.json") if os.path.exists(out / name)]:
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


def run_demo(choices: Choices, out: Path, console: Console) -> dict[str, Any]:
    """Run everything, leave report.json and report.png in `out`, and return the report."""
    started = time.monotonic()
    write_parquet(out / "prompts.parquet", choices.prompts, choices.seed, choices.setup.task)
    with progress(console) as bars:
        warm_up(choices, out, bars)
        watched = run_arms(choices, out, bars)
    report = build_report(choices, out, watched, time.monotonic() - started)
    write_report(report, out / "report.json")
    draw(report, out / "report.png")
    console.print(table(report))
    console.print(f"{report['seconds'] / 60:.1f} min, peak memory {report['hardware']['peak_memory_gib']} GiB")
    console.print(f"report: {out / 'report.json'} and report.png", soft_wrap=True)
    return report


def progress(console: Console) -> Progress:
    """Bars with the time left."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def warm_up(choices: Choices, out: Path, bars: Progress) -> None:
    """Make the common start of all arms."""
    from launch.demo.warmup import make_start

    plan = choices.setup.warm_up
    bar = bars.add_task("warm-up", total=plan.longest + plan.fall)
    accuracy = make_start(choices, out / "start", lambda done: bars.update(bar, completed=done))
    bars.update(bar, description=f"warm-up: {accuracy:.0%} right")


def run_arms(choices: Choices, out: Path, bars: Progress) -> dict[str, Watched]:
    """Train the arms one after another; with cores to spare, an arm starts while the one before it trains.

    The device is then shared by a training and a start, but never by two trainings: steps are timed.
    """
    left, watched, shown = list(choices.arms), {}, {}
    running: list[Training] = []  # the one that trains, and perhaps the next, which waits for it before its first step
    steps, early = 0, (os.cpu_count() or 1) >= choices.setup.cores_to_start_early
    with ExitStack() as ends:
        while left or running:
            if left and (not running or (early and len(running) == 1 and steps)):
                training = Training(choices, left.pop(0), out, waits=bool(running))
                ends.callback(training.end)
                shown[training.arm] = bars.add_task(f"{training.arm}: verl starts", total=choices.steps)
                running.append(training)
            total = sum(training.memory for training in running)
            for training in reversed(running):  # so that what is left is the first one's
                steps = training.look(beside=total - training.memory)
                if steps:
                    bars.update(shown[training.arm], description=f"{training.arm}: training", completed=steps)
            if seen := running[0].watched:
                ended, steps = running.pop(0), 0
                watched[ended.arm] = seen
                ended.end()
                for training in running:
                    training.go()
            time.sleep(POLL_SECONDS)
    return watched


def table(report: dict[str, Any]) -> Table:
    """One row for each arm, and for each replica where an arm has several."""
    columns = ("rollout", "reward", "k3_kl mean", "ESS min", "refit ms", "step s", "tokens/s", "rollout tokens/s")
    columns += ("start s",)
    result = Table(*columns, title=f"{report['task']} ({report['model']}, {report['rollout_is']}-level TIS)")
    for arm in report["arms"]:
        numbers = summary(arm)
        reward = f"{numbers['start_reward']:.3f} -> {numbers['final_reward']:.3f}"
        speed = (f"{numbers['step_s_median']:.1f}", f"{numbers['tokens_s_median']:.0f}")
        speed += (f"{numbers['rollout_tokens_s_median']:.0f}", f"{arm['start_seconds']:.0f}")
        result.add_row(named(arm), reward, *cells(numbers), *speed)
        for replica in arm.get("replicas", ()):
            result.add_row(f" {replica['name']}", "", *cells(replica_summary(replica)))
            result.caption = "refit ms: of a run, all of the weight sync; of a replica, its engine's part"
    return result


def cells(numbers: dict[str, float]) -> tuple[str, str, str]:
    """Mismatch, effective sample size and refit time."""
    ess = "-" if isnan(numbers["ess_min"]) else f"{numbers['ess_min']:.4f}"  # without importance weights
    return f"{numbers['k3_kl_mean']:.2e}", ess, f"{numbers['refit_ms_median']:.0f}"
