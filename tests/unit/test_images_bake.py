"""docker/docker-bake.hcl is what stacks.yaml says, and its Dockerfiles know what they are told."""

import re

import pytest

from launch.images import bake
from launch.root import ROOT

TEXT = bake.FILE.read_text()
STACKS = (ROOT / "docker" / "stacks.yaml").read_text()
TARGETS = dict(re.findall(r'^target "([^"]+)" \{\n(.*?)^\}', TEXT, re.MULTILINE | re.DOTALL))


def told(target: str) -> dict[str, str]:
    """The arguments of a target, read from the file."""
    (block,) = re.findall(r"  args = \{\n(.*?)  \}", TARGETS[target], re.DOTALL)
    return {name: value.strip('"') for name, value in re.findall(r"^    (\w+) += (.+)$", block, re.MULTILINE)}


def test_the_file_is_that_of_today():
    assert bake.text() == TEXT, "stale: run `python -m launch.images.bake`"


def test_every_pin_is_in_stacks_yaml_and_all_of_them_are_here():
    hashes = set(re.findall(r"\b[0-9a-f]{40,64}\b", TEXT))
    assert hashes and hashes == set(re.findall(r"\b[0-9a-f]{40,64}\b", STACKS))


def test_there_is_a_target_for_each_stack_and_chip():
    npu = [f"ascend-cann{cann}-{chip}" for cann in ("8_5", "9_1") for chip in ("a2", "a3")]
    assert sorted(TARGETS) == sorted(["cpu", "cuda13", *npu])
    groups = {
        name: re.findall(r'"([^"]+)"', list_) for name, list_ in re.findall(r'group "(\w+)" \{(.*?)\}', TEXT, re.S)
    }
    assert groups["ascend"] == npu and sorted(groups["all"]) == sorted(TARGETS) and groups["default"] == ["cpu"]


@pytest.mark.parametrize("target", TARGETS)
def test_the_dockerfile_asks_for_all_that_it_is_told_and_is_told_what_it_needs(target: str):
    (dockerfile,) = re.findall(r'dockerfile = "(.+)"', TARGETS[target])
    asked = set(re.findall(r"^ARG (\w+)$", (ROOT / dockerfile).read_text(), re.MULTILINE))
    assert set(told(target)) <= asked
    # What the builder may be told by hand, and needs not be.
    assert asked - set(told(target)) <= {"INDEX_URL", "EXTRA_INDEX_URL", "MAX_JOBS", "APT_SNAPSHOT"}


@pytest.mark.parametrize("target", TARGETS)
def test_a_base_has_a_digest_or_can_be_no_base(target: str):
    base, stack = told(target)["BASE"], told(target)["STACK"]
    image, _, digest = base.partition("@sha256:")
    assert image in STACKS
    assert re.fullmatch("[0-9a-f]{64}", digest) or digest == f"unknown-run-python-m-launch-images-lock-{stack}"


def test_a3_is_told_otherwise_than_a2():
    a2, a3 = told("ascend-cann9_1-a2"), told("ascend-cann9_1-a3")
    assert {name for name in a2 if a2[name] != a3[name]} == {"BASE", "CHIP", "SOC_VERSION"}
    assert (a2["CHIP"], a2["SOC_VERSION"]) == ("A2", "ascend910b1")
    assert (a3["CHIP"], a3["SOC_VERSION"]) == ("A3", "ascend910_9391")


def test_sources_are_in_order_with_the_versions_that_packages_have():
    first, second, *_, last = told("ascend-cann8_5-a2")["SOURCES"].split(" ")
    assert re.fullmatch(r"vllm=https://github\.com/vllm-project/vllm@[0-9a-f]{40}#0\.10\.1", first)
    assert re.fullmatch(r"vllm-ascend=https://github\.com/vllm-project/vllm-ascend@[0-9a-f]{40}#0\.10\.1rc1", second)
    assert re.fullmatch(r"verl=https://github\.com/verl-project/verl@[0-9a-f]{40}", last)
    assert "SOURCES" not in told("cpu")
