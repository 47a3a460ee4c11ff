"""GPUs as NVML tells them: its real names and errors, with stand-ins for what the driver would answer."""

from types import SimpleNamespace

import pytest

from launch.doctor import drivers
from launch.doctor.drivers import MIB, Device, gpus

pynvml = pytest.importorskip("ray._private.thirdparty.pynvml", reason="Ray, which has a copy of NVML, is not installed")
FINE = {
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5 * MIB, total=143771 * MIB),
    "nvmlDeviceGetTotalEccErrors": 0,
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch):
    """driver({..}, {..}): one GPU each that answers as FINE but for these functions; an error is raised."""

    def give(answer: object) -> object:
        if isinstance(answer, int) and answer < 0:
            raise pynvml.NVMLError(-answer)
        return answer

    def of(*devices: dict[str, object]) -> None:
        monkeypatch.setattr(drivers, "pynvml", pynvml)
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(devices))
        monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "570.133.20")
        byindex = "nvmlDeviceGetHandleByIndex"
        monkeypatch.setattr(pynvml, byindex, lambda number: give(devices[number].get(byindex, number)))
        for name in FINE:
            answer = lambda number, *_, name=name: give((FINE | devices[number])[name])  # noqa: E731
            monkeypatch.setattr(pynvml, name, answer)

    return of


def test_gpus(driver):
    driver({}, {"nvmlDeviceGetTotalEccErrors": 3})
    found = gpus()
    assert found.found == (
        Device(0, "NVIDIA H200", "OK", 5, 143771),
        Device(1, "NVIDIA H200", "3 uncorrected memory errors", 5, 143771),
    )
    assert (found.driver, found.problem, found.chip) == ("570.133.20", None, "NVIDIA H200")


@pytest.mark.parametrize(
    ("answers", "name", "memory"),
    [
        ({"nvmlDeviceGetHandleByIndex": -pynvml.NVML_ERROR_GPU_IS_LOST}, "GPU", None),
        ({"nvmlDeviceGetMemoryInfo": -pynvml.NVML_ERROR_GPU_IS_LOST}, "NVIDIA H200", None),
        ({"nvmlDeviceGetMemoryInfo": -pynvml.NVML_ERROR_NOT_SUPPORTED}, "NVIDIA H200", "OK"),  # a GB10
        ({"nvmlDeviceGetTotalEccErrors": -pynvml.NVML_ERROR_NOT_SUPPORTED}, "NVIDIA H200", (5, 143771)),
    ],
)
def test_a_sick_gpu_is_a_device_among_others(driver, answers: dict, name: str, memory: object):
    driver(answers, {})
    sick, well = gpus().found
    assert (sick.name, well) == (name, Device(1, "NVIDIA H200", "OK", 5, 143771))
    assert (sick.health == "OK") == (memory is not None)
    assert (sick.used_mib, sick.total_mib) == (memory if isinstance(memory, tuple) else (None, None))


def test_why_no_gpu_is_listed(driver, monkeypatch: pytest.MonkeyPatch):
    driver()
    assert gpus().problem and not gpus().found
    error = pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: (_ for _ in ()).throw(error))
    assert str(error) in gpus().problem
    monkeypatch.setattr(drivers, "pynvml", None)
    assert "nvidia-ml-py" in gpus().problem
