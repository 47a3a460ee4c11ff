"""NPUs as their tools show them: stand-ins that print what real ones have printed (npu_tools.py), not hardware."""

from pathlib import Path

import pytest
from npu_tools import A2_BOARD, A2_TABLE, A3_BOARD, A3_TABLE, write_hccn_tool, write_npu_smi, write_tool

from launch.doctor.drivers import NOT_ON_PATH, Device, device_files, npus
from launch.doctor.network import link
from launch.system.software import cann_version


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


def test_device_files(tmp_path: Path):
    for name in ("davinci0", "davinci15", "davinci_manager", "hisi_hdc", "null", "nvidia3", "nvidiactl"):
        (tmp_path / name).touch()
    assert device_files(tmp_path) == ["davinci0", "davinci15", "davinci_manager", "hisi_hdc", "nvidia3"]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'DrvMngGetConsoleLogLevel failed.'; echo 'dcmi module initialize failed. ret is -8005'; exit 255",
         "npu-smi info ended with 255: dcmi module initialize failed. ret is -8005"),
        ("echo hello", "npu-smi info lists no device: 'hello'"),
        (None, "npu-smi is not on PATH"),
    ],
)  # fmt: skip
def test_why_there_are_no_devices(tools: Path, tmp_path: Path, script: str | None, problem: str):
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
    write_npu_smi(tools, A2_TABLE, A2_BOARD)
    assert npus(tmp_path).problem is None


def test_links(tools: Path):
    write_hccn_tool(tools)
    assert [link("hccn_tool", number) for number in range(4)] == [
        ("UP", "192.0.2.10"),
        ("DOWN", "192.0.2.11"),
        ("UP", None),
        ("UP", "192.0.2.13"),
    ]
    write_tool(tools / "hccn_tool", "exit 0\n")
    state, address = link("hccn_tool", 0)
    assert state not in ("", "UP", "DOWN") and address is None


def test_cann_where_its_variables_point(tmp_path: Path):
    info = "package_name=Ascend-cann-toolkit\nversion=8.5.0\ninnerversion=V100R001C25SPC001B232\narch=aarch64\n"
    for folder in ("own/aarch64-linux", "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "own/aarch64-linux/ascend_toolkit_install.info").write_text(info)
    own = str(tmp_path / "own")
    assert cann_version(tmp_path, {"ASCEND_HOME_PATH": own})[0] == "8.5.0"
    assert cann_version(tmp_path, {})[0] is None
    usual = tmp_path / "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info"
    usual.write_text(info.replace("8.5.0", "9.1.0"))
    assert cann_version(tmp_path, {}) == ("9.1.0", str(usual))
    assert cann_version(tmp_path, {"ASCEND_HOME_PATH": str(tmp_path)}) == (None, f"{tmp_path} (ASCEND_HOME_PATH)")
