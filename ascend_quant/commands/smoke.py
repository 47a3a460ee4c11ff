"""`ascend-quant smoke`, which `run.sh smoke` starts, too: test whether this installation works on this device."""

import json
import os
import shutil
import tempfile
import time
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args

import typer

from ascend_quant.files.whole_file import why_no_file, write_whole
from ascend_quant.processes.environment import STACK_VARIABLE
from ascend_quant.terminal.exits import DONE, FAILED, NOT_REACHED, WRONG_USE, fail, first_line

if TYPE_CHECKING:
    from rich.console import Console

    from ascend_quant.smoke.setting import Setting

DEFAULT = Path("smoke.json")


class Device(str, Enum):
    """The device that is tested."""

    cpu = "cpu"
    cuda = "cuda"
    npu = "npu"


def smoke(
    device: Annotated[
        Device | None,
        typer.Option(help=f"Device to test.  [default: that of {STACK_VARIABLE}, or the first of npu, cuda, cpu]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the JSON to this file after each part; an unfinished run in it is continued.  "
            f"[default: {DEFAULT}, or stdout if that cannot be written]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON; a file is written only with --out.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3,
    minutes: Annotated[float, typer.Option(min=1, help="Time limit; running the same command again continues.")] = 60,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only this part, even if it already has a result: train, a probe, or a group of probes "
            "(operators, engine); with run.sh also doctor. Repeatable.  [default: all]"
        ),
    ] = None,
    checkpoints: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="<start> <then>",
            help="Two BF16 checkpoint folders of one model, for the engine probes.  [default: a small generated model]",
        ),
    ] = None,
    read: Annotated[
        list[Path] | None,
        typer.Option(
            "--read",
            help="Print the results in this JSON file of a run on NPUs, one line per probe, and run nothing. "
            "Repeatable, to combine runs on one device and on several.",
        ),
    ] = None,
    doctor: Annotated[bool, typer.Option("--doctor", hidden=True, help="Run the launcher's doctor first.")] = False,
) -> None:
    """Test this machine: operators, three training steps and a refitted engine. The results go into one JSON.

    ASCEND_QUANT_STACK names the stack to test (set in our images; by default, that of the device). In a checkout or an
    image, ./run.sh smoke also runs the doctor.

    Exit status: 0 if all applicable parts passed; 1 if a part failed; 2 for wrong usage; 3 if time ran out. With
    --read: 0 if every probe passed; 1 if a probe failed; 3 if none failed but some have not run.
    """
    if read:
        _read(read, as_json)
    printed = as_json or (out is None and not os.access(".", os.W_OK))
    if out is None and not printed:
        out = DEFAULT
    if out is not None and (said := why_no_file(out)):
        fail(f"--out {said}", WRONG_USE)
    for folder in checkpoints or ():
        if not (folder / "config.json").is_file():
            fail(f"--checkpoints {folder}: has no config.json", WRONG_USE)

    from ascend_quant.smoke.setting import Setting

    stack, folder = _stack(device and device.value), Path(tempfile.mkdtemp(prefix="aq-smoke-"))
    whole = checkpoints and (checkpoints[0].absolute(), checkpoints[1].absolute())
    _test(Setting(stack, folder, steps, time.monotonic() + 60 * minutes, whole, doctor), only or [], out, printed)


def _stack(device: str | None) -> str:
    """Return the stack of the environment, or that of the device, or of the first device that is available."""
    from ascend_quant.recipes.node import Stack
    from ascend_quant.smoke.setting import stack_of

    if device is None and (stack := os.environ.get(STACK_VARIABLE)):
        if stack not in get_args(Stack):
            fail(f"{STACK_VARIABLE}={stack} is not a stack; choose from {', '.join(get_args(Stack))}", WRONG_USE)
        return stack
    for one in [device] if device else ["npu", "cuda", "cpu"]:
        why = _why_not(one)
        if not why:
            return stack_of(one)
        if device:
            fail(f"--device {device}: not available ({why}); --device cpu always works", WRONG_USE)
    raise AssertionError("torch has no CPU")


