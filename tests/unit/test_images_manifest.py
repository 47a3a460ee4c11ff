"""The manifest of an image, read from within: here of this environment, beside what pip and the test itself know."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from images_cases import COMMIT, manifest
from naming import line_naming
from typer.testing import CliRunner

from launch.cli import app
from launch.errors import LaunchError
from launch.images import manifest as inside
from launch.images.manifest import Manifest, compiled, operators

DPKG = """#!/bin/sh
echo "installed bash:amd64 5.2.15-2+b7"
echo "config-files gone:amd64 1.0"
echo "not-installed never:amd64 "
"""
OURS = {"ASCEND_QUANT_STACK": "small", "ASCEND_QUANT_REVISION": COMMIT}


@pytest.fixture
def debian(tmp_path: Path, monkeypatch) -> None:
    """A dpkg-query of two packages, of which one is gone."""
    program = tmp_path / "dpkg-query"
    program.write_text(DPKG)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def listed_by_pip() -> dict[str, str]:
    """The packages of this environment, by pip."""
    command = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "list", "--format", "json"]
    listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {one["name"].lower().replace("_", "-").replace(".", "-"): one["version"] for one in listed}


def test_of_this_environment(debian):
    found = inside.manifest(environment=OURS)
    assert {name: package.version for name, package in found.packages.items()} == listed_by_pip()
    assert found.system_packages == {"bash:amd64": "5.2.15-2+b7"}
    assert (found.stack, found.chip, found.revision) == ("small", None, COMMIT)
    assert (found.python, found.architecture) == (platform.python_version(), platform.machine())
    assert found.system.split()[0] in Path("/etc/os-release").read_text()
    assert found.cuda is None, "torch is a CPU build"
    assert inside.manifest(environment=OURS).as_json() == found.as_json()


def test_packages_of_other_folders_do_not_count(tmp_path: Path, monkeypatch):
    metadata = tmp_path / "te-0.4.0.dist-info" / "METADATA"  # as CANN's, by PYTHONPATH
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: te\nVersion: 0.4.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "te" not in inside.packages() and "torch" in inside.packages()


def installed(folder: Path, name: str, files: dict[str, bytes]) -> None:
    """An installed package, by its files."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)


def test_the_compiled_operators_are_told_by_file(tmp_path: Path, monkeypatch):
    library = b"\0dynamic_scaled_int8_quant(Tensor! out, Tensor x) -> ()\0silu(Tensor x)\0cutlass_scaled_mm( Tensor a\0"
    library += b"\0int8_is_not_an_operator\0" + bytes(5000) + b"quant_at_the_end(Tensor"
    kernels = "vllm_ascend/_cann_ops_custom/op_impl/kernel/ascend910b"
    installed(
        tmp_path,
        "vllm-ascend",
        {
            "vllm_ascend/vllm_ascend_C.so": library,
            "vllm_ascend/empty.so": b"",
            f"{kernels}/moe_quant/one.o": b"",
            f"{kernels}/moe_quant/two.o": b"",
            f"{kernels}/add_norm/one.o": b"",
            "vllm_ascend/ops.py": b"fake_quant(Tensor",
        },
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert compiled() == {
        kernels: ["add_norm", "moe_quant"],
        "vllm_ascend/empty.so": [],
        "vllm_ascend/vllm_ascend_C.so": ["cutlass_scaled_mm", "dynamic_scaled_int8_quant", "quant_at_the_end"],
    }


LOADED = """
import sys, torch
from vllm.platforms import current_platform
current_platform.import_kernels()
print(*(name for name in sys.argv[1:] if hasattr(torch.ops._C, name)))
"""


def test_the_operators_of_the_real_vllm_are_there():
    """vLLM loads one of its libraries, by the processor: in another process, where no test has loaded another one."""
    import vllm

    found = [operators(library) for library in Path(vllm.__file__).parent.glob("_C*.so")]
    command = [sys.executable, "-c", LOADED, *set.union(*found)]
    known = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1].split()
    assert {"dynamic_scaled_int8_quant", "onednn_scaled_mm"} <= set(known).intersection(*found)


@pytest.mark.parametrize(
    ("line", "version"),
    [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda: Optional[str] = None", None), ("cuda = '12.4'", "12.4")],
)
def test_the_cuda_of_torch(tmp_path: Path, monkeypatch, line: str, version: str | None):
    text = f"__version__ = '2.11.0'\ndebug = False\n{line}\ngit_version = '12'\nhip: Optional[str] = None\n"
    installed(tmp_path, "torch", {"torch/version.py": text.encode()})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert inside.cuda() == version


def test_it_is_for_our_images_alone(debian, monkeypatch):
    for name in OURS:
        monkeypatch.delenv(name, raising=False)
    shown = CliRunner().invoke(app, ["manifest"])
    assert shown.exit_code == 2
    assert shown.stderr.startswith("ASCEND_QUANT_STACK is not set") and len(shown.stderr.splitlines()) == 1


def test_the_command(debian):
    shown = CliRunner(env=OURS).invoke(app, ["manifest", "--json"])
    assert shown.exit_code == 0, shown.stderr
    assert Manifest.of(shown.stdout, "this").as_json() == shown.stdout
    short = CliRunner(env=OURS).invoke(app, ["manifest"]).stdout
    assert f"revision: {COMMIT}\n" in short and "CANN" not in short


def test_without_dpkg_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match=line_naming("dpkg-query", "PATH")):
        inside.system_packages()


def test_the_same_contents_are_the_same_text():
    turned = manifest(packages=dict(reversed(manifest().packages.items())))
    assert turned.as_json() == manifest().as_json()
    assert Manifest.of(turned.as_json(), "x") == manifest()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "img printed no manifest"),
        ('{"stack": "cpu"}', r"\(chip: Field required\)"),
        (manifest().as_json().replace('"cann"', '"can"'), "Field required"),
    ],
)
def test_what_is_no_manifest_is_one_line(text: str, said: str):
    with pytest.raises(LaunchError, match=said) as error:
        Manifest.of(text, "img")
    assert len(str(error.value).splitlines()) == 1
