"""Fault injection, loaded into a trainer as verl's `external_lib`: sets a weight to NaN before the last weight sync."""

from collections.abc import Iterable

import torch

from ascend_quant.integrations.verl.sending.sender import SendingTrainingWorker
from ascend_quant.smoke import SPOILT
from ascend_quant.transfer.validate import NamedTensor

sends = SendingTrainingWorker.as_sent


def sends_nan(self: SendingTrainingWorker, weights: Iterable[NamedTensor]) -> Iterable[NamedTensor]:
    """Wrap `as_sent`: a NaN is set before the last of the weight syncs, of which there is one more than steps."""
    self.syncs = getattr(self, "syncs", 0) + 1
    if self.syncs == self.engine.optimizer_config.total_training_steps + 1:
        weight = self.engine.module.get_parameter(SPOILT)
        with torch.no_grad():
            getattr(weight, "to_local", lambda: weight)()[0, 0] = float("nan")  # this rank's shard, under fsdp2
    return sends(self, weights)


SendingTrainingWorker.as_sent = sends_nan
