"""The demo's task for the recipes addition-*: problems as parquet files, and the tiny model that training starts from.

The same seed makes the same files, so several hosts may each make their own.
"""

from pathlib import Path

from launch.data.files import DataError, Progress, Summary, write, writing

SEED = 0


def prepare(target: Path, progress: Progress) -> Summary:
    """Write addition/train.parquet, addition/test.parquet and addition/start."""
    from launch.demo import DemoError
    from launch.demo.tasks import verl_rows
    from launch.demo.training import Choices, load_recipe
    from launch.demo.warmup import make_start

    choices = Choices((), load_recipe()["steps"], SEED, "qwen2")
    task, updates = choices.setup.task, choices.setup.warm_up.fall
    folder, made = target / "addition", Summary()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, prompts in (("train", choices.prompts), ("test", len(task.exam()))):
            file = folder / f"{name}.parquet"
            write(file, verl_rows(prompts, SEED, task))
            made.rows[file] = prompts
    try:
        right = make_start(choices, folder / "start", lambda done: progress("warm-up", done, updates))
    except DemoError as error:
        raise DataError(str(error)) from error
    made.notes.append(f"{folder / 'start'}: a Qwen2 model that answers {right:.0%} right")
    return made
