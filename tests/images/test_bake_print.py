"""`docker buildx bake --print`: buildx reads every target as tests/bake_file.py does, and gives each its tags."""

import json

import bake_file
import pytest

from launch import ROOT

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def printed(docker, **variables: str) -> dict[str, dict]:
    """The targets of the group `all`."""
    command = ("buildx", "bake", f"--file={bake_file.FILE}", "--print", "all")
    done = docker.docker(*command, cwd=ROOT, env=docker.environment | variables)
    assert "warning" not in done.stderr.lower(), done.stderr
    return json.loads(done.stdout)["target"]


def test_the_bases_of_npus_come_from_the_repository_that_is_named(docker):
    named = {name: target["args"]["BASE"] for name, target in printed(docker, CANN="registry.example/cann").items()}
    own = {name: bake_file.arguments(name)["BASE"].replace("quay.io/ascend/cann:", "registry.example/cann:")
           for name in bake_file.IMAGES}  # fmt: skip
    assert named == own and sum(base.startswith("registry.example/cann:") for base in own.values()) == 4


@pytest.mark.parametrize(
    "variables", [{}, {"VERSION": "9.9", "REVISION": COMMIT, "REPOSITORY": "registry.example/ours"}]
)
def test_every_target_is_read_and_tagged(docker, variables: dict[str, str]):
    targets = printed(docker, **variables)
    assert targets.keys() == bake_file.IMAGES.keys()
    for name, target in targets.items():
        assert target["dockerfile"] == bake_file.dockerfile(name)
        told, version = target["args"], variables.get("VERSION", target["args"]["VERSION"])
        assert told == bake_file.arguments(name) | {
            "VERSION": version,
            "REVISION": variables.get("REVISION", "unknown"),
        }
        tag = f"{variables.get('REPOSITORY', 'ascend-quant')}:{bake_file.IMAGES[name]}"
        of_commit = [f"{tag}-{version}-g{COMMIT}"] if variables else []
        assert target["tags"] == [tag, f"{tag}-{version}", *of_commit]
