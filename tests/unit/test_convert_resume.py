"""kill -9 at any moment, then the same command: it finishes, with the digests of an undisturbed run."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import convert_cases as cases
import pytest
from naming import line_naming

from ascend_quant.convert import ConvertError, Request, convert
from ascend_quant.convert.output import Output

SHARDS = 5
STOPPED = """
import sys, time
from pathlib import Path
from ascend_quant.convert import Request, convert
from ascend_quant.convert import conversion, surroundings
from ascend_quant.convert.output import Output

source, out, moment = sys.argv[1:]

def halt(*ignored):
    print("halted", flush=True)
    time.sleep(600)

def progress(done, total):
    if moment.replace(".", "").isdigit() and done >= float(moment) * total:
        halt()

if moment == "published":
    Output.clean = halt
if moment == "surroundings":
    add = Output.add
    Output.add = lambda self, name, content: halt() if name == "config.json" else add(self, name, content)
convert(Request(Path(source), Path(out), "int8", ignore=("re:.*o_proj",), workers=1), progress)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Read, not edited."""
    return cases.write(tmp_path_factory.mktemp("source") / "in", cases.state(), SHARDS)


def run(source: Path, out: Path, **options):
    return cases.run(source, out, **{"scheme": "int8", "ignore": ("re:.*o_proj",), **options})


def kill_at(moment: str, source: Path, out: Path) -> None:
    """Start the conversion in a process of its own, and kill it when it has come so far."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(source), str(out), moment], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "halted\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def digests(out: Path) -> dict:
    return json.loads((out / "ascend_quant_manifest.json").read_text())["files"]


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert run(source, out).resumed == 0
    return out


@pytest.mark.parametrize("moment", ["0.01", "0.7", "surroundings", "published"])
def test_the_same_command_finishes_with_the_same_digests(moment, source, undisturbed, tmp_path):
    out = tmp_path / "out"
    kill_at(moment, source, out)
    assert (tmp_path / "out.partial").is_dir()
    if moment != "published":
        assert not out.exists()  # nothing looks complete
    before = finished(out)
    assert (moment == "0.01") == (before == {})
    summary = run(source, out)
    assert summary.resumed == len(before)
    assert digests(out) == digests(undisturbed)
    assert (out / "ascend_quant_manifest.json").read_text() == (undisturbed / "ascend_quant_manifest.json").read_text()
    assert all((out / name).read_bytes() == (undisturbed / name).read_bytes() for name in digests(out))
    assert {path.name for path in out.iterdir()} == {path.name for path in undisturbed.iterdir()}
    assert not (tmp_path / "out.partial").exists()
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before  # not written again


def finished(out: Path) -> dict[str, int]:
    """When each finished shard was written."""
    partial = Output(out).model
    folder = partial if partial.is_dir() else out
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}


def test_a_finished_shard_that_has_changed_since_is_written_again(source, undisturbed, tmp_path):
    kill_at("1.0", source, tmp_path / "out")
    cut_off, flipped, *others = sorted(finished(tmp_path / "out"))
    assert others
    folder = tmp_path / "out.partial" / "model"
    (folder / cut_off).write_bytes((folder / cut_off).read_bytes()[:1000])
    content = (folder / flipped).read_bytes()
    (folder / flipped).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert run(source, tmp_path / "out").resumed == len(others)
    assert digests(tmp_path / "out") == digests(undisturbed)


def test_another_command_or_source_is_refused_and_spoils_nothing(source, undisturbed, tmp_path):
    source = shutil.copytree(source, tmp_path / "in")
    kill_at("0.7", source, tmp_path / "out")
    before = finished(tmp_path / "out")
    for options, named in (
        ({"scheme": "fp8"}, ["'int8'", "'fp8'"]),
        ({"format": "modelslim"}, ["'compressed-tensors'", "'modelslim'"]),
        ({"ignore": ()}, ["['re:.*o_proj']", "[]"]),
    ):
        with pytest.raises(ConvertError, match=line_naming(tmp_path / "out.partial", *options, *named)):
            run(source, tmp_path / "out", **options)
        assert finished(tmp_path / "out") == before
    path = next(source.glob("*.safetensors"))
    time = path.stat().st_mtime_ns
    os.utime(path, ns=(0, 0))
    with pytest.raises(ConvertError, match=r"\bIN\b"):
        run(source, tmp_path / "out")
    os.utime(path, ns=(time, time))
    run(source, tmp_path / "out")
    assert digests(tmp_path / "out") == digests(undisturbed)


@pytest.mark.parametrize("what", ["newer", "file", "folder", "model"])
def test_an_out_that_is_whole_is_not_taken_for_the_end_of_a_killed_command(what, source, undisturbed, tmp_path):
    source, out, partial = shutil.copytree(source, tmp_path / "in"), tmp_path / "out", tmp_path / "out.partial"
    kill_at("published", source, out)
    if what == "newer":
        os.utime(next(source.glob("*.safetensors")), ns=(0, 0))
    elif what == "file":
        (partial / "journal" / "notes.txt").write_text("mine")
    elif what == "folder":
        shutil.rmtree(partial)
        partial.mkdir()
        (partial / "notes.txt").write_text("mine")
    else:
        (partial / "model").mkdir()
    before = sorted(partial.rglob("*"))
    with pytest.raises(ConvertError, match=line_naming(out)):
        run(source, out)
    assert sorted(partial.rglob("*")) == before and digests(out) == digests(undisturbed)


def test_two_commands_at_once_are_refused(source, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(source), str(tmp_path / "out"), "0.3"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "halted\n"
        with pytest.raises(ConvertError, match=line_naming("another command", "out")):
            run(source, tmp_path / "out")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    run(source, tmp_path / "out")


@pytest.mark.parametrize("where", ["thesis.txt", "journal/thesis.json", "model/parts/a.bin"])
def test_a_folder_of_the_users_is_not_taken_for_a_half_finished_conversion(where, source, tmp_path):
    path = tmp_path / "out.partial" / where
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(ConvertError, match=line_naming(tmp_path / "out.partial" / where.split("/")[0])):
        run(source, tmp_path / "out")
    assert path.read_text() == "mine" and not (tmp_path / "out").exists()
    (tmp_path / "elsewhere").mkdir()
    for name in ("linked.partial", "other.partial/model"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ConvertError, match=name):
            run(source, tmp_path / name.split(".")[0])
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("note", ["request.json", "model-00001-of-00005.safetensors.json"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_spoilt_journal_is_named(note, content, source, tmp_path):
    def stop(done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(Request(source, tmp_path / "out", "int8", ignore=("re:.*o_proj",), workers=1), stop)
    (tmp_path / "out.partial" / "journal" / note).write_text(content)
    with pytest.raises(ConvertError, match=note):
        run(source, tmp_path / "out")
