"""A test of the NPU, run when a model is built: whether its decode attention is correct for the int8 KV cache of C8.

The documentation of npu_fused_infer_attention_score lists a few pairs of query and key heads for int8 caches in C8's
layout, and most models have others. So each pair is tested once: vllm-ascend's own functions write two sequences into a
small cache and decode one token of each; the expected result is attention over the same codes in float64 on the host.
"""

from functools import cache
from types import SimpleNamespace

import torch
from torch import nn

LENGTHS = (37, 150)  # tokens of each sequence: within a block, and into a second one
BLOCK = 128  # tokens per block, vllm-ascend's default
# Relative to the largest expected value: BF16 rounds to 0.004; a wrong channel's scale is off by more than half.
TOLERANCE = 0.02
DERIVED = "_c8_"


def why_not_decoded(layer: nn.Module) -> str | None:
    """Return why decoding from C8's cache is wrong for a layer's heads, or None; each kind is tested once.

    Args:
        layer: layer with C8's tensors, whose values are not changed.
    """
    impl, dtype = layer.impl, layer.k_cache_scale.dtype
    return _tried(type(impl), impl.num_heads, impl.num_kv_heads, impl.head_size, dtype, layer.k_cache_scale.device)


@cache
def _tried(
    attention: type, heads: int, kv_heads: int, size: int, dtype: torch.dtype, device: torch.device
) -> str | None:
    what = f"heads ({heads}, {kv_heads}) of {size} channels"
    impl = scratch(attention, heads, kv_heads, size)
    try:
        error = largest_error(impl, dtype, device)
    except Exception as why:  # whatever the operator raises
        return f"{what}: this NPU does not decode from C8's cache: {type(why).__name__}: {why}"
    if not error < TOLERANCE:
        return f"{what}: decoding from C8's cache is off by {error:.3g} of the largest value on this NPU"
    return None


def scratch(attention: type, heads: int, kv_heads: int, size: int) -> object:
    """Create an attention object with only the attributes that writing and decoding read."""
    impl = object.__new__(attention)
    config = SimpleNamespace(cache_config=SimpleNamespace(block_size=BLOCK))
    vars(impl).update(num_heads=heads, num_kv_heads=kv_heads, head_size=size, scale=size**-0.5, vllm_config=config)
    vars(impl).update(key_cache=None, value_cache=None, attn_type="decoder", kv_sharing_target_layer_name=None)
    return impl


def largest_error(impl, dtype: torch.dtype, device: torch.device) -> float:
    """Return the largest error of one decoded token of each sequence, relative to the largest expected value."""
    generator = torch.Generator("cpu").manual_seed(0)
    heads, kv_heads, size, tokens = impl.num_heads, impl.num_kv_heads, impl.head_size, sum(LENGTHS)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")

    spread = 1 + 3 * torch.rand(2, 1, kv_heads, size, generator=generator, dtype=torch.float32, device="cpu")
    keys, values = ((random(tokens, kv_heads, size) * one).to(dtype) for one in spread)
    scales = [one.abs().amax(0, keepdim=True).float().div(127).to(dtype) for one in (keys, values)]
    query = random(len(LENGTHS), heads, size).to(dtype)
    layer = SimpleNamespace()
    for kind, scale in zip("kv", scales, strict=True):
        vars(layer)[f"{DERIVED}{kind}_scale"] = scale.to(device)
        vars(layer)[f"{DERIVED}{kind}_offset"] = torch.zeros_like(scale).to(device)
        vars(layer)[f"{DERIVED}{kind}_inv_scale"] = (1 / scale.float()).to(device)
        vars(layer)[f"{DERIVED}{kind}_aq_scale_nz_bnsd"] = scale.view(kv_heads, 1, size).to(device)
    metadata, cache = pages(kv_heads, size, device)
    codes = impl._quantize_kv_to_int8(keys.to(device), values.to(device), layer, tokens)
    impl._reshape_and_cache(query, *codes, cache, metadata, None)
    output = torch.empty(query.shape, dtype=dtype, device=device)
    found = impl._forward_c8_decode(query.to(device), metadata, output, layer)
    expected = attention(query, [one.cpu().double() * scale.double() for one, scale in zip(codes, scales, strict=True)])
    return off(found, expected)


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest error, relative to the largest expected value."""
    return float((found.cpu().double() - expected).abs().max() / expected.abs().max())


def pages(kv_heads: int, size: int, device: torch.device) -> tuple[SimpleNamespace, tuple[torch.Tensor, torch.Tensor]]:
    """Allocate an empty cache of keys and values, and the sequences' blocks in shuffled order."""
    counts = [-(-length // BLOCK) for length in LENGTHS]
    order = list(range(sum(counts)))[::-1]
    tables = [[order.pop() for _ in range(count)] for count in counts[::-1]][::-1]
    slots = [
        table[token // BLOCK] * BLOCK + token % BLOCK
        for table, length in zip(tables, LENGTHS, strict=True)
        for token in range(length)
    ]
    padded = [table + [0] * (max(counts) - len(table)) for table in tables]
    metadata = SimpleNamespace(
        num_actual_tokens=sum(LENGTHS),
        slot_mapping=torch.tensor(slots, dtype=torch.int32, device=device),
        block_tables=torch.tensor(padded, dtype=torch.int32, device=device),
        seq_lens_list=list(LENGTHS),
    )
    made = (torch.zeros(sum(counts), BLOCK, kv_heads, size, dtype=torch.int8, device=device) for _ in "kv")
    return metadata, tuple(made)


def attention(query_BHD: torch.Tensor, keys_and_values: list[torch.Tensor]) -> torch.Tensor:
    """Compute attention of each token over its own sequence in float64, (B, heads, D)."""
    keys, values = (one.repeat_interleave(query_BHD.shape[1] // one.shape[1], dim=1) for one in keys_and_values)
    rows, start = [], 0
    for query_HD, length in zip(query_BHD.double(), LENGTHS, strict=True):
        part = slice(start, start + length)
        weights_HT = torch.einsum("hd,thd->ht", query_HD, keys[part]).mul(query_HD.shape[1] ** -0.5).softmax(-1)
        rows.append(torch.einsum("ht,thd->hd", weights_HT, values[part]))
        start += length
    return torch.stack(rows)
