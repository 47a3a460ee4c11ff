"""The CUDA image: its Dockerfile, unmodified, with a part of its lock, on Debian."""

import json

import pytest
import vendor_bases
import vendor_build
from docker_engine.engine import Engine

STACK = "cuda13"
REVISION = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def image(docker: Engine, stand_in_base: str, tmp_path_factory) -> str:
    arguments = {
        "BASE": vendor_bases.toolchain(docker, stand_in_base),
        "PYTHON_VERSION": vendor_bases.DEBIANS,
        "VERSION": "0.1.0",
        "REVISION": REVISION,
    }
    return vendor_build.build(docker, STACK, tmp_path_factory.mktemp(STACK), arguments)


def run(docker: Engine, image: str, *command: str, options: tuple[str, ...] = ()):
    """`docker run` where no GPU is, however it ends."""
    return docker.tried("run", "--rm", "--network=none", *options, image, *command, timeout=120)


def test_labels_and_user(docker, image):
    found = vendor_build.inspect(docker, image)["Config"]
    assert found["Labels"]["ascend-quant.stack"] == STACK and "ascend-quant.chip" not in found["Labels"]
    assert found["Labels"]["org.opencontainers.image.revision"] == REVISION
    assert found["User"] == "1000" and found["WorkingDir"] == "/work"
    assert not [line for line in found["Env"] if "://" in line or "CHIP" in line]


def test_user_1000_is_ours(docker, image):
    done = run(docker, image, "bash", "-c", "id -un; touch /work/a && echo written; cd && pwd")
    assert done.stdout.split() == ["ascend-quant", "written", "/tmp"], done


def test_triton_would_find_a_compiler_and_headers(docker, image):
    done = run(
        docker,
        image,
        "bash",
        "-c",
        'command -v g++; ls "$(python -c "import sysconfig as s; print(s.get_path(\'include\'))")/Python.h"',
    )
    assert done.returncode == 0 and done.stdout.split()[0] == "/usr/bin/g++", done


def test_nccl_would_find_rdma(docker, image):
    """The library that it loads, and the providers of adapters: Mellanox's is the one of most hosts."""
    line = "import ctypes, glob; ctypes.CDLL('libibverbs.so.1'); print(*glob.glob('/usr/lib/*/libibverbs/libmlx5*'))"
    done = run(docker, image, "python", "-c", line)
    assert done.returncode == 0 and "libmlx5" in done.stdout, done


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (("demo",), ("this image is for cuda13", "smoke")),
        (("frobnicate",), ("no verb 'frobnicate'", "smoke")),
        (("/opt/ascend-quant/docker/healthcheck.sh",), ("no devices in /dev", "driver")),
    ],
)
def test_wrong_use_is_one_line(docker, image, command, parts):
    done = run(docker, image, *command)
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert done.returncode != 0 and len(lines) == 1, done
    assert all(part in lines[0] for part in parts), lines


def test_the_doctor_says_that_there_is_no_gpu(docker, image):
    done = run(docker, image, "doctor", "--json")
    levels = {one["check"]: one["level"] for one in json.loads(done.stdout)["hosts"][0]["findings"]}
    assert (done.returncode, levels["devices.present"]) == (1, "error"), done
