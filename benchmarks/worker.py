"""A worker extension for vLLM: the trainer's tensors on the worker's own device, pushed into its model.

vLLM is given `Extension` as `worker_extension_cls`; `collective_rpc("bench", ..)` reaches a `Trainer`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict

import torch
from vllm.distributed import get_world_group

from ascend_quant.integrations.vllm import refit_of, register
from ascend_quant.schemes.tensors import buckets
from benchmarks.tasks import Task
from benchmarks.tensors import BUCKET, Weights, total_bytes
from benchmarks.timing import once, wait

SEED = 1

register()  # where the package lies in PYTHONPATH alone, vLLM's processes do not find it by its entry point


class Extension:
    """Worker extension: methods that vLLM adds to its worker class."""

    def bench_start(self, task: Task) -> None:
        """Make the trainer; its tensors are there afterwards."""
        self.bench_trainer = Trainer(self.model_runner, task)

    def bench(self, method: str, *args):
        """Call one of the trainer's methods."""
        return getattr(self.bench_trainer, method)(*args)


class Trainer:
    """Trainer that sends a model's weights to the engine it lives in.

    Args:
        runner: vLLM's model runner.
    """

    def __init__(self, runner, task: Task):
        self.runner, self.engine = runner, runner.get_model()
        self.device = next(self.engine.parameters()).device
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.weights = Weights(task.cut_model(), self.device, SEED)
        self.named = self.weights.named()
        self.addresses = self._addresses()

    def moved(self) -> int:
        """Return the bytes that a sync reads and writes at least."""
        held = {parameter.data_ptr(): parameter.nbytes for parameter in self.engine.parameters()}
        return total_bytes(self.named) + sum(held.values())

    def sync(self, way: str) -> dict:
        """Time one weight sync after a training step.

        Args:
            way: bare, session, reload or stacked: see the methods of those names.
        """
        self.weights.step()
        call = getattr(self, f"_{way}")()
        wait(self.device)
        get_world_group().barrier()
        with torch.no_grad():
            result = asdict(once(call, self.device))
        refit = getattr(self.engine, "ascend_quant_refit", None)
        return result if refit is None else {**result, "receipt": refit.last_receipt.as_dict()}

    def _bare(self) -> Callable[[], object]:
        """Return a call of model.load_weights with all tensors at once; ours goes by plan from the second time on."""
        return lambda: self.engine.load_weights(self.named)

    def _session(self) -> Callable[[], object]:
        """Return a sync in buckets, as verl's worker does; for ours, inside one session."""
        parts = list(buckets(self.named, BUCKET))
        ours = hasattr(self.engine, "ascend_quant_refit")

        def run() -> None:
            with refit_of(self.engine).session() if ours else nullcontext():
                for part in parts:
                    self.engine.load_weights(part)

        return run

    def _reload(self) -> Callable[[], object]:
        """Return a call of vLLM's reload_weights, from a generator."""
        return lambda: self.runner.reload_weights(weights_iterator=iter(self.named))

    def _stacked(self) -> Callable[[], object]:
        """Return a sync as `bare`, with a layer's experts as two tensors of three dimensions."""
        stacked = self.weights.stacked()
        return lambda: self.engine.load_weights(stacked)

    def faults(self) -> list[str]:
        """List what has moved; and whether the engine holds other bytes than its last receipt says."""
        refit, now = refit_of(self.engine), self._addresses()
        faults = [f"{name} has moved" for name, address in self.addresses.items() if now.get(name) != address]
        if refit.digest() != refit.last_receipt.digest:
            faults.append(f"the resident bytes' digest is {refit.digest()}, the receipt's {refit.last_receipt.digest}")
        return faults

    def _addresses(self) -> dict[str, int]:
        return {name: parameter.data_ptr() for name, parameter in self.engine.named_parameters()}
