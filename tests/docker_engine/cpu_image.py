"""The image of stack cpu, from its unmodified Dockerfile and bake file, on the stand-in base."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from docker_engine.engine import Engine
from launch.images.build import git, project_version
from launch.root import ROOT
from launch.stacks import pins

NAME = "ascend-quant:test-cpu"
SECONDS = 1500
TAKEN = (  # by the Dockerfiles of all stacks
    *("LICENSE", "README.md", "pyproject.toml", "run.sh"),
    *("ascend_quant", "launch", "configs", "docker", "benchmarks", "tests/npu_smoke"),
)
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # of this machine: package indexes may be behind a proxy


def build(
    engine: Engine, base: str, folder: Path, name: str = NAME, options: tuple[str, ...] = (), root: Path = ROOT
) -> str:
    """Build it; returns its name.

    Args:
        options: more for `docker buildx bake`.
        root: the checkout, or what `tree` made of it.
    """
    files = [root / "docker" / "docker-bake.hcl", _here(base, name, folder)]
    arguments = {"VERSION": project_version(), "REVISION": git(ROOT, "rev-parse", "HEAD").strip()}
    said = [f"--set=cpu.args.{name}={value}" for name, value in arguments.items()]
    command = ["buildx", "bake", "--progress=plain", *(f"--file={file}" for file in files), *said, *options, "cpu"]
    engine.docker(*command, timeout=SECONDS, cwd=root)
    return name


def tree(folder: Path) -> Path:
    """What the Dockerfiles take of this checkout, as a folder of its own."""
    for name in (*TAKEN, ".dockerignore"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, folder / name)
    return folder


def _here(base: str, name: str, folder: Path) -> Path:
    """What is of this place alone, as a second bake file: the stand-in under the pinned name, torch, the network."""
    pinned = pins("cpu").bases["any"].removeprefix("docker.io/library/")  # as BuildKit looks it up
    target = {
        "contexts": {pinned: f"docker-image://{base}", "wheels": str(torch_wheel(folder / "wheels"))},
        "network": "host",
        "secret": [f"id=ca,src={CERTIFICATES}"] if CERTIFICATES.exists() else [],
        "tags": [name],
    }
    file = folder / f"{name.replace(':', '-')}.json"
    file.write_text(json.dumps({"target": {"cpu": target}}))
    return file


def torch_wheel(folder: Path) -> Path:
    """The folder with torch's CPU build, from where this machine's pip has it (as ./run.sh setup does)."""
    if not folder.exists():
        lock = ROOT / "docker" / "locks" / "cpu.torch.txt"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", lock, "-d", folder], check=True, timeout=600)
    return folder
