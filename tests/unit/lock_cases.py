"""A tree with a stacks.yaml, locks and READMEs of its own, and stand-ins for uv, docker and git servers."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

HASHES = [f"sha256:{digit * 64}" for digit in "abcdef"]
PAGE = "<!-- stacks: written by python -m launch.images.table -->\n<!-- end of stacks -->\n"
# Writes what the test laid down for this .in file and machine, or fails as uv does.
UV = """\
#!/bin/sh
for word in "$@"; do case $word in
*.in) name=$(basename "$word") ;;
--output-file=*) out=${word#*=} ;;
--python-platform=*) machine=${word#*=} ;;
esac; done
echo "$@" >>"$FAKE/asked"
cat "$FAKE/$name.${machine%%-*}" >"$out" 2>/dev/null && exit 0
echo "No solution found when resolving dependencies" >&2
exit 1
"""
DOCKER = """\
#!/bin/sh
for word in "$@"; do case $word in *:*) [ -f "$FAKE/digest" ] && cat "$FAKE/digest" && exit 0; break ;; esac; done
echo "ERROR: no such host" >&2
exit 1
"""
STACKS = """\
# A comment that stays.
cpu:
  devices: none
  python: "3.11"
  bases:
    any: registry/base:1  # how it is known
  packages: {{}}
  sources:
    part:
      repository: https://github.com/owner/part
      commit: {commit}
      branch: main
    chosen:
      repository: https://github.com/owner/part
      commit: {chosen}
"""


def entry(package: str, *hashes: str) -> str:
    """Of a lock, as uv writes it."""
    return " \\\n".join([package, *(f"    --hash={one}" for one in hashes or HASHES[:1])]) + "\n"


@dataclass
class Tree:
    """The folder `fake` answers for uv and docker; `origin` is the git repository that github.com stands for."""

    root: Path
    fake: Path
    origin: Path

    @property
    def stacks(self) -> Path:
        return self.root / "stacks.yaml"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    def answers(self, name: str, machine: str, *entries: str) -> None:
        """What uv resolves NAME.in to."""
        (self.fake / f"{name}.in.{machine}").write_text("".join(entries))

    def files(self) -> dict[str, bytes]:
        """All that may be written."""
        return {str(file): file.read_bytes() for file in self.root.rglob("*") if file.is_file()}

    def digest(self, digest: str) -> None:
        """What the registry says."""
        (self.fake / "digest").write_text(json.dumps({"schemaVersion": 2, "digest": digest}))

    def git(self, *arguments: str) -> str:
        """git, in the origin."""
        known = ["-c", "user.name=n", "-c", "user.email=e", "-c", "init.defaultBranch=main"]
        return subprocess.run(
            ["git", "-C", self.origin, *known, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """The tree, in the place of ours."""
    from launch import stacks
    from launch.images import bake, table
    from launch.images.lock import packages, refresh

    tree = Tree(tmp_path / "tree", tmp_path / "fake", tmp_path / "owner" / "part")
    for folder in (tree.locks, tree.fake, tree.origin):
        folder.mkdir(parents=True)
    for name, script in (("uv", UV), ("docker", DOCKER)):
        (tree.fake / name).write_text(script)
        (tree.fake / name).chmod(0o755)
    tree.git("init")
    tree.git("commit", "--allow-empty", "-m", "first")
    tree.stacks.write_text(STACKS.format(commit=tree.git("rev-parse", "HEAD"), chosen="c" * 40))
    (tree.locks / "cpu.in").write_text("# python: 3.11\n# torch: 2.13.0+cpu\nnumpy\n")
    (tree.locks / "excludes.txt").write_text("torch\n")
    for file in ("README.md", "docker-bake.hcl"):
        (tree.root / file).write_text(PAGE)
    monkeypatch.setattr(stacks, "FILE", tree.stacks)
    monkeypatch.setattr(packages, "LOCKS", tree.locks)
    monkeypatch.setattr(refresh, "LOCKS", tree.locks)
    monkeypatch.setattr(refresh, "install_uv", lambda folder: tree.fake / "uv")
    monkeypatch.setattr(bake, "FILE", tree.root / "docker-bake.hcl")
    monkeypatch.setattr(table, "FILES", (tree.root / "README.md",))
    monkeypatch.setenv("FAKE", str(tree.fake))
    monkeypatch.setenv("PATH", f"{tree.fake}:{os.environ['PATH']}")
    for name, value in {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{tmp_path}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
    }.items():
        monkeypatch.setenv(name, value)
    return tree
