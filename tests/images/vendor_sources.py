"""Stand-ins for the repositories that the Ascend images build from: small packages, built as the real ones are.

Each fails to build unless the build gives it what the real one needs. A git server of this machine serves them, with a
later commit in each, as branches move on. They show that docker/steps/ does what it says, not that the
real kernels compile.
"""

import os
import socket
import subprocess
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROJECT = '[build-system]\nrequires = ["nothing-of-this-name==0"]\nbuild-backend = "setuptools.build_meta"\n'
SUBMODULE = "csrc/third_party/catlass"

VLLM = """
    import os
    from setuptools import setup
    from setuptools_scm import get_version

    assert os.environ["VLLM_TARGET_DEVICE"] == "empty", "vLLM would compile for a GPU"
    setup(name="vllm", version=get_version(write_to="vllm/_version.py") + "+empty", packages=["vllm"])
"""
VLLM_ASCEND = f"""
    import os
    from pathlib import Path
    from setuptools import setup
    from setuptools_scm import get_version
    import vllm  # it is built where vLLM is

    said = {{name: os.environ[name] for name in ("SOC_VERSION", "COMPILE_CUSTOM_KERNELS", "ASCEND_HOME_PATH")}}
    assert said["COMPILE_CUSTOM_KERNELS"] == "1", said
    assert os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0", "torch would load torch_npu, and that a driver"
    driver = os.environ["LD_LIBRARY_PATH"].split(":")[-2:]  # where two versions of CANN have the stand-in for it
    assert driver[0].endswith("-linux/devlib") and "/devlib/linux/" in driver[1], driver
    assert os.environ["ATB_CXX_ABI"] == "1", "NNAL's environment is missing"
    assert Path("{SUBMODULE}/include/catlass.hpp").is_file(), "the submodule is missing"
    Path("vllm_ascend/_build_info.py").write_text(f"__soc_version__ = '{{said['SOC_VERSION']}}'\\n")
    setup(name="vllm_ascend", version=get_version(write_to="vllm_ascend/_version.py"), packages=["vllm_ascend"])
"""
MEGATRON = """
    import subprocess
    from setuptools import Extension, setup

    includes = subprocess.check_output(["python3", "-m", "pybind11", "--includes"], text=True).split()
    helpers = Extension(
        "megatron.core.datasets.helpers_cpp",
        sources=["megatron/core/datasets/helpers.cpp"],
        language="c++",
        extra_compile_args=includes,
        optional=True,
    )
    setup(name="megatron-core", version="0.12.1", packages=["megatron.core.datasets"], ext_modules=[helpers])
"""
HELPERS = """
    #include <pybind11/pybind11.h>
    PYBIND11_MODULE(helpers_cpp, module) { module.def("two", [] { return 2; }); }
"""
PLAIN = """
    from setuptools import setup

    setup(name="{name}", version="{version}", packages=["{name}"])
"""
FILES: dict[str, dict[str, str]] = {
    "vllm": {"setup.py": VLLM, "vllm/__init__.py": ""},
    "catlass": {"include/catlass.hpp": ""},
    "vllm-ascend": {"setup.py": VLLM_ASCEND, "vllm_ascend/__init__.py": ""},
    "mindspeed": {"setup.py": PLAIN.format(name="mindspeed", version="0.12.1"), "mindspeed/__init__.py": ""},
    "megatron-core": {"setup.py": MEGATRON, "megatron/core/datasets/helpers.cpp": HELPERS},
    "megatron-bridge": {
        "setup.py": PLAIN.format(name="megatron_bridge", version="0.4.0"),
        "megatron_bridge/__init__.py": "",
    },
    "verl": {"setup.py": PLAIN.format(name="verl", version="0.8.0.dev0"), "verl/__init__.py": ""},
}


def make(folder: Path, address: str) -> dict[str, str]:
    """The repositories in `folder`; the commit of each that is to be built. `address` is where the folder is served."""
    commits: dict[str, str] = {}
    for name, files in FILES.items():
        here = folder / name
        git(folder, "init", "-q", name)
        git(here, "config", "uploadpack.allowAnySHA1InWant", "true")  # as GitHub answers
        for path, text in {"pyproject.toml": PROJECT, **files}.items():
            (here / path).parent.mkdir(parents=True, exist_ok=True)
            (here / path).write_text(textwrap.dedent(text))
        if name == "vllm-ascend":
            (here / ".gitmodules").write_text(
                f'[submodule "{SUBMODULE}"]\n\tpath = {SUBMODULE}\n\turl = {address}/catlass\n\tbranch = master\n'
            )
            git(here, "update-index", "--add", "--cacheinfo", f"160000,{commits['catlass']},{SUBMODULE}")
        git(here, "add", "--", *(["."] if name != "vllm-ascend" else ["*.py", "*.toml", ".gitmodules"]))
        git(here, "commit", "-q", "-m", "what is pinned")
        commits[name] = git(here, "rev-parse", "HEAD")
        git(here, "commit", "-q", "--allow-empty", "-m", "the branch moves on")
    return commits


def git(folder: Path, *arguments: str) -> str:
    """What git prints. Nobody's settings and a fixed identity: commits are the same each time."""
    identity = {f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    dates = {f"GIT_{who}_DATE": "2026-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")}
    nobody = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | identity | dates | nobody, capture_output=True, text=True
    )
    assert done.returncode == 0, f"git {arguments}: {done.stderr}"
    return done.stdout.strip()


@contextmanager
def served(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """A git server on an address of this machine; its URL. Builds reach their bridge's address, not the loopback."""
    with socket.socket() as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    options = [f"--base-path={folder}", "--export-all", f"--listen={host}", f"--port={port}", "--reuseaddr"]
    server = subprocess.Popen(["git", "daemon", *options], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        _wait(host, port, server)
        yield f"git://{host}:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait(10)


def _wait(host: str, port: int, server: subprocess.Popen) -> None:
    for _ in range(100):
        assert server.poll() is None, "git daemon ended"
        with socket.socket() as tried:
            if tried.connect_ex((host, port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"git daemon does not listen at {host}:{port}")
