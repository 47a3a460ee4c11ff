"""Disk space for a run's checkpoints, from the size of the model's weights and the number of saved steps."""

import math
import shutil
from pathlib import Path

from launch import existing
from launch.plan import Saving, Wanted

GIB = 1 << 30


def lacking_room(wanted: Wanted) -> tuple[str, str] | None:
    """Return what the disk lacks for checkpoints, and what to do; None if the model is not on this host."""
    saving = wanted.saving
    size = parameters(Path(wanted.model)) * saving.parameter_bytes if saving and wanted.model else 0
    if not size:
        return None
    count = max(kept(saving) - len(list(Path(wanted.out).glob("checkpoints/global_step_*"))), 0)
    free = shutil.disk_usage(existing(Path(wanted.out))).free
    if count * size <= free:
        return None
    one, all_of_them, there = (f"{part / GIB:.1f} GiB" for part in (size, count * size, free))
    what = f"{wanted.out}: {count} checkpoints of {one} each need {all_of_them}, and {there} are free"
    fewer = "keep fewer (-- trainer.max_actor_ckpt_to_keep=2), save less often (trainer.save_freq)"
    return what, f"{fewer}, or choose another --out"


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
    from safetensors import SafetensorError, safe_open  # some environments lack it

    count = 0
    try:
        for file in folder.glob("*.safetensors"):
            with safe_open(file, "np") as opened:
                count += sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
    except (OSError, SafetensorError):  # vLLM reports what is wrong with a file
        return 0
    return count
