"""What the tests of images share: a small stack, an image that is as pinned, and a `docker` that only remembers."""

import json
import os
from pathlib import Path

from launch.images.manifest import Manifest, Package
from launch.images.targets import Target
from launch.stacks import Pins, Source

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SOURCE = "89abcdef0123456789abcdef0123456789abcdef"
BASE = f"quay.io/ascend/cann:8.5.0-910b-ubuntu22.04-py3.10@sha256:{'5' * 64}"
LOCK = f"""\
# Lock of a stack of tests.
numpy==1.26.4 \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
intel-openmp==2024.2.1 ; platform_machine == 'x86_64' \\
    --hash=sha256:{"c" * 64}
typing_extensions==4.15.0 \\
    --hash=sha256:{"d" * 64}
"""
TORCH = f"torch==2.7.1 \\\n    --hash=sha256:{'e' * 64}\n"

FAKE = """\
#!/bin/sh
echo "$*" >>{folder}/calls
case "$1 $2" in
"image inspect") cat {folder}/inspect.json ;;
"run --rm") cat {folder}/manifest.json ;;
"save "*) cat {folder}/image.tar ;;
"load "*)
  cat >{folder}/received
  echo "Loaded image: ascend-quant:cpu"
  ;;
esac
"""


def pins() -> Pins:
    return Pins(
        devices="npu",
        chips=["A2"],
        cann="8.5.0",
        python="3.10",
        bases={"A2": BASE},
        soc={"A2": "ascend910b1"},
        packages={"torch": "2.7.1"},
        sources={"vllm-ascend": Source(repository="https://github.com/of/ours", commit=SOURCE)},
    )


def small_target(folder: Path, monkeypatch, **changed) -> Target:
    """Stack `small` for the A2, whose locks are in `folder`."""
    monkeypatch.setattr("launch.images.targets.LOCKS", folder)
    (folder / "small.txt").write_text(LOCK)
    (folder / "small.torch.txt").write_text(TORCH)
    return Target("small", "A2", pins().model_copy(update=changed))


def manifest(**changed) -> Manifest:
    """What an image of that stack says, on aarch64, where one line of the lock does not count."""
    found = Manifest(
        stack="small",
        chip="A2",
        built_for="ascend910b1",
        revision=COMMIT,
        architecture="aarch64",
        system="ubuntu 22.04",
        python="3.10.12",
        cann="8.5.0",
        cuda=None,
        packages={
            "torch": Package(version="2.7.1"),
            "numpy": Package(version="1.26.4"),
            "typing-extensions": Package(version="4.15.0"),
            "vllm-ascend": Package(version="0.10.1rc1", commit=SOURCE),
            "ascend-quant": Package(version="0.1.0"),
        },
        system_packages={"bash:arm64": "5.1"},
        compiled={"vllm_ascend/vllm_ascend_C.so": ["npu_quant"]},
    )
    return found.model_copy(update=changed)


def with_package(name: str, version: str | None, commit: str | None = None) -> Manifest:
    """The same with another version of a package; None takes it out."""
    packages = {one: package for one, package in manifest().packages.items() if one != name}
    return manifest(packages=packages | ({name: Package(version=version, commit=commit)} if version else {}))


def labels(**changed: str) -> dict[str, str]:
    """Its labels; names without their dots and dashes are keys."""
    name, digest = BASE.split("@")
    return {
        "org.opencontainers.image.revision": COMMIT,
        "org.opencontainers.image.version": "0.1.0",
        "org.opencontainers.image.base.name": name,
        "org.opencontainers.image.base.digest": digest,
        "ascend-quant.stack": "small",
        "ascend-quant.chip": "A2",
    } | changed


def inspected(layers: tuple[str, ...] = ("sha256:1",), **changed) -> str:
    """What `docker image inspect` prints."""
    tree = {
        "Id": "sha256:77",
        "RootFS": {"Layers": list(layers)},
        "RepoTags": ["ascend-quant:build-small-a2", "ascend-quant:cpu", "ascend-quant:long"],
        "Config": {"Labels": labels()},
        "Size": 5,
    }
    return json.dumps([tree | changed])


def fake_docker(folder: Path, monkeypatch, script: str = FAKE) -> Path:
    """A `docker` first on PATH; the folder gets `calls`, one line a call, and answers with what lies in it."""
    folder.mkdir(exist_ok=True)
    program = folder / "docker"
    program.write_text(script.replace("{folder}", str(folder)))
    program.chmod(0o755)
    (folder / "inspect.json").write_text(inspected())
    (folder / "manifest.json").write_text(manifest().as_json())
    (folder / "image.tar").write_bytes(b"layers" * 100_000)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def calls(folder: Path) -> list[str]:
    """What it was called with."""
    file = folder / "calls"
    return file.read_text().splitlines() if file.exists() else []
