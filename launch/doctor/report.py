"""What the doctor says: findings, each with a level, what was found and what to do about it."""

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: its name, as in docs/doctor.md.
        what: what was found, with the value.
        fix: what to do; empty where all is well.
    """

    level: Level
    check: str
    what: str
    fix: str = ""


@dataclass(frozen=True)
class HostReport:
    """One host.

    Attributes:
        traits: what must be alike on all hosts, by name: versions, the chip, the number of devices, TLS.
    """

    host: str
    findings: list[Finding]
    traits: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, host: str, tree: dict) -> "HostReport":
        """The report that `asdict` made a tree of, under the name that the inventory has for the host."""
        return cls(host, [Finding(**finding) for finding in tree["findings"]], tree["traits"])


@dataclass(frozen=True)
class Report:
    """All hosts, and what was found by comparing them."""

    hosts: list[HostReport]
    together: list[Finding] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All findings."""
        return [*(finding for host in self.hosts for finding in host.findings), *self.together]

    @property
    def exit_code(self) -> int:
        """1 where there is an error, else 0: warnings do not stop a run."""
        return int(any(finding.level == "error" for finding in self.findings))

    def as_json(self) -> str:
        """For programs."""
        return json.dumps(asdict(self) | {"exit_code": self.exit_code}, indent=1)
