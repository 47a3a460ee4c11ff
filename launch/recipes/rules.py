"""Rules for combinations of recipe fields: one function per subject, which yields problems and their fixes.

Here is what would be without effect, train wrongly, or fail long after the start. What the engine, verl and Megatron
refuse when they begin, they say themselves: codes of another scheme, groups of the trainer that do not fit its devices,
slices that are no whole heads, groups or blocks.
"""

from collections.abc import Iterator

from ascend_quant.integrations.verl import EXACT, EXACT_RANKS
from launch.recipes.effective import correction_problems
from launch.recipes.fields import Recipe
from launch.recipes.overrides import refused
from launch.recipes.settings import updates
from launch.recipes.verl import ACTOR, leaves, verl_of


def problems(recipe: Recipe) -> list[str]:
    """List everything that is wrong with a recipe whose fields are valid one by one."""
    subjects = (
        *(_served, _older_verl, _fp8_training, _quantization_aware, _exact, _routing_replay),
        *(_apart, _parallel, _micro_batch, correction_problems, _own_settings, _version),
    )
    return [problem for subject in subjects for problem in subject(recipe)]


def _served(recipe: Recipe) -> Iterator[str]:
    """Yield schemes and KV caches that the engine would refuse, but only once the trainer has loaded its model."""
    stack, scheme, cache = recipe.stack, recipe.rollout.scheme, recipe.rollout.kv_cache
    on_npus = stack.startswith("ascend")
    if on_npus and scheme not in ("int8", "bf16"):
        yield f"rollout.scheme: {scheme} is not supported on NPUs (stack {stack}): use int8 or bf16"
    if (on_npus and cache == "fp8") or (stack in ("cpu", "ascend-cann8.5") and cache == "int8"):
        yield f"rollout.kv_cache: {cache} is not supported on stack {stack}: set it to auto"


def _older_verl(recipe: Recipe) -> Iterator[str]:
    """Yield trainer options of ours that nobody reads, where the entry is verl's own."""
    verl, rollout = verl_of(recipe.stack), recipe.rollout
    if verl.worker is None:
        return
    for field, value, without in (("rollout.send", rollout.send, "bf16"), ("qat", recipe.qat, None)):
        if value != without:
            yield f"{field}: {value} on stack {recipe.stack}, whose verl {verl.name} does not read it: remove it"


def _fp8_training(recipe: Recipe) -> Iterator[str]:
    if recipe.training.fp8 is not None and recipe.training.precision != "fp8":
        yield f"training.fp8: has no effect with training.precision {recipe.training.precision}: set that to fp8"
    if not recipe.fp8:
        return
    if recipe.stack.startswith("ascend"):
        yield (
            f"training.precision: fp8 on stack {recipe.stack}: Atlas A2 and A3 have no FP8 units, and "
            "TransformerEngine needs CUDA. Use bf16 training with int8 rollouts"
        )
    if recipe.backend != "megatron":
        yield (
            f"training.precision: fp8 with backend {recipe.backend}: FP8 training is TransformerEngine's, which verl "
            "uses through Megatron only. Use backend megatron, or bf16 training"
        )
    if recipe.fp8.param_gather and recipe.training.cpu_adam:
        yield (
            "training.fp8.param_gather: true with training.cpu_adam: weights kept in FP8 need TransformerEngine's "
            "FusedAdam, which runs on the GPU; Adam on the host cannot step them. Set one of the two to false"
        )


def _quantization_aware(recipe: Recipe) -> Iterator[str]:
    if recipe.qat is None:
        return
    if recipe.qat_scheme != recipe.rollout.scheme:
        yield (
            f"qat: {recipe.qat} with {recipe.rollout.scheme} rollouts: the trainer would compute with other weights "
            f"than the engine. Set rollout.scheme to {recipe.qat_scheme}, or qat to the rollout's scheme"
        )
    if recipe.fp8:
        yield f"qat: {recipe.qat} with fp8 training: the GEMMs would round the weights a second time. Use bf16 training"


