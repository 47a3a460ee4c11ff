"""What stops a container before it computes: one line for each thing that can be wrong, and none where all is well."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from doctor_facts import NPU_FILES, well
from naming import has_line_naming
from npu_tools import A2_BOARD, A2_TABLE, write_npu_smi
from typer.testing import CliRunner

from launch.cli import app
from launch.doctor.facts import GIB, Device, Devices
from launch.preflight import gather, problem

ASCEND, CUDA = "ascend-cann9.1", "cuda13"
NPUS, SYSTEM, SOFTWARE = well().devices, well().system, well().software
GPU = Devices("nvidia-smi", driver="580.1", found=(Device(0, "NVIDIA H200", "OK", 0, 143771),))
OF_A2 = {"software": replace(SOFTWARE, chip_of_image="A2")}


def shared(total: float, free: float) -> dict:
    return {"system": replace(SYSTEM, shared_memory=(int(total * GIB), int(free * GIB)))}


WRONG = {
    "no /proc": (*("train", ASCEND, {"system": OSError("no /proc")}), *("system", "no /proc")),
    "A2 image on A3": (
        *("train", ASCEND, OF_A2 | {"devices": replace(NPUS, chip="ascend910_9392")}),
        *("an image for A2 on A3 (ascend910_9392)", "image of ascend-cann9.1 for A3"),
    ),
    "no driver mounted": (
        *("train", ASCEND, {"devices": Devices("npu-smi", "npu-smi is not on PATH", files=NPU_FILES)}),
        *("/usr/local/Ascend/driver/version.info and npu-smi missing", "-v /usr/local/Ascend/driver:"),
    ),
    "npu-smi not mounted": (
        *("train", ASCEND, {"devices": Devices("npu-smi", "npu-smi is not on PATH", driver="25.5.1", files=NPU_FILES)}),
        *("in this container (npu-smi missing)", "-v /usr/local/bin/npu-smi:"),
    ),
    "no NPU mapped": (
        *("smoke", ASCEND, {"devices": Devices("npu-smi", "dcmi failed", driver="25.5.1", files=NPU_FILES[2:])}),
        *("no NPU is mapped", "--device /dev/davinci0 --device /dev/davinci_manager"),
    ),
    "one device file not mapped": (
        *("smoke", ASCEND, {"devices": replace(NPUS, files=NPU_FILES[:-1])}),
        *("/dev/hisi_hdc missing", "--device /dev/hisi_hdc"),
    ),
    "npu-smi fails": (
        *("smoke", ASCEND, {"devices": Devices("npu-smi", "npu-smi info ended with 1: no", "25.5.1", files=NPU_FILES)}),
        *("npu-smi info ended with 1: no", "the device files are there"),
    ),
    "no NVIDIA driver": (
        *("train", CUDA, {"devices": Devices("nvidia-smi", "nvidia-smi is not on PATH")}),
        *("no NVIDIA GPU in this container (nvidia-smi is not on PATH)", "--gpus all"),
    ),
    "no GPU": (
        *("train", CUDA, {"devices": Devices("nvidia-smi", "nvidia-smi lists no device")}),
        *("nvidia-smi lists no device", "--gpus all"),
    ),
    "Docker's own shared memory": (
        *("demo", "cpu", shared(0.0625, 0.0625)),
        *("64.0 of 64.0 MiB free in /dev/shm; 1", "docker run --shm-size=4g"),
    ),
    "too little for a GPU": (
        *("train", CUDA, {"devices": GPU} | shared(8, 8)),
        *("8.0 of 8.0 GiB free in /dev/shm; 16", "docker run --shm-size=64g"),
    ),
    "the demo has no form for NPUs": (
        "demo",
        ASCEND,
        OF_A2,
        "this image is for ascend-cann9.1",
        "use the cpu image or the",
    ),
    "the demo without a GPU": (
        *("demo", CUDA, {"devices": Devices("nvidia-smi", "nvidia-smi lists no device")}),
        *("nvidia-smi lists no device", "--gpus all"),
    ),
}


@pytest.mark.parametrize(("verb", "stack", "changed", "what", "fix"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_line_with_its_fix(verb, stack, changed, what, fix, tmp_path: Path):
    line = problem(verb, stack, well(stack, **changed), str(tmp_path))
    assert what in line and fix in line and "\n" not in line


@pytest.mark.parametrize(
    ("verb", "stack", "changed"),
    [
        ("train", ASCEND, OF_A2),
        ("smoke", CUDA, {"devices": GPU}),
        ("demo", "cpu", {}),
        ("demo", CUDA, {"devices": GPU}),
        ("smoke", "cpu", shared(1, 1)),
    ],
)
def test_nothing_is_said_where_all_is_well(verb, stack, changed, tmp_path: Path):
    assert problem(verb, stack, well(stack, **changed), str(tmp_path)) is None


def test_a_folder_for_what_is_temporary(tmp_path: Path, monkeypatch):
    facts = well("cpu")
    assert has_line_naming(
        problem("smoke", "cpu", facts, str(tmp_path / "missing")), tmp_path / "missing", f"uid {os.getuid()}"
    )
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_NODEV))
    line = problem("smoke", "cpu", facts, str(tmp_path))
    assert "mounted noexec" in line and "--tmpfs /tmp:exec" in line


@pytest.mark.parametrize("verb", ["doctor", "bundle", "manifest"])
def test_what_computes_nothing_needs_no_device_and_a_folder_for_what_is_temporary(verb, tmp_path: Path, monkeypatch):
    facts = well(CUDA, devices=Devices("nvidia-smi", "nvidia-smi is not on PATH"), **shared(0.01, 0.01))
    assert problem(verb, CUDA, facts, str(tmp_path)) is None
    assert "--tmpfs /tmp:exec" in problem(verb, CUDA, facts, str(tmp_path / "missing"))
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert problem(verb, CUDA, facts, str(tmp_path)) is None


def test_facts_of_a_container_with_a_driver_and_no_devices(tmp_path: Path, monkeypatch):
    """Real readings: npu-smi answers, and there is no /dev/davinci* on this machine."""
    write_npu_smi(tmp_path, A2_TABLE, A2_BOARD)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    facts = gather(ASCEND, {"ASCEND_QUANT_CHIP": "A2"})
    assert facts.devices.chip == "ascend910b3" and facts.software.chip_of_image == "A2"
    assert "no NPU is mapped" in problem("train", ASCEND, facts)


def called(*arguments: str, **variables: str):
    return CliRunner(env={"ASCEND_QUANT_STACK": None, "ASCEND_QUANT_PREFLIGHT": None} | variables).invoke(
        app, ["preflight", *arguments]
    )


def test_the_command_ends_with_3_and_one_line(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))  # without npu-smi
    result = called("train", "some-recipe", "--restart", "2", ASCEND_QUANT_STACK=ASCEND)
    assert result.exit_code == 3 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and "Ascend driver" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["train"], {}, ""),  # no image
        (["train", "--help"], {"ASCEND_QUANT_STACK": CUDA}, ""),
        (["train", "x", "--cluster=c.yaml"], {"ASCEND_QUANT_STACK": CUDA}, ""),  # other hosts compute
        (["train"], {"ASCEND_QUANT_STACK": CUDA, "ASCEND_QUANT_PREFLIGHT": "off"}, "nothing was looked at"),
    ],
)
def test_where_nothing_is_looked_at(arguments, variables, said):
    result = called(*arguments, **variables)
    assert result.exit_code == 0 and said in result.stderr and bool(said) == bool(result.stderr)


def test_an_image_of_no_known_stack():
    result = called("smoke", ASCEND_QUANT_STACK="cuda12")
    assert result.exit_code == 3 and "ASCEND_QUANT_STACK=cuda12" in result.stderr and "cuda13" in result.stderr


def test_it_is_quick_because_it_imports_no_torch():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom launch.cli import app\n"
        "CliRunner().invoke(app, ['preflight', 'smoke'])\n"
        "sys.exit(' '.join({'torch', 'vllm', 'transformers'} & set(sys.modules)) or 0)"
    )
    variables = os.environ | {"ASCEND_QUANT_STACK": "cpu"}
    run = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
