"""docker/stacks.yaml: it says what the lock installs."""

import re

from launch import ROOT
from launch.recipes.stacks import all_pins


def test_the_cpu_stack_is_its_lock():
    locks = ROOT / "docker" / "locks"
    lock = (locks / "cpu.txt").read_text() + (locks / "cpu.in").read_text()
    for name, version in all_pins()["cpu"].packages.items():
        pinned = re.search(rf"(?mi)^(?:# )?{name.replace('-', '[-_]')}(?:==|: ?){re.escape(version)}\b", lock)
        assert pinned, f"{name} {version} is not what docker/locks/cpu.txt installs"
