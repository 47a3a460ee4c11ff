"""One arm of the training benchmark: a recipe trained as its user does it, and what verl logs of each step."""

import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from ascend_quant.demo.training import is_exact, read_lines, scheme_of
from ascend_quant.processes.child import run
from ascend_quant.recipes.keys import ACTOR, EXPERT_RANKS, MEGATRON, OURS, RANKS, TRANSFORMER
from benchmarks import train_reward
from benchmarks.report import Outcome
from launch.plan.job import metrics_in
from launch.recipes import Recipe, load
from launch.recipes.verl import text

TIMED = "timing_s/update_weights"  # verl's, of a weight sync
TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"
LAST_STAGE = f"{TRANSFORMER}.num_layers_in_last_pipeline_stage"
FORCED = {  # every answer as long as it may be, every step the same work, nothing but steps
    "actor_rollout_ref.rollout.ignore_eos": "true",  # read in verl's vllm_async_server.generate
    "algorithm.filter_groups.enable": "false",  # dynamic sampling generates some batches twice
    "reward.custom_reward_function.path": text(train_reward.__file__),
    "trainer.val_before_train": "false",
    "trainer.test_freq": "-1",
    "trainer.save_freq": "-1",
    "trainer.resume_mode": "disable",
    "trainer.logger": "[console,file]",
}


@dataclass(frozen=True)
class Arm:
    """One training of the benchmark.

    Attributes:
        recipe: its name; `model`: whose shape (see `models.MODELS`), `layers`: with so many of its layers.
        scheme: of the rollout; or int8-exact, whose trainer computes the INT8 engine's policy bit for bit.
        prompt, answer: tokens of each.
        steps: that are trained; the first is shown apart.
        changes: overrides of the recipe, over those that this benchmark makes.
        overrides: settings of verl, over all others.
    """

    recipe: str
    model: str
    scheme: str
    prompt: int
    answer: int
    steps: int
    gpus: int
    device: str = "cuda"
    tensor_parallel: int = 1
    changes: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    layers: int | None = None

    @property
    def shape(self) -> str:
        """Name of the model, with its layers where some are cut away; its folder has it too."""
        return self.model if self.layers is None else f"{self.model}-{self.layers}-layers"

    @property
    def trained_on(self) -> int:
        """Number of devices that train."""
        return self.gpus

    def title(self) -> str:
        """Return the arm's name for a line of progress."""
        return f"{self.shape} {self.scheme}, answers of {self.answer}"

    @property
    def file_name(self) -> str:
        """Name of its log file."""
        return f"{self.shape}-{self.scheme}-{self.answer}"

    def settings(self) -> dict[str, object]:
        """Return the recipe's settings that are made before `changes`, as overrides of Hydra."""
        recipe = load(self.recipe)
        settings = settings_for(recipe, self.trained_on, self.prompt, self.answer, self.tensor_parallel)
        settings["scheme"] = scheme_of(self.scheme)
        if is_exact(self.scheme):
            settings["correction"] = "exact"
        elif recipe.is_exact:
            settings["correction"] = "token"
        elif recipe.qat is not None:
            settings[f"{OURS}.qat"] = self.scheme if self.scheme.startswith("int4") else None
        return settings

    def written(self) -> list[str]:
        """Return the overrides of the recipe."""
        return [*(f"{key}={text(value)}" for key, value in self.settings().items()), *self.changes]

    def loaded(self) -> Recipe:
        """Return the recipe as it is trained.

        Raises:
            LaunchError: the settings do not go together.
        """
        return load(self.recipe, self.written())

    def command(self, model: Path, data: Path, out: Path) -> list[str]:
        """Return the command of a user who wants this."""
        command = [sys.executable, "-m", "launch", "train", self.recipe]
        command += ["--model", str(model), "--data", str(data), "--out", str(out), "--", *self.written()]
        forced = FORCED | {"trainer.total_training_steps": str(self.steps)}
        return [*command, *(f"{key}={value}" for key, value in forced.items()), *self.overrides]


