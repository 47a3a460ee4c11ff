"""The offline bundle of a small stack: what is in it, what is told to be missing, and what install.sh asks of uv.

Packages and uv are made here; a real installation without a network is in tests/images.
"""

import base64
import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from naming import line_naming

from launch.errors import LaunchError
from launch.images import wheelhouse
from launch.images.targets import Target
from launch.images.wheelhouse import architecture, pip_options
from launch.stacks import File, Pins, Source

HERE = f"{platform.machine()}-manylinux_2_17"
PYTHON = ".".join(platform.python_version_tuple()[:2])
PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "ours"
version = "0.1.0"
[tool.setuptools]
py-modules = ["ours"]
"""
UV = """#!/bin/bash
echo "$* $SETUPTOOLS_SCM_PRETEND_VERSION $BUILT_FOR" >>"$UV_LOG"
if [[ $1 == venv ]]; then mkdir -p "${@: -1}"; fi
"""


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> str:
    """Write a wheel; the line of a lock that asks for it."""
    file = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    content = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    sums = {path: hashlib.sha256(text.encode()).digest() for path, text in content.items()}
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(one).decode().rstrip('=')},\n" for path, one in sums.items()
    )
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in (content | {f"{info}/RECORD": record}).items():
            archive.writestr(path, text)
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}\n"


def repository(folder: Path, files: dict[str, str]) -> str:
    """A git repository with one commit; its commit."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for line in ("init -q", "add .", "-c user.name=me -c user.email=me@example.invalid commit -qm one"):
        subprocess.run(["git", "-C", folder, *line.split()], check=True)
    head = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return head.stdout.strip()


def small_stack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A stack of one package and one source; its index is a folder, its repository another."""
    index, locks = folder / "index", folder / "locks"
    index.mkdir()
    locks.mkdir()
    (locks / "small.txt").write_text(wheel(index, "small_one", "1.0", {"small_one.py": "value = 1\n"}))
    (locks / "uv.txt").write_text(wheel(index, "uv", "0.1", {"uv-0.1.data/scripts/uv": UV}))
    commit = repository(folder / "of" / "built", {"built.py": "value = 2\n"})
    repository(folder / "project", {"pyproject.toml": PROJECT, "ours.py": "value = 3\n"})
    monkeypatch.setattr("launch.images.targets.LOCKS", locks)
    monkeypatch.setattr(wheelhouse, "UV_LOCK", locks / "uv.txt")
    monkeypatch.setattr(wheelhouse, "ROOT", folder / "project")
    for name, value in {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{folder}/of/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/of/",
    }.items():
        monkeypatch.setenv(name, value)
    archive = Path(shutil.make_archive(str(folder / "include"), "zip", folder / "of", "built/built.py"))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    file = File.model_construct(address=f"file://{archive}", sha256=digest)
    pins = Pins(
        devices="none",
        python=PYTHON,
        bases={"any": "docker.io/library/debian:bookworm-slim"},
        arguments={"BUILT_FOR": "no device"},
        packages={"built": "2.0"},
        sources={"built": Source(repository="https://github.com/of/built", commit=commit, files={"third/json": file})},
    )
    return Target("small", None, pins)


@pytest.fixture
def target(tmp_path: Path, monkeypatch) -> Target:
    return small_stack(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A whole bundle, not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert wheelhouse.bundle(small_stack(folder, monkeypatch), folder / "to", HERE, quiet) == []
    assert not (folder / "project" / "build").exists(), "nothing is built in the checkout"
    return folder / "to"


@pytest.fixture
def copy(made: Path, tmp_path: Path, monkeypatch) -> Path:
    """A copy of it on a host, where the right Python is on PATH."""
    with_own_python(monkeypatch, tmp_path)
    return Path(shutil.copytree(made, tmp_path / "copy"))


def quiet(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def install(folder: Path, venv: Path) -> subprocess.CompletedProcess:
    return subprocess.run([folder / "install.sh", venv], capture_output=True, text=True, timeout=60)


def with_own_python(monkeypatch, folder: Path) -> None:
    """pythonX.Y on PATH, as it is on a host; and a file that the uv of these tests writes."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / f"python{PYTHON}").symlink_to(shutil.which("true"))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("UV_LOG", str(folder / "uv.log"))


def test_everything_is_in_it(made: Path):
    assert (made / "wheels" / "small_one-1.0-py3-none-any.whl").is_file()
    assert (made / "ours" / "ours-0.1.0-py3-none-any.whl").is_file()
    assert (made / "project" / "ours.py").read_text() == "value = 3\n"
    with tarfile.open(made / "sources" / "built.tar.gz") as archive:
        assert archive.extractfile("built/built.py").read() == b"value = 2\n"
        assert archive.extractfile("built/third/json/built.py").read() == b"value = 2\n", "what its build would fetch"
    assert f"Python {PYTHON} with its C" in (made / "README.md").read_text()


def test_it_is_installed_in_order(copy: Path, tmp_path: Path):
    done = install(copy, tmp_path / "venv")
    assert done.returncode == 0, done.stderr
    venv, locked, built, ours = (tmp_path / "uv.log").read_text().splitlines()
    assert venv.startswith("venv ") and f" {tmp_path / 'venv'} " in venv
    assert "--no-index --no-deps --require-hashes -r lock.txt" in locked
    assert "--no-build-isolation" in built and built.endswith("/built 2.0 no device")
    assert ours.endswith("ours/ours-0.1.0-py3-none-any.whl  no device")
    assert not (tmp_path / "venv.cache").exists()


