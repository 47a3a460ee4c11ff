"""Docker's programs for a private engine: Debian 13's, unpacked into a folder, as Debian 12's are too old.

Nothing of the host changes but for the packages that Docker needs of its own release (runc, iptables and libraries).
"""

import subprocess
from pathlib import Path

from cluster.tools import install, on_path

OF_THIS_RELEASE = {"runc": "docker.io", "iptables": "iptables"}
RELEASE = "trixie"
UNPACKED = ("docker.io", "docker-cli", "docker-buildx", "docker-compose", "containerd")
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
PLUGINS = "usr/libexec/docker/cli-plugins"


def unpack(folder: Path) -> Path:
    """Debian 13's Docker below `folder`; returns the root of what was unpacked.

    Raises:
        subprocess.CalledProcessError: the packages cannot be had; its output tells why.
    """
    install(sorted({package for program, package in OF_THIS_RELEASE.items() if not on_path(program)}))
    (folder / "sources").mkdir(parents=True)
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "sources" / "next.sources").write_text(_sources())
    options = [
        *("-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={folder}/sources"),
        *(
            "-o",
            f"Dir::State::Lists={folder}/lists",
            "-o",
            f"Dir::Cache={folder}/cache",
            "-o",
            "APT::Sandbox::User=root",
        ),
    ]
    _run(["apt-get", *options, "update", "-qq"], folder)
    _run(["apt-get", *options, "download", "-qq", *UNPACKED], folder)
    for package in folder.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), "root"], folder)
    return folder / "root"


def _sources() -> str:
    """The mirror of this machine, for another release."""
    mirror = next(line.split()[1] for line in SOURCES.read_text().splitlines() if line.startswith("URIs:"))
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    return f"Types: deb\nURIs: {mirror}\nSuites: {RELEASE}\nComponents: main\nSigned-By: {keys}\n"


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, timeout=300, stdout=subprocess.DEVNULL)
