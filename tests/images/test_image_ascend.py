"""The Ascend images: their Dockerfile, unmodified, as far as it can be built without registry and GitHub.

Everything is built and run but CANN and Ubuntu, torch and torch_npu, and the real vLLM, vllm-ascend, MindSpeed,
Megatron-LM and verl, for which stand-ins are built in the same way.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import vendor_bases
import vendor_build
import vendor_sources
from bake_file import arguments
from docker_engine.engine import Engine
from unit.npu_tools import A2_BOARD, A2_TABLE, A3_BOARD, A3_TABLE, write_npu_smi

from launch.recipes.stacks import pins

TARGETS = {"ascend-cann8_5-a2": ("ascend-cann8.5", "A2"), "ascend-cann9_1-a3": ("ascend-cann9.1", "A3")}
REVISION = "0123456789abcdef0123456789abcdef01234567"
DRIVER = "/usr/local/Ascend/driver"
DEVICES = ("davinci0", "davinci_manager", "devmm_svm", "hisi_hdc")
MANY = {"A2": (A2_TABLE, A2_BOARD), "A3": (A3_TABLE, A3_BOARD)}


@dataclass(frozen=True)
class Image:
    """A built image, and what it was built from."""

    engine: Engine
    name: str
    target: str
    stack: str
    chip: str
    python: str
    commits: dict[str, str]

    def run(self, *command: str, options: tuple[str, ...] = ()):
        """`docker run`, as a user may call it where no device is: however it ends."""
        return self.engine.tried("run", "--rm", "--network=none", *options, self.name, *command, timeout=120)


@pytest.fixture(scope="module", params=TARGETS)
def image(request, docker, stand_in_base, tmp_path_factory) -> Image:
    stack, chip = TARGETS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    system = vendor_bases.toolchain(docker, stand_in_base)
    (folder / "base").mkdir()
    base, python = vendor_bases.cann(docker, system, folder / "base", pins(stack).cann, pins(stack).python)
    (folder / "repositories").mkdir()
    with vendor_sources.served(folder / "repositories", vendor_bases.address_for_builds(docker)) as address:
        commits = vendor_sources.make(folder / "repositories", address)
        instead = {
            "BASE": base,
            "PYTHON_VERSION": python,
            "SOURCES": " ".join(source(name, address, commits, stack) for name in pins(stack).sources),
            "VERSION": "0.1.0",
            "REVISION": REVISION,
        }
        name = vendor_build.build(docker, request.param, folder, instead)
    return Image(docker, name, request.param, stack, chip, python, commits)


def source(name: str, address: str, commits: dict[str, str], stack: str) -> str:
    version = pins(stack).packages.get(name)
    return f"{name}={address}/{name}@{commits[name]}" + (f"#{version}" if version else "")


def test_labels_user_and_what_it_says_of_itself(image):
    config = vendor_build.inspect(image.engine, image.name)["Config"]
    assert (
        config["Labels"].items()
        >= {
            "ascend-quant.stack": image.stack,
            "ascend-quant.chip": image.chip,
            "org.opencontainers.image.revision": REVISION,
            "org.opencontainers.image.base.name": f"ascend-quant-test-cann:{pins(image.stack).cann}",
        }.items()
    )
    assert config["User"] in ("", "root", "0")  # the group of the device files is another on each host
    assert not [line for line in config["Env"] if "://" in line or "PIP_" in line or "UV_" in line]
    made = vendor_build.manifest(image.engine, image.name)
    assert (made["chip"], made["built_for"]) == (image.chip, arguments(image.target)["SOC_VERSION"])
    assert (made["cann"], made["revision"]) == (pins(image.stack).cann, REVISION)
    assert made["python"].startswith(image.python)
    for name in pins(image.stack).sources:
        assert made["packages"][name]["commit"] == image.commits[name], name
    for name in ("vllm", "vllm-ascend"):
        assert made["packages"][name]["version"].split("+")[0] == pins(image.stack).packages[name]


def test_programs_run_in_the_environment_of_cann(image):
    done = image.run("bash", "-c", "echo $ATB_CXX_ABI $ASCEND_HOME_PATH; command -v python; id -u")
    assert done.stdout.split() == ["1", "/usr/local/Ascend/ascend-toolkit/latest", "/opt/venv/bin/python", "0"], done
    assert done.stderr == "" and done.returncode == 0


def test_nothing_of_the_build_is_left(image):
    found = image.run(
        "bash", "-c", "ls -d /src /uv /steps /wheels /locks /out /cann.sh /root/.gitconfig /run/secrets/ca"
    )
    assert found.stdout == "", found.stdout
    history = image.engine.docker("history", "--no-trunc", image.name).stdout
    assert "://" not in history.replace("docker-image://", ""), history


@pytest.mark.parametrize("as_user", [(), ("--user=4711:4712", "--read-only", "--tmpfs=/tmp:exec")])
def test_any_user_gets_the_help(image, as_user):
    done = image.run("help", options=as_user)
    assert done.returncode == 0 and "smoke" in done.stdout, done


def one_line(done, *parts: str) -> None:
    """It failed, and said why in one line."""
    assert done.returncode != 0, done
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert len(lines) == 1, done
    assert all(part in lines[0] for part in parts), (lines, parts)


def devices(folder: Path, chip: str | None, files: tuple[str, ...] = DEVICES) -> tuple[str, ...]:
    """Options that give a container what a host with a driver has: device files, and the driver's files of a chip."""
    options = [f"--device=/dev/null:/dev/{name}" for name in files]
    if chip is not None:
        folder.mkdir(exist_ok=True)
        write_npu_smi(folder, *MANY[chip])
        (folder / "version.info").write_text("Version=25.2.0\n")
        mounts = {
            folder: folder,
            folder / "npu-smi": "/usr/local/bin/npu-smi",
            folder / "version.info": f"{DRIVER}/version.info",
        }
        options += [f"--mount=type=bind,source={here},target={there},readonly" for here, there in mounts.items()]
    return tuple(options)