def _exact(recipe: Recipe) -> Iterator[str]:
    """Yield fields that break exactness; verl's settings that do are found by the adapter's
    training/exact/settings.py."""
    if not recipe.is_exact:
        return
    if recipe.stack.startswith("ascend"):
        yield f"qat: {EXACT} on stack {recipe.stack}: NPUs have no exact engine. Use int8, or none"
    rollout = recipe.rollout
    for field, value, valid, why in (
        ("backend", recipe.backend, ("fsdp2",), "exact training is built on transformers' modules"),
        ("rollout.ignore", rollout.ignore, ([],), "only the GEMMs of quantized layers are equal in engine and trainer"),
        (
            "rollout.kv_cache",
            rollout.kv_cache,
            ("auto",),
            "decode would read quantized keys and prefill unquantized ones",
        ),
        (
            "rollout.tensor_parallel",
            rollout.tensor_parallel,
            EXACT_RANKS,
            "an all-reduce over more ranks has no fixed order of summation",
        ),
        ("rollout.expert_parallel", rollout.expert_parallel, (1,), "expert parallelism changes the order of summation"),
        ("rollout.apart", rollout.apart, (0,), "answers would come from older weights"),
    ):
        if value not in valid:
            yield f"{field}: {value} with qat {EXACT}: {why}. Use {' or '.join(map(str, valid))}"


def _routing_replay(recipe: Recipe) -> Iterator[str]:
    if not recipe.training.routing_replay:
        return
    if recipe.backend != "megatron":
        yield (
            f"training.routing_replay: with backend {recipe.backend}: verl's FSDP engine does not read this "
            "setting, so the engine would return its routes in vain. Use backend megatron, or false"
        )
    if recipe.stack.startswith("ascend"):
        yield (
            f"training.routing_replay: on stack {recipe.stack} it has not been verified that the engine returns its "
            "routes, and the trainer would follow whatever it returns. Use false"
        )


def _apart(recipe: Recipe) -> Iterator[str]:
    apart = recipe.rollout.apart
    if not apart:
        return
    if apart >= recipe.devices_per_node:
        yield (
            f"rollout.apart: {apart} of the {recipe.devices_per_node} devices of a node leave none for training: use "
            f"{recipe.devices_per_node - 1} or fewer"
        )
    if updates(recipe) is None:
        yield "rollout.apart: verl: data.train_batch_size must be a multiple of actor.ppo_mini_batch_size"


def _parallel(recipe: Recipe) -> Iterator[str]:
    """Yield devices that no engine would use, as verl counts whole replicas; and what only the other trainer reads."""
    training, backend, ranks = recipe.training, recipe.backend, recipe.rollout.tensor_parallel
    if (generating := recipe.nodes * recipe.rollout.apart or recipe.devices) % ranks:
        yield f"rollout.tensor_parallel: {generating} devices are not a multiple of {ranks}"
    if backend != "megatron" and training.cpu_adam:
        yield f"training.cpu_adam: needs backend megatron, not {backend}: use training.offload"
    if backend != "megatron" and training.parallel:
        yield f"training.parallel: needs backend megatron, not {backend}: remove it"
    if backend != "fsdp2" and training.sequence_parallel > 1:
        shared = training.sequence_parallel
        yield f"training.sequence_parallel: {shared} needs backend fsdp2, not {backend}: use parallel.context"


def _micro_batch(recipe: Recipe) -> Iterator[str]:
    """Yield a micro-batch that is shorter than the longest sequence: verl would end the run at the first such one."""
    tree = dict(leaves(recipe.verl))
    longest = recipe.rollout.max_prompt_length + recipe.rollout.max_response_length
    share = recipe.training.parallel.context if recipe.training.parallel else recipe.training.sequence_parallel
    key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    tokens = tree.get(key, longest)
    if tree.get(f"{ACTOR}.use_dynamic_bsz") and isinstance(tokens, int) and tokens * share < longest:
        yield (
            f"verl: {key}: {tokens} tokens on each of the {share} devices that share a sequence are fewer than prompt "
            f"and response, {longest}: set it to at least {-(-longest // share)}"
        )


def _own_settings(recipe: Recipe) -> Iterator[str]:
    for line in refused(recipe, [key for key, _ in leaves(recipe.verl)]):
        yield f"verl: {line}"


def _version(recipe: Recipe) -> Iterator[str]:
    verl, told = verl_of(recipe.stack), {}
    for key, value in leaves(recipe.verl):
        if part := verl.lacks(key):
            told.setdefault(part, {})[key] = value
    for part, tree in told.items():
        if tree.get(f"{part}.enable", True):
            yield (
                f"verl: {next(iter(tree))}: verl {verl.name}, of stack {recipe.stack}, has no {verl.absent[part]}: use "
                f"another stack, or disable it: --set verl.{part}.enable=false"
            )
