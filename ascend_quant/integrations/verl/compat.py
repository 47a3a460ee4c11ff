"""Differences between versions of verl, and of Ray and vLLM under it, detected by probing, not by version numbers."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from ascend_quant.transfer.prequantized import parted
from ascend_quant.transfer.validate import NamedTensor

logger = logging.getLogger(__name__)


def models_of(worker: Any) -> list[Any]:
    """Return the models that a weight sync updates: in verl 0.9.1 the model and its MTP drafter, in commit bcb638649a50
    only the model."""
    name_all = getattr(worker, "_iter_all_models", None)
    return [worker.model_runner.model] if name_all is None else list(name_all())


def plain_class(actor_class: Any) -> type:
    """Return the plain class behind a Ray actor class, for subclassing, which Ray forbids for verl's TaskRunnerV1
    itself. Covers verl 0.9.1 (the docs' "recipe to change TaskRunner" needs it), Ray 2.60."""
    return getattr(actor_class, "__ray_actor_class__", actor_class)


def actor_options(actor_class: Any) -> dict[str, Any] | None:
    """Return the options of a Ray actor class, such as `num_cpus`; None if it is a plain class. Covers Ray 2.60."""
    return getattr(actor_class, "_default_options", None)


def type_for_turns(model_type: str | None, tokenizer: Any) -> str | None:
    """Return the model type by which verl joins the turns of a chat; None (verl's default) if the type needs a token
    that the tokenizer lacks. Moonlight has DeepSeek-V3's type and Kimi's tokens, so each of its prompts would fail.
    Covers verl 0.9.1, which has no setting for it."""
    from verl.utils.tokenizer import continuous_token_wiring as turns

    way = turns.get_continuous_token_builder_class(turns.infer_continuous_token_model_family(hf_model_type=model_type))
    if way.supports_multimodal():  # it also needs a processor
        return model_type
    try:
        way(tokenizer)
    except ValueError as error:
        logger.warning("model type %s: %s; verl's default tokenization of turns is used", model_type, error)
        return None
    return model_type


def fsdp2_shards(engine: Any) -> dict[str, Any] | None:
    """Return the FSDP2 shards of verl's training engine by the names that it sends; None if verl does more than gather
    them (LoRA, its own QAT, FSDP1 and other engines). Covers verl 0.9.1."""
    from verl.utils.fsdp_utils import fsdp_version
    from verl.utils.model import convert_weight_keys
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    if getattr(type(engine), "get_per_tensor_param", None) is not FSDPEngine.get_per_tensor_param:
        return None
    if fsdp_version(engine.module) != 2 or hasattr(engine.module, "peft_config") or engine._qat_enabled:
        return None
    shards = convert_weight_keys(engine.module.state_dict(), engine.module)
    if is_tied(engine.module):
        shards.pop("lm_head.weight", None)  # not used by the engine, whose head is tied to the embedding
    return shards


def is_tied(module: Any) -> bool:
    """Return whether a model's head is tied to its embedding, by the names that transformers uses."""
    head = getattr(module, "get_output_embeddings", lambda: None)()
    return head is not None and head.weight is module.get_input_embeddings().weight


def experts_apart(weights: Iterable[NamedTensor], model_type: str) -> list[NamedTensor]:
    """Split stacked experts into single experts if this verl version does; pre-quantized ones too."""
    from verl.workers.engine.fsdp.utils import unfuse_moe_params

    found: list[NamedTensor] = []
    for name, tensor in weights:
        own, _ = parted(name)
        found += [(one + name[len(own) :], part) for one, part in unfuse_moe_params([(own, tensor)], model_type)]
    return found


async def ask_every_engine(engine: Any, method: str) -> list[list[Any]]:
    """Call a method on the workers of all data-parallel engines behind a server: vLLM's collective_rpc calls them all,
    but returns only the first engine's answers. Covers vLLM 0.23 and 0.28.

    Args:
        engine: vLLM's AsyncLLM.
        method: a method of the workers, without arguments.

    Returns:
        For each engine, the answers of its workers.
    """
    client = engine.engine_core
    if engine.vllm_config.parallel_config.data_parallel_size == 1:
        return [await engine.collective_rpc(method)]
    asked = [
        client._call_utility_async("collective_rpc", method, None, (), None, engine=core)
        for core in client.core_engines
    ]
    return list(await asyncio.gather(*asked))
