"""The image of stack cpu, from its unmodified Dockerfile and bake file, on the stand-in base."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from bake_file import arguments

from docker_engine.engine import Engine
from launch import ROOT

NAME = "ascend-quant:test-cpu"
SECONDS = 1500
TAKEN = (  # by the Dockerfiles of all stacks
    *("LICENSE", "README.md", "pyproject.toml", "run.sh"),
    *("ascend_quant", "launch", "configs", "docker", "benchmarks"),
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
    command = ["buildx", "bake", "--progress=plain", *(f"--file={file}" for file in files), *options, "cpu"]
    engine.docker(*command, timeout=SECONDS, cwd=root, env=engine.environment | {"REVISION": revision()})
    return name


def revision() -> str:
    """The commit of this checkout."""
    return subprocess.check_output(["git", "-C", ROOT, "rev-parse", "HEAD"], text=True).strip()


def tree(folder: Path) -> Path:
    """What the Dockerfiles take of this checkout, as a folder of its own."""
    for name in (*TAKEN, ".dockerignore"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, folder / name)
    return folder


def _here(base: str, name: str, folder: Path) -> Path:
    """What is of this place alone, as a second bake file: the stand-in under the pinned name, torch, the network."""
    pinned = arguments("cpu")["BASE"].removeprefix("docker.io/library/")  # as BuildKit looks it up
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
