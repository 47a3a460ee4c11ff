"""Make a newly built vLLM model refittable: every parameter becomes resident, and load_weights becomes a refit.

This runs once per model, between its construction and its first load. From then on:

* `model.load_weights` writes through `Loading`, in any bucketing;
* vLLM's post-load pass, however often it runs, only checks that the refit is complete and untouched;
* `model.compute_logits` refuses to work on mixed weights: no token is ever sampled from them.
"""

import logging
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import chain

import torch
from torch import nn
from vllm import __version__
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from ascend_quant.engine.addresses import Addresses
from ascend_quant.engine.layout import lent
from ascend_quant.engine.loading import Loading, guard, storage_of
from ascend_quant.engine.smoothing import Smoothing
from ascend_quant.engine.unmatched import UnmatchedWeights
from ascend_quant.integrations import seen
from ascend_quant.integrations.vllm import compat, contract, skipping, towers
from ascend_quant.integrations.vllm.exact import install as exact
from ascend_quant.integrations.vllm.inventory import residents_of, unmatched_of, unquantized_in
from ascend_quant.integrations.vllm.kv_cache import key_balance
from ascend_quant.integrations.vllm.kv_cache import scales as kv_scales
from ascend_quant.integrations.vllm.layers import conv, mla
from ascend_quant.kernels import serving_of
from ascend_quant.kernels.storage import CODES
from ascend_quant.profile.files import load
from ascend_quant.refit import Derived, Refit, RefitError, prepare
from ascend_quant.transfer.validate import NamedTensor, pairs

logger = logging.getLogger(__name__)

TRANSFERS = ("nccl", "ipc")  # vLLM's weight transfers whose tensors go through model.load_weights


def attach(model: nn.Module, vllm_config: VllmConfig) -> Refit:
    """Take over the model's parameters, load_weights and compute_logits.

    Raises:
        RefitError: the plugin does not support a layer type, the parallel layout or the profile.
        BadCheckpoint: the profile cannot be read, or has invalid numbers.
    """
    parallel = vllm_config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        raise RefitError(f"pipeline_parallel_size={parallel.pipeline_parallel_size}: ascend_quant supports only 1")
    transfer = getattr(getattr(vllm_config, "weight_transfer_config", None), "backend", None)
    known = transfer in (None, *TRANSFERS)
    if not known and (contract.problem_of("weight transfer") or compat.is_own_transfer(transfer)):
        raise RefitError(
            f"weight transfer {transfer}: not known to load weights through model.load_weights; any other way "
            f"would write BF16 values into quantized buffers; use {' or '.join(TRANSFERS)}"
        )
    if getattr(vllm_config.model_config, "enable_sleep_mode", False) and (problem := contract.problem_of("sleep")):
        raise RefitError(f"enable_sleep_mode: a refit could not tell when its memory is released: {problem}")
    vllm_config.quant_config.make_plain(model)
    if vllm_config.quant_config.options.exact:
        exact.install(model, vllm_config)
    vllm_config.quant_config.check_ignored(model, getattr(vllm_config, "speculative_config", None) is not None)
    residents = residents_of(model)
    towers.check_quantized(model, residents)
    # with EPLB, experts move between ranks and have no permanent buffer
    plans = not getattr(parallel, "enable_eplb", False)
    unmatched = unmatched_of(model, residents, vllm_config)
    smoothing = _smoothing(vllm_config.quant_config, next(iter(residents.values())).tensor.device, unmatched.is_known)
    derived = Derived((mla.follow(model, vllm_config.model_config.dtype), conv.follow(model)))
    unquantized = unquantized_in(model, residents, vllm_config.quant_config.scheme)
    scales, balance = kv_scales.follow(model, vllm_config), key_balance.follow(model, vllm_config, residents)
    checks = [one for one in (derived, smoothing, unmatched, balance, scales) if one is not None]
    refit = Refit(list(residents.values()), Addresses(model), checks, unquantized, plans)
    model.ascend_quant_refit = refit
    _take_load_weights(model, refit, vllm_config, unmatched, smoothing)
    _take_compute_logits(model, refit)
    _take_post_load_pass(model, refit, dummy=str(vllm_config.load_config.load_format) == "dummy")
    _log_summary(refit, vllm_config.quant_config)
    return refit


def _log_summary(refit: Refit, config) -> None:
    """Log one line: the scheme, the quantized and unquantized layers, and the GEMM kernels."""
    quantized = sum(bool(resident.codes) for resident in refit.residents)
    plain, device = len(refit.residents) - quantized, refit.residents[0].tensor.device
    product = serving_of(config.scheme, device).by if quantized else "as without quantization"
    text = "scheme %s (%s): %d quantized parameters, %d in their own dtype; products: %s%s; not quantized: %s"
    said = "; logits in float32" if config.options.lm_head_fp32 else "; exact" if config.options.exact else ""
    logger.info(text, config.scheme.name, config.scheme.summary, quantized, plain, product, said, refit.unquantized)
    if line := seen.unknown(current_platform.device_type, __version__):
        logger.warning("%s", line)


