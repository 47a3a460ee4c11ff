"""8-bit formats for a KV cache: FP8, which these chips lack, and int8 in vllm-ascend's attention operator."""

from typing import Any

import torch

from npu_smoke import data
from npu_smoke.checks import IN_SHORT, NotPossible, Setting, Wrong, check, require, without_traces

PAIRS = {"qwen2.5-7b": (28, 4), "qwen2.5-32b": (40, 8), "qwen3-30b-a3b": (32, 4), "documented": (64, 8)}
HEAD, LENGTH, SHORT, SEQUENCES = 128, 1024, 64, 4
PER_CHANNEL, PER_TOKEN = 0, 1  # modes of the operator
NEAR = 0.02  # relative error of int8 keys and values, of rows of noise


@check("cache.no_fp8", needed=False, claim="no fp8")
def no_fp8(on: Setting, numbers: dict) -> None:
    """Does the device refuse to multiply FP8?"""
    if not hasattr(torch, "float8_e4m3fn"):
        raise NotPossible(f"torch {torch.__version__} has no float8_e4m3fn")
    values = torch.randn(64, 64, generator=data.generator(91)).to(torch.float8_e4m3fn)
    one = torch.ones(1)
    try:
        found = data.operator("npu_quant_matmul")(
            on.put(values), on.put(values), on.put(one), output_dtype=torch.bfloat16
        )
        off = float((found.cpu().float() - values.float() @ values.float()).abs().max())
    except NotPossible:
        raise
    except Exception as why:  # whatever it is, there is no product
        numbers["what it says"] = without_traces(f"{type(why).__name__}: {why}")[:300]
        return
    numbers["largest error"] = off
    raise Wrong(f"npu_quant_matmul takes FP8; its largest error is {off:.3g}")


@check("cache.int8_per_channel", needed=False)
def per_channel(on: Setting, numbers: dict) -> None:
    """Does npu_fused_infer_attention_score take int8 keys and values with a scale a channel, for our heads?"""
    _probe(on, numbers, PER_CHANNEL)


@check("cache.int8_per_token", needed=False)
def per_token(on: Setting, numbers: dict) -> None:
    """The same, with a scale a token?"""
    _probe(on, numbers, PER_TOKEN)


def _probe(on: Setting, numbers: dict[str, Any], mode: int) -> None:
    """Each pair of heads by itself: what is refused for one may work for another."""
    operator = data.operator("npu_fused_infer_attention_score")
    errors = {name: _attempt(on, operator, mode, *heads) for name, heads in PAIRS.items()}
    numbers["relative error, or why not"] = errors
    near = [name for name, error in errors.items() if isinstance(error, float) and error < NEAR]
    numbers[IN_SHORT] = f"{len(near)} of {len(errors)} pairs of heads"
    refused = [f"{name}: {error}" for name, error in errors.items() if name not in near]
    if all("has no reference kernel" in str(error) for error in errors.values()):
        raise NotPossible("npu_fused_infer_attention_score cannot run here")
    require(not refused, "; ".join(refused))


def _attempt(on: Setting, operator, mode: int, heads: int, kv_heads: int) -> float | str:
    """How far one decode step is from float64, or what the operator says."""
    made, length = data.generator(92), SHORT if on.small else LENGTH
    query = torch.randn(SEQUENCES, heads, 1, HEAD, generator=made).to(torch.bfloat16)
    keys, values = (torch.randn(SEQUENCES, kv_heads, length, HEAD, generator=made) for _ in range(2))
    (key_codes, key_scales), (value_codes, value_scales) = (_quantized(one, mode) for one in (keys, values))
    try:
        found, _ = operator(
            on.put(query),
            on.put(key_codes),
            on.put(value_codes),
            actual_seq_lengths_kv=[length] * SEQUENCES,
            key_antiquant_scale=on.put(key_scales),
            value_antiquant_scale=on.put(value_scales),
            key_antiquant_mode=mode,
            value_antiquant_mode=mode,
            num_heads=heads,
            num_key_value_heads=kv_heads,
            scale=HEAD**-0.5,
            input_layout="BNSD",
            inner_precise=1,
        )
        got = found.cpu().double()
    except Exception as why:  # what it says is what we came for
        return without_traces(f"{type(why).__name__}: {why}")[:300]
    expected = _attention(query.double(), keys.double(), values.double())
    return float((got - expected).norm() / expected.norm())


def _quantized(x: torch.Tensor, mode: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 (B, KV, S, D), and scales: BF16 (KV, 1, D), or float32 (1, B, S)."""
    over = (0, 2) if mode == PER_CHANNEL else (1, 3)
    scale = x.abs().amax(over, keepdim=True) / 127
    if mode == PER_CHANNEL:
        scale = scale.to(torch.bfloat16).float()
    codes = (x / scale).round().clamp(-127, 127).to(torch.int8)
    return codes, scale[0].to(torch.bfloat16) if mode == PER_CHANNEL else scale[:, 0, :, 0].unsqueeze(0).contiguous()


def _attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """float64 (B, H, 1, D)."""
    groups = query.shape[1] // keys.shape[1]
    keys, values = (one.repeat_interleave(groups, 1) for one in (keys, values))
    return (query @ keys.transpose(2, 3) * HEAD**-0.5).softmax(-1) @ values
