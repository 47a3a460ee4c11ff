"""GPUs as nvidia-smi shows them: a stand-in with the form of its CSV, not hardware."""

from pathlib import Path

import pytest
from npu_tools import write_tool

from launch.doctor.facts import Device, Holder
from launch.doctor.gpu import gpus

SCRIPT = """\
case "$*" in
--query-gpu=*csv,noheader,nounits)
  echo "0, GPU-aa, NVIDIA H200, 570.133.20, 5, 143771, 0"
  echo "1, GPU-bb, NVIDIA H200, 570.133.20, 70000, 143771, 3"
  echo "2, GPU-cc, NVIDIA A10, 570.133.20, 5, 23028, [N/A]" ;;
--query-compute-apps=*csv,noheader,nounits)
  echo "GPU-bb, 4711, /usr/bin/python3, 69990"
  echo "GPU-cc, 4712, [Not Found], [N/A]" ;;
esac
"""


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_gpus_and_what_holds_them(tools: Path):
    write_tool(tools / "nvidia-smi", SCRIPT)
    found = gpus()
    assert found.found == (
        Device(0, "NVIDIA H200", "OK", 5, 143771),
        Device(1, "NVIDIA H200", "3 uncorrected memory errors", 70000, 143771),
        Device(2, "NVIDIA A10", "OK", 5, 23028),
    )
    assert found.holders == (Holder(1, 4711, "/usr/bin/python3", 69990), Holder(2, 4712, "[Not Found]", 0))
    assert (found.driver, found.problem) == ("570.133.20", None)


@pytest.mark.parametrize(
    ("row", "device"),
    [
        ("0, GPU-aa, NVIDIA H200, 570.1, [GPU requires reset], [GPU requires reset], [GPU requires reset]",
         Device(0, "NVIDIA H200", "GPU requires reset", None, None)),
        ("0, GPU-aa, NVIDIA H200, 570.1, 5, [Unknown Error], 0", Device(0, "NVIDIA H200", "Unknown Error", 5, None)),
        ("0, GPU-aa, [GPU is lost], [GPU is lost], [N/A], [N/A], [N/A]",
         Device(0, "[GPU is lost]", "GPU is lost", None, None)),
        ("0, GPU-aa, NVIDIA H200, 570.1, 5, 100, [Unknown Error]", Device(0, "NVIDIA H200", "Unknown Error", 5, 100)),
        ("0, GPU-aa, NVIDIA GB10, 570.1, [N/A], [N/A], [N/A]", Device(0, "NVIDIA GB10", "OK", None, None)),
    ],
)  # fmt: skip
def test_a_sick_gpu_is_a_device_among_others(tools: Path, row: str, device: Device):
    well = "1, GPU-bb, NVIDIA H200, 570.1, 5, 143771, 0"
    write_tool(tools / "nvidia-smi", f'case "$*" in --query-gpu=*) echo "{row}"; echo "{well}" ;; esac\n')
    found = gpus()
    assert found.found == (device, Device(1, "NVIDIA H200", "OK", 5, 143771))
    assert (found.driver, found.problem) == ("570.1", None)


def test_two_gpus_that_are_lost(tools: Path):
    """Of which the driver does not tell the uuid either."""
    lost = ", ".join(["[GPU is lost]"] * 6)
    write_tool(tools / "nvidia-smi", f'case "$*" in --query-gpu=*) echo "0, {lost}"; echo "1, {lost}" ;; esac\n')
    assert [(one.number, one.health) for one in gpus().found] == [(0, "GPU is lost"), (1, "GPU is lost")]


@pytest.mark.parametrize(
    "said", ["No devices were found", "Unable to determine the device handle: GPU is lost", "a, b"]
)
def test_what_is_no_device_is_told(tools: Path, said: str):
    row = "1, GPU-bb, NVIDIA H200, 570.1, 5, 143771, 0"
    write_tool(tools / "nvidia-smi", f'case "$*" in --query-gpu=*) echo "{said}" ;; esac\n')
    assert not gpus().found and said in gpus().problem
    write_tool(tools / "nvidia-smi", f'case "$*" in --query-gpu=*) echo "{said}"; echo "{row}" ;; esac\n')
    assert [one.number for one in gpus().found] == [1] and said in gpus().problem


def test_a_process_that_is_told_in_other_words(tools: Path):
    row = "1, GPU-bb, NVIDIA H200, 570.1, 5, 143771, 0"
    denied = "[Insufficient Permissions]"
    said = f"GPU-bb, 4711, {denied}, {denied}\nMIG-0c, 4711, python3, 7\nGPU-bb, [N/A], python3, 7\n{denied}"
    write_tool(tools / "nvidia-smi", f'case "$*" in --query-gpu=*) echo "{row}" ;; *) echo "{said}" ;; esac\n')
    assert gpus().holders == (Holder(1, 4711, denied, 0),)


def test_a_driver_that_does_not_answer(tools: Path):
    write_tool(tools / "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n")
    assert gpus().problem.endswith("ended with 18: Failed to initialize NVML: Driver/library version mismatch")
