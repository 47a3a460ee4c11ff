"""Refits in verl's experimental trainers, `one_step_off_policy` and `fully_async_policy`: the shared parts.

Each has its own main, task runner and trainer, which look each other up by name in the main's module. Our classes
replace these names: the task runner in the driver process, the others in the task runner's process. Their engines are
always disaggregated.
"""

import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import ray
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.device import auto_set_device

from ascend_quant.integrations.verl import compat, cpu_settings, hooks, inputs, recipe_config, settings
from ascend_quant.integrations.verl.metrics.sync_reports import SyncReports, agree_on_codes, let_actors_send
from ascend_quant.integrations.verl.training import attention_settings, qat
from ascend_quant.integrations.verl.training.effective_sample import EffectiveSample
from ascend_quant.integrations.verl.training.exact import settings as exact_settings
from ascend_quant.integrations.verl.training.qat_worker import fake_quantize_actors
from ascend_quant.refit import RefitError

logger = logging.getLogger(__name__)


def run(config: Any, main: ModuleType, task_runner: str, extended: type) -> None:
    """Run one of verl's mains with our task runner.

    Args:
        config: verl's whole configuration.
        main: verl's module.
        task_runner: name of the task runner in that module.
        extended: the plain class that replaces it.

    Raises:
        RefitError, AttentionError, CpuSettingsError: the run's settings cannot work; raised before anything starts.
    """
    with recipe_config.refused():
        auto_set_device(config)
        inputs.check(config)
        cpu_settings.check(config, need_reference_policy(config), starts_ray=True)
        attention_settings.check(config, need_critic(config))
        if (wanted := qat.wanted(config)) is not None and wanted.ranks is not None:
            raise RefitError(
                f"{exact_settings.OPTION}: an asynchronous run trains on samples of older weights; use main_ppo"
            )
        if settings.wants_refits(config):
            settings.check(config)
            put(main, task_runner, extended)
        elif wanted is not None:
            raise RefitError(f"{qat.OPTION} needs refits: set rollout.quantization={settings.QUANTIZATION} too")
        else:
            logger.warning(
                "rollout quantization is not %s: this is verl's own run, without refit metrics", settings.QUANTIZATION
            )
    main.main.__wrapped__(config)  # the function that hydra would call


def put(main: ModuleType, name: str, extended: type) -> None:
    """Replace a class in the module of one of verl's mains by an extended class, as a Ray actor if it was one."""
    original = getattr(main, name)
    options = compat.actor_options(original)
    hooks.replace_class(main, name, extended if options is None else ray.remote(**options)(extended))


class RefitExperimentalTrainer:
    """Mixin before verl's trainer class: actors send digests, and each sync reports its metrics."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        let_actors_send(self.role_worker_mapping, self.config)
        if (wanted := qat.wanted(self.config)) is not None:
            fake_quantize_actors(self.role_worker_mapping, wanted)
        self.sync_reports, self.has_agreed = SyncReports(), False
        self.effective_sample = EffectiveSample(self.config.algorithm.get("rollout_correction"))

    def report_of(self, replicas: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of these replicas' last sync; after the first one, agree on the pre-quantized weights."""
        report = self.sync_reports.of_last(replicas, self.actor_rollout_wg)
        if not self.has_agreed:
            agree_on_codes(self.config, replicas, self.actor_rollout_wg)
            self.has_agreed = True
        return report

    def _fit_update_actor(self, batch: Any) -> Any:
        updated = super()._fit_update_actor(batch)
        self.effective_sample.look(self.global_steps, self.metrics)
        return updated
