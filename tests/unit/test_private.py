"""The caller's own folders: where a run's lies, and what others have put in its place."""

import os
import stat

import pytest

from launch import LaunchError
from launch.system import private

RUN = "20261123-101112-abcd"


def test_rays_sockets_fit_into_a_run_s_folder(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 2**32 - 1)
    assert private.run_folder(RUN).parent.name == f"aq-{2**32 - 1}"
    assert len(str(private.run_folder(RUN))) + 65 <= 107


def test_a_folder_is_made_private_and_is_made_so_again(tmp_path):
    before = os.umask(0)
    try:
        made = private.make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o777)
    assert stat.S_IMODE(private.make_folder(made).stat().st_mode) == 0o700


@pytest.mark.parametrize("there", ["link", "another's"])
def test_what_others_put_in_its_place_is_refused_and_left_alone(tmp_path, monkeypatch, there):
    place, target = tmp_path / "mine", tmp_path / "target"
    target.mkdir(mode=0o755)
    if there == "link":
        place.symlink_to(target)
    else:
        place.mkdir(mode=0o755)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(LaunchError, match=str(place)):
        private.make_folder(place)
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert stat.S_IMODE(place.stat().st_mode) == 0o755


def test_a_file_is_the_owners_alone_and_no_link_is_written_through(tmp_path):
    with private.open_file(tmp_path / "log", "a") as file:
        file.write("one")
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600
    (tmp_path / "planted").symlink_to(tmp_path / "log")
    with pytest.raises(OSError, match="planted"):
        private.open_file(tmp_path / "planted", "w")
    assert (tmp_path / "log").read_text() == "one"
