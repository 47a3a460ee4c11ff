"""An image of a vendor's stack from its unmodified Dockerfile and bake file, with what this place lacks replaced.

Replaced are: the base (vendor_bases.py), the locks (a part of them: torch and the like are gigabytes, or on no index
that is reached from here), the sources (vendor_sources.py).
"""

import json
import re
from pathlib import Path

from docker_engine import cpu_image
from docker_engine.cpu_image import CERTIFICATES
from docker_engine.engine import Engine

SECONDS = 1500
# Of each lock: what the launcher imports, and what the stand-in sources are built with.
# fmt: off
PART = {
    "annotated-doc", "annotated-types", "click", "markdown-it-py", "mdurl", "packaging", "pip", "psutil", "pybind11",
    "pydantic", "pydantic-core", "pygments", "pyyaml", "rich", "setuptools", "setuptools-scm", "shellingham", "tomli",
    "typer", "typing-extensions", "typing-inspection", "wheel",
}
# fmt: on


def build(engine: Engine, target: str, folder: Path, arguments: dict[str, str]) -> str:
    """Build a target of the bake file; returns the image's name. `arguments` take the place of pins."""
    context, name = folder / "context", f"ascend-quant-test:{target}"
    cpu_image.tree(context)
    _cut(context / "docker" / "locks")
    here = {
        "args": arguments,
        "secret": [f"id=ca,src={CERTIFICATES}"] if CERTIFICATES.exists() else [],
        "tags": [name],
    }
    (folder / "here.json").write_text(json.dumps({"target": {target: here}}))
    files = [context / "docker" / "docker-bake.hcl", folder / "here.json"]
    command = ["buildx", "bake", "--progress=plain", *(f"--file={file}" for file in files), target]
    engine.docker(*command, timeout=SECONDS, cwd=context)
    return name


def _cut(locks: Path) -> None:
    """Parts of the locks in place of the locks."""
    for lock in locks.glob("*.txt"):
        if lock.name != "uv.txt":
            lock.write_text(part(lock.read_text()))


def part(lock: str) -> str:
    """The entries of a lock that are taken here, with their hashes."""
    entries = re.findall(r"(?m)^[A-Za-z0-9][^\n]*(?:\n[ \t]+[^\n]*)*\n", lock)
    return "".join(entry for entry in entries if re.split(r"[=\s]", entry)[0].lower() in PART)


def inspect(engine: Engine, image: str) -> dict:
    """What `docker image inspect` says of an image."""
    return json.loads(engine.docker("image", "inspect", image).stdout)[0]


def manifest(engine: Engine, image: str) -> dict:
    """What the image says that it is made of."""
    options = ("--rm", "--read-only", "--tmpfs=/tmp:exec")
    return json.loads(engine.docker("run", *options, image, "python", "-m", "launch.manifest").stdout)
