"""A refresh of one stack: all that it pins is asked for again. What nobody answers keeps its pin, and is said.

Registries say the digest of an image's tag, git servers a branch's commit; archives are fetched, hashed and unpacked by
the very step that image builds use. Whom it asks is told before: those, and package indexes as uv's variables name
them. A value of docker/stacks.yaml is changed in its place: comments and layout stay.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from launch import stacks
from launch.errors import LaunchError
from launch.images import bake, table
from launch.images.build import without_login
from launch.images.lock.packages import LOCKS, MACHINES, Lock, install_uv, names, parse, run, unlocked
from launch.root import ROOT
from launch.stacks import File, Pins

# uv's variables (an older name second), and what it does without.
INDEXES = {
    "package index": (("UV_DEFAULT_INDEX", "UV_INDEX_URL"), "uv's own"),
    "further package indexes": (("UV_INDEX", "UV_EXTRA_INDEX_URL"), "none"),
    "folders or pages of packages": (("UV_FIND_LINKS",), "none"),
}
DIGEST = re.compile("sha256:[0-9a-f]{64}")
STEP = ROOT / "docker" / "steps" / "archive.py"


@dataclass(frozen=True)
class Change:
    """A pin that is, or would be, another: where it stands, what it is of, and both; None where there is none."""

    file: str
    what: str
    old: str | None
    new: str | None


@dataclass
class Refresh:
    """What came of it.

    Attributes:
        files: new texts, by their path.
        changes: what they say otherwise.
        failures: what was not reached, with the reason.
    """

    files: dict[Path, str] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def write(self) -> None:
        """Write the new texts, and what is generated from them."""
        for file, text in self.files.items():
            file.write_text(text)
        bake.FILE.write_text(bake.text())
        table.write()


def refresh(stack: str, upgrade: bool) -> Refresh:
    """Ask for everything that a stack pins; or for one lock of the developers', by its name.

    Raises:
        LaunchError: there is no such stack or lock; uv could not be installed.
    """
    found = Refresh()
    locks = names(stack)
    if stack in stacks.all_pins():
        _ask_others(stack, found)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(LOCKS, Path(folder) / "locks"))  # one lock is made from another
        texts = _ask_index([Lock(name, copy) for name in locks], install_uv(Path(folder)), upgrade, found)
        for name, text in texts.items():
            before = (LOCKS / name).read_text() if (LOCKS / name).exists() else ""
            if text != before:
                found.files[LOCKS / name] = text
                found.changes += _between(name, before, text)
        if stack in stacks.all_pins():
            _refuse_half(stack, [copy / f"{name}.txt" for name in (*locks, f"{stack}.sdists")], found)
    return found


def _ask_others(stack: str, found: Refresh) -> None:
    file = stacks.FILE
    text = before = file.read_text()
    for question in questions(stacks.pins(stack)):
        what = " ".join((stack, *question.place))
        try:
            new = question.ask()
        except LaunchError as error:
            found.failures.append((f"{what} keeps its pin", str(error)))
            continue
        if new != question.now:
            text = put(text, (stack, *question.place), new)
            found.changes.append(Change(file.name, what, question.now, new))
    if text != before:
        found.files[file] = text


def _ask_index(locks: list[Lock], uv: Path, upgrade: bool, found: Refresh) -> dict[str, str]:
    """What the locks should say, by their names, written where they are; nothing where one of them fails.

    They belong together: torch is in one of a stack's, what it asks for in another.
    """
    texts: dict[str, str] = {}
    failures = []
    for lock in locks:
        try:
            texts[lock.file.name] = lock.resolved(uv, upgrade)
        except LaunchError as error:
            failures.append((f"{lock.file.name} keeps its pins", str(error)))
            continue
        lock.file.write_text(texts[lock.file.name])
    if failures and texts:
        failures.append((f"{' and '.join(texts)} keep theirs with it", "the locks of a stack are written together"))
    found.failures += failures
    return {} if failures else texts


def _refuse_half(stack: str, files: list[Path], found: Refresh) -> None:
    """Say which packages of stacks.yaml are in no lock: nothing is built from half of one."""
    pins = stacks.pins(stack)
    for machine in MACHINES:
        for package in unlocked(pins, [file for file in files if file.exists()], machine):
            found.failures.append(
                (f"{stack} for {machine}", f"{package} of stacks.yaml is in no lock: nothing is built")
            )


def _between(file: str, before: str, after: str) -> Iterator[Change]:
    """By package: another version, or the same with other files."""
    old, new = (_by_package(text) for text in (before, after))
    for name in sorted({*old, *new}):
        if old.get(name) == new.get(name):
            continue
        (was, _), (now, _) = old.get(name, (None, None)), new.get(name, (None, None))
        yield Change(file, name, was, now if was != now else f"{now}, other files")


def _by_package(text: str) -> dict[str, tuple[str, list[str]]]:
    found: dict[str, tuple[str, list[str]]] = {}
    for entry in parse(text):
        version, files = found.get(entry.name, ("", []))
        where = f" ({entry.marker})" if entry.marker else ""
        found[entry.name] = (f"{version}, {entry.version}{where}".lstrip(", "), [*files, *entry.hashes])
    return found


def asked(stack: str) -> Iterator[str]:
    """A line for each, without logins."""
    for what, (variables, default) in INDEXES.items():
        given = [os.environ[name] for name in variables if os.environ.get(name)]
        yield f"{what}: {without_login(given[0])}" if given else f"{what}: {default} ({variables[0]} names others)"
    if stack in stacks.all_pins():
        yield from (question.whom for question in questions(stacks.pins(stack)))


def put(text: str, place: Iterable[str], value: str) -> str:
    """The text with another plain value at a place, which is a list of keys.

    Raises:
        KeyError: there is no such place.
    """
    import yaml

    node = yaml.compose(text)
    for key in place:
        below = {name.value: one for name, one in node.value} if isinstance(node, yaml.MappingNode) else {}
        node = below[key]
    return text[: node.start_mark.index] + value + text[node.end_mark.index :]


@dataclass(frozen=True)
class Question:
    """A pin of stacks.yaml that somebody else knows.

    Attributes:
        whom: who is asked, for people.
        place: its keys, below the stack.
        now: what it says.
        ask: what it should say; raises LaunchError with the reason where nobody answers.
    """

    whom: str
    place: tuple[str, ...]
    now: str
    ask: Callable[[], str]


def questions(pins: Pins) -> Iterator[Question]:
    """Every base, archive, and source whose commit was read from a tag or branch; one that was chosen stays."""
    for chip, image in pins.bases.items():
        tag = image.partition("@")[0]
        yield Question(f"registry: {tag}", ("bases", chip), image, partial(pinned, tag))
    for name, source in pins.sources.items():
        where = ("sources", name)
        if source.ref:
            ask = partial(commit, source.repository, source.ref)
            yield Question(f"git: {source.repository} {source.ref}", (*where, "commit"), source.commit, ask)
        for place, file in source.files.items():
            ask = partial(same, file)
            yield Question(f"archive: {file.address}", (*where, "files", place, "sha256"), file.sha256, ask)


def pinned(image: str) -> str:
    """An image with its digest, which stands for all its platforms.

    Raises:
        LaunchError: the registry was not reached, or has no such image.
    """
    said = run("docker", "buildx", "imagetools", "inspect", image, "--format", "{{json .Manifest}}")
    digest = json.loads(said).get("digest", "")
    if not DIGEST.fullmatch(digest):
        raise LaunchError(f"docker buildx imagetools inspect {image} names no digest: {said.strip()[:200]}")
    return f"{image}@{digest}"


def commit(repository: str, ref: str) -> str:
    """The commit that a tag or branch stands for; of an annotated tag, the one that it points at.

    Raises:
        LaunchError: the server was not reached, or has no such tag or branch.
    """
    said = run("git", "ls-remote", repository, ref, f"{ref}^{{}}")
    found = {name: commit for commit, name in (line.split("\t") for line in said.splitlines())}
    if ref not in found:
        raise LaunchError(f"{repository} has no {ref}")
    return found.get(f"{ref}^{{}}", found[ref])


def same(file: File) -> str:
    """The hash of an archive, which is that of its pin: an address whose file changed is an error, not a new pin.

    Raises:
        LaunchError: it was not reached, is another file, or cannot be unpacked.
    """
    with tempfile.TemporaryDirectory() as folder:
        fetch(file, Path(folder))
    return file.sha256


def fetch(file: File, folder: Path) -> None:
    """Unpack an archive into a folder.

    Raises:
        LaunchError: it was not reached, is another file than the pinned one, or no archive.
    """
    command = [sys.executable, str(STEP), file.address, file.sha256, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise LaunchError(done.stderr.strip())
