"""The trainer of an exact actor: compares engine and actor before the first step, and every token of each update.

At the start their fingerprints must be equal, and a probe computes some sequences on both sides (probe.py). Each update
counts the tokens that differ (worker.py). The first one is reported, and after the next sync its sequence is probed,
which identifies the side at fault, and in the trainer the operation (exact/stages.py). If more than MOST of a batch
differ, the trainer switches to token-level importance weights, which correct the difference; `strict` ends the run at
the first token.

    +actor_rollout_ref.rollout.engine_kwargs.ascend_quant.strict=true
"""

import logging
from typing import Any

import ray
from omegaconf import open_dict

from ascend_quant.exact.fingerprint import differences
from ascend_quant.exact.stages import first_difference
from ascend_quant.integrations.verl.training.effective_sample import EffectiveSample
from ascend_quant.integrations.verl.training.exact import probe as exact_probe
from ascend_quant.integrations.verl.training.exact import settings as exact_settings
from ascend_quant.integrations.verl.training.exact import worker as exact_worker
from ascend_quant.integrations.verl.training.exact.worker import Unequal
from ascend_quant.refit import RefitError

logger = logging.getLogger(__name__)

MOST = 1e-3  # fraction of a batch's tokens that may differ without importance weights
WEIGHTS = {"bypass_mode": False, "rollout_is": "token"}  # for verl's algorithm.rollout_correction


class ExactTrainer:
    """Mixin before a trainer class with refits: compares the exact actor with the engine, and reacts to differences."""

    suspect: Unequal | None = None  # its sequence is probed after the next sync
    told = weighs = False

    def on_init_end(self) -> None:
        super().on_init_end()
        self._compare_fingerprints()
        prompts = exact_probe.prompts(len(self.tokenizer), self._longest)
        self._probe(prompts, exact_probe.answer_of(self._longest))

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        updated = super()._update_actor(batch, metrics)
        exact_worker.renamed(metrics)
        if unequal := metrics.get("exact/unequal", 0):
            self._look(unequal, metrics["exact/tokens"])
        return updated

    def on_step_end(self) -> None:
        super().on_step_end()
        if self.suspect is not None:
            one, self.suspect = self.suspect, None
            prompt, answer = exact_probe.around(one.tokens, one.prompt + one.position, self._longest)
            self._probe([prompt] * exact_probe.PROMPTS, answer)

    def _compare_fingerprints(self) -> None:
        """Raise RefitError if the processes of engine and actor may have different kernels."""
        servers = [replica.servers[0] for replica in self._synced()]
        engines = [one for each in ray.get([server.exact_fingerprint.remote() for server in servers]) for one in each]
        first, *others = self.actor_rollout_wg.exact_fingerprint()
        for engine in (*engines, *others):
            if found := differences(engine, first):
                raise RefitError(
                    f"{exact_settings.OPTION}, but {'; '.join(found)}: use the same environment and the same kind "
                    "of device for trainer and engine"
                )

    def _probe(self, prompts: list[list[int]], answer: int) -> None:
        """Compare engine and actor; the engine sleeps while the actor computes, as in a step, and is synced again."""
        sampled = exact_probe.sample([replica.servers[0] for replica in self._synced()], prompts, answer)
        self.checkpoint_manager.sleep_replicas()
        ranks = self.actor_rollout_wg.exact_log_probs([one.tokens for one in sampled])
        self.checkpoint_manager.update_weights(self.global_steps)
        found = exact_probe.judge(sampled, ranks)
        if found.worst.unequal:
            said = f"probe, {found}"
            if found.trainer.first is not None:
                said += f". In the trainer {self._first_stage(sampled[found.trainer.first[0]].tokens)}"
            self._answer(said, found.worst.unequal, found.worst.tokens)
        else:
            print(f"exact: probe, {found}", flush=True)  # verl suppresses our log lines below WARNING

    def _first_stage(self, tokens: list[int]) -> str:
        """Compare the stages of a sequence in the engine, after a sync, with those in the actor."""
        engine = exact_probe.stages(self._synced()[0].servers[0], tokens)
        self.checkpoint_manager.sleep_replicas()
        ranks = self.actor_rollout_wg.exact_stages(tokens)
        self.checkpoint_manager.update_weights(self.global_steps)
        return first_difference(engine, ranks, len(tokens))

    def _look(self, unequal: float, tokens: float) -> None:
        """React to tokens that differ in an update: report the first, and act if there are too many."""
        said = (
            f"step {self.global_steps}, {unequal:.0f} of {tokens:.0f} tokens do not have the engine's log-probability"
        )
        if not self.told:
            self.told = True
            self.suspect = next(one for one in self.actor_rollout_wg.exact_first_unequal() if one is not None)
            said += f", the first one {self.suspect}. Its sequence is probed after the next sync"
        elif self.weighs or unequal <= MOST * tokens:
            return
        self._answer(said, unequal, tokens)

    @property
    def _longest(self) -> int:
        """Return the maximum of prompt and answer tokens that engine and actor support."""
        rollout = self.config.actor_rollout_ref.rollout
        return rollout.max_model_len or rollout.prompt_length + rollout.response_length  # verl's default is null

    @property
    def _strict(self) -> bool:
        return exact_settings.is_strict(self.config.actor_rollout_ref.rollout)

    def _answer(self, said: str, unequal: float, tokens: float) -> None:
        if self._strict:
            raise RefitError(f"exact: {said}; remove strict=true to continue in spite of this")
        logger.warning("exact: %s. Further ones are only counted in exact/unequal; see docs/low_precision.md", said)
        if unequal > MOST * tokens and not self.weighs:
            self._weigh()

    def _weigh(self) -> None:
        """Use token-level weights from the next step on, for which the trainer computes its own log-probabilities."""
        self.weighs = True
        correction = self.config.algorithm.rollout_correction
        with open_dict(correction):
            correction.update(WEIGHTS)
        self.effective_sample = EffectiveSample(correction)
        logger.warning(
            "exact: more than %.1f %% of the tokens differ: from the next step on, token-level importance "
            "weights (rollout_correction.rollout_is=token) are used",
            100 * MOST,
        )
