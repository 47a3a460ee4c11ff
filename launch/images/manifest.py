"""What an image is made of, in its own words: without dates and in order, so that two builds of a commit say the same.

inside.py writes it from within the image, compare.py holds it against the pins, tags.py makes the names of it.
"""

import json

from pydantic import Field, ValidationError

from launch.errors import LaunchError
from launch.recipes.fields import Fields


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
