"""An image beside its pins: as pinned there is nothing to say, and each single difference is told with both values."""

from pathlib import Path

import pytest
from images_cases import BASE, COMMIT, SOURCE, labels, manifest, small_target, with_package
from naming import has_line_naming, line_naming

from launch.errors import LaunchError
from launch.images.compare import differences
from launch.images.lock.packages import locked, machine
from launch.images.manifest import Manifest


def told(tmp_path: Path, monkeypatch, found: Manifest, **changed: str) -> list[str]:
    return [one.line() for one in differences(found, small_target(tmp_path, monkeypatch), labels(**changed))]


def test_as_pinned_there_is_nothing_to_say(tmp_path: Path, monkeypatch):
    assert told(tmp_path, monkeypatch, manifest()) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (manifest(python="3.11.2"), "Python: 3.11.2; pinned: 3.10: build the image again"),
        (manifest(python="3.1.2"), "Python: 3.1.2; pinned: 3.10"),
        (manifest(cann="8.5.1"), "CANN: 8.5.1; pinned: 8.5.0: "),
        (manifest(cann=None), "CANN: is missing; pinned: 8.5.0"),
        (manifest(cuda="13.0"), "CUDA of torch: 13.0; pinned: nothing"),
        (manifest(built_for="ascend910_9391"), "kernels of vllm-ascend: ascend910_9391; pinned: A2: SOC_VERSION"),
        (manifest(built_for=None), "kernels of vllm-ascend: is missing; pinned: A2"),
        (with_package("numpy", "1.26.5"), "numpy: 1.26.5; pinned: 1.26.4 (small.torch.txt and small.txt)"),
        (with_package("numpy", None), "numpy: is missing; pinned: 1.26.4"),
        (with_package("typing-extensions", "4.15.1"), "typing-extensions: 4.15.1; pinned: 4.15.0"),
        (with_package("torch", "2.7.0"), "torch: 2.7.0; pinned: 2.7.1 (small.torch.txt and small.txt)"),
        (with_package("torch", "2.7.1+cu130"), "torch: 2.7.1+cu130; pinned: 2.7.1 ("),
        (with_package("left-pad", "1.0"), "left-pad: 1.0; pinned: nothing: not in small.torch.txt and small.txt"),
        (with_package("intel-openmp", "2024.2.1"), "intel-openmp: 2024.2.1; pinned: nothing"),
        (with_package("vllm-ascend", None), f"vllm-ascend: is missing; pinned: {SOURCE}"),
        (with_package("vllm-ascend", "0.10.1rc1"), "vllm-ascend: 0.10.1rc1, "),
        (with_package("vllm-ascend", "0.10.1rc1", COMMIT), f"vllm-ascend: {COMMIT}; pinned: {SOURCE}"),
    ],
)
def test_each_difference_is_told_alone(tmp_path: Path, monkeypatch, found: Manifest, said: str):
    (line,) = told(tmp_path, monkeypatch, found)
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("org.opencontainers.image.revision", SOURCE),
        ("org.opencontainers.image.version", "0.2.0"),
        ("ascend-quant.stack", "cpu"),
        ("ascend-quant.chip", "A3"),
        ("org.opencontainers.image.base.name", "quay.io/ascend/cann:latest"),
        ("org.opencontainers.image.base.digest", "sha256:" + "6" * 64),
    ],
)
def test_labels_say_what_is_inside(tmp_path: Path, monkeypatch, label: str, value: str):
    (line,) = told(tmp_path, monkeypatch, manifest(), **{label: value})
    assert value in line and line.startswith("label")


def test_the_base_may_be_one_label(tmp_path: Path, monkeypatch):
    whole = labels(**{"org.opencontainers.image.base.name": BASE})
    del whole["org.opencontainers.image.base.digest"]
    assert differences(manifest(), small_target(tmp_path, monkeypatch), whole) == []


def test_a_short_hash_of_the_right_commit_will_do(tmp_path: Path, monkeypatch):
    assert told(tmp_path, monkeypatch, with_package("vllm-ascend", "0.10.1", SOURCE[:8])) == []


def test_a_version_in_stacks_yaml_is_one_of_the_lock_or_of_a_source(tmp_path: Path, monkeypatch):
    versions = {"torch": "2.7.1", "transformers": "4.57.6", "vllm-ascend": "0.10.1rc1"}
    target = small_target(tmp_path, monkeypatch, packages=versions)
    (line,) = [one.line() for one in differences(manifest(), target, labels())]
    assert has_line_naming(line, "transformers:", "pinned: 4.57.6:", "small.torch.txt and small.txt")
    other = small_target(tmp_path, monkeypatch, packages={"vllm-ascend": "0.10.1"})
    (line,) = [one.line() for one in differences(manifest(), other, labels())]
    assert line.startswith("vllm-ascend: 0.10.1rc1; pinned: 0.10.1: build")


def test_a_revision_is_a_commit(tmp_path: Path, monkeypatch):
    dirty = f"{COMMIT}-dirty"
    revision = {"org.opencontainers.image.revision": dirty}
    assert told(tmp_path, monkeypatch, manifest(revision=dirty), **revision) == []
    odd = {"org.opencontainers.image.revision": "main"}
    (line,) = told(tmp_path, monkeypatch, manifest(revision="main"), **odd)
    assert line.startswith("revision: main; pinned: ")


def test_a_stack_without_locks_is_no_verified_one(tmp_path: Path, monkeypatch):
    target = small_target(tmp_path, monkeypatch)
    (tmp_path / "small.txt").unlink()
    (line,) = [one.line() for one in differences(manifest(), target, labels())]
    assert has_line_naming(line, "packages: 5", "images lock small")


def test_what_is_built_against_the_lock_is_wanted_too(tmp_path: Path, monkeypatch):
    target = small_target(tmp_path, monkeypatch)
    assert target.sdists == []
    (tmp_path / "small.sdists.txt").write_text(f"Built_Here==1.0 \\\n    --hash=sha256:{'d' * 64}\n")
    (line,) = [one.line() for one in differences(manifest(), target, labels())]
    assert has_line_naming(line, "built-here:", "pinned: 1.0") and "small.sdists.txt" in line
    assert not list(differences(with_package("built-here", "1.0"), target, labels()))


def test_conditions_and_hashes_of_a_lock(tmp_path: Path, monkeypatch):
    files = small_target(tmp_path, monkeypatch).locks
    assert [file.name for file in files] == ["small.torch.txt", "small.txt"]
    here = locked(files, machine("3.10", "x86_64"))
    assert [(one.name, one.version) for one in here] == [
        ("torch", "2.7.1"),
        ("numpy", "1.26.4"),
        ("intel-openmp", "2024.2.1"),
        ("typing-extensions", "4.15.0"),
    ]
    assert str(here[2]).split() == ["intel-openmp==2024.2.1", "\\", f"--hash=sha256:{'c' * 64}"]
    assert "intel-openmp" not in {one.name for one in locked(files, machine("3.10", "aarch64"))}


def test_a_file_that_is_no_lock_is_named(tmp_path: Path, monkeypatch):
    target = small_target(tmp_path, monkeypatch)
    (tmp_path / "small.txt").write_text("numpy==1.26.4\n")
    with pytest.raises(LaunchError, match=line_naming("small.txt:", "numpy")):
        differences(manifest(), target, labels())
