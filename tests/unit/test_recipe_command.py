"""`run.sh recipe`: the list, the command line that a shell takes as it stands, and errors in one line."""

import json
import subprocess
from pathlib import Path

import pytest
from naming import has_line_naming
from test_recipe_files import above, write
from typer.testing import CliRunner

from launch.commands import app
from launch.recipes import Paths, load, names, resolve


def run(*arguments: str):
    return CliRunner().invoke(app, ["recipe", *arguments])


def test_the_list_has_every_recipe():
    shown = run("list")
    assert shown.exit_code == 0
    assert all(name in shown.output for name in names())
    assert [row["recipe"] for row in json.loads(run("list", "--json").stdout)] == names()


def test_a_wrong_name_is_one_line():
    shown = run("show", "qwen3-4b-fp7")
    assert shown.exit_code == 2
    assert has_line_naming(shown.stderr, "'qwen3-4b-fp7'", "qwen3-4b-fp8", "recipe list")
    assert sum(name in shown.stderr for name in names()) <= 4, "three, not all; a name may hold another"
    assert len(shown.stderr.splitlines()) == 1


def test_what_is_set_last_wins():
    options = [word for n in (16, 4, 8) for word in ("--set", f"actor_rollout_ref.rollout.n={n}")]
    assert json.loads(run("show", "addition-int8", "--json", *options).stdout)["recipe"]["rollout"]["n"] == 8


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "environment.HF_TOKEN_2=hunter2"],
        ["--set", "recipe.environment.HF_TOKEN_2=hunter2"],
        ["--set", "trainer.api_key=hunter2", "--json"],
        ["--set", 'environment={MY_TOKEN: "hunter2'],
        ["--set", "trainer.api_key=[hunter2"],
    ],
)
def test_secrets_are_not_shown(words: list[str]):
    shown = run("show", "addition-int8", *words)
    assert "hunter2" not in shown.output
    assert "***" in shown.output or "HF_TOKEN_2:?" in shown.output or shown.exit_code == 2


def test_a_shell_gets_values_as_they_are(tmp_path: Path):
    """No word of a recipe is run, and none comes out changed."""
    value = "$(touch x)`touch x` \"q\" 'p' \\ $HOME }\ntouch x"
    write(tmp_path)
    file = above(tmp_path, "own", ["one"], {"recipe": {"environment": {"A": value}, "summary": "one\ntouch x"}})
    paths = Paths("/m/a b", "/d", "/o")
    shown = run("show", file, "--model", paths.model, "--data", paths.data, "--out", paths.out)
    assert shown.exit_code == 0, shown.stderr
    command = ["-m", "ascend_quant.integrations.verl.main_ppo", *resolve(load(file), paths)]
    script = f'python() {{ printf \'%s\\0\' "$A" "$@"; }}\n{shown.stdout}'
    for given, said in (({}, value), ({"A": "mine"}, "mine")):
        done = subprocess.run(
            ["bash", "-euc", script], capture_output=True, text=True, check=True, cwd=tmp_path, env=given
        )
        assert done.stdout.removesuffix("\0").split("\0") == [said, *command] and not (tmp_path / "x").exists()
