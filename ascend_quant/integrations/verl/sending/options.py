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
    """Options of a trainer's weight syncs.

    Attributes:
        proves: whether digests follow the weights.
        rounds: whether what a BF16 engine rounds leaves in BF16, see wire_format.py.
        form: of the KV cache scales that follow the weights, see kv_amax.py; None if none do.
        patches: how what has changed is sent to engines elsewhere; None if all is sent.
        share: the most that an engine takes of a device's memory, if the trainer may keep its cache beside it.
        bucket: bytes that the transport carries as one.
        keeps_weights: whether an update's weights wait on the device for the sync that follows, see prestage.py.
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
        """Read the options.

        Args:
            rollout: verl's rollout settings.
            device: verl's `trainer.device`.

        Raises:
            RefitError: a setting that cannot be.
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
