"""`setup` writes FlashRL's files; `cleanup` removes FlashRL's lines and leaves all others byte for byte."""

import json
import site

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from naming import has_line_naming
from typer.testing import CliRunner

from ascend_quant.commands.flashrl import cleanup, setup
from ascend_quant.flashrl.config import read
from ascend_quant.flashrl.functions import FUNCTIONS
from ascend_quant.flashrl.usercustomize import clean, default_path

APP = typer.Typer()
APP.command("setup")(setup)
APP.command("cleanup")(cleanup)
FLASHRL = "try: import flash_rl\nexcept ImportError: pass\n"
COMMENTED = "# try: import flash_rl\n# except ImportError: pass\n"
LEFTOVERS = [FLASHRL, COMMENTED, "import flash_rl\n", "# import flash_rl\n", FLASHRL.replace("\n", "\r\n")]
MINE = "import os\n# except ImportError: pass\nos.environ.setdefault('A', '1')  # Grüße\r\n"
OTHERS = st.text().filter(lambda line: "flash_rl" not in line).map(lambda line: line + "\n")


def run(*words, answer: str = "") -> "tuple[int, str]":
    result = CliRunner().invoke(APP, [str(word) for word in words], input=answer)
    return result.exit_code, result.output


def configs(path) -> list:
    return yaml.safe_load(path.read_text())["configs"]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "config.yaml"


