"""The vLLM worker's side of a weight sync under verl: one refit session around the buckets of one sync.

Before the session closes, checksums of the received tensors are compared with the trainer's.

vLLM loads the class as `worker_extension_cls`. For models that our vLLM plugin did not build (another quantization) and
for LoRA adapters, verl's own code runs.
"""

import contextlib
import logging
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from verl.utils.device import get_device_name
from verl.workers.rollout.vllm_rollout.utils import monkey_patch_compute_logits, vLLMColocateWorkerExtension

from ascend_quant.exact.fingerprint import fingerprint
from ascend_quant.exact.stages import Recorded, Recorder
from ascend_quant.integrations.verl import compat
from ascend_quant.integrations.verl.metrics.receipts import WorkerReport
from ascend_quant.integrations.verl.receiving.receiver import DrainingReceiver
from ascend_quant.integrations.verl.settings import QUANTIZATION
from ascend_quant.integrations.vllm import refit_of
from ascend_quant.integrations.vllm.compat import TAKES_STACKED
from ascend_quant.refit import RefitError, prepare
from ascend_quant.transfer.checksums import Receiving

logger = logging.getLogger(__name__)


class RefitWorkerExtension(vLLMColocateWorkerExtension):
    refit_wants_proof = True
    refit_proved = 0  # number of parameters that the last sync verified
    refit_waited = 0.0  # seconds of the last sync spent waiting for the trainer's next tensors
    refit_releasing = 0.0  # seconds of the last sync spent releasing the trainer's memory

    def monkey_patch_model(self, vocab_size: int, **banned: Any) -> None:  # some versions lack the latter
        if not self._built_by_plugin():
            logger.warning("quantization is not %s: this engine uses verl's own weight sync", QUANTIZATION)
            return super().monkey_patch_model(vocab_size, **banned)
        # verl also rebinds the experts' weight loaders here, which would bypass our plugin
        for model in compat.models_of(self):
            refit_of(model)  # raises an error if there is none, before any weight is sent
            monkey_patch_compute_logits(model, vocab_size, **banned)

    def update_weights_from_ipc(
        self, peft_config: dict | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        if not self._built_by_plugin() or (peft_config and base_sync_done):
            return super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
        if self.device is None:  # as verl does, since vLLM leaves it unset on some platforms
            self.device = torch.device(f"{get_device_name()}:{self.local_rank}")

        receiver = DrainingReceiver(self._get_zmq_handle(), self.device, use_shm)
        attempts, sessions = FirstError(), contextlib.ExitStack()
        counts: list[int] = []  # parameters per bucket

        def begin() -> Receiving:
            for model in compat.models_of(self):
                sessions.enter_context(refit_of(model).session())
            return Receiving(self.refit_wants_proof, refit_of(self.model_runner.model).unquantized)

        def load(weights: list[tuple[str, torch.Tensor]], _last: bool | None = None) -> None:  # not in verl 0.9.1
            # verl's own code from a bucket to model.load_weights handles LoRA names and the MTP drafter
            taken = proof.take(weights)
            if TAKES_STACKED:  # its loaders expect stacks in the checkpoint's layout, not in verl's
                taken = compat.experts_apart(taken, self.model_runner.model_config.hf_config.model_type)
            counts.append(len(taken))
            self._update_weights(taken, peft_config, base_sync_done)

        def prove() -> None:
            self.refit_proved = sum(counts) if proof.prove() else 0

        with sessions:
            proof = attempts.run(begin)  # the trainer's buckets are answered even after an error
            receiver.receive_weights(partial(attempts.run, load))
            self.refit_waited, self.refit_releasing = receiver.waited, receiver.releasing
            attempts.run(prove)
            attempts.raise_it()

    def refit_receipt(self) -> WorkerReport | None:
        """Return the last complete refit's report, for collective_rpc; None without refits."""
        if not self._built_by_plugin():
            return None
        receipt = refit_of(self.model_runner.model).last_receipt
        if receipt is None:
            return None
        own = {
            "refit/verified": self.refit_proved,
            "refit/wait_ms": 1e3 * self.refit_waited,
            "refit/wake_ms": 1e3 * self.refit_releasing,  # the server adds the wake-up times
        }
        return {**receipt.as_metrics(), **own}, receipt.digests()

    def refit_takes_codes(self) -> tuple[str, list[str], list[str]]:
        """Return the scheme, the last sync's weights that this worker accepts pre-quantized, and the others.

        The caller will send pre-quantized weights, so their kernels are compiled.
        """
        refit = refit_of(self.model_runner.model)
        prepare(refit, prequantized=True)
        return (self.model_runner.vllm_config.quant_config.scheme.name, *refit.plan.takes_codes())

    def refit_free_bytes(self) -> int:
        """Return the free bytes of this worker's device; 0 if it has no memory of its own (CPU)."""
        device = torch.device(get_device_name())
        return 0 if device.type == "cpu" else torch.get_device_module(device).mem_get_info()[0]

    def exact_fingerprint(self) -> dict[str, str]:
        """Return this process's fingerprint, for comparison with an exact actor's."""
        return fingerprint()

    def exact_record(self) -> None:
        """Record the stages of the next forward passes, in eager mode, since compiled models do not call modules."""
        model = self.model_runner.get_model()
        compiled = [module for module in model.modules() if getattr(module, "do_not_compile", True) is False]
        compute_eagerly(compiled, True)
        self.exact_recorder = Recorder(model), compiled

    def exact_recorded(self) -> dict[str, Recorded]:
        """Stop recording; return the stages, see `ascend_quant.exact.stages`."""
        recorder, compiled = self.exact_recorder
        compute_eagerly(compiled, False)
        return recorder.close()

    def refit_quantization(self) -> str | None:
        """Return a description of this worker's quantization options; None without refits."""
        return repr(self.model_runner.vllm_config.quant_config) if self._built_by_plugin() else None

    def _built_by_plugin(self) -> bool:
        config = self.model_runner.vllm_config.quant_config
        return config is not None and config.get_name() == QUANTIZATION


class UnprovedWorkerExtension(RefitWorkerExtension):
    """The vLLM worker extension for runs without checksums, in which the trainer sends no digests."""

    refit_wants_proof = False


def compute_eagerly(compiled: list[torch.nn.Module], eagerly: bool) -> None:
    """Make modules that vLLM compiles run eagerly, or compiled again."""
    for module in compiled:
        module.do_not_compile = eagerly


class FirstError:
    """Runs steps until one fails, and keeps that error's text; otherwise returns a step's result.

    The traceback is dropped: it holds views of the sender's shared memory, which could not be closed as long as
    someone, such as a log record, keeps the error.
    """

    def __init__(self) -> None:
        self._text: str | None = None

    def run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        if self._text is not None:
            return None
        try:
            return step(*arguments)
        except Exception as error:
            why = traceback.format_exc()
            logger.error("the weight sync failed; its remaining buckets are acknowledged but not loaded\n%s", why)
            self._text = str(error) if isinstance(error, RefitError) else f"{type(error).__name__}: {error}"
            _drop_tracebacks(error)
            return None

    def raise_it(self) -> None:
        if self._text is not None:
            raise RefitError(f"weight sync failed: {self._text}")


def _drop_tracebacks(error: BaseException | None) -> None:
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
