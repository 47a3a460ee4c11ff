"""Versions: Python packages, CANN, and the chip that the image was built for."""

import json
import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from launch.doctor.facts import Package, Software
from launch.software import own_packages, sources

CANN_FOLDERS = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest")
CANN_FILE = "*-linux/ascend_toolkit_install.info"
CHIP_VARIABLE = "ASCEND_QUANT_CHIP"  # set by our images: A2 or A3


def software(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Software:
    """The versions of this interpreter's environment, and of CANN."""
    cann, where = cann_version(root, environment)
    return Software(
        python=platform.python_version(),
        packages=packages(),
        sources=sources(own_packages()),
        cann=cann,
        cann_from=where,
        chip_of_image=environment.get(CHIP_VARIABLE) or chip_of_build(),
    )


def packages() -> dict[str, Package]:
    """Every installed package; of one that is there twice, the first on sys.path, which is the one imported."""
    found: dict[str, Package] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(plain(name), Package(distribution.version, commit(distribution)))
    return found


def plain(name: str) -> str:
    """A package's name as the index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def commit(distribution: Distribution) -> str | None:
    """The commit that a package was built from, where its installer (PEP 610) or its version (+gHASH) says it."""
    direct = distribution.read_text("direct_url.json")
    if direct and (said := json.loads(direct).get("vcs_info", {}).get("commit_id")):
        return said
    found = re.search(r"\+(?:.*\.)?g([0-9a-f]{7,40})", distribution.version)
    return found[1] if found else None


def cann_version(root: Path, environment: Mapping[str, str]) -> tuple[str | None, str]:
    """CANN's version and the file that says it; or None, and where it was looked for."""
    set_by = next((name for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if environment.get(name)), None)
    folders = [Path(environment[set_by])] if set_by else [root / folder for folder in CANN_FOLDERS]
    for folder in folders:
        for file in sorted(folder.glob(CANN_FILE)):
            found = re.search(r"(?m)^version=(\S+)", file.read_text(errors="replace"))
            if found:
                return found[1], str(file)
    return None, f"{' or '.join(map(str, folders))}{f' ({set_by})' if set_by else ''}"


def chip_of_build() -> str | None:
    """What the installed vllm-ascend was built for: its _build_info.py says the SoC (0.10) or the product (0.23)."""
    for distribution in distributions(name="vllm-ascend"):
        file = Path(str(distribution.locate_file("vllm_ascend/_build_info.py")))
        if file.is_file():
            found = re.search(r"__(?:soc_version|device_type)__ *= *['\"](\w+)['\"]", file.read_text())
            return found[1] if found else None
    return None
