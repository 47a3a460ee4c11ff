"""vLLM's other ways to bring weights into a running engine: layerwise reload, and the API for weight updates.

Our residents take shards in place. Layerwise reload would move them to the meta device, keep every shard until its
layer is complete, and (with reused bucket buffers) replay overwritten bytes. Weights "in kernel format" would be copied
into parameters past the refit, into codes.
"""

from collections.abc import Callable
from inspect import Parameter, signature

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


FORMAT = "is_checkpoint_format"
RELOADING = ("weights_iterator", "weights_path", FORMAT)  # the order of reload_weights' arguments, in every vLLM


def knows_kernel_format(original: Callable) -> bool:
    """Whether a function takes weights "in kernel format", or hands all its arguments on to one that does."""
    parameters = signature(original).parameters
    return FORMAT in parameters or any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())


def without_kernel_format(original: Callable) -> Callable:
    """For such a method of a worker or a runner, or a function that is given the model: that format is refused."""

    def guarded(*args, **kwargs):
        asked = signature(original).bind(*args, **kwargs).arguments
        asked |= dict(zip(RELOADING, asked.get("args", ()), strict=False)) | asked.get("kwargs", {})
        model = asked["model"] if "model" in asked else getattr(asked["self"], "model_runner", asked["self"]).model
        if not asked.get(FORMAT, True) and refit_of_model(model) is not None:
            raise RefitError(
                f"{original.__name__}({FORMAT}=False) would write past the refit, BF16 values into its codes; send the "
                f"checkpoint's tensors, with {FORMAT}=True"
            )
        return original(*args, **kwargs)

    return guarded
