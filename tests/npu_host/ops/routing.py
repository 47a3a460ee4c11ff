"""Tokens to experts and back: gating, npu_moe_init_routing_v2, npu_moe_token_permute and npu_moe_token_unpermute."""

import torch

from npu_host.ops.numerics import padded, quantize_rows
from npu_host.reference import reference


@reference("npu::npu_moe_gating_top_k")
def npu_moe_gating_top_k(a):
    return gating_top_k(a.x, a.bias, a.k, a.norm_type, a.renorm, a.routed_scaling_factor, a.eps)


def gating_top_k(x, bias, k, norm_type, renorm, factor, eps):
    """Weights in the dtype of x, int32 experts, float32 scores; a bias changes who is chosen, not the weights."""
    scores = torch.sigmoid(x.float()) if norm_type == 1 else torch.softmax(x.float(), dim=-1)
    expert = torch.topk(scores if bias is None else scores + bias.float(), k, dim=-1).indices
    weight = scores.gather(1, expert)
    if norm_type == 1 or renorm:
        weight = weight / (weight.sum(dim=-1, keepdim=True) + eps)
    return (weight * factor).to(x.dtype), expert.to(torch.int32), scores


@reference("npu::npu_moe_init_routing_v2")
def npu_moe_init_routing_v2(a):
    first, last = a.active_expert_range or (0, a.expert_num)
    expert = a.expert_idx.reshape(-1)
    order = expert.argsort(stable=True)
    order = order[(expert[order] >= first) & (expert[order] < last)]
    order = order[: a.active_num] if a.active_num > 0 else order
    slots = expert.numel()
    place = torch.full((slots,), -1, dtype=torch.int32)
    place[order] = torch.arange(order.numel(), dtype=torch.int32)
    token = order // a.expert_idx.shape[1]
    rows, scales = a.x[token], torch.full((order.numel(),), float("nan"), dtype=torch.float32)
    if a.quant_mode == 1:
        rows, scales = quantize_rows(rows)
    elif a.scale is not None:
        scales = a.scale[token]
    counts = torch.bincount(expert[order].long() - first, minlength=last - first)
    room = min(a.active_num, slots) if a.active_num > 0 else slots
    return padded(rows, room), place, counts, padded(scales, room)


@reference("npu::npu_moe_token_permute")
def npu_moe_token_permute(a):
    order = a.indices.reshape(-1).argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    kept = order[: a.num_out_tokens] if a.num_out_tokens else order
    experts_a_token = a.indices.numel() // a.indices.shape[0]
    return a.tokens[kept // experts_a_token], place.to(torch.int32)


@reference("npu::npu_moe_token_unpermute")
def npu_moe_token_unpermute(a):
    experts_a_token = 1 if a.probs is None else a.probs.shape[1]
    rows = a.permuted_tokens.float()[a.sorted_indices.long()].unflatten(0, (-1, experts_a_token))
    if a.probs is not None:
        rows = rows * a.probs.float().unsqueeze(-1)
    return rows.sum(dim=1).to(a.permuted_tokens.dtype)


@reference("npu::_npu_moe_token_unpermute", on_device=True)
def npu_moe_token_unpermute_for_training(a):
    # What torch_npu 2.13 makes of npu_moe_token_unpermute outside torch.inference_mode().
    return torch.ops.npu.npu_moe_token_unpermute(**vars(a)), a.permuted_tokens
