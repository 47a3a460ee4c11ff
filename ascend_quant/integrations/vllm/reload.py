"""vLLM's other ways to bring weights into a running engine: layerwise reload, and the API for weight updates.

Our residents take shards in place. Layerwise reload would move them to the meta device, keep every shard until its
layer is complete, and (with reused bucket buffers) replay overwritten bytes. Weights "in kernel format" would be copied
into parameters past the refit, into codes.
"""

from collections.abc import Callable
from inspect import signature

from ascend_quant.integrations.vllm.worker_refit import refit_of_model
from ascend_quant.refit import RefitError


def opening(original: Callable) -> Callable:
    """For `initialize_layerwise_reload`: a refit is opened instead."""

    def initialize_layerwise_reload(model, *args, **kwargs):
        refit = refit_of_model(model)
        return original(model, *args, **kwargs) if refit is None else refit.open()

    return initialize_layerwise_reload


def closing(original: Callable) -> Callable:
    """For `finalize_layerwise_reload`: the refit is closed."""

    def finalize_layerwise_reload(model, *args, **kwargs):
        refit = refit_of_model(model)
        return original(model, *args, **kwargs) if refit is None else refit.close()

    return finalize_layerwise_reload


def knows_kernel_format(original: Callable) -> bool:
    """Whether a worker's or a runner's method takes weights "in kernel format"."""
    return "is_checkpoint_format" in signature(original).parameters


def without_kernel_format(original: Callable) -> Callable:
    """For such a method: weights in that format are refused."""

    def guarded(self, *args, **kwargs):
        asked = signature(original).bind(self, *args, **kwargs).arguments
        model = getattr(self, "model_runner", self).model
        if refit_of_model(model) is not None and not asked.get("is_checkpoint_format", True):
            raise RefitError(
                f"{original.__name__}(is_checkpoint_format=False) would write past the refit, BF16 values into its "
                "codes; send the checkpoint's tensors, with is_checkpoint_format=True"
            )
        return original(self, *args, **kwargs)

    return guarded