def test_what_cannot_be_had_is_named_and_nothing_is_installed(target: Target, tmp_path: Path, monkeypatch):
    (tmp_path / "locks" / "small.torch.txt").write_text(f"torch==2.7.1 \\\n    --hash=sha256:{'0' * 64}\n")
    shutil.rmtree(tmp_path / "of")
    folder = tmp_path / "to"
    missing = wheelhouse.bundle(target, folder, HERE, quiet)
    assert [one.what for one in missing] == [
        "torch==2.7.1",
        f"built at https://github.com/of/built, commit {target.pins.sources['built'].commit}",
    ]
    assert "No matching distribution found for torch==2.7.1" in missing[0].why and "git fetch" in missing[1].why
    assert (folder / "wheels" / "small_one-1.0-py3-none-any.whl").is_file(), "the rest is there"
    assert "- torch==2.7.1: " in (folder / "README.md").read_text()
    with_own_python(monkeypatch, tmp_path)
    done = install(folder, tmp_path / "venv")
    assert done.returncode == 1 and "torch==2.7.1" in done.stderr and "not complete" in done.stderr
    assert not (tmp_path / "uv.log").exists()


def test_what_no_lock_has_and_an_archive_of_another_hash_are_missing(target: Target, tmp_path: Path):
    file = File.model_construct(address=target.pins.sources["built"].files["third/json"].address, sha256="0" * 64)
    source = target.pins.sources["built"].model_copy(update={"files": {"third/json": file}})
    pins = target.pins.model_copy(update={"packages": {"torch": "2.7.1"}, "sources": {"built": source}})
    missing = wheelhouse.bundle(Target("small", None, pins), tmp_path / "to", HERE, quiet)
    assert [one.what for one in missing] == ["torch 2.7.1", f"{file.address}, for built"]
    assert "no lock" in missing[0].why and "0" * 64 in missing[1].why


def test_a_file_of_another_hash_is_not_taken(target: Target, tmp_path: Path):
    lock = tmp_path / "locks" / "small.txt"
    lock.write_text(f"small_one==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    (one,) = wheelhouse.bundle(target, tmp_path / "to", HERE, quiet)
    assert one.what == "small-one==1.0" and "HASH" in one.why.upper()


def test_damage_stops_install_sh_before_it_changes_anything(copy: Path, tmp_path: Path):
    (copy / "lock.txt").write_text("other")
    first = install(copy, tmp_path / "venv")
    next((copy / "wheels").iterdir()).unlink()
    second = install(copy, tmp_path / "venv")
    for done in (first, second):
        assert done.returncode == 1 and "damaged or gone" in done.stderr
    assert "small_one" in second.stderr and "small_one" not in first.stderr
    assert not (tmp_path / "uv.log").exists()


def test_a_folder_that_is_there_is_not_touched(copy: Path, tmp_path: Path):
    done = install(copy, tmp_path)
    assert done.returncode == 1 and f"{tmp_path} is there already" in done.stderr
    assert not (tmp_path / "uv.log").exists()


@pytest.mark.parametrize(
    ("made_for", "said"),
    [
        ("PLATFORM=sparc-manylinux_2_17", "this bundle is for sparc-manylinux_2_17; this machine is "),
        (f"PLATFORM={platform.machine()}-manylinux_2_999", "this bundle needs 2.999"),
        ("PYTHON_VERSION=3.99", "no python3.99 on PATH: install Python 3.99 first"),
    ],
)
def test_a_bundle_of_another_machine_says_so(copy: Path, tmp_path: Path, made_for: str, said: str):
    with (copy / "bundle.env").open("a") as file:
        file.write(f"{made_for}\n")
    wheelhouse.write_sums(copy, quiet)
    done = install(copy, tmp_path / "venv")
    assert done.returncode == 1 and said in done.stderr


def test_without_a_folder_it_says_how_it_is_used(made: Path):
    done = subprocess.run([made / "install.sh"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("usage: install.sh VENV")


def test_a_folder_in_use_and_a_stack_without_a_lock_are_refused(target: Target, tmp_path: Path):
    with pytest.raises(LaunchError, match=line_naming(tmp_path)):
        wheelhouse.bundle(target, tmp_path, HERE, quiet)
    (tmp_path / "locks" / "small.txt").unlink()
    with pytest.raises(LaunchError, match=line_naming("images lock small")):
        wheelhouse.bundle(target, tmp_path / "to", HERE, quiet)


def test_pips_words_for_another_machine():
    options = pip_options("aarch64-manylinux_2_28", "3.10")
    pairs = list(zip(options[::2], options[1::2], strict=True))
    platforms = [value for name, value in pairs if name == "--platform"]
    assert platforms[0] == "manylinux_2_28_aarch64" and "manylinux2014_aarch64" in platforms
    assert ("--python-version", "3.10") in pairs and ("--abi", "cp310") in pairs and ("--abi", "abi3") in pairs
    for wrong in ("aarch64", "linux_x86_64", "x86_64-manylinux2014"):
        with pytest.raises(LaunchError, match=f"--python-platform {wrong}: write PROCESSOR-manylinux"):
            architecture(wrong)


def test_pips_words_mean_what_this_interpreter_takes():
    from packaging.tags import platform_tags

    ours = {value for name, value in zip(*[iter(pip_options(HERE, "3.11"))] * 2, strict=True) if name == "--platform"}
    assert ours <= set(platform_tags()) | {"manylinux1_aarch64", "manylinux2010_aarch64"}
