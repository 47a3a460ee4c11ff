"""What the package needs where it is installed: torch to be imported, its extra for the commands, said in one line."""

import importlib.metadata
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ascend_quant.cli import COMMANDS, ENGINE

ROOT = Path(__file__).parents[2]
# A process that cannot import some modules: `only` those named first and Python's own are there, or all are but those.
BLOCKED = """
import sys
how, named = sys.argv.pop(1), set(sys.argv.pop(1).split(","))
class Blocked:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if (first in named) == (how == "without") and first not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""
STARTED = "from ascend_quant.cli import main; sys.argv[0] = 'ascend-quant'; main()"


@cache
def torch_brings() -> tuple[str, ...]:
    """The modules of torch and of what it asks for, directly or not."""
    todo, seen = ["torch"], set()
    while todo:
        if (name := canonicalize_name(todo.pop())) in seen:
            continue
        seen.add(name)
        try:
            wanted = map(Requirement, importlib.metadata.requires(name) or ())
        except importlib.metadata.PackageNotFoundError:
            continue
        todo += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    owners = importlib.metadata.packages_distributions().items()
    return tuple(module for module, names in owners if seen & {canonicalize_name(name) for name in names})


def run(how: str, named: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{BLOCKED}\n{code}", how, named, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_torch_is_enough_to_import_the_package():
    done = run("only", ",".join(("ascend_quant", *torch_brings())), "import ascend_quant")
    assert done.returncode == 0, done.stderr[-2000:]


def test_torch_and_numpy_are_enough_for_refits():
    modules = ("oracle", "refit", "refit.plan", "transfer.checksums", "kv_cache.scales", "kernels.cpu")
    code = f"import {', '.join(f'ascend_quant.{name}' for name in modules)}"
    done = run("only", ",".join(("ascend_quant", "numpy", *torch_brings())), code)
    assert done.returncode == 0, done.stderr[-2000:]


CALLS = {  # a command that needs it, before it does anything else
    "typer": ["--help"],
    "rich": ["--help"],
    "yaml": ["setup", "-o", "{folder}/out.yaml"],
    "vllm": ["--help"],
    "torch": ["convert", "{folder}", "{folder}/out", "--scheme", "int8"],
}


@pytest.mark.parametrize("name", CALLS)
def test_a_missing_library_is_one_line_that_says_what_to_install(name: str, tmp_path):
    arguments = [word.format(folder=tmp_path) for word in CALLS[name]]
    needed = (
        f"from ascend_quant.commands import app; app.app = lambda **named: __import__({name!r})\n"
        if name == "vllm"
        else ""
    )
    done = run("without", name, needed + STARTED, *arguments)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and name in line and "-m pip install" in line
    assert ("ascend-quant[cli]" in line) == (name in COMMANDS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", (["--help"], ["convert", "--help"], ["recipe", "list"]))
def test_help_and_recipes_need_no_torch(arguments: list[str]):
    done = run("without", "torch,numpy", STARTED, *arguments)
    assert done.returncode == 0 and done.stdout, done.stderr[-2000:]


def test_the_lines_are_for_all_that_the_extra_brings():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cli"]
    modules = {"PyYAML": "yaml", "hydra-core": "hydra"}
    assert {modules.get(name, name) for name in (Requirement(text).name for text in extra)} == COMMANDS
    assert not COMMANDS & ENGINE
