"""docker/steps/apt.sh on Ubuntu's kinds of sources: what apt-get is told, by a stand-in that prints it."""

from pathlib import Path

import pytest

from launch import ROOT

SNAPSHOT = "20260102T030405Z"
OLD = "# deb http://other.example/ubuntu jammy main\ndeb http://archive.example/ubuntu jammy main restricted\n"
NEW = "Types: deb\nURIs: http://archive.example/ubuntu/\nSuites: noble noble-updates\nComponents: main universe\n"
OTHERS = "deb http://vendor.example/cuda /\n"
# The last argument that apt.sh gives as Dir::Etc::SourceParts is the folder of all sources that apt-get reads.
APT_GET = """\
#!/bin/sh
echo "$@"
for argument; do case $argument in Dir::Etc::SourceParts=*) cat "${argument#*=}"/* ;; esac; done
"""


@pytest.fixture
def run(docker, stand_in_base, tmp_path):
    """`run(files, environment)`: apt.sh in a container whose /etc says Ubuntu and has these sources."""

    def run(files: dict[str, str], *options: str):
        files = {"/usr/lib/os-release": "ID=ubuntu\n", "/usr/local/bin/apt-get": APT_GET, **files}
        mounts = []
        for number, (path, text) in enumerate(files.items()):
            here = Path(tmp_path / str(number))
            here.write_text(text)
            here.chmod(0o755)
            mounts += ["--mount", f"type=bind,source={here},target={path},readonly"]
        mounts += ["--mount", f"type=bind,source={ROOT}/docker/steps,target=/steps,readonly"]
        return docker.tried("run", "--rm", "--network=none", *mounts, *options, stand_in_base, "/steps/apt.sh", "tini")

    return run


PIN = f"--env=APT_SNAPSHOT={SNAPSHOT}"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (
            {"/etc/apt/sources.list": OLD, "/etc/apt/sources.list.d/cuda.list": OTHERS},
            f"deb [snapshot={SNAPSHOT}] http://archive.example/ubuntu jammy main restricted",
        ),
        (
            {"/etc/apt/sources.list.d/ubuntu.sources": NEW, "/etc/apt/sources.list.d/cuda.list": OTHERS},
            f"Snapshot: {SNAPSHOT}\nURIs: http://archive.example/ubuntu/",
        ),
        (
            {"/etc/apt/sources.list": OLD.replace("archive.example/ubuntu", "ports.ubuntu.com/ubuntu-ports")},
            f"deb [snapshot={SNAPSHOT}] http://ports.ubuntu.com/ubuntu-ports jammy main restricted",
        ),
    ],
    ids=["22.04", "24.04", "22.04 on arm64"],
)
def test_packages_come_from_one_snapshot(run, files, wanted):
    done = run(files, PIN)
    assert done.returncode == 0 and done.stdout.count(wanted) == 2, done  # of update and of install
    assert "other.example" not in done.stdout and "vendor.example" not in done.stdout
    assert "install -y --no-install-recommends tini" in done.stdout and "CAInfo" not in done.stdout
    assert (
        done.stdout.count("Snapshots::URI::Host::ports.ubuntu.com=https://") == 2
    )  # apt knows none for arm64's archive


def test_an_authority_of_ones_own_is_passed_on(run):
    done = run({"/etc/apt/sources.list": OLD, "/run/secrets/ca": "a certificate"}, PIN)
    assert done.stdout.count("-o Acquire::https::CAInfo=/run/secrets/ca") == 2, done


@pytest.mark.parametrize(
    ("files", "options", "part"),
    [
        ({"/etc/apt/sources.list": OLD}, (), "APT_SNAPSHOT"),
        ({"/etc/apt/sources.list": OTHERS.replace("deb", "#")}, (PIN,), "names no Ubuntu archive"),
        ({"/usr/lib/os-release": "ID=openEuler\n"}, (PIN,), "openEuler"),
    ],
    ids=["no snapshot", "no archive", "another system"],
)
def test_what_cannot_be_pinned_is_one_line(run, files, options, part):
    done = run(files, *options)
    assert done.returncode != 0 and done.stdout == "", done
    assert part in done.stderr and len(done.stderr.strip().splitlines()) == 1, done
