"""Building images: `docker buildx bake` with docker/docker-bake.hcl, for one commit of this checkout."""

import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.errors import LaunchError
from launch.images import engine
from launch.images.lock.packages import loose
from launch.images.targets import Target
from launch.images.verify import REPOSITORY, WORKING
from launch.root import ROOT

BAKE = "docker/docker-bake.hcl"
LOGIN = re.compile(r"(?<=://).+(?=@)")
QUERY = re.compile(r"(?<=[?#]).+")
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S+")
REPOSITORY_NAME = re.compile(r"[a-z0-9]+(?:[._/:-]+[a-z0-9]+)*")  # a registry, its port, names in small letters
IMAGE_NAME = re.compile(r"[\w./:@-]+", re.ASCII)
SHOWN_CHANGES = 3
SCANNER = (  # of packages, for the SBOM; for amd64 and arm64, read in a dozen public files
    "docker.io/docker/buildkit-syft-scanner:stable-1"
    "@sha256:ae4f3b554449e7e25548e7d8ccc029d17357348e30c6e3df01b92bc93654d6a9"
)
# mode=max would publish the arguments: addresses of package indexes, with logins, and of proxies.
ATTESTED = ("--provenance=mode=min", f"--sbom=generator={SCANNER}")
NOT_ATTESTED = (
    "no SBOM, no provenance: this engine keeps images in Docker's older store, which has no place for them "
    '("features": {"containerd-snapshotter": true} in /etc/docker/daemon.json changes that)'
)


@dataclass(frozen=True)
class Sources:
    """Where a build gets its packages from, where that is not the usual index.

    Attributes:
        wheels: a folder of files that are taken first.
        index, extra_index: addresses; a login in one is not shown, nor what follows its question mark.
        ca: a certificate authority's file, for a proxy or an index of one's own.
        earlier: an image in a registry; layers that are as in it are not made again, so that they need not be sent.
    """

    wheels: Path | None = None
    index: str | None = None
    extra_index: str | None = None
    ca: Path | None = None
    earlier: str | None = None

    def options(self) -> Iterable[str]:
        """What bake is told of them: the certificate as a secret, which stays in no layer.

        Raises:
            LaunchError: an option names what is not there, or is not what it should be.
        """
        if self.wheels is not None:
            yield f"*.contexts.wheels={there(self.wheels, '--wheels', 'folder')}"
        if self.index is not None:
            yield f"*.args.INDEX_URL={address(self.index, '--index-url')}"
        if self.extra_index is not None:
            yield f"*.args.EXTRA_INDEX_URL={address(self.extra_index, '--extra-index-url')}"
        if self.ca is not None:
            yield f"*.secrets=id=ca,src={there(self.ca, '--ca', 'file')}"
        if self.earlier is not None:
            if not IMAGE_NAME.fullmatch(self.earlier):
                raise LaunchError(f"--earlier {self.earlier!r}: is no name of an image")
            yield f"*.cache-from=type=registry,ref={self.earlier}"


def there(path: Path, option: str, kind: str) -> Path:
    """The absolute path of a file or folder.

    Raises:
        LaunchError: there is none, or its name has what Docker's options take for more than a name.
    """
    if not (path.is_dir() if kind == "folder" else path.is_file()):
        raise LaunchError(f"{option} {path}: there is no such {kind}")
    if set(str(path.absolute())) & set(',"\n'):
        raise LaunchError(f"{option} {path}: Docker takes no comma and no quotation mark in it: move it elsewhere")
    return path.absolute()


def address(url: str, option: str) -> str:
    """A package index's address.

    Raises:
        LaunchError: it is none.
    """
    if not ADDRESS.fullmatch(url):
        raise LaunchError(f"{option} {without_login(url)!r}: is no address, such as https://index.example/simple")
    return url


def must_be_repository(name: str) -> None:
    """Whether tags may stand behind it.

    Raises:
        LaunchError: Docker would not take it.
    """
    if not REPOSITORY_NAME.fullmatch(name):
        raise LaunchError(f"--repository {name!r}: Docker takes small letters, digits, and . _ - / : between them")


def working_name(target: Target) -> str:
    """What an image is called until its contents are known."""
    return f"{REPOSITORY}:{WORKING.format(target=target.name)}"


def command(targets: Sequence[Target], sources: Sources, revision: str, version: str) -> list[str]:
    """The command that builds the targets and leaves each in the engine, under its working name."""
    told = [
        f"*.args.REVISION={revision}",
        f"*.args.VERSION={version}",
        "*.cache-to=type=inline",  # a later build can be told that this one is the earlier
        *(f"{target.bake}.tags={working_name(target)}" for target in targets),
        *sources.options(),
    ]
    names = [target.bake for target in targets]
    return [
        "docker",
        "buildx",
        "bake",
        "--file",
        BAKE,
        "--load",
        *(word for one in told for word in ("--set", one)),
        *names,
    ]


def without_login(word: str) -> str:
    """A word in which an address shows no user, no password, and nothing behind its question mark."""
    return QUERY.sub("***", LOGIN.sub("***", word)) if "://" in word else word


def must_be_pinned(targets: Iterable[Target]) -> None:
    """Whether every base has its digest and every package its hash, for this machine's processor.

    Raises:
        LaunchError: a line for each target that cannot be built.
    """
    lines = []
    for one in targets:
        if found := loose(one, [platform.machine()]):
            where = f"on a machine that reaches registry and index run python -m launch images lock {one.stack}"
            lines.append(f"{one.name} is not pinned: {' and '.join(found)}: {where}")
    if lines:
        raise LaunchError("\n".join(lines))


def build(command: Sequence[str]) -> None:
    """Run the command, which shows its own progress.

    Raises:
        LaunchError: it failed, or there is no buildx.
    """
    engine.docker("buildx", "version")
    done = subprocess.run([engine.client(), *command[1:]], cwd=ROOT)
    if done.returncode:
        raise LaunchError(f"docker buildx bake ended with {done.returncode}: the reason stands above")


def revision(dirty: bool, root: Path = ROOT) -> str:
    """The commit of the checkout; with -dirty behind it where files differ from it.

    Raises:
        LaunchError: this is no checkout, or files differ from its commit and `dirty` does not allow that.
    """
    commit = git(root, "rev-parse", "HEAD").strip()
    changed = [line[3:] for line in git(root, "status", "--porcelain").splitlines()]
    if not changed:
        return commit
    if not dirty:
        more = f" and {len(changed) - SHOWN_CHANGES} more" if len(changed) > SHOWN_CHANGES else ""
        raise LaunchError(
            f"not as in commit {commit[:12]}: {', '.join(changed[:SHOWN_CHANGES])}{more}: commit, or add --dirty, "
            "and the image says so"
        )
    return f"{commit}-dirty"


def git(root: Path, *arguments: str) -> str:
    """What git prints.

    Raises:
        LaunchError: it failed, or is not there.
    """
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise LaunchError("git is not on PATH: an image is told the commit that it is built from") from error
    if done.returncode:
        raise LaunchError(f"git {arguments[0]} in {root}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def project_version(root: Path = ROOT) -> str:
    """This project's version, from pyproject.toml."""
    found = re.search(r'(?m)^version = "(.+)"$', (root / "pyproject.toml").read_text())
    if found is None:
        raise LaunchError(f'{root}/pyproject.toml has no line `version = ".."`')
    return found[1]
