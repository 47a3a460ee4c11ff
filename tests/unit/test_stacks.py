"""docker/stacks.yaml: what its schema refuses, and that what is committed fits it."""

import re
from typing import get_args

import pytest
import yaml

from launch import stacks
from launch.recipes.fields import Stack
from launch.root import ROOT
from launch.stacks import FILE, Pins, Source, all_pins

IMAGE = f"docker.io/library/debian:bookworm-slim@sha256:{'0' * 64}"
CPU = {"devices": "none", "python": "3.11", "bases": {"any": IMAGE}, "packages": {}}
NPU = CPU | {
    "devices": "npu",
    "chips": ["A2", "A3"],
    "bases": {"A2": IMAGE, "A3": IMAGE},
    "soc": {"A2": "ascend910b1", "A3": "ascend910_9391"},
}
ARCHIVE = {"address": "https://github.com/owner/part/include.zip", "sha256": "a" * 64}
SOURCE = {"repository": "https://github.com/vllm-project/vllm", "commit": "e" * 40}


def test_what_is_right_is_taken():
    assert Pins.model_validate(CPU).bases["any"] == IMAGE
    assert Pins.model_validate(NPU | {"sources": {"vllm": SOURCE}}).sources["vllm"].ref is None
    assert Source(**SOURCE, tag="v1").ref == "refs/tags/v1"
    assert Source(**SOURCE, branch="main").ref == "refs/heads/main"
    assert Source(**SOURCE, files={"csrc/third-party_1": ARCHIVE}).files["csrc/third-party_1"].sha256 == "a" * 64


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        (CPU | {"bases": {"any": "debian:bookworm-slim@sha256:12"}}, "bases.any"),
        (CPU | {"bases": {"any": "debian"}}, "bases.any"),
        (CPU | {"bases": {"A2": IMAGE}}, "wanted: any"),
        (NPU | {"bases": {"A2": IMAGE}}, "wanted: A2, A3"),
        (NPU | {"soc": {"A2": "ascend910b1"}}, "soc is for A2"),
        (CPU | {"apt_snapshot": "2026-11-15"}, "apt_snapshot"),
        (CPU | {"tags": {"vllm": "v1"}}, "tags"),
        (CPU | {"sources": {"vllm": SOURCE | {"commit": "v0.23.0"}}}, "commit"),
        (CPU | {"sources": {"vllm": SOURCE | {"repository": "git@github.com:vllm-project/vllm"}}}, "repository"),
        (CPU | {"sources": {"vllm": SOURCE | {"tag": "v1", "branch": "main"}}}, "not both"),
        (CPU | {"sources": {"vllm": SOURCE | {"files": {"../up": ARCHIVE}}}}, "../up"),
        (CPU | {"sources": {"vllm": SOURCE | {"files": {"/etc": ARCHIVE}}}}, "/etc"),
        (CPU | {"sources": {"vllm": SOURCE | {"files": {"a/b": ARCHIVE | {"sha256": "12"}}}}}, "sha256"),
        (
            CPU | {"sources": {"vllm": SOURCE | {"files": {"a/b": ARCHIVE | {"address": "http://a.b/c"}}}}},
            "address",
        ),
        (CPU | {"sources": {"vllm": SOURCE | {"files": {"a/b": {"address": ARCHIVE["address"]}}}}}, "sha256"),
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


@pytest.mark.parametrize("stack", [name for name, pins in all_pins().items() if pins.devices == "npu"])
def test_a_base_is_of_its_chip_cann_and_python(stack: str):
    pins = all_pins()[stack]
    for chip, family in (("A2", "910b"), ("A3", "a3")):
        assert f":{pins.cann}-{family}-" in pins.bases[chip] and f"-py{pins.python}" in pins.bases[chip]
    assert pins.soc["A2"].startswith("ascend910b") and pins.soc["A3"].startswith("ascend910_93")


def test_stacks_are_those_of_recipes():
    assert set(all_pins()) == set(get_args(Stack))


def test_the_cpu_stack_is_its_lock():
    locks = ROOT / "docker" / "locks"
    lock = (locks / "cpu.txt").read_text() + (locks / "cpu.in").read_text()
    for name, version in all_pins()["cpu"].packages.items():
        pinned = re.search(rf"(?mi)^(?:# )?{name.replace('-', '[-_]')}(?:==|: ?){re.escape(version)}\b", lock)
        assert pinned, f"{name} {version} is not what docker/locks/cpu.txt installs"
