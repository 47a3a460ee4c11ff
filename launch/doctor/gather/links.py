"""The devices' own network ports, from hccn_tool: is the link up, which address has it, does it want TLS?

Its answers are `link status: UP`, `ipaddr:..` and `netmask:..`, and `dev_id:0, tls switch[0](0:disable, 1:enable), ..`;
without a certificate, TLS is off. From the pages on the check before a training of MindCluster's fault diagnosis
(hiascend.com, mindxdlFDUG021); not run on hardware by this project.
"""

import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launch.doctor.facts import Link, Links
from launch.doctor.gather.tools import ask

TOOL = Path("/usr/local/Ascend/driver/tools/hccn_tool")
SECONDS = 10


def links(devices: Sequence[int], root: Path = Path("/")) -> Links:
    """The links of these devices, or why they cannot be told."""
    config = (root / "etc" / "hccn.conf").is_file()
    tool = shutil.which("hccn_tool") or shutil.which(TOOL)
    if tool is None:
        return Links(problem=f"there is no hccn_tool on PATH, and no {TOOL}", config=config)
    with ThreadPoolExecutor(max_workers=4) as pool:
        return Links(tuple(pool.map(lambda device: link(tool, device), devices)), config=config)


def link(tool: str, device: int) -> Link:
    """One device's."""

    def said(about: str, pattern: str) -> tuple[str | None, str]:
        answer = ask([tool, "-i", str(device), f"-{about}", "-g"], SECONDS)
        found = re.search(pattern, answer.output)
        return (found[1] if found else None), answer.problem or answer.output.strip()

    state, why = said("link", r"link status\s*:\s*(\w+)")
    address, _ = said("ip", r"ipaddr\s*:\s*(\S+)")
    switch, tls = said("tls", r"tls switch\[(\d)\]")
    if switch is None and "no certificate" in tls:
        switch = "0"
    return Link(device, state or why, address, None if switch is None else switch == "1")
