"""Every recipe's overrides go through verl's own configuration loader and checks, and name what Megatron-core has.

Those for stack ascend-cann9.1 go through the same verl, 0.9.1; for ascend-cann8.5 see unit/test_recipe_verl_commit.py.
Not run here, for want of a GPU or NPU: the engines themselves (Megatron-Bridge, TransformerEngine, MindSpeed), and what
verl checks when workers start.
"""

import warnings
from dataclasses import fields
from functools import cache
from typing import Any, get_args, get_type_hints

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from ascend_quant.integrations.verl import main_ppo, settings
from ascend_quant.integrations.verl.training import attention_settings, qat
from ascend_quant.recipes import keys, leaves
from ascend_quant.recipes.keys import DATA_PARALLEL, OPEN, OPTIMIZER, ROLLOUT, TRANSFORMER
from launch.recipes import Paths, Recipe, load, names, resolve

PATHS = Paths("/models/one", "/data", "/runs/one")
# With these Megatron-core asks for TransformerEngine's version, and there is none here: their names alone are checked.
ASKS_TRANSFORMER_ENGINE = {"fp8", "fp8_recipe", "fp8_param", "moe_permute_fusion", "use_precision_aware_optimizer"}
MINDSPEED = {"use_flash_attn"}  # which adds its settings to Megatron-core's classes
SERVED = [name for name in names() if load(name).uses_plugin]
MEGATRON = [name for name in names() if load(name).backend == "megatron"]
NOT_IN_ANY_DEFAULT = (
    "actor_rollout_ref.actor.policy_loss.rollout_correction",
    "reward.reward_kwargs",
    "ray_kwargs.ray_init.runtime_env.env_vars",
    "actor_rollout_ref.rollout.engine_kwargs.ascend_quant",
)


def composed(overrides: list[str]) -> DictConfig:
    """verl's configuration, as `main_ppo` composes it."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=overrides)


def of(name: str) -> DictConfig:
    """A recipe's."""
    return composed(list(resolve(load(name), PATHS)))


@cache
def bare(engine: str) -> dict[str, Any]:
    """verl's own, with unresolved references."""
    return OmegaConf.to_container(composed([f"model_engine={engine}"]), resolve=False)


def through_hydra(name: str) -> DictConfig:
    """verl's configuration with +recipe=NAME, as our main composes it."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"+recipe={name}"])


@pytest.mark.parametrize("name", names())
def test_the_launchers_command_is_what_hydra_composes_of_the_recipe(name: str):
    """Two ways to verl's whole configuration: the recipe as a config group of verl's own, and the launcher's overrides,
    which name nothing of ours. They differ in nothing, and what the recipe adds to verl's keys is known to be open.
    """
    recipe = load(name)
    paths = Paths(recipe.setting("actor_rollout_ref.model.path"), recipe.data.folder, recipe.out)
    config = through_hydra(name)
    assert keys.unknown(OmegaConf.to_container(config, resolve=False), bare(recipe.engine)) == []
    made = dict(leaves(OmegaConf.to_container(config, resolve=True)))
    launched = dict(leaves(OmegaConf.to_container(composed(list(resolve(recipe, paths))), resolve=True)))
    assert {key: value for key, value in made.items() if not key.startswith("recipe.")} == launched


def validated(config: DictConfig) -> None:
    """verl's checks before it starts anything."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    validate_config(config, need_reference_policy(config), need_critic(config))
    for part in (config.actor_rollout_ref.rollout, config.algorithm):
        omega_conf_to_dataclass(part)


def test_verl_takes_every_recipe(monkeypatch):
    monkeypatch.setattr("ascend_quant.integrations.verl.settings.os.path.exists", lambda path: True)
    for name in names():
        recipe, config = load(name), of(name)
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # verl's word for settings that will go
            validated(config)
        settings.check(config)
        actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
        devices = config.trainer.nnodes, config.trainer.n_gpus_per_node
        assert (actor.strategy, devices) == (recipe.backend, (recipe.nodes, recipe.devices_per_node)), name
        assert rollout.max_model_len == config.data.max_prompt_length + config.data.max_response_length, name
        assert whole_sequence_fits(config) or recipe.stack == "cpu", name
        assert settings.wants_refits(config) == (name in SERVED), name
        if name in SERVED:
            assert rollout.engine_kwargs.vllm.hf_overrides.quantization_config.scheme == recipe.rollout.scheme, name
        assert qat.wanted(config) == trained(recipe), name  # as the engine does
        if not recipe.stack.startswith("ascend"):  # NPUs have flash-attn in transformers; it is in no lock
            attention_settings.check(config, critic=False)


