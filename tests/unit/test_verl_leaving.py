"""What a float32 trainer sends to a BF16 engine: the same bytes in its buffers, by half of the traffic."""

from itertools import chain
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("zmq", reason="verl's weight transfer needs pyzmq")

import torch

from ascend_quant import oracle
from ascend_quant.integrations.verl.sending.wire_format import WireFormat, kept_by
from ascend_quant.refit import Refit, RefitError
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight

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
    return chain.from_iterable(WireFormat(True, kept).each(weights))


def float32(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_what_a_bf16_engine_rounds_leaves_rounded_and_nothing_else():
    stacks = [f"model.layers.0.mlp.experts.{leaf}" for leaf in ("gate_up_proj", "down_proj")]
    for name, shape in (*((name, (64, 48)) for name in MATRICES), *((name, (4, 16, 8)) for name in stacks)):
        [(sent_as, sent)] = rounded([(name, float32(*shape))])
        assert sent_as == name and sent.dtype == torch.bfloat16
        assert torch.equal(sent, float32(*shape).to(torch.bfloat16))
    others = [(EMBEDDING, torch.ones(4, 4, dtype=dtype)) for dtype in (torch.bfloat16, torch.float16, torch.int8)]
    for name, tensor in (*((name, float32(*shape)) for name, shape in KEPT), *others):
        [(_, sent)] = rounded([(name, tensor)])
        assert sent is tensor, name
    with pytest.raises(RefitError, match=EMBEDDING):
        list(rounded([(EMBEDDING, [1.0])]))


def test_what_the_trainers_model_keeps_in_float32_stays():
    module = SimpleNamespace(_keep_in_fp32_modules=["wo"], _keep_in_fp32_modules_strict={"layers.1"})
    names = ["a.wo.weight", "layers.1.up.weight", "layers.10.up.weight", "a.word.weight"]
    sent = dict(rounded(((name, float32(4, 4)) for name in names), kept_by(module)))
    assert [sent[name].dtype for name in names] == [torch.float32] * 2 + [torch.bfloat16] * 2
    assert kept_by([torch.nn.Linear(1, 1)]) == kept_by(torch.nn.Linear(1, 1)) == []


def refit_with(sent: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Codes and scales, and a parameter in BF16, of an engine that gets this for both."""
    weight = QuantizedWeight("w", torch.zeros(sent.shape, dtype=torch.int8), torch.zeros(len(sent), 1), sent.shape[1])
    plain = ResidentWeight("embed", torch.zeros(sent.shape, dtype=torch.bfloat16))
    refit = Refit([weight, plain])
    with refit.session():
        for name, resident in (("w", weight), ("embed", plain)):
            refit.write(refit.batch.new_sources([(name, sent.numel())]), resident, resident.data, sent)
            refit.batch.flush()
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
