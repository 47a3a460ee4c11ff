"""Archives of images: what is written, checked and sent, with a `docker` that only remembers."""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from images_cases import calls, fake_docker, inspected, manifest, small_target
from naming import has_line_naming, line_naming

from launch.errors import LaunchError
from launch.images import archive
from launch.images.archive import Loaded, Place, compared, load, places
from launch.images.engine import parse
from launch.inventory.fields import Inventory


def quiet(what: str, done: int, total: int) -> None:
    assert done >= 0 and what


@pytest.fixture
def docker(tmp_path: Path, monkeypatch) -> Path:
    """A fake docker that has one image, which is as pinned."""
    small = small_target(tmp_path, monkeypatch)
    monkeypatch.setattr("launch.images.verify.target_of", lambda stack, chip: small)
    return fake_docker(tmp_path / "docker", monkeypatch)


def without_zstd(monkeypatch) -> None:
    which = shutil.which
    monkeypatch.setattr("shutil.which", lambda name, **more: None if name == "zstd" else which(name, **more))


def test_an_archive_its_sum_and_its_manifest(docker: Path, tmp_path: Path, monkeypatch):
    without_zstd(monkeypatch)
    made, verified = archive.save("cpu", tmp_path / "to", quiet)
    assert made == tmp_path / "to" / f"{verified.tags[0]}-arm64.tar.gz"
    assert gzip.decompress(made.read_bytes()) == (docker / "image.tar").read_bytes()
    said = subprocess.run(["sha256sum", "--check", f"{made.name}.sha256"], cwd=made.parent, capture_output=True)
    assert said.returncode == 0
    assert (made.parent / f"{verified.tags[0]}-arm64.manifest.json").read_text() == manifest().as_json()
    assert calls(docker)[-1] == "save ascend-quant:cpu ascend-quant:long", "all its names but the working one"
    assert "run --rm --network none ascend-quant:cpu manifest --json" in calls(docker)
    assert len(list(made.parent.iterdir())) == 3, "no half-written file"
    archive.check(made, quiet)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs zstd: apt-get install zstd")
def test_zstd_is_taken_where_it_is(docker: Path, tmp_path: Path):
    made, _ = archive.save("registry.example/of/others:1", tmp_path / "to", quiet)
    assert made.name == "registry.example-of-others-1.tar.zst"
    plain = subprocess.run(["zstd", "-dc", made], capture_output=True, check=True).stdout
    assert plain == (docker / "image.tar").read_bytes()


@pytest.mark.parametrize("zstd", [False, True])
def test_a_save_that_fails_leaves_nothing(docker: Path, tmp_path: Path, monkeypatch, zstd: bool):
    if not zstd:
        without_zstd(monkeypatch)
    elif shutil.which("zstd") is None:
        pytest.skip("needs zstd: apt-get install zstd")
    program = docker / "docker"
    program.write_text(
        program.read_text().replace('"save "*)', '"save "*) echo "no space left on device" >&2; exit 1;;\n"x "*)')
    )
    with pytest.raises(LaunchError, match=line_naming("docker save:", "disk")):
        archive.save("cpu", tmp_path / "to", quiet)
    assert list((tmp_path / "to").iterdir()) == []


