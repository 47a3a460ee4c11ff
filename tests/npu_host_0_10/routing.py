"""Reference kernels of the routing operators that vllm-ascend 0.10 calls and 0.23 does not; see npu_host/reference.py.

A token's place among the expanded rows is counted expert by expert: slot t of token m is number t * M + m.
"""

import torch
from npu_host.reference import reference


@reference("npu::npu_moe_gating_top_k_softmax")
def npu_moe_gating_top_k_softmax(a):
    weight_MT, expert_MT = a.x.float().softmax(-1).topk(a.k, dim=-1)
    number_MT = torch.arange(expert_MT.numel()).view(a.k, -1).t()
    return weight_MT.to(a.x.dtype), expert_MT.to(torch.int32), number_MT.to(torch.int32)


@reference("npu::npu_moe_init_routing")
def npu_moe_init_routing(a):
    tokens, slots = a.expert_idx.shape
    if a.active_num < tokens:
        raise NotImplementedError(f"npu_moe_init_routing: only active_num >= {tokens} tokens; got {a.active_num}")
    expert, order = a.expert_idx.reshape(-1).sort(stable=True)
    number = a.row_idx.reshape(-1)[order].long()
    place = torch.empty(tokens * slots, dtype=torch.int32)
    place[number] = torch.arange(tokens * slots, dtype=torch.int32)
    return a.x[number % tokens], place, expert


@reference("npu::npu_moe_compute_expert_tokens")
def npu_moe_compute_expert_tokens(a):
    counts = torch.bincount(a.sorted_expert_for_source_row.long(), minlength=a.num_expert)
    return counts.cumsum(0).to(torch.int32)


@reference("npu::npu_moe_finalize_routing")
def npu_moe_finalize_routing(a):
    if not (a.skip1 is None and a.skip2 is None and a.bias is None and not a.drop_pad_mode):
        raise NotImplementedError("npu_moe_finalize_routing: only without skips, bias and drop_pad_mode")
    rows_TMK = a.expanded_permuted_rows.float()[a.expanded_src_to_dst_row.long()].unflatten(0, (a.scales.shape[1], -1))
    return (rows_TMK * a.scales.float().t().unsqueeze(-1)).sum(0).to(a.expanded_permuted_rows.dtype)
