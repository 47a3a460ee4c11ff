"""`docker run` of an image for NPUs on this host: as the launcher starts containers on the hosts of a cluster."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from launch.errors import LaunchError
from launch.images import engine
from launch.images.targets import Target, targets
from launch.images.verify import REPOSITORY
from launch.inventory import Inventory, this_machine
from launch.nodes.facts import npus
from launch.plan.start import docker_run

CACHE = "/tmp/cache"  # XDG_CACHE_HOME of our images: what torch, Triton and vLLM compile
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Wanted:
    """What is chosen by hand.

    Attributes:
        image: its name; None for the target's own.
        devices: numbers of NPUs with commas between them; None for all of the host.
        user: as docker has it, uid or uid:gid; None for the image's, which is root.
        cache: a folder of the host that keeps what is compiled.
        mounts: /on/the/host:/in/the/container[:ro].
        shm: GiB of /dev/shm at most.
    """

    image: str | None = None
    devices: str | None = None
    user: str | None = None
    cache: Path | None = None
    mounts: Sequence[str] = ()
    shm: int = 64


def target_for(chip: str, stack: str | None) -> Target:
    """The target of a chip: of a stack, else of the newest that serves it.

    Raises:
        LaunchError: there is none.
    """
    served = [one for one in targets().values() if one.chip == chip and stack in (None, one.stack)]
    if not served:
        chips = sorted({one.chip for one in targets().values() if one.chip})
        stacks = [one.stack for one in targets().values() if one.chip == chips[0]]
        raise LaunchError(
            f"no image for chip {chip!r}{f' of stack {stack!r}' if stack else ''}; chips: {', '.join(chips)}; "
            f"stacks: {', '.join(stacks)}"
        )
    return served[-1]


def line(target: Target, words: Sequence[str], wanted: Wanted) -> str:
    """The shell line that starts a container on a host with NPUs.

    Raises:
        LaunchError: an option is not written as it should be, or a folder is not there.
    """
    options = []
    if wanted.devices is not None:
        if not re.fullmatch(r"\d+(,\d+)*", wanted.devices):
            raise LaunchError(f"--devices {wanted.devices!r}: numbers with commas between them are wanted, as 0,1")
        numbers = [int(number) for number in wanted.devices.split(",")]
        if len(set(numbers)) < len(numbers):
            raise LaunchError(f"--devices {wanted.devices!r}: a device is named twice: name each once")
        options += ["-e", f"{VISIBLE}={wanted.devices}"]
    if wanted.user is not None:
        if not re.fullmatch(r"\d+(:\d+)?", wanted.user):
            raise LaunchError(f"--user {wanted.user!r}: uid or uid:gid is wanted, as 1000:1000")
        options += ["--user", wanted.user]
    return docker_run(_inventory(target, wanted), options, words, wanted.shm)


def start(command: str) -> int:
    """Carry the line out; its exit code.

    Raises:
        LaunchError: this host has no NPU, or no docker.
    """
    engine.client()
    if not npus(Path("/dev")):
        raise LaunchError("no NPU (/dev/davinci*) on this host: run the printed line where there is one")
    return subprocess.run(["bash", "-c", f"exec {command}"]).returncode


def _inventory(target: Target, wanted: Wanted) -> Inventory:
    """This machine, with the image and its mounts."""
    mounts = list(wanted.mounts)
    if wanted.cache is not None:
        if not wanted.cache.is_dir():
            raise LaunchError(f"--cache {wanted.cache}: there is no such folder")
        mounts.append(f"{wanted.cache.absolute()}:{CACHE}")
    here = this_machine(target.stack).model_dump(exclude_unset=True)
    here |= {"image": wanted.image or f"{REPOSITORY}:{target.name}", "mounts": mounts, "project": None, "python": None}
    try:
        return Inventory.model_validate(here)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise LaunchError(f"--image or --mount: {problems}") from error