def test_damage_is_seen_before_anything_is_loaded(docker: Path, tmp_path: Path, monkeypatch):
    made, _ = archive.save("cpu", tmp_path / "to", quiet)
    content = bytearray(made.read_bytes())
    content[len(content) // 2] ^= 1
    made.write_bytes(content)
    with pytest.raises(LaunchError, match=line_naming(made, "damaged", hashlib.sha256(content).hexdigest())):
        archive.check(made, quiet)
    made.with_name(f"{made.name}.sha256").unlink()
    with pytest.raises(LaunchError, match=line_naming(f"{made}.sha256", "./run.sh images save")):
        archive.check(made, quiet)
    for content in (b"", b" \n", b"\xff\xfe", b"abc  x", b"g" * 64, b"a" * 65):
        made.with_name(f"{made.name}.sha256").write_bytes(content)
        with pytest.raises(LaunchError, match=line_naming(f"{made}.sha256")):
            archive.check(made, quiet)
    made.with_name(f"{made.name}.sha256").write_text(hashlib.sha256(made.read_bytes()).hexdigest().upper())
    archive.check(made, quiet)
    with pytest.raises(LaunchError, match=line_naming(tmp_path / "none.tar.zst")):
        archive.check(tmp_path / "none.tar.zst", quiet)


def hosts(tmp_path: Path, monkeypatch, **scripts: str) -> list[Place]:
    """Machines, each with a fake docker of its own; `scripts` replace some of what one does."""
    made = []
    for name in ("one", "two", "three"):
        folder = fake_docker(tmp_path / name, monkeypatch)
        if name in scripts:
            program = folder / "docker"
            program.write_text(program.read_text().replace('case "$1 $2" in', f'case "$1 $2" in\n{scripts[name]}'))
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        made.append(Place(name, lambda line, path=path: ["env", f"PATH={path}", "bash", "-c", line]))
    return made


def some_archive(tmp_path: Path) -> Path:
    file = tmp_path / "some.tar.zst"
    file.write_bytes(os.urandom(3 << 20))
    return file


def test_every_host_gets_every_byte(tmp_path: Path, monkeypatch):
    heard = {}
    file = some_archive(tmp_path)
    loaded = load(file, hosts(tmp_path, monkeypatch), lambda host, done, total: heard.update({host: (done, total)}))
    for name in ("one", "two", "three"):
        assert (tmp_path / name / "received").read_bytes() == file.read_bytes()
        assert calls(tmp_path / name) == ["load --quiet", "image inspect ascend-quant:cpu"]
        assert heard[name] == (3 << 20, 3 << 20)
    assert [(one.place, one.name, one.image.id) for one in loaded] == [
        (name, "ascend-quant:cpu", "sha256:77") for name in ("one", "two", "three")
    ]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('"load "*) echo "Error processing tar file: no space left on device" >&2; exit 1;;', "two: … disk"),
        ('"load "*) echo "Cannot connect to the Docker daemon at unix:///" >&2; exit 1;;', "two: no Docker engine"),
        ('"load "*) echo "bash: line 1: docker: command not found" >&2; exit 127;;', "two: Docker is not installed"),
        (
            '"load "*) echo "ssh: connect to host two port 22: Connection refused" >&2; exit 255;;',
            "two: ssh is refused",
        ),
        ('"load "*) exit 3;;', "two: … no reason"),
        ('"load "*) cat >/dev/null; echo nothing;;', "two: … no image: 'nothing'"),
        ('"image inspect") echo "Error: No such image: x" >&2; exit 1;;', "two: … no such image"),
    ],
)
def test_a_host_that_fails_is_one_line_and_the_others_have_it(tmp_path: Path, monkeypatch, script: str, said: str):
    with pytest.raises(LaunchError) as error:
        load(some_archive(tmp_path), hosts(tmp_path, monkeypatch, two=script), quiet)
    assert has_line_naming(str(error.value), said) and len(str(error.value).splitlines()) == 1
    assert "image inspect ascend-quant:cpu" in calls(tmp_path / "three")


def test_a_host_that_has_another_image_afterwards(tmp_path: Path, monkeypatch):
    where = hosts(tmp_path, monkeypatch)
    (tmp_path / "three" / "inspect.json").write_text(inspected(("sha256:1", "sha256:2"), Id="sha256:78"))
    (tmp_path / "two" / "inspect.json").write_text(inspected(Id="sha256:79"))  # the same layers, counted otherwise
    with pytest.raises(LaunchError, match=r"^three: ascend-quant:cpu .*sha256:78$"):
        load(some_archive(tmp_path), where, quiet)


def test_hosts_without_an_image_keep_their_reason():
    failed = [Loaded("one", problem="gone"), Loaded("two", problem="gone")]
    assert compared(failed) == failed
    images = [parse(json.loads(inspected((layer,)))[0]) for layer in ("sha256:1", "sha256:1", "sha256:2")]
    held = [Loaded(name, "x:1", image) for name, image in zip(("three", "four", "five"), images, strict=True)]
    told = compared([*failed, *held])
    *others, last = [one.problem for one in told]
    assert others == ["gone", "gone", None, None] and has_line_naming(last, "x:1", "sha256:77")


def test_hosts_are_those_of_the_inventory():
    inventory = Inventory.model_validate(
        {"stack": "cpu", "hosts": [{"address": "192.0.2.1", "ssh": {"user": "me"}}, {"address": "192.0.2.2"}]}
    )
    first, second = places(inventory)
    assert (first.name, second.name) == ("192.0.2.1", "192.0.2.2")
    command = first.run("docker load")
    assert command[0] == "ssh" and command[-3:] == ["--", "192.0.2.1", "docker load"]
    assert command[command.index("-l") + 1] == "me" and "-l" not in second.run("docker load")
