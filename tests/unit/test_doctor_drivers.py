"""Devices as drivers tell them: stand-ins print what npu-smi and hccn_tool did; NVML has its own names and errors."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from npu_tools import A2_BOARD, A2_TABLE, A3_BOARD, A3_TABLE, write_hccn_tool, write_npu_smi, write_tool

from launch.doctor import drivers
from launch.doctor.drivers import MIB, NOT_ON_PATH, Device, device_files, gpus, npus
from launch.doctor.network import link

pynvml = pytest.importorskip("ray._private.thirdparty.pynvml", reason="Ray, which has a copy of NVML, is not installed")
LOST = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
H200 = Device(1, "NVIDIA H200", "OK", 5, 143771)
NVML = {
    "nvmlDeviceGetHandleByIndex": None,
    "nvmlDeviceGetName": H200.name,
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5 * MIB, total=143771 * MIB),
    "nvmlDeviceGetTotalEccErrors": 0,
}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch) -> Path:
    """A folder that is first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_an_a2(tools: Path, tmp_path: Path):
    write_npu_smi(tools, A2_TABLE, A2_BOARD)
    found = npus(tmp_path)
    assert found.found == (Device(0, "910B3", "OK", 3445, 65536), Device(5, "910B3", "Warning", 60156, 65536))
    assert (found.chip, found.product, found.driver, found.problem) == ("910B3", "A2", "25.2.0", None)


def test_an_a3_has_two_dies_an_npu(tools: Path, tmp_path: Path):
    write_npu_smi(tools, A3_TABLE, A3_BOARD)
    found = npus(tmp_path)
    told = [(0, 3419), (1, 2874), (14, 15503), (15, 15242)]
    assert [(device.number, device.used_mib) for device in found.found] == told
    assert (found.product, found.driver) == ("A3", "26.0.rc2")


@pytest.mark.parametrize("memory", ["0    / 0          NA / NA", "0    / 0          err", "NA", "0 / 0   0 / 0"])
def test_memory_that_is_not_told(tools: Path, tmp_path: Path, memory: str):
    told = "0    / 0          3445 / 65536"
    assert told in A2_TABLE
    write_npu_smi(tools, A2_TABLE.replace(told, memory), A2_BOARD)
    first, second = npus(tmp_path).found
    assert (first.used_mib, first.total_mib, second.total_mib) == (None, None, 65536)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'DrvMngGetConsoleLogLevel failed.'; echo 'dcmi module initialize failed. ret is -8005'; exit 255",
         "npu-smi info ended with 255: dcmi module initialize failed. ret is -8005"),
        ("echo hello", "npu-smi info lists no device: 'hello'"),
        (None, "npu-smi is not on PATH"),
    ],
)  # fmt: skip
def test_why_there_are_no_npus(tools: Path, tmp_path: Path, script: str | None, problem: str):
    if script is not None:
        write_tool(tools / "npu-smi", script)
    found = npus(tmp_path)
    assert (found.found, found.problem) == ((), problem)


@pytest.mark.parametrize("folder", ["usr/local/bin", "usr/local/sbin"])
def test_an_npu_smi_off_path_is_named(tools: Path, tmp_path: Path, folder: str):
    """/usr/local/sbin is on root's PATH; of another user, or over ssh, it may not be."""
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "npu-smi").touch()
    assert npus(tmp_path).problem == f"/{folder}/npu-smi {NOT_ON_PATH}"


def test_links_of_npus(tools: Path):
    write_hccn_tool(tools)
    told = [("UP", "192.0.2.10"), ("DOWN", "192.0.2.11"), ("UP", None), ("UP", "192.0.2.13")]
    assert [link("hccn_tool", number) for number in range(4)] == told
    write_tool(tools / "hccn_tool", "exit 0\n")
    state, address = link("hccn_tool", 0)
    assert state not in ("", "UP", "DOWN") and address is None


def test_device_files(tmp_path: Path):
    for name in ("davinci0", "davinci15", "davinci_manager", "hisi_hdc", "null", "nvidia3", "nvidiactl"):
        (tmp_path / name).touch()
    assert device_files(tmp_path) == ["davinci0", "davinci15", "davinci_manager", "hisi_hdc", "nvidia3"]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch):
    """driver({..}, {..}): one GPU each that answers as NVML but for these functions; an error is raised."""

    def of(*devices: dict[str, object]) -> None:
        def answer(name: str, number: int) -> object:
            told = (NVML | {"nvmlDeviceGetHandleByIndex": number} | devices[number])[name]
            if isinstance(told, Exception):
                raise told
            return told

        monkeypatch.setattr(drivers, "pynvml", pynvml)
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(devices))
        monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "570.133.20")
        for name in NVML:
            monkeypatch.setattr(pynvml, name, lambda number, *_, name=name: answer(name, number))

    return of


@pytest.mark.parametrize(
    ("answers", "first"),
    [
        ({}, Device(0, H200.name, "OK", 5, 143771)),
        ({"nvmlDeviceGetTotalEccErrors": 3}, Device(0, H200.name, "3 uncorrected memory errors", 5, 143771)),
        ({"nvmlDeviceGetTotalEccErrors": NOT_SUPPORTED}, Device(0, H200.name, "OK", 5, 143771)),
        ({"nvmlDeviceGetMemoryInfo": NOT_SUPPORTED}, Device(0, H200.name, "OK", None, None)),  # a GB10
        ({"nvmlDeviceGetMemoryInfo": LOST}, Device(0, H200.name, str(LOST), None, None)),
        ({"nvmlDeviceGetHandleByIndex": LOST}, Device(0, "GPU", str(LOST), None, None)),
    ],
)
def test_a_sick_gpu_is_a_device_among_others(driver, answers: dict, first: Device):
    driver(answers, {})
    found = gpus()
    assert found.found == (first, H200)
    assert (found.driver, found.problem, found.chip) == ("570.133.20", None, first.name)


def test_why_no_gpu_is_listed(driver, monkeypatch: pytest.MonkeyPatch):
    driver()
    assert gpus().problem and not gpus().found
    error = pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: (_ for _ in ()).throw(error))
    assert str(error) in gpus().problem
    monkeypatch.setattr(drivers, "pynvml", None)
    assert "nvidia-ml-py" in gpus().problem
