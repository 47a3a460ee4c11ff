"""`ascend-quant smoke`: test whether this installation works on this device."""

import sys
from contextlib import redirect_stdout
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.files.whole_file import why_no_file, write_whole
from ascend_quant.terminal.exits import DONE, FAILED, WRONG_USE, fail, first_line


class Device(str, Enum):
    """The device that is tested."""

    cpu = "cpu"
    cuda = "cuda"
    npu = "npu"


def smoke(
    device: Annotated[
        Device | None, typer.Option(help="Device to test.  [default: the first of npu, cuda, cpu that is available]")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only this probe or group (operators, engine); repeatable.  [default: all]"),
    ] = None,
    checkpoints: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="<start> <then>",
            help="Two BF16 checkpoint folders of one model, for the engine probes.  [default: a small generated model]",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the JSON to this file after each probe.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON.")] = False,
) -> None:
    """Test this device: operators against the reference, and a refitted engine against a fresh one.

    In a checkout or an image, ./run.sh smoke also trains a model, and continues if a probe crashes.

    Exit status: 0 if all applicable probes passed; 1 if a probe failed; 2 for wrong usage.
    """
    from rich.console import Console

    from ascend_quant import __version__
    from ascend_quant.smoke.probes import On, UnknownProbe, carry_out, probes_for
    from ascend_quant.smoke.results import Result, as_text, document, now, show

    if out is not None and (said := why_no_file(out)):
        fail(f"--out {said}", WRONG_USE)
    for folder in checkpoints or ():
        if not (folder / "config.json").is_file():
            fail(f"--checkpoints {folder}: has no config.json", WRONG_USE)
    console, results = Console(stderr=as_json), list[Result]()
    with redirect_stdout(sys.stderr):  # vLLM logs to the stdout of its import, but ours is for the result
        on = On(_device(device and device.value), checkpoints=checkpoints)
        try:
            probes = probes_for(on.device.type, only or ())
        except UnknownProbe as why:
            fail(f"--only: {why}", WRONG_USE)
        about = {"version": __version__, "started": now(), "device": on.device.type}
        for one in probes:
            results.append(carry_out(one, on))
            show(results[-1], console)
            content = document(results, about)
            if out is not None:  # after each probe, so that an interrupted run also has a file
                write_whole(out, as_text(content))
    if as_json:
        typer.echo(as_text(content), nl=False)
    raise typer.Exit(DONE if content["ok"] else FAILED)


def _device(name: str | None):
    """Return the device of that name, or the first that is available."""
    import torch

    for one in [name] if name else ["npu", "cuda", "cpu"]:
        try:
            torch_npu = import_module("torch_npu") if one == "npu" else None
            torch.zeros(1, device=one)
        except (ImportError, RuntimeError, AssertionError) as error:  # torch without CUDA raises AssertionError
            if name:
                fail(f"--device {name}: not available ({first_line(error)}); --device cpu always works", WRONG_USE)
            continue
        if torch_npu is not None:
            torch_npu.npu.config.allow_internal_format = True  # as in vllm-ascend's worker; FRACTAL_NZ needs it
        return torch.device(one)
    raise AssertionError("torch has no CPU")
