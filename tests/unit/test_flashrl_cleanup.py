"""FlashRL's lines go, all others stay byte for byte."""

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from naming import has_line_naming
from typer.testing import CliRunner

from ascend_quant.commands.cleanup import cleanup
from ascend_quant.flashrl.usercustomize import clean, default_path

APP = typer.Typer()
APP.command()(cleanup)
FLASHRL = "try: import flash_rl\nexcept ImportError: pass\n"
COMMENTED = "# try: import flash_rl\n# except ImportError: pass\n"
LEFTOVERS = [FLASHRL, COMMENTED, "import flash_rl\n", "# import flash_rl\n", FLASHRL.replace("\n", "\r\n")]
MINE = "import os\n# except ImportError: pass\nos.environ.setdefault('A', '1')  # Grüße\r\n"


def run(*words, answer: str = "") -> "tuple[int, str]":
    result = CliRunner().invoke(APP, [str(word) for word in words], input=answer)
    return result.exit_code, result.output


@pytest.fixture
def file(tmp_path):
    return tmp_path / "usercustomize.py"


OTHERS = st.text().filter(lambda line: "flash_rl" not in line).map(lambda line: line + "\n")


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
        "import flash_rl, os",
        "from flash_rl import commands",
        "import os, flash_rl",
        "import os as o, flash_rl as f",
        "__import__('flash_rl')",
        "importlib.import_module('flash_rl.commands')",
        "import flash_rl.commands as c",
        "x = 1try: import flash_rl",  # FlashRL appends to a last line that has no end
    ],
)
def test_what_is_not_flashrls_stays_and_is_named(line):
    cleaned = clean(f"a = 1\n{line}\nb = 2\n")
    assert cleaned.text == f"a = 1\n{line}\nb = 2\n" and cleaned.removed == 0
    assert cleaned.left == ((2, line),)


@pytest.mark.parametrize(
    "line", ["# import flash_rl, os", "import flash_rl_tools", "x = 'flash_rl'", "import os  # flash_rl"]
)
def test_what_imports_nothing_is_not_named(line):
    assert clean(line).text == line and clean(line).left == ()


def test_yes_removes_without_asking_and_shows_the_change(file):
    file.write_bytes((MINE + FLASHRL).encode())
    code, output = run("--path", file, "--yes")
    assert code == 0 and "-try: import flash_rl\n-except ImportError: pass" in output
    assert "\n-import os" not in output
    assert file.read_bytes() == MINE.encode()


def test_it_asks_and_no_leaves_all(file):
    file.write_text(MINE + FLASHRL, newline="")
    before = file.read_bytes()
    code, output = run("--path", file, answer="n\n")
    assert code == 1 and "Remove these lines?" in output and file.read_bytes() == before
    assert run("--path", file)[0] == 1 and file.read_bytes() == before  # nobody answers
    assert run("--path", file, answer="y\n")[0] == 0 and file.read_bytes() == MINE.encode()


def test_a_file_of_flashrls_alone_is_removed(file):
    file.write_text(COMMENTED + FLASHRL)
    code, output = run("-p", file, "-y")
    assert code == 0 and "removed" in output and not file.exists()


def test_nothing_to_do(file):
    file.write_text(MINE, newline="")
    code, output = run("-p", file)
    assert code == 0 and has_line_naming(output, file, "nothing to do")
    assert file.read_bytes() == MINE.encode()


def test_a_line_for_the_user_to_remove_is_the_exit_code(file):
    file.write_text("import flash_rl, os\n" + FLASHRL)
    code, output = run("-p", file, "-y")
    assert code == 1 and f"{file}:1 imports flash_rl" in output and file.read_text() == "import flash_rl, os\n"


def test_what_a_link_leads_to_is_cleaned(file, tmp_path):
    target = tmp_path / "elsewhere" / "mine.py"
    target.parent.mkdir()
    file.symlink_to(target)
    target.write_text(MINE + FLASHRL, newline="")
    assert run("-p", file, "-y")[0] == 0
    assert file.is_symlink() and target.read_bytes() == MINE.encode()
    target.write_text(FLASHRL)
    code, output = run("-p", file, "-y")
    assert code == 0 and str(target) in output and not target.exists() and not file.is_symlink()


def test_a_full_disk_leaves_what_was_there(file, full_disk):
    file.write_text(MINE + FLASHRL, newline="")
    before = file.read_bytes()
    with full_disk():
        assert run("-p", file, "-y")[0] == 2
    assert file.read_bytes() == before


def test_files_that_cannot_be_read(file, tmp_path):
    assert run("-p", file)[0] == 2
    file.write_bytes(b"\xff\xfe")
    assert "cannot be read" in run("-p", file)[1]


def test_the_default_is_where_flashrl_writes():
    import site

    assert str(default_path()) == f"{site.getsitepackages()[0]}/usercustomize.py"
