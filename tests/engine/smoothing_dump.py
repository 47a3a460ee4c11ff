"""Run a smoothed engine on 2 ranks, refit it, and dump what each rank holds.

smoothing_dump.py OUT FOLDER PROFILE fresh|frozen tp|ep. Not a test: test_smoothing_engine.py starts it, because an
engine of several ranks wants a main process of its own.
"""

import os
import sys
from pathlib import Path

import torch


def dump(worker):
    return {name: parameter.detach().clone() for name, parameter in worker.model_runner.model.named_parameters()}


def push(worker, folder: str, seed: int):
    """Two refits from the worker's own process; the last one's clamped codes and tensors."""
    from engines import buckets
    from models import checkpoint, perturbed

    from ascend_quant.integrations.vllm import refit_of

    model = worker.model_runner.model
    at_start = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    for _ in range(2):  # by loaders or by what the first load has taught, and by plan
        with refit_of(model).session():
            for bucket in buckets(perturbed(checkpoint(Path(folder)), seed)):
                model.load_weights(bucket)
    assert at_start == {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    receipt = refit_of(model).last_receipt
    return [receipt.clamped, receipt.tensors]


def main(out: str, folder: str, profile: str, how: str, mode: str) -> None:
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_ALLOW_INSECURE_SERIALIZATION="1")
    from vllm import LLM

    options = {"quant_method": "ascend_quant", "profile": profile, "frozen_scales": how == "frozen"}
    llm = LLM(
        folder,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=8,
        gpu_memory_utilization=0.3,  # of the host's memory, which other tests may use too
        quantization="ascend_quant",
        hf_overrides={"quantization_config": options},
        tensor_parallel_size=2,
        enable_expert_parallel=mode == "ep",
        distributed_executor_backend="mp",
    )
    receipts = llm.collective_rpc(push, args=(folder, 5))
    torch.save({"receipts": receipts, "held": llm.collective_rpc(dump)}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
