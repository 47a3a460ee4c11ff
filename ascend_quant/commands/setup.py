"""`ascend-quant setup`: write the YAML file that FLASHRL_CONFIG names. Its flags are those of `flashrl setup`."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.exits import WRONG_USE, fail

DEFAULT_CONFIG = Path("~/.flashrl_config.yaml")


def setup(
    columns: Annotated[list[str] | None, typer.Argument(help="More keys, as key=value; the values are YAML.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="W8A8 model: for FlashRL, not loaded here.")
    ] = None,
    profile: Annotated[str | None, typer.Option("--profile", "-p", help="What `profile` wrote, or FlashRL's.")] = None,
    fn: Annotated[str, typer.Option(help="int8, fp8, bf16, or another of FlashRL's functions.")] = "int8",
    config_output: Annotated[Path, typer.Option("--config-output", "-o", help="The YAML file.")] = DEFAULT_CONFIG,
    append: Annotated[
        bool,
        typer.Option(
            "--append", "-a", help="Add one more replica to an existing file, to mix quantized and BF16 ones."
        ),
    ] = False,
    frozen_scales: Annotated[bool, typer.Option("--frozen-scales", help="Keep the profile's scales.")] = False,
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
    """What was done, for people."""
    count = done["replicas"]
    lines = [f"wrote entry {count} of {done['file']}:"]
    lines += [f"  {key}: {value}" for key, value in done["written"].items()]
    lines += [f"{done['written']['fn']} here: {done['meaning']}"]
    if done["disregarded"]:
        lines += ["written for FlashRL, not followed here:", *(f"  {line}" for line in done["disregarded"])]
    lines += [f"note: {note}" for note in done["notes"]]
    if count > 1:
        lines.append(f"note: data-parallel replicas take the {count} entries in turn")
    return "\n".join([*lines, f"to use it: export FLASHRL_CONFIG={done['file']}"])
