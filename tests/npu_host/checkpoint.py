"""Checkpoints for the models of models.py, and the int8 rows that an engine should hold of them."""

import torch
from torch import nn

from ascend_quant import oracle
from ascend_quant.engine.layout import layouts_of
from npu_host.models import EXPERTS, HEAD, HIDDEN, INTERMEDIATE, VOCABULARY

LAYER = "model.layers.0"


def state_of(moe: bool, seed: int) -> dict[str, torch.Tensor]:
    """A checkpoint of their shapes, on the host."""
    shapes = {
        "model.embed_tokens": (VOCABULARY, HIDDEN),
        "lm_head": (VOCABULARY, HIDDEN),
        "model.norm": (HIDDEN,),
        f"{LAYER}.input_layernorm": (HIDDEN,),
        f"{LAYER}.post_attention_layernorm": (HIDDEN,),
        f"{LAYER}.self_attn.q_proj": (2 * HEAD, HIDDEN),
        f"{LAYER}.self_attn.k_proj": (HEAD, HIDDEN),
        f"{LAYER}.self_attn.v_proj": (HEAD, HIDDEN),
        f"{LAYER}.self_attn.o_proj": (HIDDEN, 2 * HEAD),
        f"{LAYER}.self_attn.q_norm": (HEAD,),
        f"{LAYER}.self_attn.k_norm": (HEAD,),
    }
    if moe:
        shapes[f"{LAYER}.mlp.gate"] = (EXPERTS, HIDDEN)
    for layer in mlps(moe):
        shapes |= {f"{layer}.{name}_proj": (INTERMEDIATE, HIDDEN) for name in ("gate", "up")}
        shapes[f"{layer}.down_proj"] = (HIDDEN, INTERMEDIATE)
    generator = torch.Generator("cpu").manual_seed(seed)
    return {
        f"{name}.weight": torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32).bfloat16()
        for name, shape in shapes.items()
    }


def mlps(moe: bool) -> list[str]:
    """The layers with a gate, an up and a down projection."""
    return [f"{LAYER}.mlp.experts.{expert}" for expert in range(EXPERTS)] if moe else [f"{LAYER}.mlp"]


def stacked(moe: bool, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same with all experts of the layer in two tensors."""
    if not moe:
        return dict(state)
    gate, up, down = ([state[f"{mlp}.{name}_proj.weight"] for mlp in mlps(moe)] for name in ("gate", "up", "down"))
    found = {name: tensor for name, tensor in state.items() if ".experts." not in name}
    found[f"{LAYER}.mlp.experts.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(gate, up, strict=True)])
    return found | {f"{LAYER}.mlp.experts.down_proj": torch.stack(down)}


def expected(
    moe: bool, state: dict[str, torch.Tensor], rank: int = 0, ranks: int = 1, expert_parallel: bool = False
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Codes (N, K) and scales (N) of each int8 parameter of a rank: what the oracle makes of the checkpoint's rows.

    Args:
        ranks: that share the heads and either the rows between two projections or, with `expert_parallel`, the experts.
    """
    layers = mlps(moe)
    shared = 1 if expert_parallel else ranks
    if expert_parallel:
        layers = [layers[expert] for expert in _part(len(layers), rank, ranks)]
    inner, heads = _part(INTERMEDIATE, rank % shared, shared), _part(2 * HEAD, rank, ranks)
    q, k, v, o = (state[f"{LAYER}.self_attn.{name}_proj.weight"] for name in "qkvo")
    up = torch.cat([state[f"{layer}.{name}_proj.weight"][inner] for layer in layers for name in ("gate", "up")])
    down = torch.cat([state[f"{layer}.down_proj.weight"] for layer in layers])
    return {
        "qkv": oracle.quantize_weight(torch.cat([q[heads], k, v])),  # every rank has the one key/value head
        "o": _columns(o, heads),
        "up": oracle.quantize_weight(up),
        "down": _columns(down, inner),
    }


def _part(size: int, rank: int, ranks: int) -> range:
    return range(rank * size // ranks, (rank + 1) * size // ranks)


def _columns(rows_NK: torch.Tensor, columns: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns of rows whose scales come from the whole rows."""
    return oracle.quantize_weight(rows_NK[:, columns], rows_NK.float().abs().amax(-1))


def held(moe: bool, model: nn.Module) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Codes (N, K) and scales (N) of the same."""
    layer = model.model.layers[0]
    found = {name: layouts_of(getattr(layer.self_attn, f"{name}_proj"))["weight"] for name in ("qkv", "o")}
    if moe:
        experts = layouts_of(with_weights(layer.mlp.experts))
        found |= {"up": experts["w13_weight"], "down": experts["w2_weight"]}
    else:
        found |= {name: layouts_of(getattr(layer.mlp, f"{name}_proj"))["weight"] for name in ("gate_up", "down")}
        found["up"] = found.pop("gate_up")
    return {name: (one.weight_layout[:].cpu(), one.scale.cpu().view(-1)) for name, one in found.items()}


def with_weights(experts: nn.Module) -> nn.Module:
    """The module that holds the experts' weights: newer vLLMs have one within the layer that the model calls."""
    return getattr(experts, "routed_experts", experts)