def _why_not(device: str) -> str:
    """Return why a kind of device cannot be used; "" if it can. This process takes no memory of it."""
    import torch

    if device == "cpu":
        return ""
    try:
        if device == "npu":
            import_module("torch_npu")
        return "" if getattr(torch, device).is_available() else f"torch finds no {device} device"
    except (ImportError, RuntimeError) as error:
        return first_line(error)


def _test(setting: "Setting", wanted: list[str], out: Path | None, printed: bool) -> NoReturn:
    """Run the requested parts, with JSON in a file, on stdout, or both."""
    from rich.console import Console

    from ascend_quant.processes.tree import end_as_after_ctrl_c
    from ascend_quant.smoke.parts import Parts, alone
    from ascend_quant.smoke.probes import UnknownProbe, is_in
    from ascend_quant.smoke.results import as_text

    console = Console(stderr=printed)
    before = _earlier(out, setting, wanted, console) if out is not None else None
    end_as_after_ctrl_c()

    def keep(content: dict[str, Any]) -> None:
        if out is not None:
            try:
                write_whole(out, as_text(content))
            except OSError as error:
                fail(f"--out {out}: cannot be written: {error.strerror}", FAILED)

    try:
        content = Parts(setting, console, before, keep).run(wanted)
    except UnknownProbe as why:
        shutil.rmtree(setting.folder)
        fail(f"--only: {why}; and {', '.join(alone(setting))}", WRONG_USE)
    if printed:
        typer.echo(as_text(content), nl=False)
    if out is not None:
        console.print(f"written: {out.absolute()}", soft_wrap=True, highlight=False)
    if content["ok"]:
        shutil.rmtree(setting.folder)
    else:
        console.print(f"logs: {setting.folder}", soft_wrap=True)
    left = [name for name in content["left"] if not wanted or any(is_in(name, one) for one in wanted)]
    if left:
        console.print(
            f"the time limit is reached; run the same command again to continue with {', '.join(left)}", soft_wrap=True
        )
    raise typer.Exit(FAILED if not content["ok"] else NOT_REACHED if left else DONE)


def _earlier(out: Path, setting: "Setting", wanted: list[str], console: "Console") -> dict[str, Any] | None:
    """Load the results of an earlier run to continue; None if the file is new."""
    from ascend_quant.smoke.parts import differences

    if not out.is_file():
        return None
    try:
        content = json.loads(out.read_text())
        different = differences(content, setting)
        whole = not content["left"] and not wanted
    except (ValueError, KeyError, TypeError, AttributeError):
        fail(f"--out {out} exists and is not a JSON file of this command; give another name", WRONG_USE)
    if different or whole:
        why = f"it was written for {', '.join(different)}" if different else "all its parts have results"
        console.print(f"starting {out} again from the beginning: {why}", soft_wrap=True)
        return None
    console.print(f"continuing {out}, started {content['started']}: {len(content['probes'])} results", soft_wrap=True)
    return content


def _read(files: list[Path], as_json: bool) -> NoReturn:
    """Print the result of each probe in the files."""
    from rich.console import Console

    from ascend_quant.files.documents import BadDocument
    from ascend_quant.smoke import reading, results

    console = Console(stderr=as_json)
    try:
        made = [reading.read(file) for file in files]
    except BadDocument as why:
        fail(f"--read {why}", WRONG_USE)
    found = reading.rows(made)
    for name, status, seen in found:
        console.print(f"{name}: {status}{seen and '; '}{seen}", soft_wrap=True, highlight=False, markup=False)
    if as_json:
        probes = [{"name": name, "status": status, "seen": seen} for name, status, seen in found]
        typer.echo(json.dumps({"files": [one.about for one in made], "probes": probes}, indent=1))
    statuses = {status for _, status, _ in found}
    raise typer.Exit(FAILED if results.FAILED in statuses else DONE if statuses == {results.OK} else NOT_REACHED)
