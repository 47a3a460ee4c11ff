"""Rules for combinations of settings: one function per subject, which yields problems and their fixes.

The rules find settings that would have no effect, train wrongly, or fail long after the start. They do not repeat what
our entry point, verl and Megatron check before they load a model: options of ours and their values, QAT for another
scheme than the rollout's, settings that exact training does not allow, and parallel sizes that do not match the number
of devices.
"""

from collections.abc import Iterator

from ascend_quant.integrations.verl import EXACT
from ascend_quant.integrations.verl.training import attention_settings as attention
from ascend_quant.recipes import leaves
from ascend_quant.recipes.keys import (
    ACTOR,
    CORRECTION,
    DATA_PARALLEL,
    MEGATRON,
    OPTIMIZER,
    OURS,
    QUANTIZATION,
    RANKS,
    ROLLOUT,
)
from launch.recipes.fields import Recipe
from launch.recipes.overrides import refused
from launch.recipes.paths import CHOSEN, paths_of, settings
from launch.recipes.stacks import pins
from launch.recipes.verl import RELEASE, verl_of

PLUGINS = (f"{QUANTIZATION}.", f"{OURS}.")
MINI = f"{ACTOR}.ppo_mini_batch_size"
HOST_ADAM = f"{OPTIMIZER}.optimizer_cpu_offload"
ROUTING_REPLAY = f"{ROLLOUT}.enable_rollout_routing_replay"
# Tokens of a response at which weights of sequences, clipped at 2, leave 0.8 of a batch, for a KL divergence of 1e-4
# per token, which is typical of INT8 rollouts (docs/mismatch.md).
SEQUENCE_TOKENS = 1500


def problems(recipe: Recipe) -> list[str]:
    """List the problems of a recipe whose fields are valid one by one."""
    subjects = (
        *(_served, _older_verl, _fp8_training, _exact, _routing_replay, _apart),
        *(_parallel, _attention, _micro_batch, _correction, refused, _paths),
    )
    return [problem for subject in subjects for problem in subject(recipe)]


def _served(recipe: Recipe) -> Iterator[str]:
    """Yield schemes and KV caches that the engine would refuse, but only after the trainer has loaded its model."""
    stack, scheme, cache = recipe.stack, recipe.rollout.scheme, recipe.rollout.kv_cache
    on_npus = stack.startswith("ascend")
    if on_npus and scheme not in ("int8", "bf16"):
        yield f"scheme: {scheme} is not supported on NPUs (stack {stack}): use int8 or bf16"
    if not recipe.uses_plugin and (found := [key for key, _ in leaves(recipe.verl) if key.startswith(PLUGINS)]):
        yield f"{found[0]}: does nothing: on stack {stack} the {scheme} engine is vllm-ascend's own"
    if (on_npus and cache == "fp8") or (stack in ("cpu", "ascend-cann8.5") and cache == "int8"):
        yield f"kv: {cache} is not supported on stack {stack}: use kv=auto"


def _older_verl(recipe: Recipe) -> Iterator[str]:
    """Yield what the stack's verl lacks, and our trainer options, which its own entry point does not read."""
    verl, rollout, sampling = verl_of(recipe.stack), recipe.rollout, "algorithm.filter_groups.enable"
    if verl is RELEASE:
        return
    if recipe.setting(sampling):
        yield (
            f"{sampling}: verl {verl.name}, of stack {recipe.stack}, has no dynamic sampling: use another stack, or "
            f"disable it: {sampling}=false"
        )
    for name, value, without in (("send", rollout.send, "bf16"), ("qat", recipe.qat, None)):
        if value != without:
            yield f"{name}: {value} on stack {recipe.stack}, whose verl {verl.name} does not read it: leave it out"


def _fp8_training(recipe: Recipe) -> Iterator[str]:
    if not recipe.fp8:
        return
    if recipe.stack.startswith("ascend"):
        yield (
            f"precision: fp8 on stack {recipe.stack}: Atlas A2 and A3 have no FP8 units, and "
            "TransformerEngine needs CUDA. Use bf16 training with int8 rollouts"
        )
    if recipe.setting(f"{DATA_PARALLEL}.fp8_param_gather") and recipe.setting(HOST_ADAM):
        yield (
            f"{DATA_PARALLEL}.fp8_param_gather: true with {HOST_ADAM}: weights kept in FP8 need TransformerEngine's "
            "FusedAdam, which runs on the GPU; Adam on the host cannot step them. Set one of the two to false"
        )
    if recipe.qat:
        yield f"qat: {recipe.qat} with fp8 training: the GEMMs would round the weights a second time. Use bf16 training"


def _exact(recipe: Recipe) -> Iterator[str]:
    """Yield what our entry point does not know of exactness; integrations/verl/training/exact checks all else."""
    if not recipe.is_exact and recipe.setting(f"{QUANTIZATION}.exact"):
        yield f"correction: exact with qat {recipe.qat}: the trainer would compute another policy than the engine"
    if recipe.is_exact and recipe.stack.startswith("ascend"):
        yield f"qat: {EXACT} on stack {recipe.stack}: NPUs have no exact engine. Use correction=token"


