"""Whatever way the weights come in, the engine holds the oracle's bytes, at the addresses it had from the start."""

import random
import zlib

import pytest
import torch
from engines import (
    addresses,
    buckets,
    differing,
    engine,
    logprobs,
    model_of,
    post_load_pass,
    refit,
    resident,
    worker_of,
)
from models import KINDS, checkpoint, expected, make, perturbed, save, stacked
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine


class InProcessTransfer(IPCWeightTransferEngine):
    """vLLM's IPC engine (its start and finish untouched) without CUDA: the bucket lies in this process."""

    bucket = ()

    def update_weights(self, update_info):
        assert [name for name, _ in self.bucket] == update_info["names"]
        self.model.load_weights(self.bucket)


WeightTransferEngineFactory.register_engine("in-process", InProcessTransfer)


@pytest.fixture(scope="module", params=KINDS)
def loaded(request, tmp_path_factory):
    folder = make(request.param, tmp_path_factory.mktemp("models"))
    with engine(folder, weight_transfer_config=WeightTransferConfig(backend="in-process")) as llm:
        yield llm, folder, addresses(llm)


@pytest.fixture
def step(loaded, request):
    """The engine, a checkpoint one training step later (another for each test), and a check of the outcome."""
    llm, folder, at_start = loaded
    state = perturbed(checkpoint(folder), seed=zlib.crc32(request.node.name.encode()))

    def check():
        assert differing(resident(llm), expected(state)) == []
        assert addresses(llm) == at_start
        assert refit(llm).why_not_servable() is None
        assert refit(llm).last_receipt.tensors == len(state) and refit(llm).last_receipt.nonfinite == 0

    return llm, state, check


def test_first_load(loaded):
    llm, folder, _ = loaded
    assert differing(resident(llm), expected(checkpoint(folder))) == []
    assert refit(llm).last_receipt.number == 1
    assert torch.isfinite(logprobs(llm)).all()


def test_buckets_in_a_reused_buffer_then_two_post_load_passes(step):
    llm, state, check = step
    for bucket in buckets(state):
        model_of(llm).load_weights(bucket)
    check()
    post_load_pass(llm)
    post_load_pass(llm)
    check()


def test_shuffled_one_tensor_a_call(step):
    llm, state, check = step
    items = list(state.items())
    random.Random(1).shuffle(items)
    for item in items:
        model_of(llm).load_weights([item])
    check()


def test_float32_from_the_trainer(step):
    llm, state, _ = step
    model_of(llm).load_weights((name, tensor.float()) for name, tensor in state.items())
    assert differing(resident(llm), expected(state)) == []


def test_three_refits_and_the_digest_follows(step):
    llm, state, check = step
    digests = []
    for seed in (1, 2, 1):
        model_of(llm).load_weights(perturbed(state, seed).items())
        digests.append(refit(llm).last_receipt.digest)
    assert digests[0] == digests[2] != digests[1]
    model_of(llm).load_weights(state.items())
    check()
    again = refit(llm).last_receipt.digest
    model_of(llm).load_weights(state.items())
    assert refit(llm).last_receipt.digest == again and refit(llm).last_receipt.changed == 0


def test_reload_weights_from_disk(loaded, step):
    llm, state, check = step
    folder = loaded[1]
    before = checkpoint(folder)
    try:
        save(state, folder)
        worker_of(llm).reload_weights(weights_path=str(folder))
        check()
    finally:
        save(before, folder)


def test_weight_update_api(step):
    """vLLM's start / update / finish on the worker, through a transfer engine whose transfer stays in this process."""
    llm, state, check = step
    worker = worker_of(llm)
    worker.start_weight_update()
    with pytest.raises(RuntimeError, match="a refit is open"):
        logprobs(llm)
    for bucket in buckets(state):
        InProcessTransfer.bucket = bucket
        worker.update_weights({"names": [name for name, _ in bucket]})
    worker.finish_weight_update()
    check()


def test_stacked_experts(step):
    llm, state, _ = step  # without experts, `stacked` changes nothing
    model_of(llm).load_weights(stacked(state).items())
    assert differing(resident(llm), expected(state)) == []
