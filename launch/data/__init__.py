"""Data sets as verl reads them: `./run.sh data NAME` from a local copy or the hub, to parquet files in one folder.

    prepare("gsm8k", None, Path("data")).lines()

published.py says what the sets of the hub become; files.py finds, reads and writes the files. The columns are those of
verl's RLHFDataset, the sources those that verl's default reward knows (0.9.1 and older).
"""

from pathlib import Path

from launch.data.files import DataError, Progress, Summary, silent, write, writing

__all__ = ["NAMES", "DataError", "Summary", "WrongRequest", "prepare"]

NAMES = ("gsm8k", "dapo-math-17k", "addition")
SEED = 0  # of the demo's task


class WrongRequest(DataError):
    """There is no such data set, or it is not made in that way."""


def prepare(name: str, source: Path | None, target: Path, progress: Progress = silent) -> Summary:
    """Write the data set `name` into `target`, over an earlier one. The same source gives the same bytes.

    Args:
        source: a folder with a copy of what is on the hub; None: the hub itself.

    Raises:
        WrongRequest: the name is unknown, or `source` is given for what is made here.
        DataError: the data cannot be had, are not what is published under that name, or cannot be written.
    """
    if name not in NAMES:
        raise WrongRequest(f"no data set {name!r}; there are: {', '.join(NAMES)}")
    if name == "addition":
        if source is not None:
            raise WrongRequest(f"--from {source}: addition is made here, not copied: leave --from out")
        return addition(target, progress)
    from launch.data import published

    made = published.gsm8k if name == "gsm8k" else published.dapo_math
    return made(source, target, progress)


def addition(target: Path, progress: Progress) -> Summary:
    """Write addition/train.parquet, addition/test.parquet and the model addition/start, for the recipes addition-*.

    It is the demo's task. Several hosts may each make their own: they get the same files.
    """
    from launch.demo import DemoError
    from launch.demo.task import verl_rows
    from launch.demo.training import Choices, load_recipe
    from launch.demo.warmup import make_start

    choices = Choices((), load_recipe()["steps"], SEED, "qwen2")
    task, updates = choices.setup.task, choices.setup.warm_up.fall
    folder, made = target / "addition", Summary()
    for name, prompts in (("train", choices.prompts), ("test", len(task.exam()))):
        made.rows[write(folder / f"{name}.parquet", verl_rows(prompts, SEED, task))] = prompts
    try:
        with writing(folder):
            right = make_start(choices, folder / "start", lambda done: progress("warm-up", done, updates))
    except DemoError as error:
        raise DataError(str(error)) from error
    made.notes.append(f"{folder / 'start'}: a Qwen2 model that answers {right:.0%} right")
    return made
