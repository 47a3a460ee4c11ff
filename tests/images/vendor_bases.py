"""Stand-ins for the vendors' base images, which no registry brings here: Debian with what the Dockerfiles count on.

CANN's image has compilers, a Python of its own below /usr/local, an environment in ENV, and set_env.sh files for more.
The stand-in has the same, without CANN. Its Python is this machine's pyenv's, where there is one, else Debian's.
"""

import os
import shutil
from pathlib import Path

from docker_engine.engine import Engine

from launch import ROOT

CANN = "/usr/local/Ascend"
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
DEBIANS = "3.11"  # Debian 12's Python
LEFT_OUT = ("test", "tests", "idlelib", "*.a", "share")

SET_ENV = """\
export ASCEND_HOME_PATH={cann}/latest ASCEND_TOOLKIT_HOME={cann}/latest
export LD_LIBRARY_PATH={cann}/latest/lib64${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
"""
SET_NNAL = """\
for argument in "$@"; do
  case $argument in
  --cxx_abi=*) export ATB_CXX_ABI=${argument#*=} ;;
  *) echo "nnal/atb/set_env.sh: an argument that is not for it: $argument" >&2 ;;
  esac
done
"""


def toolchain(engine: Engine, base: str) -> str:
    """The base with compilers, Python's headers and git, as vendors' have them: once, on the cpu image's layer."""
    system, name = "ascend-quant-test-system", "ascend-quant-test-toolchain"
    options = ["--target=system", f"--build-arg=BASE={base}", f"--file={ROOT}/docker/Dockerfile.cpu"]
    engine.docker("buildx", "build", "--quiet", *options, f"--tag={system}", ROOT, timeout=600)
    packages = "cmake libclang-cpp15 libclang1-15 llvm-15-linker-tools make numactl patch"  # of clang-15 the large ones
    step = f"FROM {system}\nRUN --mount=type=bind,source=apt.sh,target=/apt.sh /apt.sh {packages}\n"
    options = ["--file=-", f"--tag={name}"]
    engine.docker("buildx", "build", "--quiet", *options, ROOT / "docker" / "steps", input=step, timeout=300)
    return name


def address_for_builds(engine: Engine) -> str:
    """This machine's address on the network that builds are in."""
    return engine.docker("network", "inspect", "bridge", "--format={{(index .IPAM.Config 0).Gateway}}").stdout.strip()


def cann(engine: Engine, system: str, folder: Path, version: str, python: str) -> tuple[str, str]:
    """An image like CANN's; its name, and the Python that it has.

    Args:
        system: what it is made on (`toolchain`).
        version: CANN's.
        python: what the stack wants.
    """
    name = f"ascend-quant-test-cann:{version}"
    root, latest = folder / "root", f"{CANN}/cann-{version}"
    own = f"/usr/local/python{python}"
    if installed := sorted(PYENV.glob(f"{python}.*")):
        shutil.copytree(installed[-1], root / own.lstrip("/"), symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    files = {
        f"{CANN}/ascend-toolkit/set_env.sh": SET_ENV.format(cann=f"{CANN}/ascend-toolkit"),
        f"{CANN}/nnal/atb/set_env.sh": SET_NNAL,
        f"{latest}/{os.uname().machine}-linux/ascend_toolkit_install.info": f"version={version}\n",
    }
    for path, text in files.items():
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text(text)
    (root / CANN.lstrip("/") / "ascend-toolkit" / "latest").symlink_to(latest)
    (folder / "Dockerfile").write_text(
        f"FROM {system}\nCOPY root /\nENV PATH={own}/bin:$PATH LD_LIBRARY_PATH={own}/lib:{CANN}/driver/lib64 "
        f"ASCEND_HOME_PATH={CANN}/ascend-toolkit/latest\n"
        f'ENTRYPOINT ["/bin/false"]\n'
    )
    engine.docker("buildx", "build", "--quiet", f"--tag={name}", folder, timeout=300)
    shutil.rmtree(root)
    return name, python if installed else DEBIANS
