"""GitHub's workflows as data: jobs, steps, the text that shells get, and conditions that can be asked."""

import functools
import itertools
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RUN_SH = ROOT / "run.sh"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTIONS = sorted((ROOT / ".github/actions").glob("*/action.yml"))
TEXTS = {file.stem: file.read_text() for file in WORKFLOWS}
TREES = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
FUNCTION = re.compile(r"^ *(\w+)\(\) \{\n(.*)\n *\}$", re.MULTILINE)  # of one command
ON = True  # what YAML 1.1 makes of the key `on`


def jobs(name: str) -> Iterator[dict[str, Any]]:
    yield from TREES[name]["jobs"].values()


def steps(name: str) -> Iterator[dict[str, Any]]:
    for job in jobs(name):
        yield from job["steps"]


@functools.cache
def groups() -> list[str]:
    """The groups of tests that need no accelerator, as run.sh itself says."""
    return json.loads(subprocess.check_output([RUN_SH, "test", "--list"], text=True))


def matrix_of(job: dict[str, Any]) -> dict[str, list[str]]:
    """A job's matrix, with the list of another job in it: all groups."""
    matrix = {**job.get("strategy", {}).get("matrix", {})}
    matrix.pop("include", None)  # what depends on a row
    known = {"${{ fromJSON(needs.groups.outputs.names) }}": groups}
    return {key: values if isinstance(values, list) else known[values]() for key, values in matrix.items()}


def shell_of(name: str) -> list[str]:
    """The lines that a workflow's shells run, once for each row of a job's matrix, with row and environment in them."""
    found = []
    for job in jobs(name):
        matrix = matrix_of(job)
        for row in itertools.product(*matrix.values()):
            for step in job["steps"]:
                found += _lines(step, job.get("env", {}), dict(zip(matrix, row, strict=True)))
    return found


def _lines(step: dict[str, Any], environment: dict[str, str], row: dict[str, str]) -> list[str]:
    text = step.get("run", "").replace("\\\n", " ")
    for variable, value in (environment | step.get("env", {})).items():
        text = re.sub(rf"\$\{{{variable}:\+([^}}]*)\}}", r"\1", text).replace(f'"${variable}"', value)
    for key, value in row.items():
        text = text.replace(f"${{{{ matrix.{key} }}}}", value)
    for name, body in FUNCTION.findall(text):
        text = re.sub(rf"^ *{name} (.*)$", partial(_call, body), FUNCTION.sub("", text), flags=re.MULTILINE)
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def _call(body: str, call: re.Match[str]) -> str:
    """The one command of a shell function, with what a call gives it."""
    return body.replace('"$@"', call[1])


def calls(name: str) -> list[list[str]]:
    """The words behind each ./run.sh, without redirections."""
    return [shlex.split(found) for line in shell_of(name) for found in re.findall(r"\./run\.sh ([^)|;<>]*)", line)]


def array(name: str) -> list[str]:
    """A list of run.sh's."""
    return re.findall(rf"{name}=\(([^)]*)\)", RUN_SH.read_text())[0].split()


def asked(expression: str, **contexts: dict) -> Any:
    """What GitHub makes of an expression of names, strings, ==, !=, && and ||. A name that is not there is ''."""
    inner = re.sub(r"^\s*\$\{\{(.*)\}\}\s*$", r"\1", expression, flags=re.DOTALL)
    python = inner.replace("&&", " and ").replace("||", " or ").strip()
    return eval(" ".join(python.split()), {name: _Context(fields) for name, fields in contexts.items()})


class _Context(SimpleNamespace):
    def __init__(self, fields: dict) -> None:
        super().__init__(**{key: _Context(one) if isinstance(one, dict) else one for key, one in fields.items()})

    def __getattr__(self, name: str) -> Any:
        return _Context({})

    def __eq__(self, other: object) -> bool:
        return other == "" and not vars(self)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return bool(vars(self))
