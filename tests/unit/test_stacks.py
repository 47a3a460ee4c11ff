"""docker/stacks.yaml: what its schema refuses, and that what is committed fits it."""

import re

import pytest

from launch.root import ROOT
from launch.stacks import Pins, all_pins

CPU = {"devices": "none", "python": "3.11", "packages": {}}
SOURCE = {"repository": "https://github.com/vllm-project/vllm", "commit": "e" * 40}


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        (CPU | {"tags": {"vllm": "v1"}}, "tags"),
        (CPU | {"sources": {"vllm": SOURCE | {"commit": "v0.23.0"}}}, "commit"),
        (CPU | {"sources": {"vllm": SOURCE | {"repository": "git@github.com:vllm-project/vllm"}}}, "repository"),
        (CPU | {"chips": ["A1"]}, "chips.0"),
    ],
)
def test_what_is_wrong_is_an_error_that_names_it(tree: dict, names: str):
    with pytest.raises(ValueError, match=re.escape(names)):
        Pins.model_validate(tree)


def test_the_cpu_stack_is_its_lock():
    locks = ROOT / "docker" / "locks"
    lock = (locks / "cpu.txt").read_text() + (locks / "cpu.in").read_text()
    for name, version in all_pins()["cpu"].packages.items():
        pinned = re.search(rf"(?mi)^(?:# )?{name.replace('-', '[-_]')}(?:==|: ?){re.escape(version)}\b", lock)
        assert pinned, f"{name} {version} is not what docker/locks/cpu.txt installs"
