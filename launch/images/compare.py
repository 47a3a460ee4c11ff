"""What in an image is not as docker/stacks.yaml, its locks and its own labels say."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.version import Version

from launch.images.lock.packages import locked, machine
from launch.images.manifest import Manifest
from launch.images.targets import Target
from launch.software import plain, product, public

OURS = "ascend-quant"  # the one package that no lock lists
REVISION = re.compile(r"[0-9a-f]{40}(-dirty)?")
OCI = "org.opencontainers.image"
BUILD_AGAIN = "build the image again from this checkout: ./run.sh images build {target}"


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it should be.

    Attributes:
        what: a package, or a fact of the image.
        found, pinned: the values; None: it is not there, or nothing pins it.
        todo: what to do.
    """

    what: str
    found: str | None
    pinned: str | None
    todo: str

    def line(self) -> str:
        """For people."""
        return f"{self.what}: {self.found or 'is missing'}; pinned: {self.pinned or 'nothing'}: {self.todo}"


def differences(manifest: Manifest, target: Target, labels: Mapping[str, str]) -> list[Difference]:
    """All of them; none where the image is as pinned."""
    again = BUILD_AGAIN.format(target=target.name)
    return [
        *of_platform(manifest, target, again),
        *of_sources(manifest, target, again),
        *of_locks(manifest, target, again),
        *of_labels(manifest, target, labels, again),
    ]


def of_platform(manifest: Manifest, target: Target, again: str) -> Iterator[Difference]:
    """Python, CANN, CUDA, the chip."""
    pins = target.pins
    if not manifest.python.startswith(f"{pins.python}."):
        yield Difference("Python", manifest.python, pins.python, again)
    if manifest.cann != pins.cann:
        yield Difference("CANN", manifest.cann, pins.cann, f"is it the right base? {again}")
    if (manifest.cuda or "").split(".")[0] != (pins.cuda or "").split(".")[0]:
        yield Difference("CUDA of torch", manifest.cuda, pins.cuda, f"is it the right build of torch? {again}")
    if target.chip and product(manifest.built_for or "") != target.chip:
        todo = f"SOC_VERSION was wrong when vllm-ascend was built: {again}"
        yield Difference("kernels of vllm-ascend", manifest.built_for, target.chip, todo)


def of_sources(manifest: Manifest, target: Target, again: str) -> Iterator[Difference]:
    """What is built from commits."""
    for name, source in target.pins.sources.items():
        package = manifest.packages.get(plain(name))
        version = target.pins.packages.get(name)
        if package is None:
            yield Difference(name, None, source.commit, again)
        elif package.commit is None:
            todo = "install it so that its metadata tells the commit (PEP 610)"
            yield Difference(name, f"{package.version}, of an unknown commit", source.commit, todo)
        elif not source.commit.startswith(package.commit):
            yield Difference(name, package.commit, source.commit, again)
        elif version and public(package.version) != version:
            yield Difference(name, package.version, version, again)


def of_locks(manifest: Manifest, target: Target, again: str) -> Iterator[Difference]:
    """Every package beside the locks, and beside stacks.yaml: nothing else, nothing more, nothing less."""
    if not target.locks:
        yield Difference(
            "packages", f"{len(manifest.packages)} of them", None, f"lock them: images lock {target.stack}"
        )
        return
    files = " and ".join(file.name for file in target.lists)
    wanted = {one.name: one.version for one in locked(target.lists, machine(manifest.python, manifest.architecture))}
    built = {plain(name) for name in target.pins.sources}
    for name, version in wanted.items():
        found = manifest.version(name)
        if found is None or Version(found) != Version(version):
            yield Difference(name, found, f"{version} ({files})", again)
    for name in sorted(manifest.packages.keys() - wanted.keys() - built - {OURS}):
        yield Difference(name, manifest.packages[name].version, None, f"not in {files}: {again}")
    for name, version in target.pins.packages.items():
        if plain(name) not in wanted.keys() | built:
            yield Difference(
                name, manifest.version(plain(name)), version, f"not in {files}: images lock {target.stack}"
            )


def of_labels(manifest: Manifest, target: Target, labels: Mapping[str, str], again: str) -> Iterator[Difference]:
    """What the outside of the image says of its inside."""
    inside = {
        f"{OCI}.revision": manifest.revision,
        f"{OCI}.version": manifest.version(OURS),
        "ascend-quant.stack": manifest.stack,
        "ascend-quant.chip": manifest.chip,
    }
    for label, wanted in inside.items():
        if (found := labels.get(label) or None) != wanted:
            yield Difference(f"label {label}", found, wanted, again)
    name, digest = (labels.get(f"{OCI}.base.{kind}") for kind in ("name", "digest"))
    base = f"{name}@{digest}" if name and digest and "@" not in name else name
    if base != target.base:
        yield Difference("label of the base", base, target.base, again)
    if not REVISION.fullmatch(manifest.revision):
        yield Difference("revision", manifest.revision, "a commit of 40 digits", again)
