"""Images in a real engine: looked into, named, saved and loaded; each is the stand-in base with a manifest of its own.

Of the cpu stack's own image, test_image_cpu.py says more; here the manifest is made up, so that one package can differ.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from docker_engine import Engine
from naming import has_line_naming
from typer.testing import CliRunner, Result

from launch.cli import app
from launch.images.lock.packages import locked, machine
from launch.images.manifest import Manifest, Package
from launch.images.targets import target

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LONG = "cpu-py3.11-torch2.13.0-vllm0.28.0-verl0.9.1-g0123456789ab"
DOCKERFILE = """\
ARG BASE
FROM ${BASE}
COPY manifest.json entry /
ENTRYPOINT ["/bin/sh", "/entry"]
"""
ENTRY = '[ "$*" = "manifest --json" ] || exit 2\ngetent hosts example.org >/dev/null && exit 3\ncat /manifest.json\n'

MakeImage = Callable[..., str]


def as_pinned() -> Manifest:
    """What an image of the cpu stack says when all is as its locks have it."""
    cpu = target("cpu")
    found = {one.name: Package(version=one.version) for one in locked(cpu.locks, machine("3.11.2", "x86_64"))}
    return Manifest(
        stack="cpu",
        chip=None,
        built_for=None,
        revision=COMMIT,
        architecture="x86_64",
        system="debian 12",
        python="3.11.2",
        cann=None,
        cuda=None,
        packages=found | {"ascend-quant": Package(version="0.1.0")},
        system_packages={"tini:amd64": "0.19"},
        compiled={},
    )


@pytest.fixture
def client(docker: Engine, monkeypatch) -> Engine:
    """The engine as the commands of this process find it."""
    for name, value in docker.environment.items():
        monkeypatch.setenv(name, value)
    return docker


@pytest.fixture
def make_image(client: Engine, stand_in_base: str, tmp_path: Path):
    """make(name, manifest): an image that says so, with the labels of the cpu stack; gone after the test."""
    folder, names = tmp_path / "context", ["ascend-quant-test"]
    folder.mkdir()

    def make(name: str, manifest: Manifest) -> str:
        (folder / "Dockerfile").write_text(DOCKERFILE)
        (folder / "entry").write_text(ENTRY)
        (folder / "manifest.json").write_text(manifest.as_json())
        labels = {
            "org.opencontainers.image.revision": COMMIT,
            "org.opencontainers.image.version": "0.1.0",
            "org.opencontainers.image.base.name": target("cpu").base,
            "ascend-quant.stack": "cpu",
        }
        told = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
        client.docker("build", "--build-arg", f"BASE={stand_in_base}", "-t", name, *told, folder)
        names.append(name.partition(":")[0])
        return name

    yield make
    for name in set(names):
        made = client.docker("image", "ls", "--quiet", name).stdout.split()
        if made:
            client.tried("image", "rm", "--force", *set(made))


def images(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["images", *arguments])


def identity(client: Engine, name: str) -> str:
    return client.docker("image", "inspect", "--format", "{{.Id}}", name).stdout.strip()


def test_verify_finds_the_one_package_that_differs(make_image: MakeImage, tmp_path: Path):
    good = make_image("ascend-quant-test:good", as_pinned())
    shown = images("verify", good, "--manifest", str(tmp_path / "found.json"))
    assert shown.exit_code == 0, shown.stdout + shown.stderr
    assert (tmp_path / "found.json").read_text() == as_pinned().as_json()
    packages = as_pinned().packages | {"numpy": Package(version="1.0")}
    bad = make_image("ascend-quant-test:bad", as_pinned().model_copy(update={"packages": packages}))
    shown = images("verify", bad, "--json")
    (one,) = json.loads(shown.stdout)["differences"]
    assert shown.exit_code == 1
    assert (one["what"], one["found"]) == ("numpy", "1.0") and one["pinned"].endswith(
        "(cpu.torch.txt and cpu-image.txt)"
    )
    refused = images("tag", bad)
    assert refused.exit_code == 1 and refused.stderr.startswith("numpy: 1.0; pinned: ")


def test_an_image_that_is_saved_removed_and_loaded_is_the_same(client: Engine, make_image: MakeImage, tmp_path: Path):
    image = make_image("ascend-quant-test:build-cpu", as_pinned())
    tagged = images("tag", image, "--repository", "ascend-quant-test")
    lists = [f"ascend-quant-test:{tag}" for tag in (LONG, "cpu-0.1.0", "cpu")]
    assert tagged.stdout.splitlines() == [*lists, *(f"{one}-amd64" for one in lists)]
    before = identity(client, "ascend-quant-test:cpu")
    saved = images("save", "ascend-quant-test:cpu", "--to", str(tmp_path / "to"))
    assert saved.exit_code == 0, saved.stderr
    archive = Path(saved.stdout.strip())
    assert archive.name.startswith(LONG)
    subprocess.run(["sha256sum", "--quiet", "--check", f"{archive.name}.sha256"], cwd=archive.parent, check=True)
    client.docker("image", "rm", image, *tagged.stdout.splitlines())
    gone = images("verify", "ascend-quant-test:cpu")
    assert gone.exit_code == 1 and has_line_naming(gone.stderr, "no such image")
    inventory = tmp_path / "cluster.yaml"
    inventory.write_text(yaml.safe_dump({"stack": "cpu", "hosts": [{"address": "127.0.0.1"}]}))
    loaded = images("load", str(archive), "--cluster", str(inventory))
    assert loaded.exit_code == 0, loaded.stderr
    assert loaded.stdout.startswith("127.0.0.1: ascend-quant-test:") and loaded.stdout.strip().endswith(before)
    for tag in (LONG, "cpu-0.1.0", "cpu"):
        assert identity(client, f"ascend-quant-test:{tag}") == before
    assert images("verify", "ascend-quant-test:cpu").exit_code == 0


def test_an_image_without_a_manifest_says_so(client: Engine, stand_in_base: str):
    shown = images("verify", stand_in_base)
    assert shown.exit_code == 1
    assert shown.stderr.startswith("docker run --rm: ") and len(shown.stderr.splitlines()) == 1


def test_an_engine_that_is_not_there_says_so(monkeypatch, client: Engine):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    shown = images("verify", "x")
    assert shown.exit_code == 1
    assert has_line_naming(shown.stderr, "Docker engine", "DOCKER_HOST")
