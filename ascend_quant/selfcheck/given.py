"""What `ascend-quant check-engine` is given, looked at before an engine starts."""

from pathlib import Path

from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.rules import ProfileError


class WrongUse(ValueError):
    """An option, or a checkpoint, with which no engine can start; says which and why."""


def check(start: Path, then: Path, memory: float | None) -> None:
    """Both folders hold checkpoints whose headers can be read, and the share of memory is one.

    Raises:
        WrongUse: one is not so.
    """
    if memory is not None and not 0 < memory <= 1:
        raise WrongUse(f"--gpu-memory-utilization {memory}: a fraction is wanted, above 0 and at most 1")
    for folder in (start, then):
        try:
            Checkpoint(folder)
        except (ProfileError, OSError) as error:
            raise WrongUse(str(error)) from error
        vocabulary_of(folder)


def vocabulary_of(folder: Path) -> int:
    """How many token ids the model knows.

    Raises:
        WrongUse: its config.json does not say so.
    """
    try:
        found = Checkpoint(folder).config.get("vocab_size")
    except ProfileError as error:
        raise WrongUse(str(error)) from error
    if type(found) is not int or not 0 < found < 1 << 31:
        raise WrongUse(f"{folder / 'config.json'}: vocab_size must be a positive whole number, not {found!r:.80}")
    return found
