"""docker/stacks.yaml: what its schema refuses, and that what is committed fits it."""

import re
from typing import get_args

import pytest
import yaml

from launch import stacks
from launch.recipes.fields import Stack
from launch.root import ROOT
from launch.stacks import FILE, Pins, all_pins

CPU = {"devices": "none", "python": "3.11", "packages": {}}
SOURCE = {"repository": "https://github.com/vllm-project/vllm", "commit": "e" * 40}


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        (CPU | {"tags": {"vllm": "v1"}}, "tags"),
        (CPU | {"sources": {"vllm": SOURCE | {"commit": "v0.23.0"}}}, "commit"),
        (CPU | {"sources": {"vllm": SOURCE | {"repository": "git@github.com:vllm-project/vllm"}}}, "repository"),
        (CPU | {"chips": ["A1"]}, "chips.0"),
        (CPU | {"sources": {"vllm": SOURCE | {"tag": "v1", "branch": "main"}}}, "not both"),
    ],
)
def test_what_is_wrong_is_an_error_that_names_it(tree: dict, names: str):
    with pytest.raises(ValueError, match=re.escape(names)):
        Pins.model_validate(tree)


def test_the_file_is_read_as_it_is_written(monkeypatch, tmp_path):
    plain = yaml.safe_load(FILE.read_text())
    for stack, pins in all_pins().items():
        assert pins.packages == plain[stack]["packages"]
        assert {name: source.commit for name, source in pins.sources.items()} == {
            name: source["commit"] for name, source in plain[stack].get("sources", {}).items()
        }
    other = tmp_path / "stacks.yaml"
    other.write_text(yaml.safe_dump({"cpu": CPU | {"python": "3.13"}}))
    monkeypatch.setattr(stacks, "FILE", other)
    assert stacks.pins("cpu").python == "3.13"


def test_stacks_are_those_of_recipes():
    assert set(all_pins()) == set(get_args(Stack))


def test_the_cpu_stack_is_its_lock():
    locks = ROOT / "docker" / "locks"
    lock = (locks / "cpu.txt").read_text() + (locks / "cpu.in").read_text()
    for name, version in all_pins()["cpu"].packages.items():
        pinned = re.search(rf"(?mi)^(?:# )?{name.replace('-', '[-_]')}(?:==|: ?){re.escape(version)}\b", lock)
        assert pinned, f"{name} {version} is not what docker/locks/cpu.txt installs"
