"""The demo's task as a data set, with the model that the recipes addition-* train."""

from dataclasses import replace
from pathlib import Path

from ascend_quant.datasets import DataError
from ascend_quant.datasets.parquet import write
from ascend_quant.demo import DemoError, training
from ascend_quant.demo.task import TINY_ON_NPUS, verl_rows
from ascend_quant.demo.warmup import make_start

SEED = 0


def addition(target: Path) -> list[str]:
    """Write addition/train.parquet, addition/test.parquet and the model addition/start, for the recipes addition-*.

    This is the demo's task, with a model for any device. Hosts may each generate their own copy, since the files are
    equal.
    """
    setup = replace(training.DEMO, shape=TINY_ON_NPUS)
    choices = training.Choices((), training.load_recipe()["trainer"]["total_training_steps"], SEED, "qwen2", setup)
    task = choices.setup.task
    folder = target / "addition"
    made = [
        write(folder / f"{name}.parquet", verl_rows(prompts, SEED, task))
        for name, prompts in (("train", choices.prompts), ("test", len(task.exam())))
    ]
    try:
        right = make_start(choices, folder / "start")
    except DemoError as error:
        raise DataError(str(error)) from error
    return [*made, f"{folder / 'start'}: a Qwen2 model that answers {right:.0%} right"]
