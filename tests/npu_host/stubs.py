"""Stand-ins for the shared libraries that torch_npu is linked to and this machine lacks: CANN's.

They are compiled with gcc from what the installed wheels say: the libraries they need (`readelf -d`) and the symbols
nobody defines (`nm -D`). What keeps memory, copies, streams and events is in acl_runtime.c; every other function
returns an error that names it, so an operator that would run on the NPU fails instead of giving zeros.

torch 2.7.1 exists on the package index as a CUDA build only; its CUDA libraries get the same treatment.
"""

import ctypes
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

RUNTIME_SOURCE = Path(__file__).with_name("acl_runtime.c")
RUNTIME = "libascendcl.so"  # holds acl_runtime.c and every symbol without a version
NO_CUDA_DEVICE = "100"  # cudaErrorNoDevice, the one error of which torch says nothing
OPENED_BY_NAME = ("libopapi.so",)  # torch_npu 2.7.1 opens the operator library while it starts; here it is empty
# What torch_npu reads while it is imported. It must not load itself when torch is: the stubs come in between; and
# a call must return with its error, not a queue later.
ENVIRONMENT = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "ASCEND_LAUNCH_BLOCKING": "1"}


@dataclass(frozen=True)
class Missing:
    """What the wheels need and this machine lacks.

    Attributes:
        libraries: file names.
        symbols: undefined functions by symbol version ("" for none).
        versions: a library's symbol version; CUDA's are mostly the libraries' names. Others have none.
    """

    libraries: tuple[str, ...]
    symbols: dict[str, tuple[str, ...]]
    versions: dict[str, str]


def start() -> None:
    """Makes `import torch_npu` work in this process and its children. Call it before torch is imported."""
    if "torch" in sys.modules and os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        raise RuntimeError("npu_host.stubs.start() comes too late: torch is imported already. Call it first.")
    folder = build()
    os.environ.update(ENVIRONMENT)
    paths = [str(folder), *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))]
    os.environ["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys(paths))  # for children: this process's loader has read it
    for library in sorted(folder.glob("lib*"), key=lambda path: path.name != RUNTIME):
        ctypes.CDLL(str(library), mode=os.RTLD_GLOBAL)  # a later need of this name is then met by what is loaded


def build() -> Path:
    """The folder with the stub libraries, compiled if this interpreter's environment does not have them yet."""
    sources = RUNTIME_SOURCE.read_bytes() + Path(__file__).read_bytes()
    name = f"torch_npu-{version('torch_npu')}-torch-{version('torch')}-{hashlib.sha256(sources).hexdigest()[:12]}"
    folder = Path(sys.prefix) / "npu-host-stubs" / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        _compile(find_missing(Path(sysconfig.get_path("platlib"))), Path(scratch))
        try:
            os.rename(scratch, folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster: its folder is as good
                raise
        else:
            os.mkdir(scratch)  # TemporaryDirectory wants to remove something
    return folder


def find_missing(site_packages: Path) -> Missing:
    """Reads the installed torch and torch_npu."""
    torch = sorted(site_packages.glob("torch/lib/*.so*"))
    torch_npu = sorted(site_packages.glob("torch_npu/**/*.so"))
    system = _system_libraries()
    # torchair and the ATB plugin are loaded on first use and have needs of their own.
    started = [*torch, *(path for path in torch_npu if not re.search("torchair|op_plugin_atb", str(path)))]
    there = {path.name for path in (*torch, *torch_npu)} | set(system)
    needed = {name for path in started for name in re.findall(r"\(NEEDED\).*\[(.+)\]", _run("readelf", "-d", path))}
    base = [path for name, path in system.items() if re.match(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so|ld-", name)]
    defined = {name for path in (*torch, *torch_npu, *base) for name, _ in _symbols(path, "--defined-only")}
    undefined = defaultdict(set)
    for path in started:
        for name, symbol_version in _symbols(path, "--undefined-only"):
            if name not in defined and not re.match("_?Py", name):
                undefined[symbol_version].add(name)
    return Missing(
        tuple(sorted((needed - there) | set(OPENED_BY_NAME))),
        {symbol_version: tuple(sorted(names)) for symbol_version, names in undefined.items()},
        dict(pair for path in started for pair in _symbol_versions(path)),
    )


def _symbol_versions(library: Path) -> Iterator[tuple[str, str]]:
    """(library, symbol version) that it asks for, of every library that it needs; their last where there are more."""
    for part in _run("readelf", "-V", library).split(" File: ")[1:]:
        for symbol_version in re.findall(r"Name: (\S+)", part):
            yield part.split()[0], symbol_version


def _symbols(library: Path, which: str) -> Iterator[tuple[str, str]]:
    """(name, version) of the dynamic symbols; weak undefined ones are nobody's need."""
    for line in _run("nm", "-D", which, library).splitlines():
        kind, symbol = line.split()[-2:]
        if kind not in ("w", "v"):
            name, _, symbol_version = symbol.partition("@")
            yield name, symbol_version.lstrip("@")


def _system_libraries() -> dict[str, Path]:
    listed = re.findall(r"^\s+(\S+) \(libc6[^)]*\) => (\S+)", _run("/sbin/ldconfig", "-p"), re.MULTILINE)
    return {name: Path(path) for name, path in reversed(listed)}  # the first one listed is what the loader takes


def _compile(missing: Missing, folder: Path) -> None:
    runtime = folder / "runtime.o"
    _run("gcc", "-c", "-fPIC", "-O1", "-Wall", "-Werror", "-fno-builtin", RUNTIME_SOURCE, "-o", runtime)
    written = {line.split()[-1] for line in _run("nm", "--defined-only", "--extern-only", runtime).splitlines()}
    refused = [name for name in missing.symbols.get("", ()) if name not in written]
    code = _functions(refused, 'npu_host_refuse("{name}")')
    _link(folder, RUNTIME, "int npu_host_refuse(const char *);\n" + code, [runtime])
    for library in missing.libraries:
        if library != RUNTIME:
            symbol_version = missing.versions.get(library, "")
            code = _functions(missing.symbols.get(symbol_version, ()) if symbol_version else (), NO_CUDA_DEVICE)
            _link(folder, library, code, [folder / RUNTIME], symbol_version)
    for scrap in (runtime, *folder.glob("*.c"), *folder.glob("*.map")):
        scrap.unlink()


def _functions(names: Iterable[str], result: str) -> str:
    """C functions that return `result`; the label keeps the spelling of a C++ name."""
    line = 'int f{number}(void) __asm__("{name}"); int f{number}(void) {{ return ' + result + "; }}\n"
    return "".join(line.format(number=number, name=name) for number, name in enumerate(names))


def _link(folder: Path, library: str, source: str, objects: list[Path], symbol_version: str = "") -> None:
    code, script = folder / "stub.c", folder / "stub.map"
    code.write_text(source)
    script.write_text(f"{symbol_version} {{ global: *; }};\n")
    versioned = [f"-Wl,--version-script={script}"] if symbol_version else []
    _run(
        "gcc",
        "-shared",
        "-fPIC",
        "-O1",
        f"-Wl,-soname,{library}",
        *versioned,
        code,
        "-Wl,--no-as-needed",
        *objects,
        "-o",
        folder / library,
    )


def _run(*command) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed while the stub libraries were made: {done.stderr.strip()[:2000]}")
    return done.stdout
