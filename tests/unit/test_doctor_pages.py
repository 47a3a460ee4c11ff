"""The pages of docs/ are what the checks say; docker/stacks.yaml is what the locks and recipes say."""

import re
from pathlib import Path
from typing import get_args

import pytest
import typer

from launch.cli import app
from launch.doctor.checks.hosts import TOGETHER
from launch.doctor.examination import CHECKS
from launch.doctor.pages import COMMANDS, FILES, page
from launch.recipes.fields import Stack
from launch.stacks import all_pins

LOCKS = Path(__file__).parents[2] / "docker" / "locks"
NAMES = [check.name for check in (*CHECKS, *TOGETHER)]
CHINESE = re.compile("[一-鿿]")


@pytest.mark.parametrize("language", FILES)
def test_the_page_is_what_the_checks_say(language: str):
    assert FILES[language].read_text() == page(language), "stale: run `python -m launch.doctor.pages`"


@pytest.mark.parametrize("language", FILES)
def test_every_check_is_on_the_page_once(language: str):
    rows = [line for line in FILES[language].read_text().splitlines() if line.startswith("| `")]
    assert sorted(re.match(r"\| `([\w.]+)`", row)[1] for row in rows) == sorted(NAMES)
    assert all(len(row.replace("\\|", "").strip("|").split("|")) == 4 for row in rows)


def test_names_are_unique():
    assert len(set(NAMES)) == len(NAMES) > 35


@pytest.mark.parametrize("check", (*CHECKS, *TOGETHER), ids=lambda check: check.name)
def test_chinese_is_chinese_and_english_is_not(check):
    assert not CHINESE.search(check.looks_at.en + check.means.en + check.fix.en)
    assert CHINESE.search(check.looks_at.zh) and CHINESE.search(check.means.zh)


def test_the_commands_of_the_page_are_understood():
    group = typer.main.get_command(app)
    lines = [line.split("#")[0].split()[1:] for line in COMMANDS.splitlines() if line.startswith("./run.sh")]
    assert len(lines) == 4
    for name, *arguments in lines:
        group.commands[name].make_context(name, list(arguments))  # parses and checks; runs nothing


def test_stacks_are_those_of_recipes():
    assert set(all_pins()) == set(get_args(Stack))


def test_the_cpu_stack_is_its_lock():
    lock = (LOCKS / "cpu.txt").read_text() + (LOCKS / "cpu.in").read_text()
    for name, version in all_pins()["cpu"].packages.items():
        pinned = re.search(rf"(?mi)^(?:# )?{name.replace('-', '[-_]')}(?:==|: ?){re.escape(version)}\b", lock)
        assert pinned, f"{name} {version} is not what docker/locks/cpu.txt installs"


def test_an_unknown_pin_is_an_error(tmp_path: Path, monkeypatch):
    from launch import stacks

    file = tmp_path / "stacks.yaml"
    file.write_text("cpu: {devices: tpu, python: '3.11', packages: {}}\n")
    monkeypatch.setattr(stacks, "FILE", file)
    with pytest.raises(ValueError, match="devices"):
        stacks.all_pins()
