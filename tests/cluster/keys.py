"""The ssh keys of a group of hosts: one to enter with, one that they show, and the files that name them."""

import subprocess
from pathlib import Path


class Keys:
    """Made once, shared by all hosts.

    Attributes:
        identity: private key that every host lets in as root.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.identity, self._host = make(folder / "identity"), make(folder / "host")
        self._authorized = folder / "authorized_keys"
        self._authorized.write_text(public(self.identity))

    def known_hosts(self) -> str:
        """The text of ssh's file of known hosts: every host shows the same key."""
        return f"* {public(self._host)}"

    def sshd_config(self, port: int, environment: dict[str, str]) -> str:
        """The text of sshd's configuration; `environment` is what every session has besides."""
        lines = {
            "Port": port,
            "HostKey": self._host,
            "AuthorizedKeysFile": self._authorized,
            "PasswordAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "StrictModes": "no",  # the folder above is under /tmp
            "UsePAM": "no",
            "UseDNS": "no",
            "PidFile": "none",
        }
        if environment:
            lines["SetEnv"] = " ".join(f'{name}="{value}"' for name, value in environment.items())
        return "".join(f"{name} {value}\n" for name, value in lines.items())


def make(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)], check=True)
    return path


def public(path: Path) -> str:
    return path.with_suffix(".pub").read_text()
