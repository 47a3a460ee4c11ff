"""docker/docker-bake.hcl: its images are the stacks', its sources those of stacks.yaml; its Dockerfiles ask for them.

tests/images/test_bake_print.py has `docker buildx bake` read it.
"""

import re

import pytest
import tomllib
from bake_file import IMAGES, TEXT, UNKNOWN, arguments, dockerfile, sources

from launch import ROOT
from launch.recipes.stacks import all_pins

FAMILIES = {"A2": "910b", "A3": "a3"}  # in the names of CANN's images
SOCS = {"A2": "ascend910b", "A3": "ascend910_93"}


def test_there_is_an_image_for_each_stack_and_chip():
    named = {f"{stack}-{chip.lower()}" for stack, pins in all_pins().items() for chip in pins.chips}
    assert set(IMAGES.values()) == named | {stack for stack, pins in all_pins().items() if not pins.chips}


@pytest.mark.parametrize("target", IMAGES)
def test_an_image_is_of_its_stack(target: str):
    told = arguments(target)
    stack, chip = told["STACK"], told.get("CHIP")
    pins = all_pins()[stack]
    assert target == IMAGES[target].replace(".", "_") and IMAGES[target] == (
        f"{stack}-{chip.lower()}" if chip else stack
    )
    assert told.get("PYTHON_VERSION", pins.python) == pins.python
    base, _, digest = told["BASE"].partition("@sha256:")
    assert re.fullmatch("[0-9a-f]{64}", digest) or (digest == UNKNOWN and chip)
    if chip:
        assert f"/cann:{pins.cann}-{FAMILIES[chip]}-" in base and base.endswith(f"-py{pins.python}")
        assert told["SOC_VERSION"].startswith(SOCS[chip])


@pytest.mark.parametrize("target", IMAGES)
def test_sources_are_those_of_stacks_yaml_in_their_order(target: str):
    pins = all_pins()[arguments(target)["STACK"]]
    version = {name: f"#{pins.packages[name]}" if name in pins.packages else "" for name in pins.sources}
    wanted = [f"{name}={one.repository}@{one.commit}{version[name]}" for name, one in pins.sources.items()]
    assert [one for one in sources(target) if "#sha256:" not in one] == wanted
    for archive in set(sources(target)) - set(wanted):
        assert re.fullmatch(r"[\w-]+(/\w[\w.-]*)+=https://[^\s#=@]+#sha256:[0-9a-f]{64}", archive), archive
        assert archive.partition("/")[0] in pins.sources


@pytest.mark.parametrize("target", IMAGES)
def test_the_dockerfile_asks_for_all_that_it_is_told_and_is_told_what_it_needs(target: str):
    asked = set(re.findall(r"^ARG (\w+)$", (ROOT / dockerfile(target)).read_text(), re.MULTILINE))
    assert arguments(target).keys() <= asked
    # What the builder may be told by hand, and needs not be; Debian's image names the day of its archive itself.
    assert asked - arguments(target).keys() <= {"INDEX_URL", "EXTRA_INDEX_URL", "MAX_JOBS", "APT_SNAPSHOT"}
    assert "APT_SNAPSHOT" in arguments(target) or "debian" in arguments(target)["BASE"]


def test_the_version_is_the_project_s():
    (version,) = re.findall(r'variable "VERSION" \{\n  default = "(.+)"', TEXT)
    assert version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
