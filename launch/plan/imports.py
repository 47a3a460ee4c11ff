"""What the processes of a run will import, by the recipe's settings and the user's, and what of it is not here.

verl imports most of it late, in a worker, and takes some failures for a choice (`workers/engine/__init__.py` only warns
that an engine is not available), so that a run dies minutes after its start with a line that points elsewhere. Here the
list is made beforehand, from verl 0.9.1's sources, and looked up in the environment that will run it. Nothing is
imported for that (launch/software.py).

Not in it: what verl's metadata asks for, which comes with verl; a reward file of the user's (verl scores GSM8K and
DAPO-math with the standard library); what depends on the data (`math_verify`, code sandboxes).
"""

from collections.abc import Iterator, Sequence

from launch.plan.job import last_value
from launch.recipes import Recipe
from launch.recipes.settings import uses_plugin
from launch.recipes.verl import ACTOR, MODEL, RELEASE, ROLLOUT, TRANSFORMER, verl_of
from launch.software import Import
from launch.stacks import pins

PLUGINS = "vllm.general_plugins"  # entry points of this group are what vLLM loads
OURS = "ascend_quant"

COMPILED = "transformer_engine_torch"  # in the package for wheels of its core; at the top where all of it was built

# verl/utils/tracking.py, by the names of `trainer.logger`; console and file need nothing.
TRACKERS = {
    "clearml": "clearml",
    "mlflow": "mlflow",
    "rl_insight": "rl_insight",
    "swanlab": "swanlab",
    "tensorboard": "tensorboard",
    "tracking": "wandb",
    "trackio": "trackio",
    "vemlp_wandb": "volcengine_ml_platform",
    "wandb": "wandb",
}
# verl/checkpoint_engine/*.py, by the names of `checkpoint_engine.backend`. On NPUs "nccl" is HCCL's, which needs none.
CHECKPOINT_ENGINES = {
    "delta_sharded": ("cupy",),
    "kimi_ckpt_engine": ("checkpoint_engine",),
    "mooncake": ("mooncake.engine",),
    "nccl": ("cupy",),
    "nixl": ("cupy", "nixl"),
}


def imports(recipe: Recipe, overrides: Sequence[str]) -> list[Import]:
    """What a run will import, each once.

    Args:
        overrides: verl's settings in the order in which they are given: the recipe's, then the user's.
    """
    subjects = (_base, _trainer, _rollout, _checkpoint_engine, _trackers)
    found = [one for subject in subjects for one in subject(recipe, overrides)]
    return list({(one.module, one.group): one for one in reversed(found)}.values())[::-1]


def _base(recipe: Recipe, _: Sequence[str]) -> Iterator[Import]:
    install = f"use the image of stack {recipe.stack}, or install its lock"
    for module in ("torch", "transformers", "ray", "verl"):
        yield Import(module, "every run", install)
    if verl_of(recipe.stack) is RELEASE:
        yield Import("transfer_queue", "verl's trainer", install)


def _trainer(recipe: Recipe, overrides: Sequence[str]) -> Iterator[Import]:
    engine = last_value(overrides, "model_engine", "dp")
    if engine == "megatron":
        yield from _megatron(recipe, overrides)
    elif pins(recipe.stack).devices != "npu":  # there transformers has flash_attention_2 of torch_npu
        yield from _flash_attention(overrides)
    if last_value(overrides, f"{MODEL}.use_liger", "false").lower() == "true":
        yield Import("liger_kernel", f"{MODEL}.use_liger", f"install liger-kernel, or set {MODEL}.use_liger=false")


def _flash_attention(overrides: Sequence[str]) -> Iterator[Import]:
    """verl asks transformers for FlashAttention 2 unless it is told another (workers/config/model.py)."""
    key = f"{MODEL}.override_config.attn_implementation"
    name = last_value(overrides, key, "flash_attention_2")
    package = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}.get(name)
    if package:
        yield Import(package, f"the trainer's attention {name}", f"install it, or set another with ++{key}=..")


def _megatron(recipe: Recipe, overrides: Sequence[str]) -> Iterator[Import]:
    """verl/workers/engine/megatron and mindspeed; the bridge imports modelopt whatever is trained."""
    install = f"install it (stack {recipe.stack}: docs/recipes.md), or take a recipe that trains with FSDP2"
    yield Import("megatron.core", "the Megatron trainer", install)
    if _uses_mbridge(recipe, overrides):
        yield Import("mbridge", "the Megatron trainer, to load and send weights", install)
    else:
        yield Import("megatron.bridge", "the Megatron trainer, to load and send weights", install)
        yield Import("modelopt.torch", "Megatron-Bridge", install)
    if pins(recipe.stack).devices == "npu":
        yield Import("mindspeed.megatron_adaptor", "the Megatron trainer on NPUs", install)
        return
    # The last is compiled for one torch and installed apart. Without it `import megatron.core` itself fails.
    yield Import("transformer_engine.pytorch", "the Megatron trainer's layers", install)
    yield Import(COMPILED, "TransformerEngine", install, elsewhere=f"transformer_engine.wheel_lib.{COMPILED}")
    if last_value(overrides, f"{TRANSFORMER}.attention_backend", "flash") == "flash":
        instead = f"install flash-attn, or set {TRANSFORMER}.attention_backend=fused (cuDNN's)"
        yield Import("flash_attn", "Megatron's attention_backend flash (verl's default)", instead)


def _uses_mbridge(recipe: Recipe, overrides: Sequence[str]) -> bool:
    older = "false" if verl_of(recipe.stack) is RELEASE else "true"  # its default, in each verl
    return last_value(overrides, f"{ACTOR}.megatron.vanilla_mbridge", older).lower() == "true"


def _rollout(recipe: Recipe, _: Sequence[str]) -> Iterator[Import]:
    install = f"use the image of stack {recipe.stack}"
    yield Import("vllm", "the rollouts", f"{install}, or install its lock")
    if pins(recipe.stack).devices == "npu":
        yield Import("vllm_ascend", "vLLM on NPUs", install)
    if uses_plugin(recipe):
        yield Import(OURS, f"the {recipe.rollout.scheme} rollouts", "install this project: pip install .", PLUGINS)


def _checkpoint_engine(recipe: Recipe, overrides: Sequence[str]) -> Iterator[Import]:
    key = f"{ROLLOUT}.checkpoint_engine.backend"
    name = last_value(overrides, key, "naive")
    if name == "nccl" and pins(recipe.stack).devices == "npu":
        return
    for module in CHECKPOINT_ENGINES.get(name, ()):
        instead = (
            "install it, or leave the setting (or the recipe's rollout.apart) out: verl's default, naive, needs none"
        )
        yield Import(module, f"{key}={name}", instead)


def _trackers(_: Recipe, overrides: Sequence[str]) -> Iterator[Import]:
    chosen = last_value(overrides, "trainer.logger", "console")
    for name in (part.strip(" '\"") for part in chosen.strip("[]").split(",")):
        if name in TRACKERS:
            rest = "set trainer.logger=[console,file]"
            yield Import(TRACKERS[name], f"trainer.logger {name}", f"install it, or {rest}")