def trained(recipe: Recipe) -> qat.FakeQuantization | None:
    """Return the QAT that a recipe wants: the engine's weights, or all that the engine's ranks compute."""
    if recipe.is_exact:
        return qat.FakeQuantization("int8", ranks=recipe.rollout.tensor_parallel)
    return recipe.qat and qat.FakeQuantization(recipe.qat, tuple(recipe.rollout.ignore))


def whole_sequence_fits(config: DictConfig) -> bool:
    """Whether verl's dynamic batches take the longest: a device's tokens times the devices that share a sequence."""
    actor = config.actor_rollout_ref.actor
    megatron = actor.strategy == "megatron"
    shares = actor.megatron.context_parallel_size if megatron else actor.ulysses_sequence_parallel_size
    room = actor.ppo_max_token_len_per_gpu * shares
    return bool(actor.use_dynamic_bsz) and room >= config.actor_rollout_ref.rollout.max_model_len


@pytest.mark.parametrize("name", ["qwen2.5-7b-int8-gsm8k-h100", "qwen2.5-7b-int8-gsm8k-a2"])
def test_verl_takes_a_recipe_whose_engines_have_devices_of_their_own(name: str, monkeypatch):
    """And its trainer's own condition, which it checks when it is made."""
    recipe = load(name, ["placement=apart", "trainer.n_gpus_per_node=4", f"{ROLLOUT}.n_gpus_per_node=4"])
    config = composed(list(resolve(recipe, PATHS)))
    validated(config)
    monkeypatch.setattr("ascend_quant.integrations.verl.settings.os.path.exists", lambda path: True)
    settings.check(config)
    asked, rollout = config.trainer.v1, config.actor_rollout_ref.rollout
    assert asked.trainer_mode == "separate_async" and not config.actor_rollout_ref.hybrid_engine
    mini = config.actor_rollout_ref.actor.ppo_mini_batch_size
    assert config.data.train_batch_size == asked.separate_async.parameter_sync_step * mini
    assert (rollout.nnodes, rollout.n_gpus_per_node, rollout.checkpoint_engine.backend) == (recipe.nodes, 4, "nccl")
    assert config.trainer.n_gpus_per_node == recipe.devices_per_node - 4


def test_the_plugin_takes_the_engines_options():
    from ascend_quant.engine.options import Options

    for name in SERVED:
        engine = of(name).actor_rollout_ref.rollout.engine_kwargs.vllm
        assert engine.quantization == "ascend_quant"
        options = Options.of(OmegaConf.to_container(engine.hf_overrides.quantization_config))
        assert (options.scheme, options.ignore) == (load(name).rollout.scheme, load(name).rollout.ignore)


@pytest.mark.parametrize("name", MEGATRON)
def test_routes_are_returned_where_they_are_replayed(name: str):
    """What verl's Megatron engine and its rollout are given, not what was written."""
    from verl.utils.config import omega_conf_to_dataclass

    config, replays = of(name), load(name).setting(f"{ROLLOUT}.enable_rollout_routing_replay", False)
    actor, rollout = (omega_conf_to_dataclass(config.actor_rollout_ref[part]) for part in ("actor", "rollout"))
    assert actor.engine.router_replay.mode == ("R3" if replays else "disabled")
    assert rollout.enable_rollout_routing_replay is replays


def test_an_attention_that_would_train_wrongly_is_refused_before_ray(monkeypatch, tmp_path):
    started = []
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # else Hydra ends the process
    monkeypatch.setattr(main_ppo.inputs, "check", lambda _: None)
    monkeypatch.setattr(main_ppo, "run_ppo", lambda *_, **__: started.append(1))
    monkeypatch.setattr(main_ppo, "auto_set_device", lambda _: None)
    overrides = list(resolve(load("qwen2.5-32b-bf16-dapo-h200"), PATHS))
    monkeypatch.setattr(main_ppo.settings, "check", lambda _: None)
    command = ["main_ppo", *overrides, f"hydra.run.dir={tmp_path}", "hydra.output_subdir=null"]
    monkeypatch.setattr("sys.argv", command)
    main_ppo.main()
    assert started == [1]
    monkeypatch.setattr("sys.argv", [*command, f"++{attention_settings.NAME_KEY}=sdpa"])
    with pytest.raises(attention_settings.AttentionError, match="sdpa with ulysses_sequence_parallel_size=8"):
        main_ppo.main()
    assert started == [1]


