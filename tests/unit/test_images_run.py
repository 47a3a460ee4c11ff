"""`images run`: what the launcher gives a container on a host of a cluster, for one that is started by hand."""

import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import typer.testing

from launch.commands.images import images_app
from launch.images import run as running
from launch.images.run import CACHE, VISIBLE, Wanted, line, target_for
from launch.images.targets import targets
from launch.inventory import this_machine
from launch.plan.start import ASCEND_ADDRESSES, ASCEND_DEVICES, container

WORDS = ["test", "npu-smoke", "--", "--json", "/work/out/a file.json"]


def run(*arguments: str):
    return typer.testing.CliRunner().invoke(images_app, ["run", *arguments])


def said_by_docker(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> list[str]:
    """The words that a docker gets of a line, in a shell of this host's."""
    docker = folder / "docker"
    docker.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/words\nexit {code}\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert subprocess.run(["bash", "-c", command]).returncode == code
    return (folder / "words").read_text().splitlines()


@pytest.mark.parametrize("name", [one.name for one in targets().values() if one.chip])
def test_a_container_by_hand_has_what_the_launcher_gives(name: str):
    target = targets()[name]
    ours = line(target, WORDS, Wanted())
    inventory = this_machine(target.stack).model_copy(update={"image": f"ascend-quant:{name}", "project": None})
    theirs = container(inventory, 0, [], None, 64)
    assert ours.partition(f" ascend-quant:{name} ")[0] == theirs.partition(f" ascend-quant:{name} ")[0]
    assert shlex.split(ours.partition(f" ascend-quant:{name} ")[2]) == WORDS


def test_the_line_is_one_that_a_shell_takes(tmp_path: Path, monkeypatch):
    numbered = tmp_path / "davinci3"
    numbered.touch()
    made = line(target_for("A2", None), WORDS, Wanted(mounts=["/data/my models:/models:ro"]))
    words = said_by_docker(made.replace("/dev/davinci[0-9]*", f"{tmp_path}/davinci[0-9]*"), tmp_path, monkeypatch)
    assert words[0] == "run" and words[-len(WORDS) :] == WORDS
    assert f"--device={numbered}" in words and {f"--device={path}" for path in ASCEND_DEVICES} <= set(words)
    assert ("--mount", "type=bind,source=/data/my models,target=/models,readonly") in pairwise(words)
    assert ("--shm-size", "64g") in pairwise(words) and ("--network", "host") in pairwise(words)
    assert (ASCEND_ADDRESSES in " ".join(words)) == Path(ASCEND_ADDRESSES).exists()


def test_choices_are_options_of_docker(tmp_path: Path):
    wanted = Wanted("mine.example/a:b", "0,3", "1000:1000", tmp_path, ["/a:/b"], 8)
    words = shlex.split(re.sub(r"\$\(.*?\) ", "", line(target_for("A3", "ascend-cann8.5"), ["bash"], wanted)))
    assert words[-2:] == ["mine.example/a:b", "bash"]
    pairs = set(pairwise(words))
    assert {("-e", f"{VISIBLE}=0,3"), ("--user", "1000:1000"), ("--shm-size", "8g")} <= pairs
    assert ("--mount", f"type=bind,source={tmp_path},target={CACHE}") in pairs
    assert ("--mount", "type=bind,source=/a,target=/b") in pairs


@pytest.mark.parametrize("chip", ["A2", "A3"])
def test_the_newest_stack_is_taken(chip: str):
    newest = [one.stack for one in targets().values() if one.chip == chip][-1]
    assert target_for(chip, None).stack == newest and target_for(chip, "ascend-cann8.5").stack == "ascend-cann8.5"


def test_it_prints_unless_it_is_told_to_start(tmp_path: Path, monkeypatch):
    started = []
    monkeypatch.setattr(running, "start", lambda command: started.append(command) or 7)
    shown = run("a2", "--", *WORDS)
    assert shown.exit_code == 0 and not started
    assert shown.stdout.strip() == line(target_for("A2", None), WORDS, Wanted())
    shown = run("A2", "--start", "--", *WORDS)
    assert shown.exit_code == 7 and started == [line(target_for("A2", None), WORDS, Wanted())] and not shown.stdout


def test_it_starts_where_there_are_npus_alone(tmp_path: Path, monkeypatch):
    said_by_docker("docker run x", tmp_path, monkeypatch)
    monkeypatch.setattr(running, "npus", lambda folder: [])
    assert run("A2", "--start", "--", "bash").exit_code == 1
    monkeypatch.setattr(running, "npus", lambda folder: [0])
    assert run("A2", "--start", "--", "bash").exit_code == 0
    assert (tmp_path / "words").read_text().splitlines()[-1] == "bash"
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert run("A2", "--start", "--", "bash").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["A4"], "no image for chip 'A4'"),
        (["A2", "--stack", "cuda13"], "no image for chip 'A2' of stack 'cuda13'"),
        (["A2", "--devices", "all"], "--devices 'all'"),
        (["A2", "--devices", "0,1,00"], "--devices '0,1,00'"),
        (["A2", "--user", "me"], "--user 'me'"),
        (["A2", "--cache", "/no/such"], "--cache /no/such"),
        (["A2", "--mount", "models"], "--image or --mount: mounts.0"),
        (["A2", "--image", "Up Per"], "--image or --mount: image"),
    ],
)
def test_wrong_use_ends_with_2(arguments: list[str], said: str):
    shown = run(*arguments, "--", "bash")
    assert shown.exit_code == 2 and shown.stderr.startswith(said)
