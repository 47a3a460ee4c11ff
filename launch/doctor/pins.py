"""The versions that a stack is made of, from docker/stacks.yaml."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from launch.recipes.fields import Fields

FILE = Path(__file__).parents[2] / "docker" / "stacks.yaml"


class Pins(Fields):
    """A stack.

    Attributes:
        devices: what it computes on.
        chips: the Atlas products that it serves.
        cann, cuda: the toolkit's version, where there is one.
        python: major and minor version.
        packages: exact versions, by the names on the package index.
        commits: of packages that are built from a commit.
        tags: of packages that are installed from a tag or a branch.
    """

    devices: Literal["none", "npu", "gpu"]
    chips: list[Literal["A2", "A3"]] = Field(default_factory=list)
    cann: str | None = None
    cuda: str | None = None
    python: str
    packages: dict[str, str]
    commits: dict[str, str] = Field(default_factory=dict)
    tags: dict[str, str] = Field(default_factory=dict)


def pins(stack: str) -> Pins:
    """The pins of a stack.

    Raises:
        KeyError: no such stack; recipes and inventories are checked for that before.
    """
    return all_pins()[stack]


def all_pins() -> dict[str, Pins]:
    """The pins of every stack."""
    import yaml

    return {stack: Pins.model_validate(tree) for stack, tree in yaml.safe_load(FILE.read_text()).items()}
