"""A file is written whole or not at all; what is no file is not replaced by one."""

import os
from pathlib import Path

import pytest

from ascend_quant.files.whole_file import write_whole


def test_text_and_bytes(tmp_path):
    write_whole(tmp_path / "a", "Grüße\r\n")
    assert (tmp_path / "a").read_bytes() == "Grüße\r\n".encode()
    write_whole(tmp_path / "a", b"\xff")
    assert (tmp_path / "a").read_bytes() == b"\xff" and len(list(tmp_path.iterdir())) == 1


def test_a_pipe_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "said")
    assert os.read(reader, 9) == b"said" and pipe.is_fifo()
    os.close(reader)


def test_a_link_to_nothing_is_filled(tmp_path):
    (tmp_path / "link").symlink_to("new")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "new").read_text() == "text" and (tmp_path / "link").is_symlink()


def test_what_a_killed_process_of_the_same_number_has_left_is_not_in_the_way(tmp_path):
    (tmp_path / f".a.{os.getpid()}.new").write_text("half")
    write_whole(tmp_path / "a", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "text"


@pytest.mark.parametrize("name", ["folder", "absent/file", "loop"])
def test_what_cannot_be_written(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop/..")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError):
        write_whole(Path(tmp_path / name), "text")
    assert sorted(tmp_path.rglob("*")) == before
