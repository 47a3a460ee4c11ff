"""CUDA kernels for serving: GEMM, fused MoE, attention over an int8 KV cache.

products.py            GEMMs and fused MoE by scheme
triton_linear.py       the W8A8 GEMM; gluon_linear.py has Hopper's (gluon_shares.py, shared_tiles.py),
                       linear_choice.py selects one
triton_tokens.py       dynamic per-token quantization; triton_fused_tokens.py with the norm or SiLU before it,
                       token_ops.py has them as torch custom ops
triton_exact.py        norms, rotation and SiLU of exact engines
triton_experts.py      the W8A8 mixture of experts: triton_routing.py sorts tokens, triton_router.py is the router
triton_grouped.py      the grouped GEMM of experts (fused MoE)
triton_decoder.py      decode attention over an int8 KV cache: triton_decode.py has its kernels, triton_decode_codes.py
                       their products of codes; triton_extend.py has prefill, triton_cache.py writes the cache
triton_sampling.py     sampling from logits with given noise
"""