def _routing_replay(recipe: Recipe) -> Iterator[str]:
    if not recipe.setting(ROUTING_REPLAY):
        return
    if recipe.backend != "megatron":
        yield (
            f"{ROUTING_REPLAY}: with backend {recipe.backend}: verl's FSDP engine does not read this "
            "setting, so the engine would return its routes in vain. Use backend megatron, or false"
        )
    if recipe.stack.startswith("ascend"):
        yield (
            f"{ROUTING_REPLAY}: on stack {recipe.stack} it has not been verified that the engine returns its "
            "routes, and the trainer would follow whatever it returns. Use false"
        )


def _apart(recipe: Recipe) -> Iterator[str]:
    """Yield a batch that is not a whole number of mini-batches; the weights are sent after a batch's last update."""
    batch, mini = recipe.setting("data.train_batch_size", 1024), recipe.setting(MINI, 256)  # verl's defaults
    counts = all(isinstance(one, int) and one > 0 for one in (batch, mini))
    if recipe.rollout.apart and not (counts and batch % mini == 0):
        yield f"placement: apart: data.train_batch_size must be a multiple of {MINI}: {batch}, {mini}"


def _parallel(recipe: Recipe) -> Iterator[str]:
    """Yield devices that would not form a whole replica, and settings that only the other trainer reads."""
    backend, ranks, shared = recipe.backend, recipe.rollout.tensor_parallel, recipe.sequence_parallel
    if (generating := recipe.nodes * recipe.rollout.apart or recipe.devices) % ranks:
        yield f"{RANKS}: {generating} devices are not a multiple of {ranks}"
    if backend != "megatron" and recipe.setting(HOST_ADAM):
        yield f"{HOST_ADAM}: needs backend megatron, not {backend}: use optimizer=device"
    if backend != "megatron" and (own := [key for key, _ in leaves(recipe.verl) if key.startswith(f"{MEGATRON}.")]):
        yield f"{own[0]}: needs backend megatron, not {backend}: leave it out"
    if backend != "fsdp2" and shared > 1:
        yield (
            f"{ACTOR}.ulysses_sequence_parallel_size: {shared} needs backend fsdp2, not {backend}: use "
            f"{MEGATRON}.context_parallel_size"
        )


def _attention(recipe: Recipe) -> Iterator[str]:
    """Yield the problems of the trainer's attention; Megatron does not use transformers' attention.

    With verl's own entry point, as on ascend-cann8.5, nothing else checks it before training.
    """
    if recipe.backend != "megatron":
        name, device = recipe.setting(attention.NAME_KEY, attention.FLASH), pins(recipe.stack).devices
        ranks = max(recipe.count(one, 1) or 1 for one in attention.ULYSSES_KEYS)  # verl refuses what is not a number
        found = attention.without_kernel(name, device), attention.without_exchange(name, ranks, device)
        yield from filter(None, found)


def _micro_batch(recipe: Recipe) -> Iterator[str]:
    """Yield a micro-batch that is smaller than the longest sequence, at which verl would fail."""
    longest = recipe.rollout.max_prompt_length + recipe.rollout.max_response_length
    megatrons = recipe.setting(f"{MEGATRON}.context_parallel_size", 1)
    share = megatrons if recipe.backend == "megatron" else recipe.sequence_parallel
    key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    tokens = recipe.setting(key, longest)
    if recipe.setting(f"{ACTOR}.use_dynamic_bsz") and isinstance(tokens, int) and tokens * share < longest:
        yield (
            f"{key}: {tokens} tokens on each of the {share} devices that share a sequence are fewer than prompt "
            f"and response, {longest}: set it to at least {-(-longest // share)}"
        )


def _correction(recipe: Recipe) -> Iterator[str]:
    """Yield corrections that would have no effect, hang, or lose most of the batch."""
    if recipe.correction and recipe.bypass and recipe.setting(f"{CORRECTION}.rollout_is_batch_normalize"):
        yield (
            f"{CORRECTION}.rollout_is_batch_normalize: true with bypass: verl averages the weights over each "
            "micro-batch, so a sequence that is alone in one gets the weight 1, and over all ranks, of which those of "
            "other pipeline stages never answer. Set one of the two to false"
        )
    tokens = recipe.rollout.max_response_length
    if recipe.correction == "sequence" and tokens > SEQUENCE_TOKENS:
        yield (
            f"{CORRECTION}.rollout_is: sequence with responses of {tokens} tokens: a weight is a product over all "
            f"tokens, so that little of the batch is left from {SEQUENCE_TOKENS} on. Use token"
        )


def _paths(recipe: Recipe) -> Iterator[str]:
    """Yield settings of paths that differ from those of the `recipe` node, as the run's paths replace them."""
    for key, value in settings(recipe, paths_of(recipe, None, recipe.data.folder, recipe.out)).items():
        if recipe.setting(key) != value:
            yield f"{key}: is chosen when the run starts: give {CHOSEN[key]}"
