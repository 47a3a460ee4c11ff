"""Which parameters a Megatron checkpoint's stored tensors hold, and what becomes of them where layers differ."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from naming import line_naming

from ascend_quant.export.megatron import Names, Slice, slices
from ascend_quant.profile.checkpoints import BadCheckpoint

LATENT = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 5,
}
DENSE_THEN_EXPERTS = {
    "embedding.word_embeddings.weight": (8, 4),
    "decoder.layers.0.mlp.linear_fc1.weight": (12, 4),
    "decoder.layers.1.mlp.experts.experts.linear_fc2.weight": (3, 4, 6),
    "decoder.layers.1.mlp.router.expert_bias": (3,),
    "decoder.layers.1.mlp.linear_fc1._extra_state": (1,),
    "optimizer.state.exp_avg.decoder.layers.0.mlp.linear_fc1.weight": (12, 4),
    "chained_0.optimizer.state.exp_avg": (12, 4),
    "rng_state": (1,),
}


def stored(sizes: dict) -> SimpleNamespace:
    dtypes = {key: torch.bfloat16 for key in sizes}
    return SimpleNamespace(sizes=sizes, dtypes=dtypes, folder=Path("checkpoint"))


def test_layers_that_differ_are_stored_one_by_one():
    assert slices(stored(DENSE_THEN_EXPERTS), LATENT) == [
        Slice("embedding.word_embeddings.weight", "embedding.word_embeddings.weight", ()),
        Slice("decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.weight", ()),
        *(
            Slice(
                f"decoder.layers.1.mlp.experts.linear_fc2.weight{expert}",
                "decoder.layers.1.mlp.experts.experts.linear_fc2.weight",
                (expert,),
            )
            for expert in range(3)
        ),
        Slice("decoder.layers.1.mlp.router.expert_bias", "decoder.layers.1.mlp.router.expert_bias", ()),
    ]


def test_layers_that_are_alike_are_stored_in_one():
    found = slices(stored({"decoder.layers.mlp.experts.experts.linear_fc1.weight": (2, 2, 6, 4)}), LATENT)
    assert [(one.name, one.leading) for one in found] == [
        ("decoder.layers.0.mlp.experts.linear_fc1.weight0", (0, 0)),
        ("decoder.layers.0.mlp.experts.linear_fc1.weight1", (0, 1)),
        ("decoder.layers.1.mlp.experts.linear_fc1.weight0", (1, 0)),
        ("decoder.layers.1.mlp.experts.linear_fc1.weight1", (1, 1)),
    ]


@pytest.mark.parametrize("layers, said", [((0,), "layers 0 to 0"), ((), "layers none"), ((0, 2), "0 to 2")])
def test_missing_layers_are_an_error(layers: tuple[int, ...], said: str):
    sizes = {f"decoder.layers.{layer}.mlp.linear_fc2.weight": (4, 6) for layer in layers}
    with pytest.raises(BadCheckpoint, match=said):
        slices(stored(sizes), LATENT)


@pytest.fixture(scope="module")
def names() -> Names:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    pytest.importorskip("verl", reason="verl is not installed")
    return Names(LATENT)


def test_kimis_and_moonlights_names(names: Names):
    weight = torch.arange(48.0).reshape(12, 4)
    found = dict(names.tensors("decoder.layers.1.mlp.experts.linear_fc1.weight2", weight))
    assert list(found) == [f"model.layers.1.mlp.experts.2.{one}_proj.weight" for one in ("gate", "up")]
    assert torch.equal(torch.cat(list(found.values())), weight.bfloat16())
    [(name, _)] = names.tensors("decoder.layers.0.self_attention.linear_kv_down_proj.weight", weight)
    assert name == "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"


def test_padding_of_the_vocabulary_is_cut_off_and_another_one_is_an_error(names: Names):
    bias = torch.tensor([1 + 2**-20, 0.1, 0.2])
    [(name, found)] = names.tensors("decoder.layers.1.mlp.router.expert_bias", bias)
    assert name == "model.layers.1.mlp.gate.e_score_correction_bias"
    assert torch.equal(found, bias)  # it keeps its dtype
    [(name, found)] = names.tensors("output_layer.weight", torch.ones(8, 4))
    assert (name, found.shape) == ("lm_head.weight", (5, 4))
    for name, named in (
        ("embedding.word_embeddings.weight", ["4 rows", "5 tokens"]),
        ("decoder.layers.0.mlp.extra", []),
    ):
        with pytest.raises(BadCheckpoint, match=line_naming(*named or [name])):
            list(names.tensors(name, torch.ones(4, 4)))
