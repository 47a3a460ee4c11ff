"""What pip installs: all of `ascend_quant` and nothing else; from the wheel, the source distribution and in place."""

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import built
import pytest
import tomllib
from packaging.requirements import Requirement

import ascend_quant

ROOT = built.ROOT
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
METADATA = f"ascend_quant-{SETTINGS['version']}.dist-info"


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return built.copy(tmp_path_factory.mktemp("sources") / "tree")


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory) -> Path:
    return built.build(tree, "build_wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory) -> Path:
    return built.build(tree, "build_sdist", tmp_path_factory.mktemp("sdist"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path):
    found = built.contents(wheel)
    assert {name.partition("/")[0] for name in found} == {"ascend_quant", METADATA}
    assert found[f"{METADATA}/top_level.txt"].split() == [b"ascend_quant"]
    files = [file for file in (ROOT / "ascend_quant").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    of_package = {str(file.relative_to(ROOT)): file.read_bytes() for file in files}
    configs = (ROOT / "configs").rglob("*.yaml")  # behind a symlink
    of_package |= {f"ascend_quant/{file.relative_to(ROOT)}": file.read_bytes() for file in configs}
    assert {name: text for name, text in found.items() if name.startswith("ascend_quant/")} == of_package
    assert [name for name in of_package if name.endswith(".json")]


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path):
    unpacked = built.unpack(sdist, tmp_path / "unpacked")
    again = built.build(unpacked, "build_wheel", tmp_path / "again")
    assert built.contents(again) == built.contents(wheel)


def test_the_source_distribution_holds_no_part_of_the_checkouts_tools(sdist: Path):
    with tarfile.open(sdist) as content:
        top = {name.split("/")[1] for name in content.getnames() if "/" in name}
    assert top == {*built.FILES, "ascend_quant", "PKG-INFO", "setup.cfg", "ascend_quant.egg-info"}


def test_an_editable_install_brings_the_package_into_reach_and_nothing_else(tree: Path, tmp_path: Path):
    """As `site` does at the start of Python, in a process that has no other built."""
    with zipfile.ZipFile(built.build(tree, "build_editable", tmp_path / "editable")) as content:
        content.extractall(tmp_path / "site")
    code = (
        "import site, sys; from importlib.util import find_spec; site.addsitedir(sys.argv[1])\n"
        "print(find_spec('ascend_quant').origin, find_spec('launch'), find_spec('tests'))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "site")]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(tree / "ascend_quant" / "__init__.py"), "None", "None"]


def test_metadata_says_the_version_the_extras_and_the_readme(wheel: Path):
    metadata = Parser().parsestr(built.contents(wheel)[f"{METADATA}/METADATA"].decode())
    assert metadata["Version"] == SETTINGS["version"] == ascend_quant.__version__
    assert set(metadata.get_all("Provides-Extra")) == set(SETTINGS["optional-dependencies"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    base = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    assert {one.name for one in base if one.marker is None} == {"torch", "numpy"}
