"""Weights that a vLLM model skips by design (such as MTP layers), as reported by its own loader; there is no list here.

vLLM's classes skip MTP (multi-token prediction) layers without a drafter, towers of disabled modalities, and obsolete
tensors of old checkpoints. Three functions decide this, and are wrapped (hooks.py): `AutoWeightsLoader`'s prefixes and
substrings, a `WeightsMapper` that maps a name to None, and `get_spec_layer_idx_from_weight_name`. Each is called for
one tensor when that is read. A tensor without a parameter that none of them skips is an error, also if a model class
skips it in its own loop.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from ascend_quant.engine.loading import Loading
from ascend_quant.integrations.vllm.compat import STAGE_MISSING

_loadings: list[Loading] = []  # active in this process, the innermost last


@contextmanager
def listening(loading: Loading) -> Iterator[None]:
    """Context in which `loading` is notified of tensors that vLLM's loaders skip by design."""
    _loadings.append(loading)
    try:
        yield
    finally:
        _loadings.pop()


def _skip() -> None:
    if _loadings:
        _loadings[-1].skip()


def of_auto_loader(original: Callable) -> Callable:
    """Wrap `AutoWeightsLoader._can_skip`: names that the loader reads but does not load are reported.

    Prefixes that the class ignores "if unexpected" count, suffixes do not: every loader ignores biases and scales, but
    a model that lacks its trainer's biases computes something else.
    """

    def can_skip(self, qualname: str) -> bool:
        found = original(self, qualname)
        if _loadings:
            unexpected = qualname.startswith(tuple(getattr(self, "ignore_unexpected_prefixes", ())))
            if found or unexpected or is_missing_stage(self.module, qualname):
                _skip()
        return found

    return can_skip


def of_mapper(original: Callable) -> Callable:
    """Wrap `WeightsMapper._map_name..`: a name that is mapped to None is reported as skipped."""

    def map_name(self, key: str):
        found = original(self, key)
        if found is None:
            _skip()
        return found

    return map_name


def of_spec_layers(original: Callable) -> Callable:
    """Wrap `get_spec_layer_idx_from_weight_name`: the name of a speculative (MTP) layer is reported as skipped."""

    def get_spec_layer_idx_from_weight_name(config, weight_name: str):
        found = original(config, weight_name)
        if found is not None:
            _skip()
        return found

    return get_spec_layer_idx_from_weight_name


def is_missing_stage(module: nn.Module, qualname: str) -> bool:
    """Return whether a name belongs to a part that vLLM has not built, such as the tower of a disabled modality."""
    for part in qualname.split("."):
        found = module._modules.get(part) if STAGE_MISSING is not None else None
        if found is None:
            return False
        if isinstance(found, STAGE_MISSING):
            return True
        module = found
    return False


_MODELS = "vllm.model_executor.models"
_OF_LAYERS = "get_spec_layer_idx_from_weight_name"  # in utils since vLLM 0.28, in the models' modules before
LISTENERS = (  # the functions to replace, and their wrappers
    ((f"{_MODELS}.utils:AutoWeightsLoader._can_skip",), of_auto_loader),
    (tuple(f"{_MODELS}.utils:WeightsMapper.{name}" for name in ("_map_name", "_map_name_with_shard")), of_mapper),
    (tuple(f"{_MODELS}.{module}:{_OF_LAYERS}" for module in ("utils", "deepseek_v2", "glm4_moe")), of_spec_layers),
)
