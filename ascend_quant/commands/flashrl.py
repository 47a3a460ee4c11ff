"""FlashRL's commands for its config files, with its flags.

`ascend-quant setup` writes the YAML file that FLASHRL_CONFIG names; `ascend-quant cleanup` removes the lines of
`usercustomize.py` with which FlashRL patches vLLM at every Python start. (`profile` is the third, in profile.py.)
"""

import json
import os
from difflib import unified_diff
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.files.whole_file import write_whole
from ascend_quant.terminal.exits import FAILED, WRONG_USE, fail

DEFAULT_CONFIG = Path("~/.flashrl_config.yaml")


def setup(
    columns: Annotated[
        list[str] | None, typer.Argument(help="Additional keys, as key=value; values are parsed as YAML.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="W8A8 model, for FlashRL only; ascend-quant does not load it.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", "-p", help="Profile written by `profile` or by FlashRL.")
    ] = None,
    fn: Annotated[str, typer.Option(help="int8, fp8, bf16, or another of FlashRL's functions.")] = "int8",
    config_output: Annotated[Path, typer.Option("--config-output", "-o", help="YAML file to write.")] = DEFAULT_CONFIG,
    append: Annotated[
        bool,
        typer.Option("--append", "-a", help="Add a replica to an existing file, to mix quantized and BF16 replicas."),
    ] = False,
    frozen_scales: Annotated[
        bool, typer.Option("--frozen-scales", help="Keep the profile's scales fixed during training.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Write a config for FLASHRL_CONFIG, which FlashRL can read too, or add a replica to one."""
    from ascend_quant.flashrl.config import Config, check_is_config, entry, notes, read
    from ascend_quant.flashrl.files import ConfigError

    file = Path(os.path.expanduser(config_output)).absolute()
    try:
        replica = entry(fn, model, profile, frozen_scales, columns or [])
        if there := file.exists():
            check_is_config(file)
        before = read(file).replicas if append and there else []
        Config(replicas=[*before, replica]).write(file)
    except (ConfigError, OSError) as error:
        fail(f"{file} is not written: {error}", WRONG_USE)
    done = {
        "file": str(file),
        "replicas": len(before) + 1,
        "written": replica.model_dump(mode="json", exclude_unset=True),
        "meaning": replica.function.meaning,
        "disregarded": replica.disregarded(),
        "notes": notes(replica),
    }
    typer.echo(json.dumps(done, indent=1) if as_json else text(done))


def text(done: dict) -> str:
    """Return a description of what was done."""
    count = done["replicas"]
    lines = [f"wrote entry {count} of {done['file']}:"]
    lines += [f"  {key}: {value}" for key, value in done["written"].items()]
    lines += [f"{done['written']['fn']} here: {done['meaning']}"]
    if done["disregarded"]:
        lines += ["written for FlashRL, not used by ascend-quant:", *(f"  {line}" for line in done["disregarded"])]
    lines += [f"note: {note}" for note in done["notes"]]
    if count > 1:
        lines.append(f"note: data-parallel replicas take the {count} entries in turn")
    return "\n".join([*lines, f"to use it: export FLASHRL_CONFIG={done['file']}"])


def cleanup(
    path: Annotated[
        Path | None, typer.Option("--path", "-p", help="File to clean.  [default: this environment's usercustomize.py]")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove FlashRL's patch: its lines in usercustomize.py, or the whole file if it has no others.

    Config files are kept, since ascend-quant reads them too.

    Exit status: 0 on success; 1 if something still imports flash_rl; 2 for wrong usage, or if a file cannot be read or
    changed.
    """
    from ascend_quant.flashrl.usercustomize import clean, default_path

    file = path or default_path()
    if path is None and not file.exists():
        typer.echo(f"{file} does not exist: nothing to do")
        return
    try:
        before = file.read_bytes().decode()
        cleaned = clean(before)
        for number, line in cleaned.left:
            typer.echo(
                f"{file}:{number} imports flash_rl, but FlashRL did not write this line: edit it by hand: {line}",
                err=True,
            )
        if cleaned.removed:
            target = str(file) if cleaned.text.strip() else "/dev/null"
            change = unified_diff(before.splitlines(), cleaned.text.splitlines(), str(file), target, lineterm="")
            typer.echo("\n".join(change))
            if not yes:
                typer.confirm("Remove these lines?", abort=True)
            _write(file, cleaned.text)
        else:
            typer.echo(f"{file} has no lines of FlashRL: nothing to do")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} cannot be read or changed: {error}", WRONG_USE)
    if cleaned.left:
        raise typer.Exit(FAILED)


def _write(file: Path, text: str) -> None:
    """Write the remaining lines; delete a file that has none left, as FlashRL created it, and the link to it."""
    if text.strip():
        write_whole(file, text)
        typer.echo(f"cleaned {file}")
        return
    links = [file] if file.is_symlink() else []
    for one in (Path(os.path.realpath(file)), *links):
        one.unlink()
        typer.echo(f"removed {one}, which had no other content")
