"""The layers of a recipe's model: whether tensor parallelism can cut them, and whether `rollout.ignore` splits one.

A layer's weight is (N, K): N outputs, K inputs. What reads the hidden state (q, k, v, gate, up) is cut along N, what
writes it (o, down) along K. A group is some neighbours along K; a block is 128 x 128. Attention is cut into whole
heads, layers into whole INT4 groups or FP8 blocks.

The engine has q, k and v in one layer, and gate and up, so that a part of one cannot be ignored. The engine and the
trainer's fake quantization refuse the same, minutes after the start. That a pattern means no layer at all they alone
can say, since a recipe does not know all layers of its model.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ascend_quant.names import Ignored, PatternError, layers_of
from ascend_quant.schemes import get_scheme
from launch.recipes.fields import Numbers, Rollout

BLOCK = 128
FIRST = "model.layers.0"  # the block whose layers are named
BLOCK_NUMBER = re.compile(r"layers\\?\.(\d+)")  # as a pattern names it


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


def unshared_heads(numbers: Numbers, ranks: int) -> Iterator[str]:
    """What of an attention's heads so many devices cannot share, whatever its weights are held in."""
    heads, pairs = numbers.num_attention_heads, numbers.num_key_value_heads or numbers.num_attention_heads
    if heads % ranks:
        yield f"{heads} attention heads cannot be shared by {ranks} devices: choose a divisor"
    elif numbers.kv_lora_rank is None and pairs % ranks and ranks % pairs:
        yield (
            f"{pairs} key and value heads cannot be shared by {ranks} devices: choose a divisor of them, or a multiple"
        )


def _or_experts(name: str) -> str:
    return " or expert_parallel = tensor_parallel" if ".experts." in name else ""


def ignored(name: str, patterns: list[str]) -> bool:
    """Whether a layer stays BF16; patterns are a layer's full name, or re: and a regular expression."""
    return any(re.match(p[3:], name) if p.startswith("re:") else p == name for p in patterns)


def cuts(numbers: Numbers) -> Iterator[Cut]:
    """The layers of a block that tensor parallelism cuts, and what stays whole: the hidden state."""
    yield from _attention(numbers, f"{FIRST}.self_attn")
    if numbers.intermediate_size is not None:
        yield from _gated(f"{FIRST}.mlp", numbers.intermediate_size)
    if numbers.moe_intermediate_size is not None:
        yield from _gated(f"{FIRST}.mlp.experts.0", numbers.moe_intermediate_size)
        if numbers.n_shared_experts is not None:
            yield from _gated(f"{FIRST}.mlp.shared_experts", numbers.moe_intermediate_size * numbers.n_shared_experts)


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


def halves(numbers: Numbers, patterns: Sequence[str]) -> Iterator[str]:
    """A line for the first layer of which the patterns name a part, with what is named and what is not.

    Args:
        patterns: regular expressions among them are valid.
    """
    ignored = Ignored(patterns)
    for block in dict.fromkeys(["0", *(number for one in patterns for number in BLOCK_NUMBER.findall(one))]):
        names = [cut.name.replace(FIRST, f"model.layers.{block}") for cut in cuts(numbers)]
        try:
            for layer in layers_of(names).values():
                ignored.covers(layer)
        except PatternError as error:
            yield str(error)
            return
