"""What in a recipe does not go together, and what to write instead. One function a subject; each yields problems.

Among them: whether a sequence of the greatest length fits: the tokens of a micro-batch, the engine's steps, Ulysses'
heads.
"""

from collections.abc import Iterator
from typing import Any

from ascend_quant.schemes import get_scheme
from launch.recipes.effective import correction_problems
from launch.recipes.fields import Recipe
from launch.recipes.hydra_syntax import leaves
from launch.recipes.overrides import refused
from launch.recipes.settings import updates
from launch.recipes.slices import halves, misfits, unshared_heads
from launch.recipes.versions import verl_of
from launch.variables import override_shown

NPU_SCHEMES = ("int8", "bf16")
TEXTS = ("name", "path", "dir")  # how settings end that hold text, of digits too


def problems(recipe: Recipe) -> list[str]:
    """Everything that is wrong with a recipe whose fields are valid one by one."""
    subjects = (
        *(_npu, _kv_cache, _send, _fp8_training, _quantization_aware, _routing_replay, _groups),
        *(_apart, _devices, _stages, _slices),
        *(correction_problems, sequence_problems, _own_settings, _numbers, _version),
    )
    return [problem for subject in subjects for problem in subject(recipe)]


def _npu(recipe: Recipe) -> Iterator[str]:
    if not recipe.stack.startswith("ascend"):
        return
    if recipe.rollout.scheme not in NPU_SCHEMES:
        yield (
            f"rollout.scheme: {recipe.rollout.scheme} has no kernels on stack {recipe.stack}: Atlas A2 and A3 have no "
            "FP8 units, and INT4 rollouts are not served on NPU by this version. Use int8 rollouts (or bf16)"
        )
    if recipe.qat not in (None, *NPU_SCHEMES):
        yield f"qat: {recipe.qat} has no rollouts on stack {recipe.stack}. Use int8 with int8 rollouts, or no qat"
    if recipe.fp8:
        yield (
            f"training.precision: fp8 on stack {recipe.stack}: Atlas A2 and A3 have no FP8 units, and "
            "TransformerEngine needs CUDA. Use bf16 training with int8 rollouts"
        )


def _kv_cache(recipe: Recipe) -> Iterator[str]:
    asked, numbers = recipe.rollout.kv_cache, recipe.model.numbers
    if asked == "auto":
        return
    if recipe.stack.startswith("ascend") and (asked != "int8" or recipe.stack == "ascend-cann8.5"):
        yield f"rollout.kv_cache: {asked} is not served on stack {recipe.stack} by this version. Leave it at auto"
    if recipe.stack == "cpu" and asked == "int8":
        yield "rollout.kv_cache: int8 on stack cpu: vLLM's attention there has no int8 cache. Use fp8, or auto"
    if numbers is not None and numbers.kv_lora_rank is not None:
        yield f"rollout.kv_cache: {asked} for {recipe.model.place}, whose attention is latent (MLA). Leave it at auto"


def _send(recipe: Recipe) -> Iterator[str]:
    asked, scheme = recipe.rollout.send, recipe.rollout.scheme
    if asked == "bf16":
        return
    if asked == "delta" and not recipe.rollout.apart:
        yield "rollout.send: delta without rollout.apart: engines on the trainer's devices are sent all. Use another"
    elif asked not in (scheme, "delta"):
        yield f"rollout.send: {asked} with {scheme} rollouts. Send {scheme} codes if it is int8 or fp8, or bf16"
    if verl_of(recipe.stack).worker is not None:
        yield f"rollout.send: {asked} on stack {recipe.stack}, whose verl has no sender of ours. Leave it at bf16"


def _fp8_training(recipe: Recipe) -> Iterator[str]:
    if recipe.training.fp8 is not None and recipe.training.precision != "fp8":
        yield f"training.fp8: has no effect with training.precision {recipe.training.precision}: set that to fp8"
    if not recipe.fp8:
        return
    if recipe.backend != "megatron":
        yield (
            f"training.precision: fp8 with backend {recipe.backend}: FP8 training is TransformerEngine's, which verl "
            "uses through Megatron only. Use backend megatron, or bf16 training"
        )
    if recipe.stack == "cpu":
        yield "training.precision: fp8 on stack cpu: TransformerEngine needs CUDA. Use bf16 training"
    if recipe.fp8.param_gather and recipe.training.cpu_adam:
        yield (
            "training.fp8.param_gather: true with training.cpu_adam: weights kept in FP8 need TransformerEngine's "
            "FusedAdam, which runs on the GPU; Adam on the host cannot step them. Set one of the two to false"
        )


