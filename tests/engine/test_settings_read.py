"""Every setting of every recipe is read by verl's sources, and none of the table of those that nobody reads."""

from functools import cache
from pathlib import Path

import verl
from omegaconf import OmegaConf
from test_recipes_verl import PATHS, composed, of
from verl_reads import Key, read

from ascend_quant.demo.training import load_recipe
from ascend_quant.recipes import leaves
from ascend_quant.recipes.keys import ACTOR, OPEN, REFERENCE, UNLISTED
from launch.recipes import load, names, resolve
from launch.recipes.files import DEMOS
from launch.recipes.verl import RELEASE

SOURCES = Path(verl.__file__).parent
FSDP2 = ("addition-int8", "qwen2.5-7b-int8-gsm8k-a2", "qwen3-30b-a3b-int8-grpo-h200")
# What verl hands on whole, to a class or a library whose own names these are; and which file is composed.
HANDED_ON = (
    *OPEN,
    *(f"{part}.{name}" for part in ("actor_rollout_ref.actor", "critic") for name in ("megatron.over", "optim.muon")),
    *(f"{part}.lora" for part in ("actor_rollout_ref.model", "critic.model")),
    *(f"actor_rollout_ref.{role}.fsdp_config.{name}" for role in ("actor", "ref") for name in ("turbo", "wrap_policy")),
    *("critic.fsdp.turbo", "critic.fsdp.wrap_policy", "global_profiler.global_tool_config", "transfer_queue.backend"),
    *("trainer.v1.sync", "model_engine"),
)


@cache
def settings() -> tuple[set[Key], set[Key]]:
    """verl's settings, and those of them that are read."""
    trees = [composed([f"model_engine={engine}"]) for engine in ("dp", "megatron")]
    return read(SOURCES, [OmegaConf.to_container(tree, resolve=False) for tree in trees])


def handed_on(key: str) -> bool:
    return key.startswith(HANDED_ON)


def test_nobody_reads_what_the_table_has():
    there, known = settings()
    unread = {".".join(key) for key in there - known if key[-1] != "_target_"}  # hydra's
    assert set(RELEASE.unread) <= unread
    assert {one for instead in RELEASE.unread.values() for one in instead} <= {".".join(key) for key in known}


def test_every_setting_is_read():
    """Those of recipes, of the demo and of the study."""
    _, known = settings()
    of_demos = {name: [key for key, _ in leaves(load_recipe(name))] for name in DEMOS}
    of_recipes = {name: resolve(load(name), PATHS) for name in names()}
    for name, given in {**of_recipes, **of_demos}.items():
        keys = [line.partition("=")[0].lstrip("+") for line in given]
        lost = [key for key in keys if tuple(key.split(".")) not in known and not handed_on(key)]
        assert len(keys) > 5 and set(lost) <= set(UNLISTED), name


def test_the_trainer_compiles_nothing():
    """What verl's engines are given, not what was written: compilation has no form on NPUs."""
    from verl.utils.config import omega_conf_to_dataclass

    for name in FSDP2:
        config = of(name)
        assert omega_conf_to_dataclass(config.actor_rollout_ref.actor).engine.use_torch_compile is False, name
        assert config.actor_rollout_ref.ref.fsdp_config.use_torch_compile is False, name
        assert [OmegaConf.select(config, f"{part}.fsdp_config.use_torch_compile") for part in (ACTOR, REFERENCE)] == [
            False
        ] * 2, name
