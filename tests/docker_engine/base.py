"""The stand-in for a pinned base: Debian's own packages, as its official image has them, with no registry needed.

The official image names the archive's snapshot of its day in comments; this one names the mirror that it came from.
It shows that the steps of a Dockerfile work on such a system, not that the digest of the pin is right. Where a registry
is reached, ASCEND_QUANT_TEST_BASE=pinned takes the pinned image itself.
"""

import os
import subprocess
from pathlib import Path

from bake_file import arguments
from cluster.tools import install, on_path

from docker_engine.engine import Engine
from docker_engine.programs import SOURCES

IMAGE = "ascend-quant-test-base:bookworm"
LEFT_OUT = ("man", "locale", "doc")


def make(engine: Engine, folder: Path) -> str:
    """The base as an image of the engine; returns its name. About half a minute."""
    if os.environ.get("ASCEND_QUANT_TEST_BASE") == "pinned":
        pinned = arguments("cpu")["BASE"]
        engine.docker("pull", "--quiet", pinned, timeout=300)
        return pinned
    install([] if on_path("mmdebstrap") else ["mmdebstrap"])
    sources, archive, hook = folder / "debian.sources", folder / "base.tar", folder / "hook.sh"
    sources.write_text(named_snapshots(SOURCES.read_text()))
    hook.write_text(f'#!/bin/sh\nrm -f "$1/etc/apt/sources.list"\ncp {sources} "$1/etc/apt/sources.list.d/"\n')
    hook.chmod(0o755)
    options = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
    options += ["--include=usr-is-merged", "--hook-directory=/usr/share/mmdebstrap/hooks/merged-usr"]  # no perl
    command = ["mmdebstrap", "--quiet", "--variant=minbase", *options, f"--customize-hook={hook}", "bookworm"]
    subprocess.run([*command, archive, SOURCES], check=True, timeout=300, capture_output=True)
    with archive.open("rb") as content:
        engine.docker("import", "-", IMAGE, stdin=content)
    archive.unlink()
    return IMAGE


def named_snapshots(text: str) -> str:
    """A sources file in which each address is named once more in a comment before it."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return "\n".join(f"# {line.split()[1]}\n{line}" if line.startswith("URIs:") else line for line in lines) + "\n"
