"""docker/entrypoint.sh: every word that one may say to an image; test_image_verbs.py asks a real container."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENTRY = ROOT / "docker" / "entrypoint.sh"
MOUNT = "mount a checkout and start that"


def words(name: str, file: Path = ENTRY) -> list[str]:
    """A list of a script."""
    return re.findall(rf"^readonly {name}=\(([^)]*)\)", file.read_text(), re.MULTILINE)[0].split()


@pytest.fixture
def image(tmp_path: Path):
    """`image(..)`: what the entry point does with these words; a run.sh that tells stands in for ours."""
    home = tmp_path / "home"
    (home / "docker").mkdir(parents=True)
    entry = Path(shutil.copy(ENTRY, home / "docker"))
    (home / "run.sh").write_text('#!/bin/sh\necho "run.sh $*"\n')
    (home / "run.sh").chmod(0o755)

    def image(*said: str) -> tuple[int, str]:
        variables = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", entry, *said], env=variables, capture_output=True, text=True, timeout=60)
        return done.returncode, (done.stdout + done.stderr).strip()

    return image


@pytest.mark.parametrize("verb", sorted(set(words("VERBS")) - {"help"}))
def test_verbs_are_carried_out_by_run_sh(image, verb: str):
    assert image(verb, "--some", "thing") == (0, f"run.sh {verb} --some thing")


@pytest.mark.parametrize("said", [(), ("help",), ("--help",), ("-h",)])
def test_help_lists_every_verb(image, said):
    code, text = image(*said)
    listed = re.findall(r"^  (\w+)", text, re.MULTILINE)
    assert code == 0 and set(words("VERBS")) <= set(listed)
    assert not set(words("OF_CHECKOUTS")) & set(listed)


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        *(((name,), (name, MOUNT)) for name in words("OF_CHECKOUTS")),
        (("nosuch",), ("no verb 'nosuch'", *words("VERBS"))),
        (("printf_of_no_file",), ("no verb",)),
        (("readonly",), ("no verb 'readonly'",)),  # the shell's own, and no program
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_an_image_does_not_do_is_one_line_and_2(image, said, parts):
    code, text = image(*said)
    assert code == 2 and "\n" not in text
    assert all(part in text for part in parts), text


def test_programs_are_started(image):
    assert image("sh", "-c", "echo well; exit 7") == (7, "well")


def test_every_command_of_run_sh_is_a_verb_or_refused_by_its_name():
    assert set(words("VERBS")) | set(words("OF_CHECKOUTS")) == set(words("COMMANDS", ROOT / "run.sh"))


def test_an_image_without_tini_begins_as_one_with_it(tmp_path: Path):
    """docker/init.sh, with a stand-in for tini and without: openEuler has none."""
    tini = tmp_path / "tini"
    tini.write_text('#!/bin/sh\necho tini "$@"\n')

    def begun() -> str:
        command = ["/bin/sh", ROOT / "docker/init.sh", "/bin/echo", "a b", "c"]
        return subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True).stdout

    assert begun() == "a b c\n"
    tini.chmod(0o755)
    assert begun() == "tini -s -- /bin/echo a b c\n"