def _smoothing(config, device: torch.device, may_miss: Callable[[str], bool]) -> Smoothing | None:
    """Load the smoothing of the config's profile; None without a profile.

    Raises:
        BadCheckpoint, RefitError: see `attach`.
    """
    if config.options.profile is None:
        return None
    profile, scheme = load(config.options.profile), config.scheme.name
    if profile.scheme != scheme or scheme != "int8":
        raise RefitError(
            f"profile {config.options.profile} is for scheme {profile.scheme}, the engine's is {scheme}: "
            "profiles support only int8; create a profile for int8, or remove the option profile"
        )
    smoothing = Smoothing(profile, config.options.frozen_scales, device, may_miss)
    how = "frozen" if config.options.frozen_scales else "fresh"
    logger.info("profile %s: %d parameters smoothed, scales %s", config.options.profile, len(profile.rules), how)
    return smoothing


def _take_load_weights(
    model: nn.Module,
    refit: Refit,
    vllm_config: VllmConfig,
    unmatched: UnmatchedWeights,
    smoothing: Smoothing | None,
) -> None:
    parallel = vllm_config.parallel_config
    # experts are also split over all data-parallel ranks
    shards = parallel.tensor_parallel_size * parallel.data_parallel_size
    storages = {}
    for resident in refit.residents:
        storages[storage_of(resident.data)] = resident
        for scale, _ in resident.tensors()[1:]:
            storages[storage_of(scale)] = None
    original = model.load_weights
    running = []
    for name, parameter in model.named_parameters():
        if parameter.dtype in CODES.values() and hasattr(parameter, "weight_loader"):
            parameter.weight_loader = guard(parameter.weight_loader, name, lambda: bool(running))

    @wraps(original)
    @torch.no_grad()  # otherwise views of the written weights would keep a trainer's parameters alive
    def load_weights(weights, *args, **kwargs):
        if not refit.is_open:
            if isinstance(weights, (list, tuple)) and _may_follow(pairs(weights), refit, unmatched):
                return set()
            refit.open(explicit=False)
        running.append(True)
        try:
            with refit.failing():
                loading = Loading(refit, storages, shards, unmatched, compat.TAKES_STACKED, smoothing)
                rest = loading.feed(pairs(weights))
                first, loaded = next(rest, None), set()  # tensors in the plan never reach vLLM
                if first is not None:
                    with lent(model), loading, loading.naming(), skipping.listening(loading):
                        loaded = original(chain([first], rest), *args, **kwargs)
                    loading.finish()
                    refit.batch.flush()
        finally:
            running.pop()
        refit.close_if_complete()
        return loaded

    model.load_weights = load_weights


def _may_follow(weights: Sequence[NamedTensor], refit: Refit, unmatched: UnmatchedWeights) -> bool:
    """Return whether a bucket may belong to a refit that has already closed because every parameter was written."""
    closed = refit.why_not_servable() is None and refit.last_receipt is not None
    return closed and all(unmatched.is_left_out(name, tensor, refit.plan.entries) for name, tensor in weights)


def _take_compute_logits(model: nn.Module, refit: Refit) -> None:
    if not hasattr(model, "compute_logits"):
        raise RefitError(f"{type(model).__name__} does not generate text; ascend_quant supports only language models")
    original = model.compute_logits

    @wraps(original)
    def compute_logits(*args, **kwargs):
        refit.require_servable()
        return original(*args, **kwargs)

    model.compute_logits = compute_logits


def _take_post_load_pass(model: nn.Module, refit: Refit, dummy: bool) -> None:
    """Take over vLLM's post-load pass (`process_weights_after_loading`), through one layer for the whole model."""

    def settle() -> None:
        if not prepared:  # before vLLM measures memory and captures graphs; a trainer's first tensors come later
            prepared.append(True)
            prepare(refit)
        if refit.settle_implicit():
            return
        if refit.last_receipt is None and dummy:
            refit.accept_dummy()
        elif refit.last_receipt is None:
            raise RefitError("model.load_weights received no weight; load a checkpoint with load_format='auto'")
        else:
            refit.verify()

    prepared = []
    speakers = [module for module in model.modules() if getattr(module, "quant_method", None) is not None]
    for module in speakers:
        module.ascend_quant_settle = settle if module is speakers[0] else _nothing


def _nothing() -> None:
    pass
