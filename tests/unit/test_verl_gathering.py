"""Shards gathered many at a time, on gloo ranks: each tensor is what DTensor's own gather gives, rounded or not.

Codes are those of the whole tensor: each rank makes those of its rows.
"""

from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing as mp
from gloo_ranks import join, leave
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from ascend_quant.schemes import SCHEMES, Scheme
from ascend_quant.transfer.prequantized import coded

pytest.importorskip("verl", reason="the shards are those of verl's trainer")
pytest.importorskip("vllm", reason="verl's workers need vLLM")

RANKS = 4
INT8 = SCHEMES["int8"]
CODED = ("one.weight", "even.weight", "layer.mlp.experts.gate_up_proj", "wide.weight", "copied.weight", "last.weight")
CPU = torch.device("cpu")
SHAPES = {  # rows on 4 ranks: 2 2 2 1, then 1 0 0 0, ..
    "odd.weight": (7, 5),
    "one.weight": (1, 8),
    "even.weight": (8, 3),
    "vector.bias": (5,),
    "layer.mlp.experts.gate_up_proj": (3, 4, 6),
    "bytes.weight": (6, 3),
    "wide.weight": (4, 700),
}


def params(mesh, placements) -> dict[str, torch.Tensor]:
    """Shards, with a tensor that is whole on each rank and one that is no DTensor between them."""
    torch.manual_seed(0)
    found = {}
    for name, shape in SHAPES.items():
        whole = torch.randn(shape)
        found[name] = distribute_tensor(whole.bfloat16() if "bytes" in name else whole, mesh, placements)
    found["copied.weight"] = distribute_tensor(torch.randn(3, 3), mesh, [Replicate()] * mesh.ndim)
    found["plain"] = torch.arange(3)
    found["last.weight"] = distribute_tensor(torch.randn(9, 2), mesh, placements)
    return found


def rounds(name: str, tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32 and not name.startswith(("odd", "vector"))


def dtype_or_scheme(name: str, tensor: torch.Tensor) -> torch.dtype | Scheme:
    if name in CODED:
        return INT8
    return torch.bfloat16 if rounds(name, tensor) else tensor.dtype


def as_it_leaves(name: str, whole: torch.Tensor) -> torch.Tensor:
    """Made of the whole tensor."""
    left = dtype_or_scheme(name, whole)
    return coded([(name, whole)], left)[0][1] if left is INT8 else whole.to(left)


def check_rank(rank: int, folder) -> None:
    from ascend_quant.integrations.verl.sending import gathering

    join(rank, RANKS, folder)
    flat, square = init_device_mesh("cpu", (RANKS,)), init_device_mesh("cpu", (2, RANKS // 2))
    for mesh, placements in ((flat, [Shard(0)]), (square, [Replicate(), Shard(0)]), (square, [Shard(0), Replicate()])):
        sharded = params(mesh, placements)
        assert all(map(gathering.is_gathered_flat, sharded.values()))
        for at_once in (1, 200, 1 << 30):
            gathering.AT_ONCE = at_once
            # all kept: none has another's memory
            groups = list(gathering.gathered(sharded, CPU, dtype_or_scheme, list))
            assert [name for group in groups for name, _ in group] == list(sharded)
            assert (len(groups) == len(sharded)) == (at_once == 1)
            for name, whole in (pair for group in groups for pair in group):
                shard = sharded[name]
                expected = shard.full_tensor() if isinstance(shard, DTensor) else shard
                expected = as_it_leaves(name, expected)
                assert whole.dtype == expected.dtype and torch.equal(whole, expected), (name, at_once, placements)
    columns = distribute_tensor(torch.randn(4, 8), flat, [Shard(1)])
    both = distribute_tensor(torch.randn(4, 8), square, [Shard(0), Shard(1)])
    assert not gathering.is_gathered_flat(columns) and not gathering.is_gathered_flat(both)
    leave()


def test_as_dtensors_own_gather(tmp_path):
    mp.spawn(check_rank, (tmp_path,), nprocs=RANKS)


def check_engine(rank: int, folder, tied: bool) -> None:
    join(rank, 2, folder)
    import verl  # noqa: F401  the plugin brings the cpu platform
    from packed_engine import build

    from ascend_quant.integrations.verl import compat
    from ascend_quant.integrations.verl.sending.options import SendOptions
    from ascend_quant.integrations.verl.sending.weight_sender import WeightSender
    from ascend_quant.integrations.verl.training import packed_attention
    from ascend_quant.transfer.checksums import Receiving

    engine = build(folder, packed_attention.PACKED, 1)
    verls, _ = engine.get_per_tensor_param()
    expected = {name: tensor.bfloat16() if tensor.dim() == 2 else tensor for name, tensor in verls}
    head = expected["lm_head.weight"]
    assert torch.equal(head, expected["model.embed_tokens.weight"]) == tied
    sender = WeightSender(engine, SendOptions(rounds=True))
    for verl_gathers in (False, True):
        if verl_gathers:
            compat.fsdp2_shards = lambda engine: None
            expected["lm_head.weight"] = head
        elif tied:
            del expected["lm_head.weight"]
        receiving = Receiving()
        found = dict(receiving.take(list(sender.as_sent(engine.get_per_tensor_param()[0], None))))
        assert receiving.prove() == len(expected)
        assert set(found) == set(expected)
        assert all(torch.equal(found[name], expected[name]) for name in expected), verl_gathers
        figures = sender.metrics.as_metrics()
        assert figures["refit/bytes_sent"] == sum(tensor.nbytes for tensor in expected.values())
        assert figures["refit/gather_ms"] > 0
    leave()


@pytest.mark.parametrize("tied", [False, True])
def test_verls_engine_sends_the_same_weights_but_for_a_tied_head(tied, tmp_path, monkeypatch):
    from packed_engine import plain_model

    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    plain_model(tied).save_pretrained(tmp_path / "model")
    mp.spawn(check_engine, (tmp_path, tied), nprocs=2)


@pytest.mark.parametrize("fault", ["lora", "qat", "fsdp1", "other"])
def test_where_verl_does_more_than_to_gather_it_is_left_to_it(fault, monkeypatch):
    from verl.utils import fsdp_utils
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    from ascend_quant.integrations.verl import compat

    monkeypatch.setattr(fsdp_utils, "fsdp_version", lambda module: 1 if fault == "fsdp1" else 2)
    other = type("Other", (FSDPEngine,), {"get_per_tensor_param": lambda self: None})
    engine = object.__new__(other if fault == "other" else FSDPEngine)
    engine._qat_enabled = fault == "qat"
    engine.module = SimpleNamespace(state_dict=lambda: {"a": 1}, **({"peft_config": {}} if fault == "lora" else {}))
    assert compat.fsdp2_shards(engine) is None
    if fault == "lora":
        del engine.module.peft_config
        assert compat.fsdp2_shards(engine) == {"a": 1}