def test_a_hybrid_in_two_commands_and_a_file_that_begins_again(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.pt").touch()
    assert run("setup", "-m", "W8A8", "-p", "p.pt", "-o", file)[0] == 0
    assert run("setup", "-a", "--fn", "bf16", "-o", file, 'load_format="auto"')[0] == 0
    first, second = configs(file)
    assert (first["fn"], first["model"], first["load_format"]) == ("int8", "W8A8", "auto")
    assert first["profile"] == str(tmp_path / "p.pt")  # its whole path
    assert (second["fn"], second["load_format"]) == ("bf16", "auto") and "model" not in second
    assert "frozen_scales" not in first  # a key that only we know is written when asked for
    for fn, function in FUNCTIONS.items():
        assert function.meaning in run("setup", "--fn", fn, "-o", file)[1]
        assert [entry["fn"] for entry in configs(file)] == [fn]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run("setup", "-a")[0] == 0
    assert configs(tmp_path / ".flashrl_config.yaml")[0]["fn"] == "int8"


def test_columns_are_yaml_and_never_code(file, tmp_path):
    trap = tmp_path / "trap"
    words = ["a=1", "b=[x, 'y=z']", "c=yes", "d=", f"e=open('{trap}', 'w')", 'ignore=["re:.*o_proj"]']
    assert run("setup", "-o", file, *words)[0] == 0
    (entry,) = configs(file)
    assert [entry[key] for key in "abcde"] == [1, ["x", "y=z"], True, None, f"open('{trap}', 'w')"]
    assert not trap.exists()
    assert read(file).replicas[0].ignore == ["re:.*o_proj"]


def test_what_is_refused_leaves_the_file_alone(file, full_disk):
    for words, named in (
        (["--fn", "int7"], "int8"),
        (["nokey"], "'nokey'"),
        (["a=1", "a=2"], "a"),
        (["fn=bf16"], "fn"),
        (["a=!!python/object/apply:os.getcwd []"], "os.getcwd"),
        (["-p", "/"], "/"),
        (["--frozen-scales"], "int8 … profile"),
    ):
        run("setup", "--fn", "bf16", "-o", file)
        before = file.read_bytes()
        code, output = run("setup", "-a", "-o", file, *words)
        assert code == 2 and has_line_naming(output, named)
        assert file.read_bytes() == before
    with full_disk():
        assert run("setup", "-a", "-o", file)[0] == 2
    assert file.read_bytes() == before and [one.name for one in file.parent.iterdir()] == [file.name]


def test_another_programs_file_is_left_alone_and_a_broken_one_only_replaced(file, tmp_path):
    for text in ("rollout: {n: 4}\n", "key = value\n[section]\n", "[1, 2]"):
        file.write_text(text)
        code, output = run("setup", "-o", file)
        assert code == 2 and "config.yaml" in output and file.read_text() == text
    assert run("setup", "-o", tmp_path)[0] == run("setup", "-o", "/dev/null")[0] == 2
    file.write_text("configs: [{fn: int7}]")
    code, output = run("setup", "-a", "-o", file)
    assert code == 2 and "int7" in output and file.read_text() == "configs: [{fn: int7}]"
    assert run("setup", "-o", file)[0] == 0 and [entry["fn"] for entry in configs(file)] == ["int8"]


def test_a_link_and_its_mode_stay(file, tmp_path):
    target = tmp_path / "elsewhere.yaml"
    file.symlink_to(target)
    assert run("setup", "-o", file)[0] == 0
    target.chmod(0o600)
    assert run("setup", "-a", "-o", file)[0] == 0
    assert file.is_symlink() and len(configs(target)) == 2 and target.stat().st_mode & 0o777 == 0o600


def test_json(file):
    code, output = run("setup", "-p", "o/n/p.pt", "--frozen-scales", "--json", "-o", file, "day=2026-01-02")
    done = json.loads(output)
    assert code == 0 and done["file"] == str(file) and done["replicas"] == 1
    assert done["written"]["frozen_scales"] is True and done["written"]["day"] == "2026-01-02"
    assert "o/n/p.pt" in done["notes"][0]
    assert read(file).replicas[0].frozen_scales


@given(st.lists(OTHERS | st.sampled_from(LEFTOVERS)))
def test_only_flashrls_lines_go(pieces):
    cleaned = clean("".join(pieces))
    assert cleaned.text == "".join(piece for piece in pieces if piece not in LEFTOVERS)
    assert cleaned.left == ()


@pytest.mark.parametrize(
    "line",
    [
        "try: import flash_rl",  # without the line that FlashRL puts after it
        "    import flash_rl",
        "from flash_rl import commands",
        "import os as o, flash_rl as f",
        "__import__('flash_rl')",
        "importlib.import_module('flash_rl.commands')",
        "x = 1try: import flash_rl",  # FlashRL appends to a last line that has no end
    ],
)
def test_what_is_not_flashrls_stays_and_is_named(line):
    cleaned = clean(f"a = 1\n{line}\nb = 2\n")
    assert cleaned.text == f"a = 1\n{line}\nb = 2\n" and cleaned.removed == 0
    assert cleaned.left == ((2, line),)
    for nothing in ("# import flash_rl, os", "import flash_rl_tools", "x = 'flash_rl'", "import os  # flash_rl"):
        assert clean(nothing).text == nothing and clean(nothing).left == ()


def test_cleanup_asks_shows_the_change_and_no_leaves_all(tmp_path, full_disk):
    file = tmp_path / "usercustomize.py"
    file.write_text(MINE + FLASHRL, newline="")
    before = file.read_bytes()
    for answer in ("n\n", ""):  # or nobody answers
        code, output = run("cleanup", "--path", file, answer=answer)
        assert code == 1 and file.read_bytes() == before
    assert "-try: import flash_rl\n-except ImportError: pass" in output and "\n-import os" not in output
    with full_disk():
        assert run("cleanup", "-p", file, "-y")[0] == 2
    assert file.read_bytes() == before
    assert run("cleanup", "--path", file, answer="y\n")[0] == 0 and file.read_bytes() == MINE.encode()
    assert run("cleanup", "-p", file)[0] == 0 and file.read_bytes() == MINE.encode()  # there is nothing to do


def test_a_line_for_the_user_to_remove_is_the_exit_code_and_a_file_of_flashrls_alone_is_removed(tmp_path):
    file = tmp_path / "usercustomize.py"
    assert run("cleanup", "-p", file)[0] == 2
    file.write_bytes(b"\xff\xfe")
    assert run("cleanup", "-p", file)[0] == 2
    file.write_text("import flash_rl, os\n" + FLASHRL)
    code, output = run("cleanup", "-p", file, "-y")
    assert code == 1 and f"{file}:1" in output and file.read_text() == "import flash_rl, os\n"
    file.write_text(COMMENTED + FLASHRL)
    assert run("cleanup", "-p", file, "--yes")[0] == 0 and not file.exists()


def test_what_a_link_leads_to_is_cleaned(tmp_path):
    file, target = tmp_path / "usercustomize.py", tmp_path / "elsewhere" / "mine.py"
    target.parent.mkdir()
    file.symlink_to(target)
    target.write_text(MINE + FLASHRL, newline="")
    assert run("cleanup", "-p", file, "-y")[0] == 0
    assert file.is_symlink() and target.read_bytes() == MINE.encode()
    target.write_text(FLASHRL)
    code, output = run("cleanup", "-p", file, "-y")
    assert code == 0 and str(target) in output and not target.exists() and not file.is_symlink()


def test_the_default_is_where_flashrl_writes():
    assert str(default_path()) == f"{site.getsitepackages()[0]}/usercustomize.py"
