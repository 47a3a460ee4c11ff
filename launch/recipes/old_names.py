"""Translates the old names of a recipe's fields in `--set`, which are accepted until 0.3.

For example, `--set rollout.scheme=bf16` is now `scheme=bf16`. An old name stands for a choice from a group, or for one
or several of verl's settings.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ascend_quant.files.documents import BadDocument, parse_yaml
from ascend_quant.integrations.verl import EXACT
from ascend_quant.recipes import leaves
from ascend_quant.recipes.keys import (
    ACTOR,
    CORRECTION,
    DATA_PARALLEL,
    MEGATRON,
    OPTIMIZER,
    OURS,
    QUANTIZATION,
    ROLLOUT,
    TRANSFORMER,
)
from launch import LaunchError
from launch.recipes.fields import Recipe
from launch.recipes.verl import text

ROOTS = ("nodes", "devices_per_node", "rollout", "training", "qat", "verl")  # first parts of old names
NODE = ("name", "summary", "model", "memory", "files", "environment")  # now fields of `recipe`
DATA = ("name", "train", "validation")  # now fields of `recipe.data`
PLAIN = {
    "nodes": "trainer.nnodes",
    "qat": f"{OURS}.qat",
    "rollout.ignore": f"{QUANTIZATION}.ignore",
    "rollout.tensor_parallel": f"{ROLLOUT}.tensor_model_parallel_size",
    "rollout.expert_parallel": f"{ROLLOUT}.expert_parallel_size",
    "rollout.gpu_memory_utilization": f"{ROLLOUT}.gpu_memory_utilization",
    "rollout.max_prompt_length": "data.max_prompt_length",
    "rollout.max_response_length": "data.max_response_length",
    "rollout.n": f"{ROLLOUT}.n",
    "training.sequence_parallel": f"{ACTOR}.ulysses_sequence_parallel_size",
    "training.offload": "recipe.offload",
    "training.reference_offload": "recipe.reference_offload",
    "training.parallel.tensor": f"{MEGATRON}.tensor_model_parallel_size",
    "training.parallel.pipeline": f"{MEGATRON}.pipeline_model_parallel_size",
    "training.parallel.context": f"{MEGATRON}.context_parallel_size",
    "training.parallel.expert": f"{MEGATRON}.expert_model_parallel_size",
    "training.parallel.last_stage_layers": f"{TRANSFORMER}.num_layers_in_last_pipeline_stage",
    "training.fp8.format": f"{TRANSFORMER}.fp8",
    "training.fp8.recipe": f"{TRANSFORMER}.fp8_recipe",
    "correction.level": f"{CORRECTION}.rollout_is",
    "correction.threshold": f"{CORRECTION}.rollout_is_threshold",
    "correction.batch_normalize": f"{CORRECTION}.rollout_is_batch_normalize",
}
GROUPS = {
    "rollout.scheme": "scheme",
    "rollout.kv_cache": "kv",
    "rollout.send": "send",
    "training.precision": "precision",
}


def translated(changes: Sequence[str], base: Callable[[], Recipe]) -> tuple[list[str], list[str]]:
    """Translate changes with old names, and print the new ones to stderr.

    Args:
        base: function that returns the recipe without the changes.

    Returns:
        The translations of the changes with old names, and all other changes as they are.
    """
    fields, others = {}, []
    for change in changes:
        name, _, value = change.partition("=")
        if "=" in change and _is_old(name, value):
            parsed = {name: _parsed(name, value)}
            fields |= parsed if name == "files" else dict(leaves(parsed))  # file names contain dots
        else:
            others.append(change)
    if not fields:
        return [], others
    made = list(_new(fields, base()))
    _tell(tuple(made))
    return made, others


def _is_old(name: str, value: str) -> bool:
    root, _, rest = name.partition(".")
    of_data = root == "data" and (rest in DATA or (not rest and value.startswith("{")))
    of_correction = root == "correction" and (rest or value in ("", "null", "~") or value.startswith("{"))
    return root in (*ROOTS, *NODE) or bool(of_data or of_correction)


def _parsed(name: str, value: str) -> Any:
    try:
        return parse_yaml(value, "the value")
    except BadDocument as error:  # the value may be a secret, so it is not shown
        how = f"write numbers as plain decimal ones (8, not 010), and quote text, as {name}='\"..\"'"
        raise LaunchError(f"--set {name}: cannot be read as YAML: {how}") from error


@cache
def _tell(made: tuple[str, ...]) -> None:
    from launch.environment.variables import override_shown

    written = " ".join(map(override_shown, made))
    print(f"old names in --set, which 0.3 refuses: write -- {written}", file=sys.stderr)


def _new(fields: Mapping[str, Any], base: Recipe) -> Iterator[str]:
    """Yield the Hydra overrides for which old fields stand."""
    yield from _correction(fields, base)
    yield from _devices(fields, base)
    for name, value in fields.items():
        root, _, rest = name.partition(".")
        if name in GROUPS:
            yield f"{GROUPS[name]}={value}"
        elif name in PLAIN:
            if name != "qat" or value != EXACT:
                yield f"{PLAIN[name]}={text(value)}" if value is not None else f"~{PLAIN[name]}"
        elif root == "verl":
            yield f"{rest}={text(value)}"
        elif root in (*NODE, "data"):
            yield f"recipe.{name}={text(value)}"
        elif name == "training.fp8.param_gather":
            yield f"{TRANSFORMER}.fp8_param={text(value)}"
            yield f"{DATA_PARALLEL}.fp8_param_gather={text(value)}"
            yield f"{OPTIMIZER}.fp8_recipe=${{{TRANSFORMER}.fp8_recipe}}"
        elif name == "training.cpu_adam":
            yield f"optimizer={'cpu' if value else 'device'}"
        elif name == "training.routing_replay":
            yield f"{ROLLOUT}.enable_rollout_routing_replay={text(value)}"
            yield f"{MEGATRON}.router_replay.mode={'R3' if value else 'disabled'}"
        elif name not in ("devices_per_node", "rollout.apart", "correction", "correction.bypass") and value is not None:
            raise LaunchError(f"--set {name}: there is no such field: ./run.sh recipe show prints all settings")


def _devices(fields: Mapping[str, Any], base: Recipe) -> Iterator[str]:
    apart = fields.get("rollout.apart", base.rollout.apart)
    if "rollout.apart" in fields:
        yield f"placement={'apart' if apart else 'colocated'}"
        yield f"{ROLLOUT}.n_gpus_per_node={apart}" if apart else f"~{ROLLOUT}.n_gpus_per_node"
    if fields.keys() & {"rollout.apart", "devices_per_node"}:
        yield f"trainer.n_gpus_per_node={fields.get('devices_per_node', base.devices_per_node) - apart}"


def _correction(fields: Mapping[str, Any], base: Recipe) -> Iterator[str]:
    qat, parts = fields.get("qat", base.qat), [name for name in fields if name.startswith("correction.")]
    if qat == EXACT:
        if parts:
            raise LaunchError(f"--set {parts[0]} with qat {EXACT}: exact training needs no correction. Remove one")
        if not base.is_exact:
            yield "correction=exact"
        return
    if base.is_exact and not parts and "correction" not in fields:
        raise LaunchError(
            f"--set qat={qat}: choose what corrects the rollouts, too: --set correction=null, or -- correction=token"
        )
    bypass = base.bypass and base.correction is not None
    chosen = fields.get("correction.bypass", bypass)
    if parts and (base.correction is None or chosen != bypass):
        yield f"correction={'bypass' if chosen else 'token'}"
    elif "correction" in fields:
        yield "correction=none"
