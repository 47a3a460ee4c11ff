"""Checksums of the output of each stage of a forward pass: the first stage that differs is the faulty operation.

Modules have the same names in engine (vLLM) and trainer (transformers), except for fused ones, so a stage has one name
on both sides: `layers.3.self_attn.qkv_proj` is vLLM's layer, and the concatenation of transformers' q_proj, k_proj and
v_proj. Results between modules have the name of the operation: `layers.3.attention` (including norms of q and k, and
rotary embeddings) is the input of o_proj, `layers.3.activation` (SiLU(gate) * up) that of down_proj.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ascend_quant.qat.modules import named_modules
from ascend_quant.schemes.layer_names import FUSED, FUSED_INTO

MODULE = re.compile(
    r"(?:^|\.)(layers\.\d+\.(?:input_layernorm|post_attention_layernorm"
    r"|self_attn\.(?:qkv_proj|[qkv]_proj|o_proj)|mlp(?:\.(?:gate_up_proj|gate_proj|up_proj|down_proj))?)|norm)$"
)
FOLLOWING = {part for parts in FUSED.values() for part in parts[1:]}  # in the order in which a layer calls them
INPUTS = {"o_proj": "attention", "down_proj": "activation"}  # by module: the operation whose result is its input
ROWS = 256  # rows at a time: int64 copies of all rows would take four times the memory of the activations

Recorded = tuple[int, list[int]]  # a stage's width in elements, and the checksums of its rows


@dataclass
class Stage:
    """The results of one stage, one per token.

    Attributes:
        width: number of elements of a row.
        rows: checksums, int64 (M) for each call.
    """

    width: int = 0
    rows: list[torch.Tensor] = field(default_factory=list)

    def add(self, x: torch.Tensor, beside: bool) -> None:
        """Add a result (.., K), from another call or with further columns of the last one."""
        x_MK = x.detach().reshape(-1, x.shape[-1])
        if beside:
            self.rows[-1] += checksums(x_MK, self.width)
            self.width += x.shape[-1]
        else:
            self.width = x.shape[-1]
            self.rows.append(checksums(x_MK))


class Recorder:
    """Records the stages of one model, from its construction to `close`."""

    def __init__(self, model: nn.Module):
        self._stages: defaultdict[str, Stage] = defaultdict(Stage)
        self._handles = [
            module.register_forward_hook(self._recording(found[1]))
            for name, module in named_modules((model,))
            if (found := MODULE.search(name))
        ]

    def close(self) -> dict[str, Recorded]:
        """Stop recording; return the stages by name, in the order of computation."""
        for handle in self._handles:
            handle.remove()
        return {name: (stage.width, torch.cat(stage.rows).tolist()) for name, stage in self._stages.items()}

    def _recording(self, name: str) -> Callable[..., None]:
        place, _, leaf = name.rpartition(".")
        stage = ".".join(filter(None, (place, FUSED_INTO.get(leaf, leaf))))

        def record(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if leaf in INPUTS:
                self._stages[f"{place.rpartition('.')[0]}.{INPUTS[leaf]}"].add(args[0], beside=False)
            result = output[0] if isinstance(output, tuple) else output
            self._stages[stage].add(result, beside=leaf in FOLLOWING)

        return record


def checksums(x_MK: torch.Tensor, first_column: int = 0) -> torch.Tensor:
    """Return a checksum of each row's bits and their positions, int64 (M); the checksums of adjacent columns add up.

    Args:
        x_MK: (M, K) with any dtype of 2 or 4 bytes.
        first_column: index of the first column, if x is a part of the rows.
    """
    bits_MK = x_MK.contiguous().view(torch.int16 if x_MK.element_size() == 2 else torch.int32)
    place_K = torch.arange(first_column, first_column + bits_MK.shape[1], dtype=torch.int64, device=x_MK.device)
    weight_K = (place_K + 1) * 0x9E3779B97F4A7C1 | 1  # odd, so that every bit counts; sums wrap
    rows = [(part.to(torch.int64) * weight_K).sum(1) for part in bits_MK.split(ROWS)]
    return torch.cat(rows).cpu()


def first_difference(engine: Mapping[str, Recorded], ranks: Sequence[Mapping[str, Recorded]], tokens: int) -> str:
    """Describe the first stage whose results differ in a sequence of `tokens` tokens, and the tokens that differ.

    Args:
        engine: stages of the engine's first rank. Stages of which it has only a slice are skipped.
        ranks: stages of the trainer's ranks; each rank has all tokens, or they have consecutive parts (Ulysses).
    """
    for name, (width, rows) in ranks[0].items():
        other_width, others = engine.get(name, (0, []))
        if other_width != width:
            continue
        if len(rows) < tokens:
            rows = [row for rank in ranks for row in rank[name][1]]
        differ = [token for token in range(tokens) if rows[token] != others[token]]
        if differ:
            count, first = f"{len(differ)} of {tokens} tokens", differ[0]
            return f"{name} is the first stage that differs, in {count} from token {first} on"
    return "all stages up to the last norm agree, so the difference arises in lm_head or the log-softmax"
