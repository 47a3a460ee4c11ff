"""What a check needs besides torch_npu: packages, programs, and commands in processes of their own."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_smoke.checks import NotPossible, Wrong

ROOT = Path(__file__).parents[2]
RUN = str(ROOT / "run.sh")
GRACE_S = 20.0  # for a command to end what it has started, after it is told to
SAID = 1200  # characters of its last words
OFFLINE = {  # nothing here may fetch a model or phone home
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
STACKS = {"8.5": "ascend-cann8.5", "9.1": "ascend-cann9.1"}  # by CANN's version


def need_packages(*names: str) -> None:
    """Raise NotPossible unless all can be imported; `acl` is CANN's own."""
    lacking = [name for name in names if importlib.util.find_spec(name) is None]
    if lacking:
        raise NotPossible(f"this Python has no {', '.join(lacking)}")


def need_program(name: str, where: str) -> str:
    """The path of a program.

    Raises:
        NotPossible: it is not on PATH; `where` says what brings it.
    """
    found = shutil.which(name)
    if found is None:
        raise NotPossible(f"{name} is not on PATH: {where}")
    return found


def need_devices(count: int) -> None:
    """Raise NotPossible unless this process sees so many NPUs."""
    import torch

    there = torch.npu.device_count()
    if there < count:
        raise NotPossible(f"{count} NPUs are needed, this process sees {there}")


def python(*arguments: str) -> list[str]:
    """A command of this interpreter."""
    return [sys.executable, *arguments]


def module(name: str, *arguments: str) -> list[str]:
    return python("-m", name, *arguments)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """One of our own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="npu-smoke-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def run(
    command: Sequence[str], seconds: float, where: Path, variables: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Carry out a command; its exit code and all that it said. What it started has ended when this returns.

    Raises:
        Wrong: it did not end in time.
    """
    environment = {**os.environ, **OFFLINE, "PYTHONPATH": _paths(), **(variables or {})}
    log = where / "said.log"
    with log.open("ab") as said:
        begin = said.tell()
        process = subprocess.Popen(
            command,
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise Wrong(f"{_name_of(command)}: no end after {seconds:.0f} s; it said: {_last(log, begin)}") from None
    finally:
        _end(process)
    return code, log.read_bytes()[begin:].decode(errors="replace")


def answer(
    command: Sequence[str], seconds: float, where: Path, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The JSON object in the last line that is one; what libraries say as they end may follow it.

    Raises:
        Wrong: it said none, or did not end in time.
    """
    code, said = run(command, seconds, where, variables)
    for line in reversed(said.splitlines()):
        with contextlib.suppress(ValueError):
            if isinstance(found := json.loads(line), dict):
                return found if code == 0 else found | {"exit code": code}
    raise Wrong(f"{_name_of(command)} ended with {code}: {_shortened(said)}")


def stack() -> str:
    """The name of the stack that this machine's CANN belongs to: of our image, else by its version.

    Raises:
        NotPossible: neither says.
    """
    import torch

    if named := os.environ.get("ASCEND_QUANT_STACK"):
        return named
    version = str(torch.npu.utils.get_cann_version())
    for start, name in STACKS.items():
        if version.startswith(start):
            return name
    raise NotPossible(f"CANN {version} belongs to none of the stacks {', '.join(STACKS.values())}")


def _paths() -> str:
    """PYTHONPATH with this project before what is there."""
    return os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])


def _end(process: subprocess.Popen) -> None:
    """End a command and its session: first as Ctrl-C does, then for good."""
    for number, seconds in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, None)):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
    with contextlib.suppress(ProcessLookupError):  # what it has left behind
        os.killpg(process.pid, signal.SIGKILL)


def _name_of(command: Sequence[str]) -> str:
    words = [Path(word).name if word.startswith("/") else word for word in command]
    return " ".join(words[1:] if "python" in words[0] else words)[:120]


def _last(log: Path, begin: int) -> str:
    return _shortened(log.read_bytes()[begin:].decode(errors="replace"))


def _shortened(said: str) -> str:
    """The end of it, in one line, or that there is nothing."""
    return " ".join(said.split())[-SAID:] or "(nothing)"
