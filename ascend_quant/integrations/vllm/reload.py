"""vLLM's other ways to load weights into a running engine: layerwise reload, and the weight update API.

Resident parameters accept shards in place. Layerwise reload would move them to the meta device, keep every shard until
its layer is complete, and (with reused bucket buffers) replay overwritten bytes. Weights "in kernel format" would
bypass the refit and be copied into the codes. A checkpoint that cannot be opened raises an error before a refit begins,
so that the engine keeps serving the previous weights.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from inspect import signature
from itertools import chain
from typing import Any

from vllm.distributed.parallel_state import get_dp_group

from ascend_quant.integrations.contract import takes
from ascend_quant.integrations.vllm.worker_refit import refit_of_model
from ascend_quant.refit import RefitError


def opening(original: Callable) -> Callable:
    """Wrap `initialize_layerwise_reload`: for our models a refit is opened instead."""

    def initialize_layerwise_reload(model, *args, **kwargs):
        refit = refit_of_model(model)
        return original(model, *args, **kwargs) if refit is None else refit.open()

    return initialize_layerwise_reload


def closing(original: Callable) -> Callable:
    """Wrap `finalize_layerwise_reload`: for our models the refit is closed instead."""

    def finalize_layerwise_reload(model, *args, **kwargs):
        refit = refit_of_model(model)
        return original(model, *args, **kwargs) if refit is None else refit.close()

    return finalize_layerwise_reload


def opened_first(original: Callable) -> Callable:
    """Wrap a loader's `get_all_weights`: if the engine is serving, the first tensor is read before a refit begins.

    This is skipped if experts may be on other data-parallel ranks, whose engines may already have begun their refit.
    """

    def get_all_weights(self, model_config, model) -> Iterable:
        weights, refit = original(self, model_config, model), refit_of_model(model)
        if refit is None or refit.last_receipt is None or get_dp_group().world_size > 1:
            return weights
        try:
            first = next(weights)
        except StopIteration:
            raise RefitError(f"{model_config.model} contains no tensor; the weights are unchanged") from None
        except Exception as error:
            raise RefitError(f"{model_config.model} cannot be opened: {error}; the weights are unchanged") from error
        return chain([first], weights)

    return get_all_weights


@contextmanager
def _path_kept(config: Any) -> Generator[None]:
    """Restore the config's path if a reload from another path fails, so that the next reload uses the former one."""
    former = getattr(config, "model", None), getattr(config, "revision", None)
    try:
        yield
    except Exception:
        if config is not None:
            config.model, config.revision = former
        raise


FORMAT = "is_checkpoint_format"
RELOADING = ("weights_iterator", "weights_path", FORMAT)  # arguments of reload_weights, in order


def knows_kernel_format(original: Callable) -> bool:
    """Return whether a function accepts weights "in kernel format", or passes all its arguments to one that does."""
    return takes(original, FORMAT)


def reloading(original: Callable) -> Callable:
    """Wrap a reload method of a worker, a runner, or a function given the model: kernel-format weights are refused."""

    def guarded(*args, **kwargs):
        asked = signature(original).bind(*args, **kwargs).arguments
        asked |= dict(zip(RELOADING, asked.get("args", ()), strict=False)) | asked.get("kwargs", {})
        model = asked["model"] if "model" in asked else getattr(asked["self"], "model_runner", asked["self"]).model
        if not asked.get(FORMAT, True) and refit_of_model(model) is not None:
            raise RefitError(
                f"{original.__name__}({FORMAT}=False) would bypass the refit and write BF16 values into "
                f"quantized buffers; send the checkpoint's tensors, with {FORMAT}=True"
            )
        with _path_kept(getattr(asked.get("self"), "model_config", None)):
            return original(*args, **kwargs)

    return guarded
