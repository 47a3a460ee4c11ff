"""Data sets as verl reads them: `./run.sh data NAME` from a local copy or the hub, to parquet files in one folder.

    prepare("gsm8k", None, Path("data"))

published.py says what the sets of the hub become; files.py finds, reads and writes the files. The columns are those of
verl's RLHFDataset, the sources those that verl's default reward knows (0.9.1 and older).
"""

from pathlib import Path

from launch.data.files import DataError, Progress, silent, write, writing

__all__ = ["DataError", "prepare"]

SEED = 0  # of the demo's task


def prepare(name: str, source: Path | None, target: Path, progress: Progress = silent) -> list[str]:
    """Write a data set into `target`, over an earlier one. Returns what was made, for people.

    The same source gives the same bytes.

    Args:
        name: gsm8k, dapo-math-17k or addition.
        source: a folder with a copy of what is on the hub; None: the hub itself. Addition is made here.

    Raises:
        DataError: the data cannot be had, are not what is published under that name, or cannot be written.
    """
    if name == "addition":
        return addition(target, progress)
    from launch.data import published

    made = published.gsm8k if name == "gsm8k" else published.dapo_math
    return made(source, target, progress)


def addition(target: Path, progress: Progress) -> list[str]:
    """Write addition/train.parquet, addition/test.parquet and the model addition/start, for the recipes addition-*.

    It is the demo's task. Several hosts may each make their own: they get the same files.
    """
    from launch.demo import DemoError
    from launch.demo.task import verl_rows
    from launch.demo.training import Choices, load_recipe
    from launch.demo.warmup import make_start

    choices = Choices((), load_recipe()["steps"], SEED, "qwen2")
    task, updates = choices.setup.task, choices.setup.warm_up.fall
    folder = target / "addition"
    made = [
        write(folder / f"{name}.parquet", verl_rows(prompts, SEED, task))
        for name, prompts in (("train", choices.prompts), ("test", len(task.exam())))
    ]
    try:
        with writing(folder):
            right = make_start(choices, folder / "start", lambda done: progress("warm-up", done, updates))
    except DemoError as error:
        raise DataError(str(error)) from error
    return [*made, f"{folder / 'start'}: a Qwen2 model that answers {right:.0%} right"]
