"""FLASHRL_TEST_RELOAD: test that a reload gives the bytes of a fresh load, whatever the buffers contained before.

The buffers are overwritten first, so that a gap in the reload is detected. This is done twice, since the first reload
records a plan and the second follows it.
"""

import logging
from collections.abc import Callable

from ascend_quant.engine.options import NAME
from ascend_quant.refit import Refit, RefitError

logger = logging.getLogger(__name__)

RELOADS = 2


def reloading(original: Callable) -> Callable:
    """Wrap `EngineCore.__init__`: the option `test_reload` runs before the engine gets requests."""

    def started(self, *args, **kwargs):
        original(self, *args, **kwargs)
        config = self.vllm_config.quant_config
        if getattr(config, "get_name", str)() == NAME and config.options.test_reload:
            self.model_executor.collective_rpc(reload_twice)

    return started


def reload_twice(worker) -> None:
    """Reload the worker's own checkpoint, and compare the resident bytes with those of the first load.

    Raises:
        RefitError: the bytes differ, or there is no checkpoint to reload.
    """
    runner = worker.model_runner
    refit: Refit = runner.model.ascend_quant_refit
    if refit.last_receipt is None:
        raise RefitError(
            "FLASHRL_TEST_RELOAD: the engine started with dummy weights, so there is no checkpoint to reload"
        )
    fresh = refit.last_receipt.digest
    for number in range(1, RELOADS + 1):
        for resident in refit.residents:
            spoil(resident)
        runner.reload_weights()
        if (found := refit.digest()) != fresh:
            raise RefitError(
                f"FLASHRL_TEST_RELOAD: reload {number} gave digest {found}, but the first load gave {fresh}"
            )
    logger.info(
        "FLASHRL_TEST_RELOAD: %d reloads over random bytes gave the same bytes as the first load, digest %s",
        RELOADS,
        fresh,
    )


def spoil(resident) -> None:
    """Fill a resident parameter, and its scales, with ones."""
    resident.tensor.fill_(1)
    for scale, _ in resident.tensors()[1:]:
        scale.fill_(1)
