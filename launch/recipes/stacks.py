"""The pins of each stack, from docker/stacks.yaml: what it is made of."""

from typing import Annotated, Literal

from pydantic import Field

from ascend_quant.recipes.node import Fields
from launch import ROOT

FILE = ROOT / "docker" / "stacks.yaml"
STACK_VARIABLE = "ASCEND_QUANT_STACK"  # set by our images

Chip = Literal["A2", "A3"]
Commit = Annotated[str, Field(pattern="^[0-9a-f]{40}$")]


class Source(Fields):
    """Source of a package that is built from a commit.

    Attributes:
        repository: where it is cloned from.
        commit: what is built.
        tag, branch: where the commit was read. A commit without them was chosen.
    """

    repository: Annotated[str, Field(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+$")]
    commit: Commit
    tag: str | None = None
    branch: str | None = None


class Pins(Fields):
    """Pinned versions of a stack.

    Attributes:
        devices: what it computes on.
        chips: the Atlas products that it serves.
        cann, cuda: the toolkit's version, where there is one.
        python: major and minor version.
        packages: exact versions, by the names on the package index.
        sources: of packages that are built from a commit.
    """

    devices: Literal["none", "npu", "gpu"]
    chips: list[Chip] = Field(default_factory=list)
    cann: str | None = None
    cuda: str | None = None
    python: str
    packages: dict[str, str]
    sources: dict[str, Source] = Field(default_factory=dict)


def pins(stack: str) -> Pins:
    """Return the pins of a stack.

    Raises:
        KeyError: no such stack; recipes and inventories are checked for that before.
    """
    return all_pins()[stack]


def all_pins() -> dict[str, Pins]:
    """Return the pins of every stack."""
    import yaml

    return {stack: Pins.model_validate(tree) for stack, tree in yaml.safe_load(FILE.read_text()).items()}