def _quantization_aware(recipe: Recipe) -> Iterator[str]:
    if recipe.qat is None:
        return
    if get_scheme(recipe.qat).codes not in ("int4", "int8"):
        yield f"qat: {recipe.qat} has no fake quantization. Choose from int4_g128, int4_g32, int8, or leave qat out"
    elif recipe.qat != recipe.rollout.scheme:
        yield (
            f"qat: {recipe.qat} with {recipe.rollout.scheme} rollouts: the trainer would see other weights than the "
            f"engine. Set rollout.scheme to {recipe.qat}, or qat to the rollout's scheme"
        )
    if recipe.fp8:
        yield f"qat: {recipe.qat} with fp8 training: the products would round the weights again. Use bf16 training"


def _routing_replay(recipe: Recipe) -> Iterator[str]:
    if not recipe.training.routing_replay:
        return
    if recipe.backend != "megatron":
        yield (
            f"training.routing_replay: with backend {recipe.backend}: verl's FSDP engine reads no such setting, and "
            "the engine's routes would be returned in vain. Use backend megatron, or false"
        )
    if recipe.stack.startswith("ascend"):
        yield (
            f"training.routing_replay: on stack {recipe.stack} nobody has seen that the engine returns its routes, and "
            "the trainer would follow whatever it returns. Use false"
        )
    if recipe.model.numbers is not None and recipe.model.numbers.moe_intermediate_size is None:
        yield f"training.routing_replay: {recipe.model.place} has no experts (numbers.moe_intermediate_size). Use false"


def _groups(recipe: Recipe) -> Iterator[str]:
    group, scheme = recipe.model.int4_group, get_scheme(recipe.rollout.scheme)
    if group and scheme.codes == "int4" and scheme.group != group:
        yield (
            f"rollout.scheme: {scheme.name} for {recipe.model.place}, whose INT4 weights have groups of {group} "
            f"(model.int4_group): use int4_g{group}"
        )


def _apart(recipe: Recipe) -> Iterator[str]:
    apart = recipe.rollout.apart
    if not apart:
        return
    if recipe.stack == "ascend-cann8.5":
        yield f"rollout.apart: {apart} on stack {recipe.stack}, whose verl has no such trainer: use 0, or another stack"
    if apart >= recipe.devices_per_node:
        yield (
            f"rollout.apart: {apart} of the {recipe.devices_per_node} devices of a node leave none that trains: "
            f"use {recipe.devices_per_node - 1} or fewer"
        )
    if updates(recipe) is None:
        yield "rollout.apart: verl: data.train_batch_size: no multiple of actor.ppo_mini_batch_size, as verl needs here"


def _devices(recipe: Recipe) -> Iterator[str]:
    ranks, experts, training = recipe.rollout.tensor_parallel, recipe.rollout.expert_parallel, recipe.training_devices
    if recipe.generating_devices % ranks:
        yield f"rollout.tensor_parallel: {recipe.generating_devices} devices are no multiple of {ranks}"
    if experts not in (1, ranks):
        yield f"rollout.expert_parallel: {experts}: verl takes 1, or tensor_parallel ({ranks})"
    parallel = recipe.training.parallel
    if recipe.backend != "megatron" and recipe.training.cpu_adam:
        yield f"training.cpu_adam: is Megatron's, and backend is {recipe.backend}: use training.offload"
    if parallel is None:
        return
    if recipe.backend != "megatron":
        yield f"training.parallel: is Megatron's, and backend is {recipe.backend}: leave it out"
    dense = parallel.tensor * parallel.pipeline * parallel.context
    if training % dense:
        yield (
            f"training.parallel: {training} devices are no multiple of tensor {parallel.tensor} x pipeline "
            f"{parallel.pipeline} x context {parallel.context} = {dense}"
        )
    if training % (parallel.expert * parallel.pipeline):
        yield (
            f"training.parallel: {training} devices are no multiple of expert {parallel.expert} x pipeline "
            f"{parallel.pipeline} = {parallel.expert * parallel.pipeline}"
        )


