"""What verl must be told on a CPU is one line before anything starts, and is enough."""

import pytest

pytest.importorskip("omegaconf", reason="the verl adapter needs verl")

from omegaconf import OmegaConf

from ascend_quant.integrations.verl import cpu_settings
from ascend_quant.integrations.verl.cpu_settings import ACTOR, ROLLOUT, CpuSettingsError


def config(*dotlist: str):
    """verl's defaults of what is looked at, and what a command line says over them."""
    part = {"strategy": "fsdp", "fsdp_config": {"strategy": "fsdp"}}
    parts = {"actor": part, "ref": part, "rollout": {"free_cache_engine": True}}
    trainer = {"device": "cuda", "nnodes": 1, "n_gpus_per_node": 2}
    tree = {"trainer": trainer, "actor_rollout_ref": parts, "ray_kwargs": {"ray_init": {"num_cpus": None}}}
    defaults = OmegaConf.create(tree)
    return OmegaConf.merge(defaults, OmegaConf.from_dotlist([one.lstrip("+") for one in dotlist]))


def wanted(reference: bool, *dotlist: str, starts_ray: bool = False) -> list[str]:
    """The overrides of the error; none where there is none."""
    try:
        cpu_settings.check(config(*dotlist), reference, starts_ray)
    except CpuSettingsError as error:
        return [word for word in str(error).split() if "=" in word]
    return []


@pytest.mark.parametrize("reference", [False, True])
def test_what_is_asked_for_is_enough(monkeypatch: pytest.MonkeyPatch, reference: bool):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    asked = wanted(reference)
    assert "trainer.device=cpu" in asked and f"++{ROLLOUT}.enable_sleep_mode=False" in asked
    assert (f"{ACTOR}.use_kl_loss=False" in asked) == reference
    assert wanted(False, *asked) == []  # which have no reference model


def test_a_ray_that_verl_starts_is_told_of_devices_and_of_room_for_actors(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Without them verl waits for ever; where there is a Ray, ray.init takes neither."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cpu_settings, "CURRENT", str(tmp_path / "ray_current_cluster"))
    monkeypatch.setattr(cpu_settings.os, "cpu_count", lambda: 2)
    asked = wanted(False, starts_ray=True)
    assert {"+ray_kwargs.ray_init.num_gpus=2", "ray_kwargs.ray_init.num_cpus=16"} <= set(asked)
    assert wanted(False, *asked, starts_ray=True) == []
    without = [one for one in asked if not one.lstrip("+").startswith("ray_kwargs")]
    assert wanted(False, *without, starts_ray=True) and wanted(False, *without) == []
    (tmp_path / "ray_current_cluster").touch()
    assert wanted(False, *without, starts_ray=True) == []
    (tmp_path / "ray_current_cluster").unlink()
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    assert wanted(False, *without, starts_ray=True) == []


def test_verl_takes_fsdp1_where_its_own_config_is_left_as_it_is():
    """actor.strategy=fsdp2 alone changes the settings that are checked, and not the engine that is made."""
    asked = wanted(False, "trainer.device=cpu", f"{ACTOR}.strategy=fsdp2")
    assert f"{ACTOR}.fsdp_config.strategy=fsdp2" in asked and "trainer.device=cpu" not in asked


def test_nothing_is_asked_for_where_there_are_devices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    assert wanted(True) == []


def test_a_recipe_for_cpus_wants_verls_platform(monkeypatch: pytest.MonkeyPatch):
    """Without it, verl looks for GPUs, and waits for one for ever."""
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    assert wanted(False, "recipe.stack=cpu") == ["VERL_PLATFORM=cpu"]
    assert wanted(False, "recipe.stack=cuda13") == []