def settings_for(recipe: Recipe, devices: int, prompt: int, answer: int, tensor_parallel: int = 1) -> dict[str, object]:
    """Return what changes where a recipe has fewer devices than it was written for, on one node.

    Each degree of parallelism goes as far as it can; the scheme and the batch stay as they are.

    Args:
        prompt, answer: tokens at most; where fewer devices share a sequence than before, it still fits.
        tensor_parallel: devices of an engine; the experts of a recipe that deals them out are dealt to these.
    """
    settings: dict[str, object] = {
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": devices,
        "data.max_prompt_length": prompt,
        "data.max_response_length": answer,
        RANKS: tensor_parallel,
        EXPERT_RANKS: tensor_parallel if recipe.rollout.expert_parallel > 1 else 1,
    }
    shared_by = min(recipe.sequence_parallel, devices)
    if recipe.sequence_parallel > 1:
        settings[f"{ACTOR}.ulysses_sequence_parallel_size"] = shared_by
    if (tokens := recipe.setting(TOKENS)) is not None:
        settings[TOKENS] = max(tokens, -(-(prompt + answer) // shared_by))
    if recipe.backend == "megatron":
        keys = [f"{MEGATRON}.{name}_parallel_size" for name in ("tensor_model", "expert_model")]
        settings |= {key: min(recipe.setting(key), devices) for key in keys}
        settings |= {f"{MEGATRON}.{name}_parallel_size": 1 for name in ("pipeline_model", "context")}
        if recipe.setting(LAST_STAGE):
            settings[LAST_STAGE] = None
    return settings


def model_of(recipe: Recipe) -> str:
    """Return the name in `models.MODELS` of the recipe's own model, if it is there."""
    return recipe.model.place.rpartition("/")[2].lower()


def sizes_of(recipe: Recipe) -> dict[str, int]:
    """Return the size of a step: prompts, samples of each, passes over them."""
    epochs = recipe.setting(f"{ACTOR}.ppo_epochs", 1)
    return {"prompts": recipe.setting("data.train_batch_size"), "n": recipe.rollout.n, "epochs": epochs}


@dataclass
class Steps:
    """Reader of verl's log: each step's line, and when it came.

    Attributes:
        began: when the training was started, by `time.monotonic`.
    """

    out: Path
    began: float
    seen: list[dict] = field(default_factory=list)

    def look(self) -> None:
        """Take what has come since the last look."""
        file = metrics_in(self.out)
        lines = read_lines(file) if file else []
        at = time.monotonic() - self.began
        self.seen += [{"at": at, **line} for line in lines[len(self.seen) :]]


def carry_out(arm: Arm, models: Path, logs: Path, seconds: float) -> Outcome:
    """Train so many steps, in so many seconds; a failure is the outcome's error.

    Args:
        models: the folder with the models that `train_files` wrote.
        logs: where the trainings' logs stay.
    """
    from benchmarks.train_files import write_prompts

    recipe = arm.loaded()
    sizes = sizes_of(recipe)
    with tempfile.TemporaryDirectory(prefix="aq-train-") as folder:
        out, data = Path(folder, "out"), Path(folder, "data")
        files = [data / recipe.data.train, data / recipe.data.validation]
        write_prompts(files, arm.steps * sizes["prompts"], arm.prompt)
        logs.mkdir(parents=True, exist_ok=True)
        steps = Steps(out, time.monotonic())
        command = arm.command(models / arm.shape, data, out)
        ended = run(command, logs, arm.file_name, seconds, recipe.stack, steps.look)
    result = {"command": command, "log": ended.log.name, "sizes": sizes, "steps": steps.seen, "faults": []}
    if ended.code != 0 or len(steps.seen) < arm.steps:
        words = f"{len(steps.seen)} of {arm.steps} steps; {memory_words(ended.log)}{ended.why()}"
        result["faults"].append(words)
    result["faults"] += lengths_that_differ(arm, steps.seen)
    if not steps.seen:
        return Outcome(arm, ended.seconds, None, f"{arm.title()}: {result['faults'][0]}")
    return Outcome(arm, ended.seconds, result)


def memory_words(log: Path) -> str:
    """Return the usual cause, said first: that memory ran out; empty if the log does not say so."""
    said = log.read_text(errors="replace")
    signs = ("OutOfMemoryError", "out of memory", "No available memory for the cache blocks")
    return "out of memory; " if any(sign in said for sign in signs) else ""


def lengths_that_differ(arm: Arm, steps: list[dict]) -> list[str]:
    """Return a line for each step with prompts or answers of another length than asked for: its times mean nothing."""
    faults = []
    for line in steps:
        for name, wanted in (("prompt_length", arm.prompt), ("response_length", arm.answer)):
            least, most = (line["data"][f"{name}/{end}"] for end in ("min", "max"))
            if (least, most) != (wanted, wanted):
                faults.append(f"step {line['step']}: {name} is {least:.0f} to {most:.0f}, {wanted} was asked for")
    return faults
