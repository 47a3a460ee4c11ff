"""Files in both directions, with FlashRL's own code: its `setup` and `cleanup`.

Importing flash_rl takes over the root logger and can patch vLLM, so it runs in processes of its own. Its `setup` writes
to the environment it runs in; there it is told of another one.
"""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import typer
import yaml
from typer.testing import CliRunner

from ascend_quant.commands.flashrl import setup
from ascend_quant.flashrl.config import read
from ascend_quant.flashrl.functions import FUNCTIONS
from ascend_quant.flashrl.usercustomize import clean
from ascend_quant.flashrl.variables import NAMES

pytestmark = pytest.mark.skipif(
    find_spec("flash_rl") is None, reason="flash-llm-rl, a test dependency, is not installed"
)

COMMANDS = """
import json, site, sys
_, folder, lines = sys.argv
site.getsitepackages = lambda: [folder]
from flash_rl import commands
said = []
for words in json.loads(lines):
    sys.argv = ["flashrl", *words]
    try:
        commands.run()
        said.append("")
    except AssertionError as error:
        said.append(str(error))
print(json.dumps(said))
"""

FLASHRL_PROFILE = {  # of one norm, as `flashrl profile` saves it
    "model.layers.0.input_layernorm.weight": {
        "input_scale": torch.ones(8),
        "output_scale": 1.0,
        "type": torch.bfloat16,
    }
}


def python(code: str, *words: str) -> str:
    """Standard output of `code` in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLASHRL_")}
    command = [sys.executable, "-c", code, *words]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture
def flashrl(tmp_path):
    """Runs FlashRL's commands; gives what each complained of."""

    def run(*commands: list) -> list[str]:
        words = [[str(word) for word in command] for command in commands]
        return json.loads(python(COMMANDS, str(tmp_path), json.dumps(words)))

    return run


def ours(*words) -> None:
    app = typer.Typer()
    app.command()(setup)
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output


@pytest.fixture
def profile(tmp_path):
    file = tmp_path / "profile.pt"
    torch.save(FLASHRL_PROFILE, file)
    return file


def test_its_configs_are_accepted_and_ours_are_the_same(flashrl, tmp_path, profile):
    names = [name for name in FUNCTIONS if name != "bf16"]
    options = {name: ["-m", "W8A8", "-p", profile, "--fn", name] for name in names}
    theirs, mine = ({name: tmp_path / f"{who}_{name}.yaml" for name in names} for who in ("theirs", "mine"))
    columns = ['params_to_ignore=["q_scale"]', 'ignore=["lm_head"]']  # one that FlashRL knows, one of ours
    said = flashrl(*(["setup", *options[name], "-o", theirs[name], *columns] for name in names))
    assert said == [""] * len(names)
    for name in names:
        ours(*options[name], "-o", mine[name], *columns)
        assert yaml.safe_load(mine[name].read_text()) == yaml.safe_load(theirs[name].read_text())
        (replica,) = read(theirs[name]).replicas
        assert (replica.fn, replica.model, replica.profile) == (name, "W8A8", str(profile))
        assert replica.options()["scheme"] == FUNCTIONS[name].scheme


def test_a_hybrid_written_by_both(flashrl, tmp_path):
    """FlashRL's `setup --fn bf16` fails an assertion of its own unless a column helps it; ours needs none."""
    file = tmp_path / "config.yaml"
    ours("-m", "W8A8", "-p", "profile.pt", "-o", file)
    append = ["setup", "-a", "--fn", "bf16", "-o", file]
    refused, accepted = flashrl(append, [*append, 'load_format="auto"'])
    assert refused.startswith("load_format should be 'auto' for bf16") and accepted == ""
    ours("-a", "--fn", "bf16", "-o", file)
    assert [replica.fn for replica in read(file).replicas] == ["int8", "bf16", "bf16"]
    assert [replica.load_format for replica in read(file).replicas] == ["auto", "auto", "dummy"]


def test_its_lines_are_what_cleanup_removes(flashrl, tmp_path):
    file = tmp_path / "usercustomize.py"
    file.write_text("import os\n")
    setup = ["setup", "--fn", "fp8", "-o", tmp_path / "config.yaml"]
    flashrl(setup, ["cleanup"], setup)  # its own cleanup leaves comments
    assert file.read_text().count("flash_rl") == 2
    cleaned = clean(file.read_text())
    assert (cleaned.text, cleaned.removed, cleaned.left) == ("import os\n", 2, ())


def test_its_names_are_all_known_here():
    code = (
        "import argparse, json; from flash_rl.commands import setup_flashrl\n"
        "parser = setup_flashrl('setup', argparse.ArgumentParser().add_subparsers())\n"
        "print(json.dumps([action.choices for action in parser._actions if action.dest == 'fn'][0]))"
    )
    assert sorted(json.loads(python(code))) == sorted(FUNCTIONS)
    folder = Path(find_spec("flash_rl").origin).parent
    named = {name for file in folder.rglob("*.py") for name in re.findall("FLASHRL_[A-Z0-9_]+", file.read_text())}
    assert named == set(NAMES.values())
