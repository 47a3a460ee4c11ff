"""`ascend-quant setup`."""

import json

import pytest
import typer
import yaml
from naming import has_line_naming
from typer.testing import CliRunner

from ascend_quant.commands.setup import setup
from ascend_quant.flashrl.config import read
from ascend_quant.flashrl.functions import FUNCTIONS

APP = typer.Typer()
APP.command()(setup)


def run(*words) -> "tuple[int, str]":
    result = CliRunner().invoke(APP, [str(word) for word in words])
    return result.exit_code, result.output


def configs(path) -> list:
    return yaml.safe_load(path.read_text())["configs"]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "config.yaml"


def test_a_hybrid_in_two_commands(file):
    assert run("-m", "W8A8", "-p", "o/n/p.pt", "-o", file)[0] == 0
    assert run("-a", "--fn", "bf16", "-o", file)[0] == 0
    first, second = configs(file)
    assert (first["fn"], first["model"], first["profile"], first["load_format"]) == ("int8", "W8A8", "o/n/p.pt", "auto")
    assert second["fn"] == "bf16" and "model" not in second
    assert "frozen_scales" not in first  # a key that only we know is written when asked for


def test_append_to_a_file_that_is_not_there_and_overwrite_without_it(file):
    assert run("-a", "--fn", "bf16", "-o", file)[0] == 0
    assert run("--fn", "fp8", "-o", file)[0] == 0
    assert [entry["fn"] for entry in configs(file)] == ["fp8"]


def test_the_default_file_is_flashrls(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run()[0] == 0
    assert configs(tmp_path / ".flashrl_config.yaml")[0]["fn"] == "int8"


def test_columns_are_yaml_and_never_code(file, tmp_path):
    trap = tmp_path / "trap"
    words = ["a=1", "b=[x, 'y=z']", "c=yes", "d=", f"e=open('{trap}', 'w')", 'ignore=["re:.*o_proj"]']
    assert run("-o", file, *words)[0] == 0
    (entry,) = configs(file)
    assert [entry[key] for key in "abcde"] == [1, ["x", "y=z"], True, None, f"open('{trap}', 'w')"]
    assert not trap.exists()
    assert read(file).replicas[0].ignore == ["re:.*o_proj"]


def test_a_column_may_change_what_flashrl_writes_by_default(file):
    assert run("--fn", "bf16", "-o", file, 'load_format="auto"')[0] == 0
    assert configs(file)[0]["load_format"] == "auto"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fn", "int7"], "valid are: int8"),
        (["nokey"], "column 'nokey' … key=value"),
        (["=1"], "column '=1'"),
        (["a=1", "a=2"], "column a … twice"),
        (["fn=bf16"], "fn … column"),
        (["a=!!python/object/apply:os.getcwd []"], "column a: … os.getcwd"),
        (["a=[1"], "column a: '[1'"),
        (["x=['1e-6']"], "number"),
        (["-p", "/"], "no name"),
        (["--frozen-scales"], "needs an int8 function and a profile"),
        (["frozen_scales=maybe"], "frozen_scales: "),
    ],
)
def test_what_is_refused_leaves_the_file_alone(file, words, message):
    run("--fn", "bf16", "-o", file)
    before = file.read_bytes()
    code, output = run("-a", "-o", file, *words)
    assert code == 2 and has_line_naming(output, message)
    assert file.read_bytes() == before


def test_a_broken_file_is_not_appended_to(file):
    file.write_text("configs: [{fn: int7}]")
    code, output = run("-a", "-o", file)
    assert code == 2 and "int7" in output and file.read_text() == "configs: [{fn: int7}]"


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_it_says_what_the_function_maps_to(file, fn):
    assert FUNCTIONS[fn].meaning in run("--fn", fn, "-o", file)[1]


def test_another_program_s_file_is_left_alone(file, tmp_path):
    for text in ("rollout: {n: 4}\n", "key = value\n[section]\n", "[1, 2]"):
        file.write_text(text)
        code, output = run("-o", file)
        assert code == 2 and "config.yaml" in output and file.read_text() == text
    assert run("-o", tmp_path)[0] == 2
    assert run("-o", "/dev/null")[0] == 2
    file.write_text("")
    assert run("-o", file)[0] == 0
    file.write_text("configs: [{fn: int7}]")
    assert run("-o", file)[0] == 0 and [entry["fn"] for entry in configs(file)] == ["int8"]


def test_a_full_disk_leaves_what_was_there(file, full_disk):
    run("--fn", "bf16", "-o", file)
    before = file.read_bytes()
    with full_disk():
        code, output = run("-a", "-o", file)
    assert code == 2 and "is not written" in output
    assert file.read_bytes() == before and [one.name for one in file.parent.iterdir()] == [file.name]


def test_a_link_and_its_mode_stay(file, tmp_path):
    target = tmp_path / "elsewhere.yaml"
    file.symlink_to(target)
    assert run("-o", file)[0] == 0
    target.chmod(0o600)
    assert run("-a", "-o", file)[0] == 0
    assert file.is_symlink() and len(configs(target)) == 2 and target.stat().st_mode & 0o777 == 0o600


def test_json(file):
    code, output = run("-p", "o/n/p.pt", "--frozen-scales", "--json", "-o", file, "day=2026-01-02")
    done = json.loads(output)
    assert code == 0 and done["file"] == str(file) and done["replicas"] == 1
    assert done["written"]["frozen_scales"] is True and done["written"]["day"] == "2026-01-02"
    assert "o/n/p.pt" in done["notes"][0] and "needs a model" in done["notes"][1]
    assert read(file).replicas[0].frozen_scales


def test_a_profile_here_is_written_with_its_whole_path(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.pt").touch()
    assert run("-m", "M", "-p", "p.pt", "-o", file)[0] == 0
    assert configs(file)[0]["profile"] == str(tmp_path / "p.pt")
