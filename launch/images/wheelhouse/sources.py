"""What a stack builds from commits: each as a checkout of that one commit, in an archive."""

import subprocess
import tarfile
import tempfile
from pathlib import Path

from launch.errors import LaunchError
from launch.images.build import git
from launch.images.fetched import fetch
from launch.images.wheelhouse.download import Missing
from launch.stacks import Source


def pack(name: str, source: Source, folder: Path) -> Missing | None:
    """Write NAME.tar.gz: the commit, its submodules, what its build would fetch; why that could not be, or None."""
    with tempfile.TemporaryDirectory() as scratch:
        checkout = Path(scratch) / name
        checkout.mkdir()
        try:
            git(checkout, "init", "--quiet")
            git(checkout, "fetch", "--quiet", "--depth", "1", source.repository, source.commit)
            git(checkout, "checkout", "--quiet", source.commit)
            git(checkout, "submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1")
        except LaunchError as error:
            return Missing(f"{name} at {source.repository}, commit {source.commit}", str(error))
        for place, file in source.files.items():
            try:
                fetch(file, checkout / place)
            except LaunchError as error:
                return Missing(f"{file.address}, for {name}", str(error))
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(checkout, name)
    return None


def export(root: Path, folder: Path) -> None:
    """This project's files as its commit has them, into a folder.

    Raises:
        LaunchError: this is no checkout.
    """
    git(root, "rev-parse", "HEAD")
    with (
        subprocess.Popen(["git", "-C", str(root), "archive", "HEAD"], stdout=subprocess.PIPE) as child,
        tarfile.open(fileobj=child.stdout, mode="r|") as archive,
    ):
        archive.extractall(folder, filter="data")
    if child.returncode:
        raise LaunchError(f"git archive in {root} ended with {child.returncode}")
