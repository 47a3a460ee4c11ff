"""Libraries that vLLM's compiled kernels need and that are not here: vLLM starts without its kernels then, and ends
much later with an error that names none of them."""

import ctypes
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import torch  # noqa: F401  what it has loaded counts as there

from ascend_quant.smoke.probes import On, Seen, probe

KERNELS = {"vllm": "_C*.so", "vllm_ascend": "vllm_ascend_C*.so"}


@probe("libraries", "vLLM's compiled kernels find the libraries that they are linked with")
def libraries(on: On) -> Seen:
    missing = missing_libraries()
    return Seen({"missing": missing}, [f"{file} needs {', '.join(names)}" for file, names in missing.items()])


def missing_libraries() -> dict[str, list[str]]:
    """By the compiled file that needs them; empty where all is there, or no vLLM is installed."""
    found = {}
    for package, pattern in KERNELS.items():
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or []:
            for file in sorted(Path(folder).glob(pattern)):
                if missing := [name for name in unresolved(file) if not loads(name)]:
                    found[f"{package}/{file.name}"] = missing
    return found


def unresolved(file: Path) -> list[str]:
    """The libraries that the dynamic linker alone does not find; torch's own are among them until it is imported."""
    if shutil.which("ldd") is None:  # not glibc: vLLM has no build for such a system
        return []
    said = subprocess.run(["ldd", str(file)], capture_output=True, text=True, timeout=60).stdout
    return [line.split()[0] for line in said.splitlines() if line.endswith("not found")]


def loads(name: str) -> bool:
    """Whether this process has a library of the name, or can load one."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
