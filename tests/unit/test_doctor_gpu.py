"""GPUs as nvidia-smi shows them: a stand-in with the form of its CSV, not hardware."""

from pathlib import Path

import pytest
from npu_tools import write_tool

from launch.doctor.facts import Device, Holder
from launch.doctor.gather.gpu import gpus

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


def test_a_driver_that_does_not_answer(tools: Path):
    write_tool(tools / "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n")
    assert gpus().problem.endswith("ended with 18: Failed to initialize NVML: Driver/library version mismatch")
