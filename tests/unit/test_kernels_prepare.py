"""After `prepare`, syncs from tensors on the device ask for no kernel that was not compiled."""

import pytest
import torch

from ascend_quant.engine.smoothing import Smoothing
from ascend_quant.kernels.cuda.refit import launches
from ascend_quant.kernels.int4_layouts import MarlinTiles
from ascend_quant.kernels.storage import CODES
from ascend_quant.refit import Refit, batch, kernel_warm_up, prepare
from ascend_quant.refit.resident import ResidentWeight
from ascend_quant.refit.scales import BY_SHARING
from ascend_quant.schemes import SCHEMES
from ascend_quant.transfer import digests, prequantized
from ascend_quant.transfer.checksums import Receiving, sending

LENGTH, WHOLE = 32, 64  # of a row-parallel layer's rows


@pytest.fixture
def module(cuda, monkeypatch):
    """The CUDA kernels, which also serve tensors on the CPU where there is no GPU; nothing is compiled yet."""
    for owner in (batch, kernel_warm_up, digests):
        monkeypatch.setattr(owner, "kernels_for", lambda device: cuda.module)
    monkeypatch.setattr(launches, "_COMPILED", {})
    return cuda.module


def quantized(scheme, shape, device, whole=None):
    name = f"w{len(shape)}"
    rows = shape[:-1]
    if scheme.codes == "int4":
        layout = MarlinTiles(shape, scheme.group, device)
        data = torch.empty(shape, dtype=torch.int8, device="meta")
        return BY_SHARING[scheme.shares](name, data, layout.scales, shape[-1], layout=layout)
    blocks = (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    scale = torch.zeros(blocks if scheme.shares == "block" else rows, device=device)
    codes = torch.zeros(shape, dtype=CODES[scheme.codes], device=device)
    return BY_SHARING[scheme.shares](name, codes, scale, whole or shape[-1])


def residents_of(scheme, device):
    """Weights of several shapes, a slice of one, an embedding, a norm, and a stack of experts."""
    slices = scheme.shares in ("row", "tensor") and scheme.codes != "int4"
    rows = 64 if scheme.codes == "int4" else 3
    found = [quantized(scheme, (rows, LENGTH), device, WHOLE if slices else None)]
    if scheme.shares in ("row", "group"):
        found.append(quantized(scheme, (2, rows, LENGTH), device))
    embedding = ResidentWeight("embedding", torch.zeros(9, 48, dtype=torch.bfloat16, device=device))
    return [*found, embedding, ResidentWeight("norm", torch.zeros(7, dtype=torch.bfloat16, device=device))]


def sync(session, dtype):
    """As a trainer sends it, with the proof."""
    received, tensors = Receiving(), []
    for number, resident in enumerate(session.residents):
        stacked = resident.data.dim() == 3
        for i in range(len(resident.data) if stacked else 1):
            view = resident.data[i] if stacked else resident.data
            shape = view.shape if view.dim() < 2 else (view.shape[0], resident.whole_length)
            tensors.append((f"{number}.{i}", torch.randn(shape).to(resident.tensor.device, dtype), resident, view))
    with session.session():
        parameters = received.take(list(sending((name, tensor) for name, tensor, _, _ in tensors)))
        for (name, tensor), (_, _, resident, view) in zip(parameters, tensors, strict=True):
            shard = tensor[..., LENGTH:] if tensor.dim() == 2 and view.shape != tensor.shape else tensor
            exact = bool(session.checks and resident.codes)
            slot = session.batch.new_sources([(name, tensor.numel())])
            session.write(slot, resident, view, shard, tensor, tensor, skip_bf16_cast=exact)
    received.prove()
    session.verify()


@pytest.mark.parametrize("name", ["int8", "fp8_tensor", "fp8_block", "int4_g32"])
def test_a_trainers_first_syncs_find_their_kernels(module, cuda, name):
    session = Refit(residents_of(SCHEMES[name], cuda.device))
    before = {r.name: r.tensor.clone() for r in session.residents}
    prepare(session)
    assert all(torch.equal(r.tensor.view(torch.uint8), before[r.name].view(torch.uint8)) for r in session.residents)
    assert all(r.unwritten == r.row_count for r in session.residents)
    ready = set(launches._COMPILED)
    for dtype in (torch.bfloat16, torch.float32):
        sync(session, dtype)
        assert set(launches._COMPILED) == ready
    assert ready


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_codes_that_a_trainer_sends_find_theirs(module, cuda, monkeypatch, name):
    monkeypatch.setattr(prequantized, "kernels_for", lambda device: cuda.module)
    scheme = SCHEMES[name]
    whole, stack = quantized(scheme, (3, 48), cuda.device), quantized(scheme, (2, 3, LENGTH), cuda.device)
    slices = quantized(scheme, (3, LENGTH), cuda.device, WHOLE)
    prequantized.prepare([(K, torch.float32) for K in (48, LENGTH, WHOLE)], scheme, cuda.device)
    sent_by_trainer = set(launches._COMPILED)
    session = Refit([whole, stack, slices])
    prepare(session, prequantized=True)
    ready = set(launches._COMPILED)
    assert ready > sent_by_trainer > set()
    weights = [torch.randn(r.data.shape[-2], r.whole_length, device=cuda.device) for r in (whole, stack, slices)]
    views, shards = (whole.data, stack.data[0], slices.data), (slice(None), slice(None), slice(LENGTH, None))
    named = prequantized.coded([(str(number), w) for number, w in enumerate(weights)], scheme)
    assert set(launches._COMPILED) == ready
    session.open()
    for (name, sent), resident, view, part in zip(named, session.residents, views, shards, strict=True):
        codes = prequantized.codes_of(name, sent)
        slot = session.batch.new_sources([(name, codes.numel())])
        session.write(slot, resident, view, codes[:, part], codes, codes, prequantized=True)
    session.batch.flush()
    assert set(launches._COMPILED) == ready


def test_smoothed_weights_find_theirs(module, cuda, monkeypatch):
    smoothing = Smoothing.__new__(Smoothing)
    smoothing.frozen = False
    monkeypatch.setattr(Smoothing, "begin", lambda self: None)
    monkeypatch.setattr(Smoothing, "check", lambda self, entries: None)
    session = Refit([quantized(SCHEMES["int8"], (3, LENGTH), cuda.device)], checks=[smoothing])
    prepare(session)
    ready = set(launches._COMPILED)
    sync(session, torch.float32)
    assert set(launches._COMPILED) == ready


def test_the_trainers_digests_find_theirs(module, cuda):
    tensors = [torch.randn(5, 48), torch.randn(7), torch.randn(2, 3, 32).bfloat16()]
    tensors = [tensor.to(cuda.device) for tensor in tensors]
    digests.prepare(cuda.device)
    ready = set(launches._COMPILED)
    list(sending((str(i), tensor) for i, tensor in enumerate(tensors)))
    assert ready and set(launches._COMPILED) == ready


def test_without_it_they_would_be_compiled_in_the_first_sync(module, cuda):
    session = Refit(residents_of(SCHEMES["fp8_tensor"], cuda.device)[1:])
    sync(session, torch.bfloat16)
    first = set(launches._COMPILED)
    sync(session, torch.float32)
    assert first and set(launches._COMPILED) - first
