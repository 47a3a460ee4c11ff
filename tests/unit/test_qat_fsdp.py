"""Fake quantization under FSDP, on two ranks over gloo: the same numbers as one process with the engine's weights."""

import copy
from functools import partial

import pytest
import torch
import torch.multiprocessing as mp
from gloo_ranks import join, leave
from naming import line_naming
from qat_cases import engine_weight
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import checkpoint

from ascend_quant import qat

SCHEME = "int4_g32"
RANKS = 2
STEPS = 2
RATE = 2.0**-5


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(4, 64, 32) / 8)
        self.down_proj = nn.Parameter(torch.randn(4, 32, 32) / 8)

    def forward(self, x):
        gate, up = torch.einsum("mk,enk->emn", x, self.gate_up_proj).chunk(2, dim=-1)
        return torch.einsum("emk,enk->mn", gate * up, self.down_proj)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.experts = nn.Linear(32, 64), nn.Linear(64, 32, bias=False), Experts()

    def forward(self, x):
        return x + self.experts(self.down(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.lm_head = nn.Linear(32, 7, bias=False)

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.lm_head(x)


def expected_steps(dtype):
    """Return the logits of each step, and the final weights, of one process that trains with the engine's weights."""
    model, x = model_and_input()
    found = []
    for _ in range(STEPS):
        served = copy.deepcopy(model).to(dtype)
        for key, parameter in served.named_parameters():
            if parameter.dim() > 1 and "lm_head" not in key:
                parameter.data.copy_(engine_weight(parameter.data, SCHEME))
        logits = served(x.to(dtype))
        loss(logits).backward()
        found.append(logits.detach().float())
        with torch.no_grad():
            for parameter, served_one in zip(model.parameters(), served.parameters(), strict=True):
                parameter -= RATE * served_one.grad.float()
    return found, model.state_dict()


def loss(logits):
    return logits.float().square().mean()


def model_and_input():
    torch.manual_seed(0)
    return Model(), torch.randn(9, 32)


def shard_with_fsdp2(model, dtype):
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def shard_with_fsdp1(model, dtype, original):
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy([Block]),
        mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=torch.float32),
        use_orig_params=original,
        device_id=torch.device("cpu"),
    )


WAYS = {
    "fsdp2": shard_with_fsdp2,
    "fsdp1": partial(shard_with_fsdp1, original=False),
    "fsdp1 with its parameters": partial(shard_with_fsdp1, original=True),
}


def check_rank(rank, folder, way, dtype, first):
    join(rank, RANKS, folder)
    expected, weights = expected_steps(dtype)
    model, x = model_and_input()
    names = list(model.state_dict())
    if first:
        applied = qat.apply_fake_quantization(model, SCHEME)
        model = WAYS[way](model, dtype)
    else:
        model = WAYS[way](model, dtype)
        applied = qat.apply_fake_quantization(model, SCHEME)
    assert applied.quantized == [f"layers.{i}.{layer}" for i in range(2) for layer in ("up", "down", "experts")]
    assert applied.unquantized == ["lm_head"]
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for logits in expected:
        found = model(x)
        assert torch.equal(found.float(), logits)
        loss(found).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        assert list(state) == names
        for key, value in state.items():
            assert value.dtype == torch.float32 and torch.equal(value, weights[key]), key
    leave()


@pytest.mark.parametrize(
    ("way", "dtype", "first"),
    [
        ("fsdp2", torch.bfloat16, True),
        ("fsdp2", torch.float32, False),
        ("fsdp1", torch.float32, True),
        ("fsdp1", torch.bfloat16, False),
        ("fsdp1 with its parameters", torch.float32, True),
    ],
)
def test_sharded_training_equals_training_in_one_process(way, dtype, first, tmp_path):
    mp.spawn(check_rank, (tmp_path, way, dtype, first), nprocs=RANKS)


def check_refusal(rank, folder):
    join(rank, RANKS, folder)
    model = WAYS["fsdp1 with its parameters"](Model(), torch.float32)
    with pytest.raises(ValueError, match=line_naming("Experts", "FSDP1")):
        qat.apply_fake_quantization(model, SCHEME)
    leave()


def test_flat_shards_of_experts_are_refused(tmp_path):
    mp.spawn(check_refusal, (tmp_path,), nprocs=RANKS)
