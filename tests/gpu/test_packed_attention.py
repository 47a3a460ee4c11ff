"""The real kernel of packed attention on a GPU: values, every gradient, memory, and Ulysses on two GPUs.

What bf16 costs is measured beside it: torch's SDPA on the same inputs, a sequence at a time, and both against float32.
Ulysses was not run on GPUs yet: it needs two.
"""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

pytest.importorskip("verl", reason="packed attention is the verl adapter's")

import transformers
from packed_engine import build, expected_gradients, gradients, plain_model, worst

from ascend_quant.integrations.verl.training import packed_attention
from ascend_quant.integrations.verl.training.attention_settings import PACKED

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's varlen kernel needs a GPU"),
]

NOISE = 2.0  # times bf16 SDPA's own error
LEAST = 2**-9  # half a unit in bf16's last place: so near SDPA comes to the truth where sequences are short
MIXED = (1, 17, 300, 2048)
RANKS = 2


@pytest.fixture
def device() -> str:
    return "cuda"


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative; where the truth is nearly nothing (one token's gradient of q), beside normal values' hundredth."""
    least = 1e-2 * exact.numel() ** 0.5
    return ((found.double() - exact.double()).norm() / exact.double().norm().clamp(min=least)).item()


def sequences_of(lengths: tuple[int, ...], device: str) -> packed_attention.Sequences:
    offsets = torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
    return packed_attention.Sequences(offsets, lengths)


def one_at_a_time(q, k, v, lengths: tuple[int, ...], window: int | None):
    """(T, H, D), by SDPA."""
    outs = []
    for parts in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
        one = [x.transpose(0, 1).unsqueeze(0) for x in parts]
        place = torch.arange(one[0].shape[2], device=q.device)
        back = place.unsqueeze(1) - place
        seen = (back >= 0) & (back < (window or len(place)))
        outs.append(F.scaled_dot_product_attention(*one, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(outs)


@pytest.mark.parametrize("heads, pairs", [(28, 4), (32, 4), (40, 8), (4, 4)])
@pytest.mark.parametrize("lengths", [MIXED, (2048,), (1,), (5, 5, 5), (4096, 1, 63, 64, 65), (5000, 4097)])
@pytest.mark.parametrize("window", [None, 50])
def test_the_kernel(heads: int, pairs: int, lengths: tuple[int, ...], window: int | None, device: str):
    torch.manual_seed(len(lengths))
    make = {"device": device, "dtype": torch.bfloat16}
    qkv = [torch.randn(sum(lengths), h, 128, **make) for h in (heads, pairs, pairs)]
    grad = torch.randn(sum(lengths), heads, 128, **make)

    def run(how, dtype):
        leaves = [x.detach().to(dtype, copy=True).requires_grad_() for x in qkv]
        out = how(*leaves)
        out.backward(grad.to(dtype))
        return [out.detach(), *(x.grad for x in leaves)]

    def ours(q, k, v):
        sides = (window - 1 if window else -1, 0)
        return packed_attention.varlen(q, k, v, sequences_of(lengths, device), sides, None)

    def theirs(q, k, v):
        return one_at_a_time(q, k, v, lengths, window)

    exact, usual = run(theirs, torch.float32), run(theirs, torch.bfloat16)
    for name, one, other, truth in zip(["o", "q", "k", "v"], run(ours, torch.bfloat16), usual, exact, strict=True):
        assert error(one, truth) <= NOISE * max(error(other, truth), LEAST), name


def model(kind: str, attention: str, dtype: torch.dtype, device: str):
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "vocab_size": 1000, "head_dim": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = {"qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}[kind]
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config(**sizes, **heads, attn_implementation=attention))
    return made.to(device=device, dtype=torch.bfloat16).to(dtype).train()  # the same values in both


def batch(lengths: tuple[int, ...], padded: bool, device: str) -> dict[str, torch.Tensor]:
    """A model's inputs; the tokens are the same either way."""
    torch.manual_seed(1)
    ids = [torch.randint(0, 1000, (length,), device=device) for length in lengths]
    if not padded:
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        return {"input_ids": torch.cat(ids).unsqueeze(0), "position_ids": positions.unsqueeze(0)}
    fill = [(max(lengths) - length, 0) for length in lengths]
    mask = torch.stack([F.pad(torch.ones_like(one), by) for one, by in zip(ids, fill, strict=True)])
    rows = torch.stack([F.pad(one, by) for one, by in zip(ids, fill, strict=True)])
    return {"input_ids": rows, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


def gradients_of(model, calls: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Of a random direction in the logits of all true tokens, whichever way they are put together."""
    outs = []
    for inputs in calls:
        logits = model(**inputs, use_cache=False).logits
        outs.append(logits[inputs["attention_mask"].bool()] if "attention_mask" in inputs else logits[0])
    logits = torch.cat(outs).float()
    torch.manual_seed(2)
    (logits * torch.randn(logits.shape).to(logits.device)).sum().backward()
    return {name: parameter.grad.float() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize("lengths, padded", [(MIXED, False), ((300,), False), ((1, 17, 300), True), ((64, 64), True)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model(kind: str, lengths: tuple[int, ...], padded: bool, checkpointing: bool, device: str):
    ours = model(kind, PACKED, torch.bfloat16, device)
    if checkpointing:
        ours.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    found = gradients_of(ours, [batch(lengths, padded, device)])
    ids = batch(lengths, False, device)["input_ids"]
    alone = [{"input_ids": one} for one in ids.split(lengths, dim=1)]
    usual, exact = (
        gradients_of(model(kind, "sdpa", dtype, device), alone) for dtype in (torch.bfloat16, torch.float32)
    )
    for name, truth in exact.items():
        assert error(found[name], truth) <= NOISE * max(error(usual[name], truth), LEAST), name


def peak_bytes(tokens: int) -> int:
    """What one layer's attention needs, forward and backward, beyond its inputs."""
    make = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    q, k, v = (torch.randn(tokens, heads, 128, **make) for heads in (28, 4, 4))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = packed_attention.varlen(q, k, v, sequences_of((2048,) * (tokens // 2048), "cuda"), (-1, 0), None)
    out.backward(torch.ones_like(out))
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def test_memory_grows_with_the_tokens():
    peak_bytes(4096)  # what a first call leaves behind
    assert peak_bytes(32768) < 2.2 * peak_bytes(16384)


def check_rank(rank: int, folder, dtype: str = "bf16", device: str = "cuda") -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    expected = expected_gradients()
    alone, shared = (worst(gradients(build(folder, PACKED, n, dtype))[0], expected) for n in (1, RANKS))
    wrong = worst(gradients(build(folder, "sdpa", RANKS, dtype))[0], expected)
    print(
        f"worst gradient off by: Ulysses 1 {alone:.1e}, {RANKS} {shared:.1e}, sdpa with Ulysses {wrong:.1e}", flush=True
    )
    assert shared <= NOISE * max(alone, LEAST) and wrong > 2 * shared
    dist.barrier()
    os._exit(0)


@pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="Ulysses over two ranks needs two GPUs")
def test_ulysses_in_verls_engine(tmp_path):
    plain_model().save_pretrained(tmp_path / "model")
    mp.spawn(check_rank, (tmp_path,), nprocs=RANKS)