@pytest.mark.parametrize(
    ("added", "word"), [("+recipee=addition-int8", "recipee"), ("trainer.save_freq=often", "trainer.save_freq=often")]
)
def test_wrong_settings_are_one_line_and_wrong_usage(added: str, word: str, monkeypatch, tmp_path, capsys):
    """Not Hydra's traceback and its status 1; a value of another kind before the first step, not after."""
    monkeypatch.setattr(main_ppo, "run_ppo", lambda *_, **__: pytest.fail("started"))
    monkeypatch.setattr(main_ppo, "auto_set_device", lambda _: None)
    command = ["main_ppo", *resolve(load("qwen2.5-32b-bf16-dapo-h200"), PATHS), added]
    monkeypatch.setattr("sys.argv", [*command, f"hydra.run.dir={tmp_path}", "hydra.output_subdir=null"])
    with pytest.raises(SystemExit) as ended:
        main_ppo.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "Traceback" not in said
    assert "RecipeError" in said.splitlines()[-1] and word in said.splitlines()[-1]


def test_the_open_mappings_are_verls():
    """What stands in each of them by default takes no +, and what does not stand there takes one."""
    megatron, dp = composed(["model_engine=megatron"]), composed([])
    for mapping, present in OPEN.items():
        if mapping in NOT_IN_ANY_DEFAULT:
            continue
        for config in (dp, megatron):
            found = OmegaConf.select(config, mapping, default=None)
            if found is not None:
                break
        assert found is not None, mapping
        here = {key for key, value in leaves(OmegaConf.to_container(found, resolve=False)) if value != {}}
        assert here == set(present), mapping


def test_the_environment_reaches_rays_workers(monkeypatch):
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)  # verl leaves out what is set already
    config = of("qwen3-4b-fp8")
    merged = OmegaConf.merge(get_ppo_ray_runtime_env(config), config.ray_kwargs.ray_init.runtime_env)
    assert merged.env_vars["NVTE_FP8_BLOCK_SCALING_FP32_SCALES"] == "1"
    assert merged.env_vars["TOKENIZERS_PARALLELISM"], "verl's own are still there"


def megatron_classes() -> dict[str, type]:
    """Megatron-core's, by the mapping of verl whose keys are their fields."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig

    return {TRANSFORMER: TransformerConfig, DATA_PARALLEL: DistributedDataParallelConfig, OPTIMIZER: OptimizerConfig}


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_has_what_it_is_told(name: str):
    config, ours = of(name), MINDSPEED if load(name).stack.startswith("ascend") else set()
    for mapping, kind in megatron_classes().items():
        told = OmegaConf.to_container(OmegaConf.select(config, mapping))
        told = {key: value for key, value in told.items() if key not in ours}
        assert set(told) <= {field.name for field in fields(kind)}, mapping
        constructed = {key: value for key, value in told.items() if key not in ASKS_TRANSFORMER_ENGINE}
        kind(**{**minimal(config, mapping), **constructed, **attention(told)})


def minimal(config: DictConfig, mapping: str) -> dict[str, Any]:
    """What Megatron-core's class cannot do without, or is told by verl beside the mapping."""
    if mapping == TRANSFORMER:
        megatron = config.actor_rollout_ref.actor.megatron
        stages = megatron.pipeline_model_parallel_size
        last = megatron.override_transformer_config.get("num_layers_in_last_pipeline_stage")
        return {
            "num_layers": 4 * (stages - 1) + last if last else 4 * stages,
            "hidden_size": 64,
            "num_attention_heads": 8,
            "num_moe_experts": 32,
            "pipeline_model_parallel_size": stages,
            "pipeline_dtype": torch.bfloat16,
            "bf16": True,
        }
    return {"use_distributed_optimizer": True}


def attention(told: dict[str, Any]) -> dict[str, Any]:
    """The backend as verl hands it on: not its name but Megatron-core's constant."""
    if "attention_backend" not in told:
        return {}
    from verl.utils.megatron_utils import mapping_string_to_attn_backend

    return mapping_string_to_attn_backend({"attention_backend": told["attention_backend"]})


def test_fp8_values_are_megatrons():
    transformer = get_type_hints(megatron_classes()[TRANSFORMER])
    for name in ("fp8", "fp8_recipe"):
        valid = {value for kind in get_args(transformer[name]) for value in get_args(kind)}
        kinds = get_args(Recipe.model_fields[name].annotation)
        assert {value for kind in kinds for value in get_args(kind) or [kind]} - {type(None)} <= valid
