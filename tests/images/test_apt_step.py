"""The steps that install the system's packages: what apt-get is told on Ubuntu's kinds of sources, dnf on openEuler.

Stand-ins for both print it.
"""

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
    """`run(files, options, step=)`: a step in a container with these files, on Ubuntu unless they say another."""

    def run(files: dict[str, str], *options: str, step: tuple[str, ...] = ("/steps/apt.sh", "tini")):
        files = {"/usr/lib/os-release": "ID=ubuntu\n", "/usr/local/bin/apt-get": APT_GET, **files}
        mounts = []
        for number, (path, text) in enumerate(files.items()):
            here = Path(tmp_path / str(number))
            here.write_text(text)
            here.chmod(0o755)
            mounts += ["--mount", f"type=bind,source={here},target={path},readonly"]
        mounts += ["--mount", f"type=bind,source={ROOT}/docker/steps,target=/steps,readonly"]
        return docker.tried("run", "--rm", "--network=none", *mounts, *options, stand_in_base, *step)

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


OPENEULER = {"/usr/lib/os-release": 'NAME="openEuler"\nID="openEuler"\n', "/usr/bin/dnf": '#!/bin/sh\necho dnf "$@"\n'}


@pytest.mark.parametrize(("stage", "wanted"), [("run", {"clang", "jemalloc", "openssh-clients"}), ("build", {"patch"})])
def test_on_openeuler_packages_have_its_names_and_come_by_dnf(run, stage, wanted):
    """As vllm-ascend's own Dockerfiles for openEuler name them."""
    done = run(OPENEULER, step=("/steps/ascend.sh", stage))
    install, clean = done.stdout.splitlines()
    assert done.returncode == 0 and clean.split()[-2:] == ["clean", "all"], done
    assert wanted <= set(install.partition(" install ")[2].split()) and "sslcacert" not in install
    done = run(OPENEULER | {"/run/secrets/ca": "a certificate"}, step=("/steps/ascend.sh", stage))
    assert "--setopt=sslcacert=/run/secrets/ca" in done.stdout.split(), done


def test_jemalloc_is_found_where_openeuler_has_it(run):
    """A stand-in, which the loader passes over."""
    mounts = ("--mount", f"type=bind,source={ROOT}/docker/cann.sh,target=/cann.sh,readonly")
    files = {"/usr/local/Ascend/ascend-toolkit/set_env.sh": "export ASCEND_HOME_PATH=/nowhere\n"}
    there = {"/usr/lib64/libjemalloc.so.2": "no library"}
    step = ("/cann.sh", "bash", "-c", "echo $LD_PRELOAD")
    assert run(files, *mounts, step=step).stdout.split() == []
    assert run(files | there, *mounts, step=step).stdout.split() == list(there)
