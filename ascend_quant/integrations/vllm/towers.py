"""Multimodal models: their language model is quantized; the rest (towers, projectors) keeps its dtype.

vLLM's model classes mark towers while building them (`_mark_tower_model`), even if they build a tower on the meta
device and drop it because its modality is disabled.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from torch import nn

from ascend_quant.integrations.vllm.building import Building
from ascend_quant.refit import RefitError
from ascend_quant.refit.resident import ResidentWeight

_building = Building()


def marking(original: Callable) -> Callable:
    """Wrap `SupportsMultiModal._mark_tower_model`: `is_building` is true while a tower is built."""

    def _mark_tower_model(self, vllm_config, modalities, *, targets=None):
        marked = original(self, vllm_config, modalities, targets=targets)
        # marked by class, and built together with the language model: see check_quantized
        return marked if targets is not None else _noted(marked)

    return _mark_tower_model


@contextmanager
def _noted(marked: AbstractContextManager) -> Iterator[None]:
    with marked, _building.part():
        yield


def is_building() -> bool:
    """Return whether the layer being built belongs to a tower."""
    return bool(_building)


def check_quantized(model: nn.Module, residents: Mapping[str, ResidentWeight]) -> None:
    """Check that only the language model is quantized, if vLLM tells which part of a model that is.

    Raises:
        RefitError: a parameter of another part is quantized; the message names it, and how to ignore it.
    """
    if not (language := getattr(model, "_language_model_names", None)):
        return
    for name, resident in residents.items():
        if resident.codes and not any(name.startswith(f"{part}.") for part in language):
            stem = ".".join(name.split(".")[: language[0].count(".") + 1])
            raise RefitError(
                f"{name} is not part of the language model ({', '.join(language)}), the only part that is "
                f"quantized, and {type(model).__name__} builds both together: add it to the option `ignore`, "
                f"such as 're:{stem}\\..*', so that it keeps its dtype"
            )
