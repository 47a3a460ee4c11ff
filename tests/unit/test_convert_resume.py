"""kill -9 at any moment, then the same command: it finishes, with the files of an undisturbed run."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import convert_cases as cases
import pytest
from naming import line_naming

from ascend_quant.convert.output import Output
from ascend_quant.convert.source import MANIFEST
from ascend_quant.profile.checkpoints import BadCheckpoint

SHARDS = 5
STOPPED = """
import sys, time
from pathlib import Path
from ascend_quant.convert import Request, convert
from ascend_quant.convert.output import Output

source, out, moment = sys.argv[1:]

def halt(*ignored):
    print("halted", flush=True)
    time.sleep(600)

def progress(done, total):
    if moment.replace(".", "").isdigit() and done >= float(moment) * total:
        halt()

if not moment.replace(".", "").isdigit():
    add, added = Output.add, []
    def watched(self, name, content):
        if name == moment.removesuffix(" again") and (name in added or not moment.endswith(" again")):
            halt()
        added.append(name)
        return add(self, name, content)
    Output.add = watched
convert(Request(Path(source), Path(out), "int8", ignore=("re:.*o_proj",), workers=1), progress)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Read, not edited."""
    return cases.write(tmp_path_factory.mktemp("source") / "in", cases.state(), SHARDS)


def run(source: Path, out: Path, **options):
    return cases.run(source, out, **{"scheme": "int8", "ignore": ("re:.*o_proj",), **options})


@contextmanager
def halted_at(moment: str, source: Path, out: Path) -> Iterator[None]:
    """The conversion in a process of its own that has come so far and waits; it is killed in the end."""
    command = [sys.executable, "-c", STOPPED, str(source), str(out), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "halted\n"
            yield
        finally:
            process.kill()


def kill_at(moment: str, source: Path, out: Path) -> None:
    """Kill the conversion when it has come so far."""
    with halted_at(moment, source, out):
        pass


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert run(source, out).resumed == 0
    return out


@pytest.mark.parametrize("moment", [f"{MANIFEST}", "0.01", "0.7", "config.json", f"{MANIFEST} again"])
def test_the_same_command_finishes_with_the_same_files(moment, source, undisturbed, tmp_path):
    out = tmp_path / "out"
    kill_at(moment, source, out)
    assert (tmp_path / "out.partial").is_dir() and not out.exists()  # nothing looks complete
    before = finished(out)
    assert (moment in ("0.01", MANIFEST)) == (before == {})
    summary = run(source, out)
    assert summary.resumed == len(before)
    assert contents(out) == contents(undisturbed)
    assert not (tmp_path / "out.partial").exists()
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before  # not written again


def finished(out: Path) -> dict[str, int]:
    """When each finished shard was written."""
    return {path.name: path.stat().st_mtime_ns for path in Output(out).partial.glob("*.safetensors")}


def test_a_finished_shard_that_was_cut_off_since_is_written_again(source, undisturbed, tmp_path):
    kill_at("1.0", source, tmp_path / "out")
    cut_off, *others = sorted(finished(tmp_path / "out"))
    path = tmp_path / "out.partial" / cut_off
    path.write_bytes(path.read_bytes()[:1000])
    assert run(source, tmp_path / "out").resumed == len(others) > 0
    assert contents(tmp_path / "out") == contents(undisturbed)


def test_another_command_or_source_is_refused_and_spoils_nothing(source, undisturbed, tmp_path):
    source = shutil.copytree(source, tmp_path / "in")
    kill_at("0.7", source, tmp_path / "out")
    before = finished(tmp_path / "out")
    for options, named in (
        ({"scheme": "fp8"}, ["'int8'", "'fp8'"]),
        ({"format": "modelslim"}, ["'compressed-tensors'", "'modelslim'"]),
        ({"ignore": ()}, ["['re:.*o_proj']", "[]"]),
    ):
        with pytest.raises(BadCheckpoint, match=line_naming(tmp_path / "out.partial", *options, *named)):
            run(source, tmp_path / "out", **options)
        assert finished(tmp_path / "out") == before
    path = next(source.glob("*.safetensors"))
    time = path.stat().st_mtime_ns
    os.utime(path, ns=(0, 0))
    with pytest.raises(BadCheckpoint, match=r"\bIN\b"):
        run(source, tmp_path / "out")
    os.utime(path, ns=(time, time))
    run(source, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(undisturbed)


def test_two_commands_at_once_are_refused(source, tmp_path):
    refused = pytest.raises(BadCheckpoint, match=line_naming("another command", "out"))
    with halted_at("0.3", source, tmp_path / "out"), refused:
        run(source, tmp_path / "out")
    run(source, tmp_path / "out")


def test_a_folder_of_the_users_is_not_taken_for_a_half_finished_conversion(source, tmp_path):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    for path in (partial / "config.json", partial / "thesis.txt"):
        path.write_text("mine")
        with pytest.raises(BadCheckpoint, match=line_naming(path)):
            run(source, tmp_path / "out")
        assert path.read_text() == "mine" and not (tmp_path / "out").exists()
        path.unlink()
    kill_at("0.7", source, tmp_path / "out")
    (partial / "parts").mkdir()
    (partial / "parts" / "a.bin").write_text("mine")
    with pytest.raises(BadCheckpoint, match=line_naming("a.bin")):
        run(source, tmp_path / "out")
    shutil.rmtree(partial / "parts")
    (partial / MANIFEST).write_text("[]")
    with pytest.raises(cases.REFUSED, match=MANIFEST):
        run(source, tmp_path / "out")
