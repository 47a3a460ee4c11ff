"""Disk space for a run's checkpoints, from the size of the model's weights and the number of saved steps."""

import math
import shutil
from pathlib import Path

from launch import existing
from launch.doctor.facts import GIB
from launch.plan import Saving


def lacking_room(saving: Saving | None) -> list[tuple[str, str]]:
    """Return what the disk lacks for checkpoints, and what to do; nothing if the model is not on this host."""
    if saving is None:
        return []
    size = parameters(Path(saving.model)) * saving.parameter_bytes
    if not size:
        return []
    count = max(kept(saving) - len(list(Path(saving.out).glob("checkpoints/global_step_*"))), 0)
    free = shutil.disk_usage(existing(Path(saving.out))).free
    if count * size <= free:
        return []
    needed = f"{count} checkpoints of {gib(size)} GiB each need {gib(count * size)} GiB"
    what = f"{saving.out}: {needed}, and {gib(free)} GiB are free"
    fewer = "keep fewer (-- trainer.max_actor_ckpt_to_keep=2), save less often (trainer.save_freq)"
    return [(what, f"{fewer}, or choose another --out")]


def gib(size: int) -> str:
    """Format bytes in GiB, with one decimal digit below 10 GiB."""
    return f"{size / GIB:.1f}" if size < 10 * GIB else f"{size / GIB:.0f}"


def kept(saving: Saving) -> int:
    """Return the maximum number of checkpoints on disk at the same time; verl also saves the last step.

    An old checkpoint is removed before a new one is written, unless it is the only one.
    """
    written = math.ceil(steps(saving) / saving.every)
    return min(written, max(saving.keep, 2)) if saving.keep else written


def steps(saving: Saving) -> int:
    """Return the run's steps; for epochs they depend on the rows of the data, and are 0 if those cannot be read."""
    if saving.steps:
        return saving.steps
    try:
        from pyarrow.parquet import read_metadata

        return read_metadata(saving.train).num_rows // saving.batch * saving.epochs
    except (ImportError, OSError, ValueError):  # another check reports a missing or damaged file
        return 0


def parameters(folder: Path) -> int:
    """Count a model's parameters from the headers of its safetensors files; 0 if there are none to read."""
    from safetensors import SafetensorError  # some environments lack it

    try:
        return sum(_elements(file) for file in sorted(folder.glob("*.safetensors")))
    except (OSError, SafetensorError):  # vLLM reports what is wrong with a file
        return 0


def _elements(file: Path) -> int:
    from safetensors import safe_open

    with safe_open(file, "np") as opened:
        return sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
