"""`ascend-quant profile`: files, output and exit status."""

import json
from pathlib import Path

import checkpoint_pairs
import pytest
from checkpoint_pairs import Pair, make_pair
from command_runs import plain, runner

from ascend_quant.commands.profile import profile
from ascend_quant.profile.files import load

run = runner(profile)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    return make_pair("qwen3-moe", tmp_path_factory.mktemp("pair"))


def test_a_profile_is_written_and_names_what_it_does_not_reproduce(tmp_path):
    pair = make_pair("qwen2", tmp_path)
    name = "model.layers.1.mlp.down_proj.weight"
    checkpoint_pairs.edit(pair.w8a8, lambda state: state.update({name: (state[name] // 2) * 2}))
    result = run("-m", pair.bf16, "-q", pair.w8a8, "-o", tmp_path / "profile", "--fn", "int8")
    assert result.exit_code == 0, result.output
    assert {name, "GPTQ"} <= {*result.stdout.replace(",", " ").split()}
    assert load(tmp_path / "profile").rules and (tmp_path / "profile.json").is_file()
    result = run("-m", pair.bf16, "-q", pair.bf16, "-o", tmp_path / "other")
    assert result.exit_code == 1 and "W8A8" in plain(result.stderr) and not list(tmp_path.glob("other*"))


def test_json_is_all_that_stdout_has(pair, tmp_path):
    result = run("-m", pair.bf16, "-q", pair.w8a8, "-o", tmp_path / "profile.pt", "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["files"] == [str(tmp_path / "profile.pt")]
    assert content["parameters"]["smoothed"] == sum(
        rule.quantized for rule in load(tmp_path / "profile.pt").rules.values()
    )
    assert content["codes_equal_in_refits"]["worst"] >= 0.999


def test_wrong_usage_ends_with_2(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.pt").mkdir()
    for arguments, said in (
        (("-q", "w8a8", "-o", "profile"), "--model"),
        (("-m", "bf16", "-o", "profile"), "--quantized"),
        (("-m", "bf16", "-q", "w8a8", "-o", "no/such/profile"), "no folder"),
        (("-m", "bf16", "-q", "w8a8", "-o", "profile", "--fn", "fp8"), "fp8"),
        (("-m", "bf16", "-q", "w8a8", "-o", "folder.pt"), "is a folder"),
        (("-m", "folder.pt", "-q", "./w8a8", "-o", "profile"), "./w8a8"),
        (("-m", "bf16", "-q", "folder.pt", "-o", "profile"), "'-m'"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2 and said in plain(result.stderr)


@pytest.mark.parametrize("name", ["bf16/model", "w8a8/config.json", "link/config"])
def test_a_model_is_not_written_into(name, pair, tmp_path, monkeypatch):
    monkeypatch.chdir(pair.bf16.parent)
    before = {file: file.stat().st_mtime_ns for file in Path().rglob("*")}
    (tmp_path / "link").symlink_to(pair.w8a8)
    output = tmp_path / name if name.startswith("link") else name
    assert run("-m", pair.bf16.name, "-q", pair.w8a8, "-o", output).exit_code == 2
    assert {file: file.stat().st_mtime_ns for file in Path().rglob("*")} == before


@pytest.mark.parametrize("name", ["profile", "profile.pt"])
def test_a_full_disk_ends_with_1_and_what_was_there_stays(name, pair, tmp_path, full_disk):
    there = ["profile.safetensors", "profile.json", "profile.pt"]
    for file in there:
        (tmp_path / file).write_text("before")
    with full_disk():
        result = run("-m", pair.bf16, "-q", pair.w8a8, "-o", tmp_path / name)
    assert result.exit_code == 1 and "cannot profile" in plain(result.stderr)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys(there, "before")
