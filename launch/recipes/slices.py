"""Whether the slices that tensor parallelism cuts of a layer are whole INT4 groups, or whole FP8 blocks.

A layer's weight is (N, K): N outputs, K inputs. What reads the hidden state (q, k, v, gate, up) is cut along N, what
writes it (o, down) along K. A group is some neighbours along K; a block is 128 x 128.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ascend_quant.schemes import get_scheme
from launch.recipes.fields import Numbers, Rollout

BLOCK = 128


class Cut(NamedTuple):
    """A layer, one of its names in the checkpoint, and the size that is cut: outputs (N) or inputs (K).

    `most` is how many slices there can be: more ranks have copies, as of key and value heads.
    """

    name: str
    size: int
    side: str
    most: int


def misfits(numbers: Numbers, rollout: Rollout) -> list[str]:
    """A line for every layer whose slice the scheme cannot hold."""
    scheme = get_scheme(rollout.scheme)
    whole = {"group": scheme.group, "block": BLOCK}.get(scheme.shares, 1)
    lines = []
    for name, size, side, most in cuts(numbers):
        ranks = 1 if ".experts." in name and rollout.expert_parallel > 1 else min(rollout.tensor_parallel, most)
        if ignored(name, rollout.ignore) or not scheme.quantized:
            continue
        if size % ranks:
            lines.append(f"{name}: {size} {side} cannot be cut into {ranks} (tensor_parallel)")
        elif (size // ranks) % whole and (ranks > 1 if scheme.shares == "block" else side == "inputs"):
            lines.append(
                f"{name}: {size} {side} / {ranks} = {size // ranks} is no multiple of {whole}, {rollout.scheme}'s "
                f"{scheme.shares}: choose a smaller tensor_parallel{_or_experts(name)}, or ignore the layer"
            )
    return lines


def _or_experts(name: str) -> str:
    return " or expert_parallel = tensor_parallel" if ".experts." in name else ""


def ignored(name: str, patterns: list[str]) -> bool:
    """Whether a layer stays BF16; patterns are a layer's full name, or re: and a regular expression."""
    return any(re.match(p[3:], name) if p.startswith("re:") else p == name for p in patterns)


def cuts(numbers: Numbers) -> Iterator[Cut]:
    """The layers of a block that tensor parallelism cuts, and what stays whole: the hidden state."""
    layer = "model.layers.0"
    yield from _attention(numbers, f"{layer}.self_attn")
    if numbers.intermediate_size is not None:
        yield from _gated(f"{layer}.mlp", numbers.intermediate_size)
    if numbers.moe_intermediate_size is not None:
        yield from _gated(f"{layer}.mlp.experts.0", numbers.moe_intermediate_size)
        if numbers.n_shared_experts is not None:
            yield from _gated(f"{layer}.mlp.shared_experts", numbers.moe_intermediate_size * numbers.n_shared_experts)


def _gated(name: str, size: int) -> Iterator[Cut]:
    for leaf in ("gate_proj", "up_proj"):
        yield Cut(f"{name}.{leaf}", size, "outputs", size)
    yield Cut(f"{name}.down_proj", size, "inputs", size)


def _attention(numbers: Numbers, name: str) -> Iterator[Cut]:
    heads = numbers.num_attention_heads
    if numbers.kv_lora_rank is not None:  # DeepSeek's multi-head latent attention
        query = "q_proj" if numbers.q_lora_rank is None else "q_b_proj"
        yield Cut(f"{name}.{query}", heads * (numbers.qk_nope_head_dim + numbers.qk_rope_head_dim), "outputs", heads)
        yield Cut(f"{name}.kv_b_proj", heads * (numbers.qk_nope_head_dim + numbers.v_head_dim), "outputs", heads)
        yield Cut(f"{name}.o_proj", heads * numbers.v_head_dim, "inputs", heads)
        return
    size, pairs = numbers.head_dim or numbers.hidden_size // heads, numbers.num_key_value_heads or heads
    yield Cut(f"{name}.q_proj", heads * size, "outputs", heads)
    yield Cut(f"{name}.k_proj", pairs * size, "outputs", pairs)
    yield Cut(f"{name}.v_proj", pairs * size, "outputs", pairs)
    yield Cut(f"{name}.o_proj", heads * size, "inputs", heads)
