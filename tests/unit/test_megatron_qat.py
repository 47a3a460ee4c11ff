"""Fake quantization of Megatron-core's real classes, forward and backward, tensor parallel 1 and 2 over gloo on CPU."""

import pytest

pytest.importorskip("megatron.core", reason="its layers are what is quantized here")

import megatron_ranks
import torch.multiprocessing as mp

CASES = [
    ("check_gpt", False),
    ("check_gpt", True),
    ("check_transformer_engine",),
]
if megatron_ranks.GroupedMLP:
    CASES += [("check_grouped",)]
ALONE = [
    ("check_ignored",),
    (
        "check_refusal",
        megatron_ranks.SCHEME,
        ["model.layers.1.self_attn.k_proj"],
        "model.layers.1.self_attn.qkv_proj",
    ),
    (
        "check_refusal",
        megatron_ranks.SCHEME,
        ["re:.*linear_fc1", "model.layers.2.mlp.gate_up_proj"],
        "'model.layers.2.mlp.gate_up_proj'",
    ),
]
SPLIT = [
    (
        "check_refusal",
        "int4_g128",
        ["re:.*linear_qkv"],
        "decoder.layers.0.self_attention.linear_proj.weight: rows of 32 elements",
    ),
]


@pytest.mark.parametrize(("ranks", "more"), [(1, ALONE), (2, SPLIT)], ids=["one rank", "two ranks"])
def test_models_compute_as_those_with_the_engines_weights(ranks, more, tmp_path):
    mp.spawn(megatron_ranks.check, (ranks, tmp_path, CASES + more), nprocs=ranks)
