"""The pins of each stack, from docker/stacks.yaml: what it is made of, and what its images are built from."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from launch.recipes.fields import Fields
from launch.root import ROOT

FILE = ROOT / "docker" / "stacks.yaml"
STACK_VARIABLE = "ASCEND_QUANT_STACK"  # set by our images

Chip = Literal["A2", "A3"]
Image = Annotated[str, Field(pattern=r"^[a-z0-9./-]+:[\w.-]+(@sha256:[0-9a-f]{64})?$")]
Commit = Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
Place = Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")]  # in a folder, never beside it
Snapshot = Annotated[str, Field(pattern=r"^\d{8}T\d{6}Z$")]


class File(Fields):
    """An archive that a build would fetch.

    Attributes:
        address: where it is.
        sha256: its hash, without which nothing of it is taken.
    """

    address: Annotated[str, Field(pattern=r"^https://[^\s#=@]+$")]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Source(Fields):
    """A package that is built from a commit.

    Attributes:
        repository: where it is cloned from.
        commit: what is built.
        tag, branch: where the commit was read, and is read again by `images lock`. A commit without them was chosen.
        files: what its build would fetch, by the folder of the checkout that it is unpacked in.
    """

    repository: Annotated[str, Field(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+$")]
    commit: Commit
    tag: str | None = None
    branch: str | None = None
    files: dict[Place, File] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_read_from_one_place(self) -> "Source":
        if self.tag and self.branch:
            raise ValueError(f"give tag {self.tag} or branch {self.branch}, not both")
        return self

    @property
    def ref(self) -> str | None:
        """The tag or branch as git names it."""
        return f"refs/tags/{self.tag}" if self.tag else self.branch and f"refs/heads/{self.branch}"


class Pins(Fields):
    """A stack.

    Attributes:
        devices: what it computes on.
        chips: the Atlas products that it serves.
        cann, cuda: the toolkit's version, where there is one.
        python: major and minor version.
        bases: the images that ours start from, with their digests; by chip, or `any` where chips make no difference.
            A base without a digest is not pinned yet: nothing is built from it.
        apt_snapshot: the day of the Ubuntu archive that packages come from; a Debian base names its own.
        soc: what vllm-ascend's kernels are compiled for, by chip.
        arguments: of the builds.
        packages: exact versions, by the names on the package index.
        sources: of packages that are built from a commit.
    """

    devices: Literal["none", "npu", "gpu"]
    chips: list[Chip] = Field(default_factory=list)
    cann: str | None = None
    cuda: str | None = None
    python: str
    bases: dict[Chip | Literal["any"], Image]
    apt_snapshot: Snapshot | None = None
    soc: dict[Chip, str] = Field(default_factory=dict)
    arguments: dict[str, str] = Field(default_factory=dict)
    packages: dict[str, str]
    sources: dict[str, Source] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_a_base_for_each_chip(self) -> "Pins":
        wanted = set(self.chips) or {"any"}
        if set(self.bases) != wanted:
            raise ValueError(f"bases are for {', '.join(sorted(self.bases))}; wanted: {', '.join(sorted(wanted))}")
        if set(self.soc) != set(self.chips):
            raise ValueError(f"soc is for {', '.join(self.soc) or 'no chip'}; chips are {', '.join(self.chips)}")
        return self


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
