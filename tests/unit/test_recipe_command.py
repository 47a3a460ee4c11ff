"""`run.sh recipe`: the table, the command line that a shell takes as it stands, and errors in one line."""

import json
import subprocess

from typer.testing import CliRunner

from launch.cli import app
from launch.recipes import Paths, load, names, resolve


def run(*arguments: str):
    return CliRunner().invoke(app, ["recipe", *arguments])


def test_the_list_has_every_recipe():
    shown = run("list")
    assert shown.exit_code == 0
    assert all(name in shown.output for name in names())
    assert [row["recipe"] for row in json.loads(run("list", "--json").stdout)] == names()


def test_a_shell_takes_the_command():
    shown = run("show", "moonlight-16b-a3b-int4", "--model", "/m/a b", "--data", "/d", "--out", "/o")
    assert shown.exit_code == 0
    script = f"python() {{ printf '%s\\0' \"$@\"; }}\n{shown.stdout}"
    said = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout
    module, main, *overrides = said.removesuffix("\0").split("\0")
    assert (module, main) == ("-m", "ascend_quant.integrations.verl.main_ppo")
    assert overrides == list(resolve(load("moonlight-16b-a3b-int4"), Paths("/m/a b", "/d", "/o")).overrides)
    assert "actor_rollout_ref.model.path='/m/a b'" in overrides


def test_json_has_the_recipe_and_what_it_becomes():
    shown = json.loads(run("show", "qwen3-4b-fp8", "--json").stdout)
    assert shown["environment"] == {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}
    assert shown["recipe"]["training"]["fp8"]["recipe"] == "blockwise"
    assert "actor_rollout_ref.model.path=Qwen/Qwen3-4B" in shown["overrides"]


def test_a_wrong_name_is_one_line():
    shown = run("show", "qwen3-4b-fp7")
    assert shown.exit_code == 1
    assert shown.stderr.startswith("no recipe 'qwen3-4b-fp7'; did you mean qwen3-4b-fp8?")
    assert len(shown.stderr.splitlines()) == 1
