"""The refit state of a model, and of the model that a worker runs."""

from ascend_quant.engine.options import NAME
from ascend_quant.refit import Refit, RefitError


def refit_of(model: object) -> Refit:
    """Return the refit state of a vLLM model that runs with `quantization="ascend_quant"`.

    Raises:
        RefitError: the model was built without it, or is a drafter.
    """
    refit = refit_of_model(model)
    if getattr(model, "ascend_quant_drafts", False):
        raise RefitError(
            f"{type(model).__name__} is a drafter, whose weights a refit cannot update; exclude it from "
            "weight syncs (verl: actor_rollout_ref.model.mtp.enable_rollout=False)"
        )
    if refit is None:
        raise RefitError(
            f"{type(model).__name__} was not built by the ascend_quant plugin; start the engine with "
            f'quantization="{NAME}", and check that ascend-quant is installed in its environment'
        )
    return refit


def refit_of_model(model: object) -> Refit | None:
    """Return the refit state of a vLLM model; None for a model that was built without the plugin."""
    return getattr(model, "ascend_quant_refit", None)


def refit_of_worker(worker: object) -> Refit | None:
    """Return the refit state of a vLLM worker's model; None if it has no model, or one built without the plugin."""
    return refit_of_model(getattr(getattr(worker, "model_runner", None), "model", None))