def test_wrong_use_is_one_line(image):
    one_line(image.run("frobnicate"), "no verb 'frobnicate'", "smoke")
    one_line(image.run("test", "unit"), "test needs the sources")
    one_line(image.run("demo"), "cpu image")


def test_the_doctor_says_what_the_container_lacks(image, tmp_path):
    other = {"A2": "A3", "A3": "A2"}[image.chip]
    for part, options in {
        "no devices: npu-smi": devices(tmp_path / "no-driver", None),
        "/dev/davinci0": devices(tmp_path / "no-devices", image.chip, files=()),
        f"the image is for {image.chip}, but the chip is {other}": (
            *devices(tmp_path / "other", other),
            "--shm-size=64g",
        ),
        "free in /dev/shm": (*devices(tmp_path / "shm", image.chip), "--shm-size=64m"),
    }.items():
        done = image.run("doctor", "--json", options=options)
        found = [one["what"] for one in json.loads(done.stdout)["hosts"][0]["findings"] if one["level"] == "error"]
        assert done.returncode == 1 and [what for what in found if part in what], done


def test_health_is_that_of_the_devices(image, tmp_path):
    check = ("/opt/ascend-quant/docker/healthcheck.sh",)
    one_line(image.run(*check), "no devices in /dev")
    done = image.run(*check, options=devices(tmp_path / "well", image.chip))
    assert done.returncode == 0 and done.stdout == "well\n", done


def test_memory_goes_back_to_the_system(image):
    """jemalloc is in every process, unless it is switched off; triton-ascend finds its compiler."""
    line = "grep -c jemalloc /proc/self/maps; command -v clang clang++"
    on, off = (image.run("bash", "-c", line, options=(f"--env=ASCEND_QUANT_JEMALLOC={word}",)) for word in ("", "off"))
    assert int(on.stdout.split()[0]) > 0 and off.stdout.split()[0] == "0", (on, off)
    assert on.stdout.split()[1:] == ["/usr/bin/clang", "/usr/bin/clang++"]


def test_a_base_without_cann_is_named(image):
    done = image.run("bash", options=("--tmpfs=/usr/local/Ascend",))
    one_line(done, "cann.sh", "not built on CANN")
