"""Make a freshly built vLLM model refittable: every parameter becomes resident, load_weights becomes a refit.

Runs once a model, between its construction and its first load. From then on
* `model.load_weights` writes through `Loading`, in whatever buckets the caller likes;
* vLLM's post-load pass, however often it runs, only checks that the refit is complete and untouched;
* `model.compute_logits` refuses to work on mixed weights: no token is ever sampled from them.
"""

import logging
from collections import Counter
from collections.abc import Callable
from functools import wraps
from itertools import chain

import torch
from torch import nn
from vllm.config import VllmConfig

from ascend_quant.integrations.vllm.inventory import make_plain, residents_of, skipped_names
from ascend_quant.integrations.vllm.loading import Loading, guard, storage_of
from ascend_quant.integrations.vllm.lying import lent
from ascend_quant.refit import Refit, RefitError

logger = logging.getLogger(__name__)


def attach(model: nn.Module, vllm_config: VllmConfig) -> Refit:
    """Take over `model`'s parameters, load_weights and compute_logits.

    Raises:
        RefitError: a layer type or a parallel layout that the plugin cannot serve.
    """
    parallel = vllm_config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        raise RefitError(f"pipeline_parallel_size={parallel.pipeline_parallel_size}: ascend_quant serves 1 only")
    make_plain(model, vllm_config.quant_config.plain)
    residents = residents_of(model)
    # experts that move between ranks (EPLB) have no lasting place
    plans = not getattr(parallel, "enable_eplb", False)
    refit = Refit(list(residents.values()), buffer_of=_buffers_of(model), plans=plans)
    model.ascend_quant_refit = refit
    _take_load_weights(model, refit, vllm_config)
    _take_compute_logits(model, refit)
    _take_post_load_pass(model, refit, dummy=str(vllm_config.load_config.load_format) == "dummy")
    kinds = Counter("int8" if resident.codes else "plain" for resident in refit.residents)
    scheme = vllm_config.quant_config.scheme
    text = "scheme %s (%s): %d int8 parameters, %d in their own dtype"
    logger.info(text, scheme.name, scheme.summary, kinds["int8"], kinds["plain"])
    return refit


def _buffers_of(model: nn.Module) -> Callable[[str], torch.Tensor]:
    """`model.get_parameter`, without walking through the model for each name of each refit."""
    places = {
        f"{prefix}.{leaf}" if prefix else leaf: (module._parameters, leaf)
        for prefix, module in model.named_modules()
        for leaf, _ in module.named_parameters(recurse=False)
    }

    def buffer_of(name: str) -> torch.Tensor:
        parameters, leaf = places[name]
        return parameters[leaf]

    return buffer_of


def _take_load_weights(model: nn.Module, refit: Refit, vllm_config: VllmConfig) -> None:
    parallel = vllm_config.parallel_config
    shards = parallel.tensor_parallel_size
    if parallel.enable_expert_parallel:
        shards *= parallel.data_parallel_size
    storages = {}
    for resident in refit.residents:
        storages[storage_of(resident.data)] = resident
        for scale, _ in resident.tensors()[1:]:
            storages[storage_of(scale)] = None
    skipped = skipped_names(model, vllm_config)
    original = model.load_weights
    running = []
    for name, parameter in model.named_parameters():
        if parameter.dtype == torch.int8 and hasattr(parameter, "weight_loader"):
            parameter.weight_loader = guard(parameter.weight_loader, name, lambda: bool(running))

    @wraps(original)
    def load_weights(weights, *args, **kwargs):
        if not refit.is_open:
            refit.open(explicit=False)
        running.append(True)
        try:
            with refit.failing():
                loading = Loading(refit, storages, shards, skipped)
                rest = loading.feed(weights)
                first, loaded = next(rest, None), set()  # what a plan knows never reaches vLLM
                if first is not None:
                    with lent(model), loading, loading.naming():
                        loaded = original(chain([first], rest), *args, **kwargs)
                    loading.finish()
                refit.flush()
        finally:
            running.pop()
        refit.close_if_complete()
        return loaded

    model.load_weights = load_weights


def _take_compute_logits(model: nn.Module, refit: Refit) -> None:
    if not hasattr(model, "compute_logits"):
        raise RefitError(f"{type(model).__name__} does not generate text; ascend_quant serves language models")
    original = model.compute_logits

    @wraps(original)
    def compute_logits(*args, **kwargs):
        refit.require_servable()
        return original(*args, **kwargs)

    model.compute_logits = compute_logits


def _take_post_load_pass(model: nn.Module, refit: Refit, dummy: bool) -> None:
    """vLLM calls `quant_method.process_weights_after_loading(layer)` for every layer; the first one speaks for all."""

    def settle() -> None:
        if refit.settle_implicit():
            return
        if refit.last_receipt is None and dummy:
            refit.accept_dummy()
        elif refit.last_receipt is None:
            raise RefitError("no weight came through model.load_weights; load a checkpoint with load_format='auto'")
        else:
            refit.verify()

    speakers = [module for module in model.modules() if getattr(module, "quant_method", None) is not None]
    for module in speakers:
        module.ascend_quant_settle = settle if module is speakers[0] else _nothing


def _nothing() -> None:
    pass
