"""Validation of a job's settings for --dry-run, by the installed verl in a process of its own."""

import json
import os
import subprocess
import sys

from ascend_quant.files.installed import installed_version
from launch import with_root
from launch.environment.variables import without_secrets_in
from launch.recipes.verl import verl_of

MODULE = "ascend_quant.integrations.verl.validate"
SECONDS = 180  # time limit for the process; verl's imports take most of the time
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def problems_of(stack: str, entrypoint: list[str]) -> tuple[list[str], str | None]:
    """List the arguments of a job that a stack's verl would refuse, and why they could not be checked, or None."""
    here, wanted = installed_version("verl"), verl_of(stack).name
    if here is None or wanted.split()[0] != here:
        what = f"verl {here}" if here else "no verl"
        return [], f"verl's settings were not checked: this Python has {what}, but stack {stack} has verl {wanted}"
    found, unchecked = asked(entrypoint[2:])  # the arguments after -m MODULE
    return [f"verl {here}: {line}" for line in found], unchecked and f"verl's settings were not checked: {unchecked}"


def asked(overrides: list[str]) -> tuple[list[str], str | None]:
    """Check settings with the verl of this environment; return the problems, and why it could not run, or None."""
    variables = os.environ | OFFLINE | {"PYTHONPATH": with_root(os.environ)}
    options = {"capture_output": True, "text": True, "errors": "replace", "timeout": SECONDS, "env": variables}
    try:
        done = subprocess.run([sys.executable, "-m", MODULE], input=json.dumps(overrides), **options)
    except subprocess.TimeoutExpired:
        return [], f"verl did not answer within {SECONDS} s"
    if done.returncode:
        return [], (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
    return [without_secrets_in(line) for line in json.loads(done.stdout.splitlines()[-1])], None
