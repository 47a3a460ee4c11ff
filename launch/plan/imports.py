"""The modules that a run will import; each host looks for them before the start, without importing them.

verl imports most modules late, in a worker, and ignores some failures (`workers/engine/__init__.py` only warns that an
engine is not available), so a run with a missing module fails minutes after its start with a misleading message.
Therefore this module lists the imports in advance, from verl 0.9.1's sources. The list does not include verl's own
requirements, which are installed with verl, or the requirements of the user's reward file or data.
"""

from collections.abc import Iterator

from ascend_quant.recipes.keys import ACTOR, MODEL, ROLLOUT, TRANSFORMER
from launch.recipes import Recipe
from launch.recipes.stacks import pins
from launch.recipes.verl import RELEASE, verl_of
from launch.system.software import Import

PLUGINS = "vllm.general_plugins"  # the entry point group from which vLLM loads plugins
COMPILED = "transformer_engine_torch"  # inside the package in wheels of the core; top-level if built from source
# Names of `trainer.logger` that differ from the names of their modules.
TRACKERS = {"tracking": "wandb", "vemlp_wandb": "volcengine_ml_platform"}


def imports(recipe: Recipe) -> list[Import]:
    """List the modules that a run will import, without duplicates."""
    subjects = (_base, _trainer, _rollout, _checkpoint_engine, _trackers)
    found = [one for subject in subjects for one in subject(recipe)]
    return list({(one.module, one.group): one for one in reversed(found)}.values())[::-1]


def _base(recipe: Recipe) -> Iterator[Import]:
    install = f"use the image of stack {recipe.stack}, or install its lock"
    for module in ("torch", "transformers", "ray", "verl"):
        yield Import(module, "every run", install)
    if verl_of(recipe.stack) is RELEASE:
        yield Import("transfer_queue", "verl's trainer", install)


def _trainer(recipe: Recipe) -> Iterator[Import]:
    if recipe.backend == "megatron":
        yield from _megatron(recipe)
    elif pins(recipe.stack).devices != "npu":  # on NPUs, transformers uses torch_npu's flash_attention_2
        yield from _flash_attention(recipe)
    if recipe.setting(f"{MODEL}.use_liger"):
        yield Import("liger_kernel", f"{MODEL}.use_liger", f"install liger-kernel, or set {MODEL}.use_liger=false")


def _flash_attention(recipe: Recipe) -> Iterator[Import]:
    """Yield the package of the trainer's attention; verl's default is FlashAttention 2 (workers/config/model.py)."""
    key = f"{MODEL}.override_config.attn_implementation"
    name = recipe.setting(key, "flash_attention_2")
    package = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}.get(name)
    if package:
        yield Import(package, f"the trainer's attention {name}", f"install it, or set another with ++{key}=..")


def _megatron(recipe: Recipe) -> Iterator[Import]:
    """Yield the imports of verl/workers/engine/megatron and mindspeed; Megatron-Bridge always imports modelopt."""
    install = f"install it (stack {recipe.stack}: docs/recipes.md), or choose a recipe that trains with FSDP2"
    yield Import("megatron.core", "the Megatron trainer", install)
    if recipe.setting(f"{ACTOR}.megatron.vanilla_mbridge", verl_of(recipe.stack) is not RELEASE):
        yield Import("mbridge", "the Megatron trainer, to load and send weights", install)
    else:
        yield Import("megatron.bridge", "the Megatron trainer, to load and send weights", install)
        yield Import("modelopt.torch", "Megatron-Bridge", install)
    if pins(recipe.stack).devices == "npu":
        yield Import("mindspeed.megatron_adaptor", "the Megatron trainer on NPUs", install)
        return
    # The second is compiled for one torch version and installed separately; without it, `import megatron.core` fails.
    yield Import("transformer_engine.pytorch", "the Megatron trainer's layers", install)
    yield Import(COMPILED, "TransformerEngine", install, elsewhere=f"transformer_engine.wheel_lib.{COMPILED}")
    if recipe.setting(f"{TRANSFORMER}.attention_backend", "flash") == "flash":
        instead = f"install flash-attn, or set {TRANSFORMER}.attention_backend=fused (cuDNN's)"
        yield Import("flash_attn", "Megatron's attention_backend flash (verl's default)", instead)


def _rollout(recipe: Recipe) -> Iterator[Import]:
    install = f"use the image of stack {recipe.stack}"
    yield Import("vllm", "the rollouts", f"{install}, or install its lock")
    if pins(recipe.stack).devices == "npu":
        yield Import("vllm_ascend", "vLLM on NPUs", install)
    if recipe.uses_plugin:
        yield Import(
            "ascend_quant", f"the {recipe.rollout.scheme} rollouts", "install this project: pip install .", PLUGINS
        )


def _checkpoint_engine(recipe: Recipe) -> Iterator[Import]:
    """Yield the module that sends weights to disaggregated engines; on NPUs, "nccl" means HCCL, which needs none."""
    key = f"{ROLLOUT}.checkpoint_engine.backend"
    if recipe.setting(key, "naive") == "nccl" and pins(recipe.stack).devices != "npu":
        yield Import("cupy", f"{key}=nccl", "install it, or remove the setting (or the recipe's placement=apart)")


def _trackers(recipe: Recipe) -> Iterator[Import]:
    """Yield the modules of verl's loggers (verl/utils/tracking.py); most are named like the logger."""
    chosen = recipe.setting("trainer.logger", [])
    for name in [chosen] if isinstance(chosen, str) else chosen:
        if name not in ("console", "file"):
            module = TRACKERS.get(name, name)
            fix = f"with the Python of the run: python -m pip install {module}; or set trainer.logger=[console,file]"
            yield Import(module, f"trainer.logger {name}", fix)
