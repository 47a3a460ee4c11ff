"""Which files fit a machine that is not this one, in the words of pip."""

import platform
import re

from launch.errors import LaunchError

OLDEST = 5  # glibc 2.5, of manylinux1
OLD_NAMES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
WRITTEN = re.compile(r"(x86_64|aarch64)-manylinux_2_(\d+)")


def here() -> str:
    """This machine's processor, and the glibc of openEuler 22.03, which is older than Ubuntu 22.04's."""
    return f"{platform.machine()}-manylinux_2_34"


def architecture(name: str) -> str:
    """The processor in a platform's name.

    Raises:
        LaunchError: it is no such name.
    """
    return _parts(name)[0]


def pip_options(name: str, python: str) -> list[str]:
    """pip's options for the files of a platform and a Python.

    Args:
        name: as uv writes it: x86_64-manylinux_2_34.
    """
    processor, newest = _parts(name)
    tags = []
    for minor in range(newest, OLDEST - 1, -1):
        tags += [
            f"manylinux_2_{minor}_{processor}",
            *([f"{OLD_NAMES[minor]}_{processor}"] if minor in OLD_NAMES else []),
        ]
    tags.append(f"linux_{processor}")
    abi = f"cp{python.replace('.', '')}"
    return [
        *(word for tag in tags for word in ("--platform", tag)),
        *("--python-version", python),
        *("--implementation", "cp"),
        *(word for one in (abi, "abi3", "none") for word in ("--abi", one)),
    ]


def _parts(name: str) -> tuple[str, int]:
    found = WRITTEN.fullmatch(name)
    if found is None:
        raise LaunchError(
            f"--python-platform {name}: write PROCESSOR-manylinux_2_N, as x86_64-manylinux_2_34 or aarch64-.."
        )
    return found[1], int(found[2])
