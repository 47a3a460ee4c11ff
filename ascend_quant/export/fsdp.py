"""verl's FSDP checkpoints, a file a rank: looked at without running anything of them, then merged by verl's own merger.

The merger unpickles the files as they are; here it runs with torch's own restriction to tensors
(TORCH_FORCE_WEIGHTS_ONLY_LOAD), which it cannot lift.
"""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed.tensor  # whose tensors torch.load then knows

from ascend_quant.profile.checkpoints import BadCheckpoint

TENSORS_ALONE = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}


def merge(folder: Path, model: Path, out: Path) -> None:
    """Write the shards' tensors in BF16, and the model's config and tokenizer, which lie in huggingface/ beside them.

    Raises:
        BadCheckpoint: a shard is missing, cut off, or holds more than weights; the merger fails.
    """
    if model != folder / "huggingface":
        raise BadCheckpoint(
            f"--hf-model {model}: verl reads the model's config from {folder / 'huggingface'}; leave it out"
        )
    for shard in sorted(folder.glob("model_world_size_*_rank_*.pt")):
        _check(shard)
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", str(folder)]
    command += ["--target_dir", str(out)]
    environment = {key: value for key, value in os.environ.items() if key != "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment | TENSORS_ALONE)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
        raise BadCheckpoint(f"verl.model_merger has failed on {folder}: {said:.300}")


def _check(shard: Path) -> None:
    """A shard can be read, and holds tensors alone."""
    try:
        torch.load(shard, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        said = named[1] if named else " ".join(str(error).split())
        raise BadCheckpoint(f"{shard} holds more than tensors ({said:.200}); nothing of it has been run") from error
    except Exception as error:  # a file that is cut off raises anything
        raise BadCheckpoint(f"{shard} cannot be read ({error!r:.200}); copy the checkpoint again") from error