def _stages(recipe: Recipe) -> Iterator[str]:
    parallel = recipe.training.parallel
    if parallel and parallel.last_stage_layers and parallel.pipeline == 1:
        yield f"training.parallel.last_stage_layers: {parallel.last_stage_layers} without pipeline stages: leave it out"


def _slices(recipe: Recipe) -> Iterator[str]:
    numbers, parallel = recipe.model.numbers, recipe.training.parallel
    if numbers is None:
        return
    for line in halves(numbers, recipe.rollout.ignore):
        yield f"rollout.{line}"
    for line in (*unshared_heads(numbers, recipe.rollout.tensor_parallel), *misfits(numbers, recipe.rollout)):
        yield f"rollout.tensor_parallel: {line}"
    for line in unshared_heads(numbers, parallel.tensor if parallel else 1):
        yield f"training.parallel.tensor: {line}"


def _own_settings(recipe: Recipe) -> Iterator[str]:
    for line in refused(recipe, [key for key, _ in leaves(recipe.verl)]):
        yield f"verl: {line}"


def _numbers(recipe: Recipe) -> Iterator[str]:
    for key, value in leaves(recipe.verl):
        if isinstance(value, str) and not key.endswith(TEXTS) and _is_number(value):
            said = override_shown(f"{key}={value}")
            yield f"verl: {said}: is text in YAML, not a number: write it with a dot, as 1.0e-6"


def _version(recipe: Recipe) -> Iterator[str]:
    verl, told = verl_of(recipe.stack), {}
    for key, value in leaves(recipe.verl):
        if part := verl.lacks(key):
            told.setdefault(part, {})[key] = value
    for part, tree in told.items():
        if tree.get(f"{part}.enable", True):
            yield (
                f"verl: {next(iter(tree))}: verl {verl.name}, of stack {recipe.stack}, has no {verl.absent[part]}: use "
                f"another stack, or do without: --set verl.{part}.enable=false"
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def sequence_problems(recipe: Recipe) -> Iterator[str]:
    """A line for everything that is too small for a prompt and a response, or cannot be shared out."""
    longest = recipe.rollout.max_prompt_length + recipe.rollout.max_response_length
    yield from _micro_batch(recipe, longest)
    yield from _prefill(recipe, longest)
    yield from _ulysses(recipe)


def _micro_batch(recipe: Recipe, longest: int) -> Iterator[str]:
    key, actor = "ppo_max_token_len_per_gpu", _part(recipe, "actor")
    share = recipe.training.parallel.context if recipe.training.parallel else recipe.training.sequence_parallel
    tokens = actor.get(key, longest)
    if not is_count(tokens):
        yield f"verl: actor_rollout_ref.actor.{key}: {tokens!r}: a whole number of tokens is needed"
    elif actor.get("use_dynamic_bsz") and tokens * share < longest:
        yield (
            f"verl: actor_rollout_ref.actor.{key}: {tokens} tokens on each of the {share} devices that share a "
            f"sequence are fewer than prompt and response, {longest}: set it to {-(-longest // share)} or more"
        )


def _prefill(recipe: Recipe, longest: int) -> Iterator[str]:
    rollout = _part(recipe, "rollout")
    tokens = rollout.get("max_num_batched_tokens", 8192)  # verl's default
    if not is_count(tokens):
        yield f"verl: actor_rollout_ref.rollout.max_num_batched_tokens: {tokens!r}: a whole number of tokens is needed"
    elif rollout.get("enable_chunked_prefill") is False and tokens < longest:
        yield (
            f"verl: actor_rollout_ref.rollout.max_num_batched_tokens: {tokens}: without chunked prefill vLLM takes a "
            f"whole sequence at once: set it to {longest} or more"
        )


def _ulysses(recipe: Recipe) -> Iterator[str]:
    ranks, numbers = recipe.training.sequence_parallel, recipe.model.numbers
    if ranks == 1:
        return
    if recipe.backend != "fsdp2":
        yield f"training.sequence_parallel: {ranks} is FSDP's, and backend is {recipe.backend}: use parallel.context"
    if recipe.training_devices % ranks:
        yield f"training.sequence_parallel: {recipe.training_devices} devices are no multiple of {ranks}"
    for line in unshared_heads(numbers, ranks) if numbers else ():
        yield f"training.sequence_parallel: {line}"


def is_count(value: Any) -> bool:
    """Whether it is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _part(recipe: Recipe, name: str) -> dict[str, Any]:
    return recipe.verl.get("actor_rollout_ref", {}).get(name, {})
