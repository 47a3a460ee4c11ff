"""A checkpoint for the model of vllm_engine.py, and the int8 rows that each rank of an engine should hold of it."""

import torch
from torch import nn

from ascend_quant import oracle
from ascend_quant.integrations.vllm.lying import lying_of
from npu_host import vllm_engine

LAYER = "model.layers.0"
HEAD = 32


def state_of(seed: int) -> dict[str, torch.Tensor]:
    """A checkpoint of its shapes, on the host."""
    hidden, head = vllm_engine.HIDDEN, HEAD
    shapes = {
        "model.embed_tokens": (128, hidden),
        "lm_head": (128, hidden),
        "model.norm": (hidden,),
        f"{LAYER}.input_layernorm": (hidden,),
        f"{LAYER}.post_attention_layernorm": (hidden,),
        f"{LAYER}.self_attn.q_proj": (2 * head, hidden),
        f"{LAYER}.self_attn.k_proj": (head, hidden),
        f"{LAYER}.self_attn.v_proj": (head, hidden),
        f"{LAYER}.self_attn.o_proj": (hidden, 2 * head),
        f"{LAYER}.self_attn.q_norm": (head,),
        f"{LAYER}.self_attn.k_norm": (head,),
        f"{LAYER}.mlp.gate": (vllm_engine.EXPERTS, hidden),
    }
    for expert in range(vllm_engine.EXPERTS):
        for name in ("gate", "up", "down"):
            shapes[f"{LAYER}.mlp.experts.{expert}.{name}_proj"] = (hidden, hidden)
    generator = torch.Generator("cpu").manual_seed(seed)
    return {
        f"{name}.weight": torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32).bfloat16()
        for name, shape in shapes.items()
    }


def expected(
    state: dict[str, torch.Tensor], rank: int = 0, ranks: int = 1, expert_parallel: bool = False
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Codes (N, K) and scales (N) of each int8 parameter of a rank: what the oracle makes of the checkpoint's rows.

    Args:
        ranks: that share the heads and either the experts' rows or, with `expert_parallel`, the experts.
    """
    attention = {name: state[f"{LAYER}.self_attn.{name}_proj.weight"] for name in "qkvo"}
    shared = 1 if expert_parallel else ranks
    dealt = range(vllm_engine.EXPERTS) if shared == ranks else _part(vllm_engine.EXPERTS, rank, ranks)
    experts = [
        [state[f"{LAYER}.mlp.experts.{expert}.{name}_proj.weight"] for name in ("gate", "up", "down")]
        for expert in dealt
    ]
    inner = _part(vllm_engine.INTERMEDIATE, rank % shared, shared)
    heads = _part(2 * HEAD, rank, ranks)
    qkv = torch.cat([attention["q"][heads], attention["k"], attention["v"]])  # every rank has the one key/value head
    return {
        "self_attn.qkv_proj": oracle.quantize_weight(qkv),
        "self_attn.o_proj": _columns(attention["o"], heads),
        "w13_weight": oracle.quantize_weight(torch.cat([m[inner] for gate, up, _ in experts for m in (gate, up)])),
        "w2_weight": _columns(torch.cat([down for _, _, down in experts]), inner),
    }


def _part(size: int, rank: int, ranks: int) -> range:
    return range(rank * size // ranks, (rank + 1) * size // ranks)


def _columns(rows_NL: torch.Tensor, columns: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns of rows whose scales come from the whole rows."""
    return oracle.quantize_weight(rows_NL[:, columns], rows_NL.float().abs().amax(-1))


def held(model: nn.Module) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Codes (N, K) and scales (N) of the same."""
    layer = model.model.layers[0]
    attention, experts = layer.self_attn, lying_of(layer.mlp.experts)
    found = {f"self_attn.{name}": lying_of(getattr(attention, name))["weight"] for name in ("qkv_proj", "o_proj")}
    found |= {name: experts[name] for name in ("w13_weight", "w2_weight")}
    return {name: (one.place[:].cpu(), one.scale.cpu().view(-1)) for name, one in found.items()}
