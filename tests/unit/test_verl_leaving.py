"""What a float32 trainer sends to a BF16 engine: the same bytes in its buffers, by half of the traffic."""

import asyncio
import importlib.util
import threading
import uuid
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("zmq", reason="verl's weight transfer needs pyzmq")

import torch
import verl
import zmq

from ascend_quant import oracle
from ascend_quant.integrations.verl.leaving import Leaving, kept_by
from ascend_quant.refit import Refit, RefitError
from ascend_quant.refit.proof import SENT, Receiving, sending
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight

BUCKET_MB = 1
EMBEDDING = "model.embed_tokens.weight"
MATRICES = (
    EMBEDDING,
    "lm_head.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.gate_proj.weight",
    "model.layers.0.mlp.experts.3.down_proj.weight",
    "model.layers.0.mlp.shared_expert.gate_proj.weight",
    "model.visual.merger.mlp.0.weight",
)
KEPT = (  # the engine has some of these in float32, and the others are small
    ("model.norm.weight", (64,)),
    ("model.layers.0.self_attn.q_proj.bias", (64,)),
    ("model.layers.0.mlp.gate.weight", (8, 64)),  # GLM-4.5, MiniMax-M2, Ernie 4.5: float32
    ("model.layers.0.mlp.gate.e_score_correction_bias", (8,)),
    ("model.layers.0.mlp.shared_expert_gate.weight", (1, 64)),
    ("model.layers.0.mlp.router.weight", (8, 64)),
    ("model.layers.0.mlp.router.classifier.weight", (8, 64)),  # LongCat
    ("model.layers.0.mamba.A_log", (64, 16)),
    ("model.layers.0.linear_attn.conv1d.weight", (64, 1, 4)),
)


def rounded(weights, kept=()):
    """The weights as they leave for a BF16 engine."""
    return chain.from_iterable(Leaving(True, kept).each(weights))


def float32(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("name", MATRICES)
def test_what_a_bf16_engine_rounds_leaves_rounded(name):
    [(sent_as, sent)] = rounded([(name, float32(64, 48))])
    assert sent_as == name and sent.dtype == torch.bfloat16
    assert torch.equal(sent, float32(64, 48).to(torch.bfloat16))


@pytest.mark.parametrize("leaf", ["gate_up_proj", "down_proj"])
def test_a_stack_of_experts_leaves_rounded(leaf):
    [(_, sent)] = rounded([(f"model.layers.0.mlp.experts.{leaf}", float32(4, 16, 8))])
    assert sent.dtype == torch.bfloat16


@pytest.mark.parametrize(("name", "shape"), KEPT)
def test_what_the_engine_may_keep_in_float32_stays(name, shape):
    tensor = float32(*shape)
    [(_, sent)] = rounded([(name, tensor)])
    assert sent is tensor


def test_what_the_trainers_model_keeps_in_float32_stays():
    module = SimpleNamespace(_keep_in_fp32_modules=["wo"], _keep_in_fp32_modules_strict={"layers.1"})
    names = ["a.wo.weight", "layers.1.up.weight", "layers.10.up.weight", "a.word.weight"]
    sent = dict(rounded(((name, float32(4, 4)) for name in names), kept_by(module)))
    assert [sent[name].dtype for name in names] == [torch.float32] * 2 + [torch.bfloat16] * 2
    assert kept_by([torch.nn.Linear(1, 1)]) == kept_by(torch.nn.Linear(1, 1)) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8])
def test_other_dtypes_are_sent_as_they_are(dtype):
    tensor = torch.ones(4, 4).to(dtype)
    [(_, sent)] = rounded([(EMBEDDING, tensor)])
    assert sent is tensor


def test_what_is_no_tensor_is_named():
    with pytest.raises(RefitError, match=EMBEDDING):
        list(rounded([(EMBEDDING, [1.0])]))


def refit_with(sent: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Codes and scales, and a parameter in BF16, of an engine that gets this for both."""
    weight = QuantizedWeight("w", torch.zeros(sent.shape, dtype=torch.int8), torch.zeros(len(sent), 1), sent.shape[1])
    plain = ResidentWeight("embed", torch.zeros(sent.shape, dtype=torch.bfloat16))
    refit = Refit([weight, plain])
    with refit.session():
        for name, resident in (("w", weight), ("embed", plain)):
            refit.write(refit.batch.new_sources([(name, sent.numel())]), resident, resident.data, sent)
            refit.flush()
    return weight.data, weight.scale.view(-1), plain.data


def test_the_engine_holds_the_same_bytes_either_way():
    w_NK = float32(64, 48)
    w_NK[0, :3] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8])  # ties
    w_NK[1] = 0
    [(_, sent)] = rounded([("w.weight", w_NK)])
    codes, scale = oracle.quantize_weight(w_NK)
    for found in (refit_with(w_NK), refit_with(sent)):
        for here, there in zip(found, (codes, scale, w_NK.to(torch.bfloat16)), strict=True):
            assert torch.equal(here, there)


@pytest.fixture(scope="module")
def transfer():
    """verl's file by its path: its package would import vLLM."""
    source = Path(verl.__file__).parent / "workers/rollout/vllm_rollout/bucketed_weight_transfer.py"
    spec = importlib.util.spec_from_file_location("transfer", source)
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    module.get_torch_device = lambda: SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None)
    module.is_support_ipc = lambda: False
    return module


def carried(transfer, weights) -> list[tuple[str, torch.Tensor]]:
    """What verl's own sender and receiver make of the weights, without IPC; raises what the sender raises."""
    handle, received = f"ipc:///tmp/rl-colocate-zmq-test-{uuid.uuid4().hex}.sock", []

    def receive() -> None:
        receiver = transfer.BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=True)
        receiver.receive_weights(lambda weights, is_last: received.extend((n, t.clone()) for n, t in weights))

    engine = threading.Thread(target=receive, daemon=True)
    engine.start()
    sender = transfer.BucketedWeightSender(handle, bucket_size_mb=BUCKET_MB, use_shm=True)
    try:
        asyncio.run(sender.async_send_weights(iter(weights)))
    except AssertionError:
        end(handle)  # the receiver would wait for ever for a sender that gave up
        raise
    finally:
        engine.join(timeout=60)
        assert not engine.is_alive()
    return received


def end(handle: str) -> None:
    """Be the sender whose last bucket is empty."""
    with zmq.Context.instance().socket(zmq.REQ) as socket:
        socket.bind(handle)
        socket.send_pyobj({"bucket_meta": {}, "is_last": True})
        assert socket.recv() == b""


def test_the_embedding_fits_into_verls_bucket_and_is_proved(transfer):
    """1.5 times a bucket in float32, as a 7B's is in verl's 2,048 MiB to a hair."""
    gate = ("model.layers.0.mlp.gate.weight", float32(8, 64))
    weights = [(EMBEDDING, float32(384 * BUCKET_MB, 1024)), gate, ("model.norm.weight", float32(1024))]
    with pytest.raises(AssertionError, match=EMBEDDING):
        carried(transfer, sending(weights))
    received = carried(transfer, sending(rounded(weights)))
    proof = Receiving()
    parameters = dict(proof.take(received))
    assert proof.prove() == len(weights) == len(parameters) and SENT in dict(received)
    assert torch.equal(parameters[EMBEDDING], weights[0][1].to(torch.bfloat16))
    assert all(torch.equal(parameters[name], tensor) for name, tensor in weights[1:])
