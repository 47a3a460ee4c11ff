"""Options for sending weights, read once from verl's settings, in the driver."""

from dataclasses import dataclass
from typing import Any

from ascend_quant.integrations.verl.sending.wire_format import ENGINE_DTYPE
from ascend_quant.integrations.verl.settings import (
    NAIVE,
    Patches,
    bucket_bytes,
    keeps_memory,
    patches_of,
    scales_of_cache,
    share_of_engine,
    wants_proof,
)
from ascend_quant.kv_cache.scales import Form


@dataclass(frozen=True)
class SendOptions:
    """The options of a trainer's weight syncs.

    Attributes:
        proves: whether digests follow the weights.
        rounds: whether weights that a BF16 engine rounds are sent in BF16, see wire_format.py.
        form: form of the KV cache scales that follow the weights, see kv_amax.py; None if there are none.
        patches: settings of delta syncs to disaggregated engines; None if all weights are sent.
        share: the engine's maximum fraction of device memory, if the trainer may keep its cache beside it.
        bucket: size of the transport's buckets, in bytes.
        keeps_weights: whether updated weights stay on the device until the next sync, see prestage.py.
    """

    proves: bool = True
    rounds: bool = False
    form: Form | None = None
    patches: Patches | None = None
    share: float | None = None
    bucket: int = 0
    keeps_weights: bool = False

    @classmethod
    def of(cls, rollout: Any, device: str) -> "SendOptions":
        """Read the options from verl's configuration.

        Args:
            rollout: verl's rollout settings.
            device: verl's `trainer.device`.

        Raises:
            RefitError: a setting has an invalid value.
        """
        return cls(
            proves=wants_proof(rollout),
            rounds=rollout.dtype == ENGINE_DTYPE,
            form=scales_of_cache(rollout, device),
            patches=patches_of(rollout),
            share=share_of_engine(rollout, device),
            bucket=bucket_bytes(rollout),
            keeps_weights=keeps_memory(rollout) and rollout.checkpoint_engine.backend == NAIVE,
        )
