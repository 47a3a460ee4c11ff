"""Attention metadata of a step, shared by all layers: which requests decode, and how the decode kernel's work is split.

vLLM puts requests with one new token first; these are treated as decodes. The others extend the cache, or begin
(fresh). Captured graphs contain only decodes: the plan is computed for each step outside of the graph, in the same
buffers.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadata, AttentionMetadataBuilder
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from ascend_quant.kernels import cache_pages


@dataclass
class Prefills:
    """Metadata of the requests with several new tokens.

    Attributes:
        starts: int32 (count + 1), start of each request's tokens, relative to the first of them.
        longest: maximum number of new tokens of a request.
        any_fresh, any_later: whether some have no earlier tokens in the cache, and whether some do.
    """

    starts: torch.Tensor
    lengths: torch.Tensor
    block_table: torch.Tensor
    longest: int
    any_fresh: bool
    any_later: bool


@dataclass
class Int8CacheMetadata(AttentionMetadata):
    """Attention metadata of one step.

    Attributes:
        tokens: number of tokens without padding.
        decodes: number of requests with one new token, which come first.
        decoder, plan: kernel and plan of the decodes; None without any.
    """

    tokens: int
    decodes: int
    lengths: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    decoder: Any
    plan: Any
    prefills: Prefills | None


class Int8CacheMetadataBuilder(AttentionMetadataBuilder[Int8CacheMetadata]):
    """Metadata builder of a group of layers with one cache; it holds the decode kernel's workspace for all of them."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    reorder_batch_threshold: int = 1

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        from ascend_quant.kernels.cuda.serve.triton_decoder import Decoder

        sizes = vllm_config.compilation_config.cudagraph_capture_sizes or [1]
        most = max(vllm_config.scheduler_config.max_num_seqs, *sizes)
        heads = vllm_config.model_config.get_num_attention_heads(vllm_config.parallel_config)
        layout = cache_pages.Layout(kv_cache_spec.block_size, kv_cache_spec.num_kv_heads, kv_cache_spec.head_size)
        self.decoder = Decoder(most, heads, layout, device, processors=processors_of(device))

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Int8CacheMetadata:
        common = common_attn_metadata
        decodes, prefills, decode_tokens, _ = split_decodes_and_prefills(common, decode_threshold=1)
        lengths = common.seq_lens[: common.num_reqs]
        return Int8CacheMetadata(
            tokens=common.num_actual_tokens,
            decodes=decodes if decode_tokens else 0,
            lengths=lengths,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            decoder=self.decoder,
            plan=self.decoder.plan(lengths[:decodes]) if decode_tokens else None,
            prefills=_prefills(common, decodes, decode_tokens) if prefills else None,
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Int8CacheMetadata:
        common_attn_metadata.seq_lens.fill_(1)  # the maximum length would make capturing slow
        return self.build(0, common_attn_metadata)


def _prefills(common: Any, decodes: int, decode_tokens: int) -> Prefills:
    counts = common.query_start_loc_cpu[decodes + 1 :] - common.query_start_loc_cpu[decodes:-1]
    bound = common.seq_lens_cpu_upper_bound  # exact for prefills; others have earlier tokens in any case
    later = bound[decodes : common.num_reqs] > counts if bound is not None else None
    return Prefills(
        starts=common.query_start_loc[decodes:] - decode_tokens,
        lengths=common.seq_lens[decodes : common.num_reqs],
        block_table=common.block_table_tensor[decodes:],
        longest=int(counts.max()),
        any_fresh=later is None or not bool(later.all()),
        any_later=later is None or bool(later.any()),
    )


def processors_of(device: torch.device) -> int:
    """Return the number of a GPU's multiprocessors; 4 elsewhere, where the kernels run in Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
