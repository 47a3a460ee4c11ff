"""`ascend-quant profile`: files, output and exit status."""

import json
import os
import re
from pathlib import Path

import checkpoint_pairs
import pytest
from checkpoint_pairs import Pair, make_pair

pytest.importorskip("typer")
import typer
from typer.testing import CliRunner

from ascend_quant.commands.profile import profile
from ascend_quant.profile.reading import load

app = typer.Typer()
app.command("profile")(profile)
app.command("other")(lambda: None)  # one command alone would not be named


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    return make_pair("qwen3-moe", tmp_path_factory.mktemp("pair"))


def run(*arguments: object):
    return CliRunner().invoke(app, ["profile", *map(str, arguments)], terminal_width=200)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_profile_is_written_and_summed_up(pair, tmp_path):
    result = run("-m", pair.bf16, "-q", pair.w8a8, "-o", tmp_path / "profile", "--fn", "int8")
    assert result.exit_code == 0, result.output
    assert len(load(tmp_path / "profile").rules) > 40
    assert (tmp_path / "profile.safetensors").is_file() and (tmp_path / "profile.json").is_file()
    for said in ("smoothed", "scaled", "not quantized", "worst", "median", "written:"):
        assert said in result.stdout


def test_json_is_all_that_stdout_has(pair, tmp_path):
    result = run("-m", pair.bf16, "-q", pair.w8a8, "-o", tmp_path / "profile.pt", "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["files"] == [str(tmp_path / "profile.pt")]
    assert content["parameters"]["smoothed"] == sum(
        rule.quantized for rule in load(tmp_path / "profile.pt").rules.values()
    )
    assert content["codes_equal_in_refits"]["worst"] >= 0.999


def test_parameters_that_are_not_reproduced_are_named(tmp_path):
    pair = make_pair("qwen2", tmp_path)
    name = "model.layers.1.mlp.down_proj.weight"
    checkpoint_pairs.edit(pair.w8a8, lambda state: state.update({name: (state[name] // 2) * 2}))
    result = run("-m", pair.bf16, "-q", pair.w8a8, "-o", tmp_path / "profile")
    assert result.exit_code == 0, result.output
    assert name in result.stdout
    assert "GPTQ" in result.stdout


def test_what_cannot_be_profiled_ends_with_1(pair, tmp_path):
    result = run("-m", pair.bf16, "-q", pair.bf16, "-o", tmp_path / "profile")
    assert result.exit_code == 1
    assert "cannot profile: " in plain(result.stderr)
    assert "not a W8A8 checkpoint" in plain(result.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("-q", "w8a8", "-o", "profile"), "'-m'"),
        (("-m", "bf16", "-o", "profile"), "--quantized"),
        (("-m", "bf16", "-q", "w8a8", "-o", "no/such/profile"), "no folder"),
        (("-m", "bf16", "-q", "w8a8", "-o", "profile", "--fn", "int9"), "int9"),
        *((("-m", "bf16", "-q", "w8a8", "-o", name), "'-o'") for name in ("x" * 300, os.fsdecode(b"\xff.pt"))),
        *((("-m", "bf16", "-q", "w8a8", "-o", folder), "is a folder") for folder in ("/", "", "folder.pt", "of")),
    ],
)
def test_wrong_usage_ends_with_2(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("folder.pt", "of.json"):
        (tmp_path / folder).mkdir()
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in re.sub(r"[│\s]+", " ", plain(result.stderr))  # in a frame, with lines of its width


@pytest.mark.parametrize("name", ["bf16/model", "bf16/new.pt", "w8a8/config.json", "link/config", "file.pt"])
def test_a_model_is_not_written_into(name, pair, tmp_path, monkeypatch):
    monkeypatch.chdir(pair.bf16.parent)
    before = {file: file.stat().st_mtime_ns for file in Path().rglob("*")}
    (tmp_path / "link").symlink_to(pair.w8a8)
    (tmp_path / "file.pt").symlink_to(pair.w8a8 / "config.json")
    output = name if name.startswith(("bf16", "w8a8")) else tmp_path / name
    assert run("-m", pair.bf16.name, "-q", pair.w8a8, "-o", output).exit_code == 2
    assert {file: file.stat().st_mtime_ns for file in Path().rglob("*")} == before


@pytest.mark.parametrize("there", [[], ["profile.safetensors", "profile.json", "profile.pt"]])
@pytest.mark.parametrize("name", ["profile", "profile.pt"])
def test_a_full_disk_ends_with_1_and_what_was_there_stays(name, there, pair, tmp_path, full_disk):
    for file in there:
        (tmp_path / file).write_text("before")
    with full_disk():
        result = run("-m", pair.bf16, "-q", pair.w8a8, "-o", tmp_path / name)
    assert result.exit_code == 1 and "cannot profile" in plain(result.stderr)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys(there, "before")


def test_fp8_does_without_the_bf16_model(tmp_path):
    from test_profile_fp8 import quantize

    folder: Path = checkpoint_pairs.make_bf16("qwen2", tmp_path / "fp8")
    checkpoint_pairs.edit(folder, lambda state: quantize(state, "channel"))
    result = run("-q", folder, "-o", tmp_path / "names.pt", "--fn", "fp8")
    assert result.exit_code == 0, result.output
    assert len(load(tmp_path / "names.pt").rules) == 14
