"""vLLM attention backend for an int8 KV cache with a scale per token and head, with our own kernels.

Pages have the size and shape of vLLM's int8_per_token_head, but our own layout (`kernels.cache_pages`). Codes are
rounded, while vLLM 0.23 truncates. New tokens of a fresh prompt attend to each other without quantization, by
FlashAttention; those of a later chunk read the cache. No state is kept between steps that a sync, sleep or another
cache could invalidate.
"""

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType, MultipleOf

from ascend_quant.integrations.vllm.kv_cache.attention.metadata import Int8CacheMetadata, Int8CacheMetadataBuilder
from ascend_quant.integrations.vllm.kv_cache.attention.register import NAME
from ascend_quant.kernels import cache_pages

PAGE = 128  # tokens: a tile of the decode kernel lies in one page


class Int8CacheBackend(AttentionBackend):
    """The attention backend of the option kv_cache=int8."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["int8_per_token_head"]
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        return [MultipleOf(PAGE)]

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type["Int8CacheImpl"]:
        return Int8CacheImpl

    @staticmethod
    def get_builder_cls() -> type[Int8CacheMetadataBuilder]:
        return Int8CacheMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        layout = cache_pages.Layout(block_size, num_kv_heads, head_size)
        if problem := layout.problem():
            raise ValueError(problem)
        return (num_blocks, 2, block_size, num_kv_heads, head_size + cache_pages.SCALE_BYTES)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        if include_num_layers_dimension:
            raise NotImplementedError("the kernels need a separate cache for each layer")
        return (0, 1, 2, 3, 4)

    @classmethod
    def get_required_kv_cache_layout(cls) -> str:
        return "NHD"

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return list(cache_pages.HEADS_OF_BYTES)

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return capability.major >= 8


class Int8CacheImpl(AttentionImpl[Int8CacheMetadata]):
    """The attention implementation of one layer over the int8 KV cache."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **others: Any,
    ) -> None:
        asked = {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap or None,
            "attn_type": None if attn_type == AttentionType.DECODER else attn_type,
            "kv_sharing_target_layer_name": kv_sharing_target_layer_name,
            **{
                name: value
                for name, value in others.items()
                if value is not False and not (isinstance(value, int) and value == -1)
            },
        }
        if unserved := [name for name, value in asked.items() if value is not None]:
            raise NotImplementedError(
                f"kv_cache=int8: layers with {', '.join(unserved)} are not supported; set kv_cache=auto"
            )
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, num_kv_heads, head_size
        self.scale, self.kv_cache_dtype = float(scale), kv_cache_dtype

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        from ascend_quant.kernels.cuda.serve.triton_cache import write

        write(key, value, kv_cache, slot_mapping)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Int8CacheMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute attention (tokens, heads, head) into `output`; the new tokens are already in the cache."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(
                "kv_cache=int8: attention that quantizes its output is not supported; set kv_cache=auto"
            )
        if attn_metadata is None:  # while vLLM measures memory
            return output.fill_(0)
        step, count = attn_metadata, attn_metadata.decodes
        if count:
            tables, lengths = step.block_table[:count], step.lengths[:count]
            step.decoder(query[:count], kv_cache, tables, lengths, step.plan, self.scale, output[:count])
        if step.prefills is not None:
            q, k, v, out = (x[count : step.tokens] for x in (query, key, value, output))
            self._prefill(q, k, v, kv_cache, step.prefills, out)
        return output

    def _prefill(self, q, k, v, kv_cache, prefills, out) -> None:
        from ascend_quant.kernels.cuda.serve.triton_extend import extend

        if prefills.any_fresh:  # computes all prefills; those that continue a prompt are overwritten below
            self.fresh(q, k, v, prefills.starts, prefills.longest, out)
        if prefills.any_later:
            given = (q, kv_cache, prefills.block_table, prefills.lengths, prefills.starts, prefills.longest)
            extend(*given, self.scale, out, with_fresh=False)

    def fresh(self, q, k, v, starts: torch.Tensor, longest: int, out: torch.Tensor) -> None:
        """Compute causal attention of new tokens within their own sequence (prefill), with vLLM's FlashAttention."""
        from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_flash_attn_version

        flash_attn_varlen_func(
            q=q, k=k, v=v, out=out, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=longest,
            max_seqlen_k=longest, softmax_scale=self.scale, causal=True,
            fa_version=get_flash_attn_version(head_size=self.head_size),
        )  # fmt: skip
