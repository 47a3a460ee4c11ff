"""Who is to blame, in models with something planted: transformers' layers through our looks, no engine."""

from collections.abc import Callable

import pytest
from torch import nn

pytest.importorskip("transformers")

from outlier_models import (
    BLOCKS,
    CHANNELS,
    dense,
    embedding,
    everything,
    head,
    inputs_of_all,
    looked_at,
    mixture_model,
    one_expert,
    one_kind,
    one_layer,
    planted,
    written_channels,
)

from ascend_quant.mismatch.culprits import Culprit, culprits
from ascend_quant.mismatch.suggestion import Suggestion, suggest


def found_in(model: nn.Module, scheme: str = "int8") -> tuple[list[Culprit], Suggestion]:
    layers, tables = looked_at(model, scheme)
    blamed = culprits(layers, tables)
    return blamed, suggest(blamed, layers)


NORM_FED = {rf"re:.*\.{kind}_proj$" for kind in ("q", "k", "v", "gate", "up")}


@pytest.mark.parametrize(
    ("make", "plant", "what", "name", "channels", "ignore"),
    [
        (dense, one_layer, "layer", "model.layers.2.self_attn.o_proj", [], {"model.layers.2.self_attn.o_proj"}),
        (dense, one_kind, "kind", "down_proj", [], {r"re:.*\.down_proj$"}),
        (mixture_model, one_expert, "expert", "model.layers.1.mlp.experts", [], {"model.layers.1.mlp.experts"}),
        (dense, inputs_of_all, "channels", None, CHANNELS, NORM_FED),
        (dense, embedding, "embedding", "model.embed_tokens", CHANNELS, NORM_FED),
        (dense, head, "head", "lm_head", CHANNELS, set()),
        (dense, everything, "model", "", [], set()),
    ],
)
def test_the_culprit_is_named_alone(
    make: Callable, plant: Callable, what: str, name: str | None, channels: list[int], ignore: set[str]
):
    (culprit,), suggestion = found_in(planted(make(3), plant))
    assert culprit.what == what and name in (None, culprit.name)
    assert list(culprit.channels) == channels
    assert culprit.experts == ((3,) if what == "expert" else ())
    assert set(suggestion.ignore) == ignore


def test_channels_of_the_hidden_state_are_named_where_they_begin():
    """Although the products of the few channels hide the error of all others, and the head reads them too."""
    (culprit,), suggestion = found_in(planted(dense(4), written_channels))
    assert (culprit.what, list(culprit.channels)) == ("channels", CHANNELS)
    assert culprit.name.startswith("model.layers.1.")
    assert len(culprit.layers) == 5 * (BLOCKS - 1) and set(suggestion.layers) == set(culprit.layers)


@pytest.mark.parametrize("scheme", ["int8", "fp8", "fp8_block", "int4_g32"])
@pytest.mark.parametrize("make", [dense, mixture_model])
def test_nothing_is_to_blame_in_a_healthy_model(make: Callable, scheme: str):
    for seed in range(3 if scheme == "int8" else 1):
        assert found_in(make(seed), scheme) == ([], Suggestion([], [], 0, 0))


def test_large_activations_hurt_no_scheme_that_leaves_them():
    """int4 quantizes weights alone."""
    assert found_in(planted(dense(4), embedding), "int4_g32")[0] == []
