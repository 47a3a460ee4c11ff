"""The pinned versions of each stack, from docker/stacks.yaml."""

from typing import Annotated, Literal

from pydantic import Field

from ascend_quant.recipes.node import Fields
from launch import ROOT

FILE = ROOT / "docker" / "stacks.yaml"

Chip = Literal["A2", "A3"]
Commit = Annotated[str, Field(pattern="^[0-9a-f]{40}$")]


class Source(Fields):
    """Source of a package that is built from a commit.

    Attributes:
        repository: URL of the repository.
        commit: hash of the commit.
        tag, branch: the tag or branch from which the commit was taken; a commit without either was chosen itself.
    """

    repository: Annotated[str, Field(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+$")]
    commit: Commit
    tag: str | None = None
    branch: str | None = None


class Pins(Fields):
    """Pinned versions of a stack.

    Attributes:
        devices: type of the devices.
        chips: supported Atlas products.
        cann: version of the toolkit, on NPUs.
        driver: version of the first driver that works with the stack.
        python: major and minor version of Python.
        packages: exact versions of packages, by their names on the package index.
        sources: sources of packages that are built from a commit, by name.
    """

    devices: Literal["none", "npu", "gpu"]
    chips: list[Chip] = Field(default_factory=list)
    cann: str | None = None
    driver: str | None = None
    python: str
    packages: dict[str, str]
    sources: dict[str, Source] = Field(default_factory=dict)


def pins(stack: str) -> Pins:
    """Return the pins of a stack.

    Raises:
        KeyError: there is no such stack; recipes and inventories are checked for this when they are loaded.
    """
    return all_pins()[stack]


def all_pins() -> dict[str, Pins]:
    """Return the pins of every stack."""
    import yaml

    return {stack: Pins.model_validate(tree) for stack, tree in yaml.safe_load(FILE.read_text()).items()}
