"""This project as a wheel for Ray's py_modules: the package that is imported here, with the entry points for vLLM.

It names no requirements: Ray installs it with `pip install --target`, which would fetch torch once more. Its build
number is that of the sources: Ray takes a wheel of the same file name from its storage, whatever is in it.
"""

import zipfile
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from launch.system.software import sources

TAG = "py3-none-any"


def own_sources() -> Path:
    """Return the folder of the package that is imported here."""
    return Path(find_spec("ascend_quant").origin).parent


def write(folder: Path) -> Path:
    """Write the wheel into a folder, and return its path."""
    known = distribution("ascend-quant")
    name = f"ascend_quant-{known.version}"
    package = own_sources()
    info = {
        "METADATA": f"Metadata-Version: 2.1\nName: ascend-quant\nVersion: {known.version}\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: ascend-quant\nRoot-Is-Purelib: true\nTag: {TAG}\n",
        "entry_points.txt": known.read_text("entry_points.txt"),
    }
    files = [file for file in sorted(package.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
    wheel = folder / f"{name}-1{sources([package])}-{TAG}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
        for file in files:
            packed.write(file, f"ascend_quant/{file.relative_to(package)}")
        for part, text in info.items():
            packed.writestr(f"{name}.dist-info/{part}", text)
        record = f"{name}.dist-info/RECORD"
        packed.writestr(record, "".join(f"{one},,\n" for one in [*packed.namelist(), record]))
    return wheel
