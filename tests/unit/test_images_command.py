"""`run.sh images`: what is refused, and what Docker is told; the `docker` here only remembers."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from images_cases import BASE, COMMIT, calls, fake_docker, inspected, manifest, small_target, with_package
from naming import has_line_naming, line_naming
from typer.testing import CliRunner

from launch.cli import app
from launch.errors import LaunchError
from launch.images import build, engine

ROOT = Path(__file__).parents[2]
LONG = "cann8.5.0-a2-py3.10-torch2.7.1-vllm-ascend0.10.1rc1.g89abcde-g0123456789ab"
TAGS = [LONG, "small-a2-0.1.0", "small-a2"]
OF_ARM = [f"{tag}-arm64" for tag in TAGS]  # the processor that the manifest names


def run(*arguments: str):
    return CliRunner().invoke(app, ["images", *arguments])


@pytest.fixture
def docker(tmp_path: Path, monkeypatch) -> Path:
    """A fake docker that has one image of the stack `small`, which is as pinned."""
    small = small_target(tmp_path, monkeypatch)
    monkeypatch.setattr("launch.images.targets.targets", lambda: {small.name: small})
    return fake_docker(tmp_path / "docker", monkeypatch)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "file").write_text("1")
    for line in ("init -q", "add .", "-c user.name=me -c user.email=me@example.invalid commit -qm one"):
        subprocess.run(["git", "-C", folder, *line.split()], check=True)
    return folder


def answering(docker: Path, words: str, script: str) -> None:
    """The fake docker runs this where its first two arguments are these words."""
    program = docker / "docker"
    program.write_text(program.read_text().replace('case "$1 $2" in', f'case "$1 $2" in\n"{words}") {script} ;;'))


def differing(docker: Path) -> None:
    (docker / "manifest.json").write_text(with_package("numpy", "1.26.5").as_json())


def test_the_list_as_json_and_as_a_table():
    rows = {row["target"]: row for row in json.loads(run("list", "--json").stdout)}
    assert rows["cpu"]["base"] == "docker.io/library/debian:bookworm-slim"
    assert rows["cpu"]["digest"].startswith("sha256:")
    assert (rows["ascend-cann9.1-a3"]["stack"], rows["ascend-cann9.1-a3"]["chip"]) == ("ascend-cann9.1", "A3")
    assert not rows["cpu"]["loose"] and any("triton-ascend" in one for one in rows["ascend-cann9.1-a3"]["loose"])
    assert any("digest" in one for row in rows.values() if row["digest"] is None for one in row["loose"])
    table = run("list").stdout
    assert all(name in table for name in rows) and "ascend-cann9.1-a3 is not pinned" in table


def test_the_build_command_can_be_copied_and_hides_a_login(tmp_path: Path):
    ca = tmp_path / "ca.pem"
    ca.write_text("certificate")
    options = ["--index-url", "https://me:hunter2@index.example/simple", "--extra-index-url", "https://more.example"]
    options += ["--earlier", "registry.example/aq:cpu-amd64"]
    shown = run("build", "cpu", "--dirty", "--dry-run", "--wheels", str(tmp_path), "--ca", str(ca), *options)
    assert shown.exit_code == 0, shown.stderr
    command = shlex.split(shown.stdout)
    assert command[:3] == ["docker", "buildx", "bake"] and command[-1] == "cpu" and "--load" in command
    told = {command[place + 1] for place, word in enumerate(command) if word == "--set"}
    assert {
        "cpu.tags=ascend-quant:build-cpu",
        f"*.contexts.wheels={tmp_path}",
        "*.args.INDEX_URL=https://***@index.example/simple",
        "*.args.EXTRA_INDEX_URL=https://more.example",
        f"*.secrets=id=ca,src={ca}",
        "*.args.VERSION=0.1.0",
        "*.cache-from=type=registry,ref=registry.example/aq:cpu-amd64",
        "*.cache-to=type=inline",
    } < told
    (revision,) = (one for one in told if one.startswith("*.args.REVISION="))
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert revision.removeprefix("*.args.REVISION=").removesuffix("-dirty") == head.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "cpu-a2", "--dry-run"], "no target 'cpu-a2'; there are: cpu, "),
        (["build", "cpu", "--dirty", "--dry-run", "--wheels", "/nowhere"], "--wheels /nowhere: there is no such"),
        (["wheelhouse", "ascend-cann8.5", "--to", "/nowhere"], "no target 'ascend-cann8.5'; there are: "),
        (
            ["wheelhouse", "cpu", "--to", "/nowhere", "--python-platform", "arm"],
            "--python-platform arm: write PROCESSOR-",
        ),
        (["load", "x.tar.gz", "--cluster", "no-such"], "no inventory 'no-such'"),
        (["build", "cpu", "--dirty", "--dry-run", "--wheels", __file__], f"--wheels {__file__}: "),
        (["build", "cpu", "--dirty", "--dry-run", "--ca", "/tmp"], "--ca /tmp: "),
        (["build", "cpu", "--dirty", "--dry-run", "--index-url", "nonsense x"], "--index-url 'nonsense x': "),
        (["build", "cpu", "--dirty", "--dry-run", "--extra-index-url", ""], "--extra-index-url '': "),
        (["build", "cpu", "--dirty", "--dry-run", "--earlier", "a,mode=max"], "--earlier 'a,mode=max': "),
        (["build", "cpu", "--dirty", "--dry-run", "--repository", "UPPER CASE!"], "--repository 'UPPER CASE!': "),
        (["tag", "x", "--repository", "/x"], "--repository '/x': "),
        (["wheelhouse", "cpu", "--to", __file__], f"--to {__file__}: something is there"),
        (["wheelhouse", "cpu", "--to", "/proc/x"], "--to /proc/x: "),
    ],
)
def test_wrong_use_ends_with_2(arguments: list[str], said: str):
    shown = run(*arguments)
    assert shown.exit_code == 2
    assert shown.stderr.startswith(said) and "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://h/simple?token=hunter2", "https://h/simple?***"),
        ("https://me:hunt/er2@h/simple", "https://***@h/simple"),
        ("https://me:hunter2@x@h/simple?t=hunter2#hunter2", "https://***@h/simple?***"),
        ("https://me:hunt'er2@h/simple", "https://***@h/simple"),
        ("https://h/simple", "https://h/simple"),
    ],
)
def test_no_secret_of_an_address_is_shown(address: str, shown: str):
    said = run("build", "cpu", "--dirty", "--dry-run", "--index-url", address)
    assert said.exit_code == 0 and f"*.args.INDEX_URL={shown}" in shlex.split(said.stdout)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "[]",
        "[{}]",
        "{}",
        "null",
        "<html>",
        "[[",
        '[{"Id": 1}]',
        '[{"Id": "a", "RootFS": null}]',
        "[1, 2]",
        "7" * 5000,
    ],
)
@pytest.mark.parametrize("command", [["verify", "x"], ["tag", "x"], ["save", "x", "--to", "{folder}/to"]])
def test_what_no_docker_answers_is_one_line(docker: Path, tmp_path: Path, answer: str, command: list[str]):
    (docker / "inspect.json").write_text(answer)
    shown = run(*(word.format(folder=tmp_path) for word in command))
    assert shown.exit_code == 1 and len(shown.stderr.strip().splitlines()) == 1
    assert repr(answer[:80]) in shown.stderr


def test_an_engine_that_hangs_is_left_behind(docker: Path, monkeypatch):
    (docker / "docker").write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(engine.docker, "__kwdefaults__", {"seconds": 0.2})
    shown = run("verify", "x")
    assert shown.exit_code == 1 and has_line_naming(shown.stderr, "docker image inspect", "0.2 s")


def test_a_manifest_that_cannot_be_written_is_one_line(docker: Path, tmp_path: Path):
    shown = run("verify", "x", "--manifest", str(tmp_path))
    assert shown.exit_code == 1 and shown.stderr.strip().splitlines()[-1].startswith(f"{tmp_path}: ")


def test_without_docker_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    for arguments in (["verify", "x"], ["tag", "x"], ["save", "x", "--to", "/nowhere"]):
        shown = run(*arguments)
        assert shown.exit_code == 1 and has_line_naming(shown.stderr, "docker", "PATH")


def test_a_revision_is_the_commit_or_says_that_it_is_not(checkout: Path, tmp_path: Path):
    commit = build.revision(False, checkout)
    assert len(commit) == 40
    (checkout / "file").write_text("2")
    (checkout / "new").write_text("3")
    with pytest.raises(LaunchError, match=line_naming(f"commit {commit[:12]}: file, new:", "--dirty")):
        build.revision(False, checkout)
    assert build.revision(True, checkout) == f"{commit}-dirty"
    with pytest.raises(LaunchError, match="git repository"):
        build.revision(False, tmp_path)


def test_a_base_without_a_digest_is_not_built_on(docker: Path, tmp_path: Path, monkeypatch):
    loose = small_target(tmp_path, monkeypatch, bases={"A2": BASE.partition("@")[0]})
    (tmp_path / "small.txt").unlink()
    monkeypatch.setattr("launch.images.targets.targets", lambda: {loose.name: loose})
    shown = run("build", "small-a2", "--dirty", "--dry-run")
    assert shown.exit_code == 2
    assert has_line_naming(shown.stderr, "small-a2", BASE.partition("@")[0], "no digest", "no lock")
    assert "images lock small" in shown.stderr


def test_a_package_that_no_lock_has_stops_a_build(docker: Path, tmp_path: Path, monkeypatch):
    half = small_target(tmp_path, monkeypatch, packages={"triton-ascend": "3.2.2"})
    monkeypatch.setattr("launch.images.targets.targets", lambda: {half.name: half})
    shown = run("build", "small-a2", "--dirty", "--dry-run")
    assert shown.exit_code == 2 and "triton-ascend 3.2.2" in shown.stderr and "images lock small" in shown.stderr


def test_a_built_image_is_looked_into_and_named(docker: Path):
    shown = run("build", "small-a2", "--dirty")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines() == [f"ascend-quant:{tag}" for tag in (*TAGS, *OF_ARM)]
    made = calls(docker)
    assert "buildx version" in made and made[2].startswith("buildx bake --file docker/docker-bake.hcl --load")
    assert "run --rm --network none ascend-quant:build-small-a2 manifest --json" in made
    assert made[-6:] == [f"image tag ascend-quant:build-small-a2 {name}" for name in shown.stdout.splitlines()]
    assert "no SBOM, no provenance" in shown.stderr and not [line for line in made if "--sbom" in line]


def test_an_engine_that_has_a_place_for_sbom_and_provenance_gets_both(docker: Path):
    answering(docker, "info --format", "echo '[[driver-type io.containerd.snapshotter.v1]]'")
    shown = run("build", "small-a2", "--dirty")
    assert shown.exit_code == 0 and "no SBOM" not in shown.stderr
    (bake,) = [line.split() for line in calls(docker) if line.startswith("buildx bake")]
    assert "--provenance=mode=min" in bake  # more would tell the world the addresses of indexes and proxies
    (scanner,) = [word for word in bake if word.startswith("--sbom=generator=")]
    assert re.fullmatch("[0-9a-f]{64}", scanner.partition("@sha256:")[2])


def test_a_build_that_fails_or_differs_gets_no_name(docker: Path):
    differing(docker)
    shown = run("build", "small-a2", "--dirty")
    assert shown.exit_code == 1
    assert "numpy: 1.26.5; pinned: 1.26.4" in shown.stderr
    assert not [line for line in calls(docker) if line.startswith("image tag")]
    answering(docker, "buildx bake", "exit 17")
    shown = run("build", "small-a2", "--dirty")
    assert shown.exit_code == 1 and has_line_naming(shown.stderr.splitlines()[-1], "docker buildx bake", 17)


def test_verify_tells_and_writes(docker: Path, tmp_path: Path):
    shown = run("verify", "some:1", "--manifest", str(tmp_path / "found.json"))
    assert shown.exit_code == 0
    assert has_line_naming(shown.stdout, "some:1: small-a2:", "5 packages") and shown.stdout.count("\n") == 1
    assert (tmp_path / "found.json").read_text() == manifest().as_json()
    differing(docker)
    shown = run("verify", "some:1", "--json")
    tree = json.loads(shown.stdout)
    assert shown.exit_code == 1 and tree["tags"] == []
    (one,) = tree["differences"]
    assert (one["what"], one["found"]) == ("numpy", "1.26.5") and "images build small-a2" in one["todo"]


def test_tags_go_where_they_are_told_and_are_pushed_when_asked(docker: Path):
    shown = run("tag", "some:1", "--repository", "registry.example/aq", "--push", "--json")
    names = json.loads(shown.stdout)
    assert names == [f"registry.example/aq:{tag}" for tag in (*TAGS, *OF_ARM)]
    pushed = [line for line in calls(docker) if line.startswith("push")]
    assert pushed == [f"push --quiet registry.example/aq:{tag}" for tag in OF_ARM]


@pytest.mark.parametrize(("there", "members"), [("amd64|arm64", ("amd64", "arm64")), ("arm64", ("arm64",))])
def test_a_name_without_a_processor_is_the_list_of_this_commits_images(docker: Path, there: str, members):
    """It holds what the registry has of this very commit, so that no processor gets another commit than the others."""
    answering(
        docker, "buildx imagetools", f'echo "$*" | grep -qE "({there})$" || {{ echo "x: not found" >&2; exit 1; }}'
    )
    shown = run("tag", "some:1", "--repository", "registry.example/aq", "--push")
    assert shown.exit_code == 0, shown.stderr
    of_processors = " ".join(f"registry.example/aq:{LONG}-{one}" for one in members)
    lists = [line for line in calls(docker) if line.startswith("buildx imagetools create")]
    assert lists == [f"buildx imagetools create --tag registry.example/aq:{tag} {of_processors}" for tag in TAGS]


def test_a_registry_that_does_not_answer_makes_no_list(docker: Path):
    answering(docker, "buildx imagetools", "echo 'ERROR: unauthorized' >&2; exit 1")
    shown = run("tag", "some:1", "--repository", "registry.example/aq", "--push")
    assert shown.exit_code == 1 and "unauthorized" in shown.stderr
    assert not [line for line in calls(docker) if "create" in line]


def test_uncommitted_files_are_not_pushed_and_differences_not_named(docker: Path):
    dirty = f"{COMMIT}-dirty"
    (docker / "manifest.json").write_text(manifest(revision=dirty).as_json())
    labels = {"Config": {"Labels": json.loads(inspected())[0]["Config"]["Labels"]}}
    labels["Config"]["Labels"]["org.opencontainers.image.revision"] = dirty
    (docker / "inspect.json").write_text(inspected(**labels))
    assert run("tag", "some:1").stdout.splitlines()[0].endswith("-dirty")
    shown = run("tag", "some:1", "--push")
    assert shown.exit_code == 1 and "uncommitted files" in shown.stderr
    differing(docker)
    assert run("tag", "some:1").exit_code == 1
    assert not [line for line in calls(docker) if line.startswith("push")]


def test_an_image_of_no_stack(docker: Path):
    (docker / "manifest.json").write_text(manifest(stack="other").as_json())
    shown = run("verify", "some:1")
    assert shown.exit_code == 1
    assert has_line_naming(shown.stderr, "stack 'other' with chip 'A2'", "docker/stacks.yaml", "small-a2")


def test_save_and_load(docker: Path, tmp_path: Path):
    shown = run("save", "small-a2", "--to", str(tmp_path / "to"))
    assert shown.exit_code == 0, shown.stderr
    archive = Path(shown.stdout.strip())
    loaded = run("load", str(archive))
    assert loaded.exit_code == 0, loaded.stderr
    assert loaded.stdout == "this machine: ascend-quant:cpu sha256:77\n"
    assert (docker / "received").read_bytes() == archive.read_bytes()
    archive.write_bytes(b"other")
    broken = run("load", str(archive))
    assert broken.exit_code == 1 and "is damaged" in broken.stderr


def test_run_sh_has_the_verb():
    variables = os.environ | {"PYTHON": sys.executable}
    command = [str(ROOT / "run.sh"), "images", "list", "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)[0]["target"] == "cpu"


@pytest.mark.parametrize("verb", ["list", "build", "verify", "tag", "save", "load", "wheelhouse"])
def test_every_verb_has_a_help_text(verb: str):
    shown = run(verb, "--help")
    assert shown.exit_code == 0
    assert f"images {verb} [OPTIONS]" in shown.stdout
