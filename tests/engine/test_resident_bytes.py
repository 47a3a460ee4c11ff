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
from models import KINDS, as_codes, checkpoint, expected, make, perturbed, save, stacked
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

from ascend_quant.transfer.prequantized import SCHEMES_SENT


class InProcessTransfer(IPCWeightTransferEngine):
    """vLLM's IPC engine (its start and finish untouched) without CUDA: the bucket lies in this process."""

    bucket = ()

    def update_weights(self, update_info):
        assert [name for name, _ in self.bucket] == update_info["names"]
        self.model.load_weights(self.bucket)


WeightTransferEngineFactory.register_engine("in-process", InProcessTransfer)


WHOLE = {"intermediate_size": 256, "moe_intermediate_size": 128}  # groups of 128
ENGINES = [
    *((kind, "int8", {}) for kind in KINDS),
    ("qwen3-moe", "fp8", {}),
    ("qwen2", "fp8_tensor", {}),
    ("qwen3-moe", "fp8_tensor", {}),
    ("qwen2", "fp8_block", {}),  # blocks that straddle keys and values, gates and ups
    ("llama-odd", "fp8_block", {}),
    ("qwen3-moe", "fp8_block", {}),  # whose experts are no multiple of a block
    ("qwen3-moe", "fp8_block", WHOLE),
    ("qwen2-tied", "int4_g32", {}),
    ("qwen3-moe", "int4_g128", WHOLE),
]


@pytest.fixture(scope="module", params=ENGINES, ids=lambda engine: "-".join(engine[:2]))
def loaded(request, tmp_path_factory):
    kind, scheme, sizes = request.param
    folder = make(kind, tmp_path_factory.mktemp("models"), **sizes)
    with engine(folder, scheme, weight_transfer_config=WeightTransferConfig(backend="in-process")) as llm:
        yield llm, folder, addresses(llm), scheme


@pytest.fixture
def step(loaded, request):
    """The engine, a checkpoint one training step later (another for each test), and a check of the outcome."""
    llm, folder, at_start, scheme = loaded
    state = perturbed(checkpoint(folder), seed=zlib.crc32(request.node.name.encode()))

    def check(tensors: int | None = None):
        assert differing(resident(llm), expected(state, scheme)) == []
        assert addresses(llm) == at_start
        assert refit(llm).why_not_servable() is None
        receipt = refit(llm).last_receipt
        assert receipt.tensors == (tensors or len(state)) and receipt.nonfinite == 0
        assert receipt.digest == refit(llm).digest()

    return llm, state, check


def test_first_load(loaded):
    llm, folder, _, scheme = loaded
    assert differing(resident(llm), expected(checkpoint(folder), scheme)) == []
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
    llm, state, check = step
    model_of(llm).load_weights((name, tensor.float()) for name, tensor in state.items())
    check()


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
    with pytest.raises(RuntimeError, match="refit is open"):
        logprobs(llm)
    for bucket in buckets(state):
        InProcessTransfer.bucket = bucket
        worker.update_weights({"names": [name for name, _ in bucket]})
    worker.finish_weight_update()
    check()


def test_codes_of_the_trainers_own(step):
    """By the loaders, then by plan; a scheme whose scales rows share otherwise takes none."""
    llm, state, check = step
    scheme = refit(llm).unquantized.scheme
    for sent in (state, stacked(state)):
        model_of(llm).load_weights(sent.items())
        names, _ = refit(llm).plan.takes_codes()
        assert set(names) == ({name for name in sent if is_taken(name)} if scheme in SCHEMES_SENT else set())
        if not names:
            continue
        for _ in range(2):
            push(llm, perturbed(sent, 1))
            push(llm, as_codes(sent, scheme, names))
            check(tensors=len(sent))


def is_taken(name: str) -> bool:
    return name.endswith(("_proj.weight", "experts.gate_up_proj", "experts.down_proj"))


def push(llm, state):
    with refit(llm).session():
        for bucket in buckets(state):
            model_of(llm).load_weights(bucket)


def test_stacked_experts(step):
    llm, state, check = step  # without experts, `stacked` changes nothing
    model_of(llm).load_weights(stacked(state).items())
    check(tensors=len(stacked(state)))
