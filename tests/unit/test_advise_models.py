"""Sizes of a model from its config.json, wherever that is."""

import json

import pytest

from ascend_quant.advise import AdviceError
from ascend_quant.advise.configs import read_config
from ascend_quant.advise.shapes import shape_of
from benchmarks.models import MODELS, get_model


@pytest.mark.parametrize("name", MODELS)
def test_sizes(name):
    model = get_model(name)
    found = shape_of(model.config())
    for field in ("hidden", "layers", "heads", "kv_heads", "head_dim", "vocab", "experts", "top_k", "expert_width"):
        assert getattr(found, field) == getattr(model, field), field
    assert found.expert_layers == (model.layers if model.experts else 0)
    assert found.width == model.width and found.tied == model.tied


def test_what_a_config_may_leave_out():
    config = get_model("qwen2.5-7b").config()
    for key in ("num_key_value_heads", "tie_word_embeddings"):
        del config[key]
    found = shape_of({**config, "head_dim": None, "model_type": "llama"})
    assert (found.kv_heads, found.head_dim, found.tied) == (28, 128, False)
    assert shape_of({**config, "tie_word_embeddings": True}).tied


def test_layers_without_experts():
    transformers = pytest.importorskip("transformers", reason="whose rule it is")
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeDecoderLayer

    config = {**get_model("tiny-moe").config(), "num_hidden_layers": 6}
    config |= {"decoder_sparse_step": 2, "mlp_only_layers": [3]}
    theirs = transformers.Qwen3MoeConfig(**config)
    layers = [Qwen3MoeDecoderLayer(theirs, layer).mlp for layer in range(6)]
    assert shape_of(config).expert_layers == sum(hasattr(mlp, "experts") for mlp in layers) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "deepseek_v3"}, "model_type 'deepseek_v3' is not one the estimate knows"),
        ({"model_type": None}, "model_type None"),
        ({"hidden_size": "3584"}, "hidden_size must be a positive whole number, not '3584'"),
        ({"vocab_size": 0}, "vocab_size must be a positive whole number, not 0"),
        ({"num_hidden_layers": None}, "num_hidden_layers must be .* not None"),
        ({"use_sliding_window": True}, "use_sliding_window is true"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok 7 is more than num_experts 6"),
    ],
)
def test_models_that_the_estimate_does_not_know(changes, words):
    with pytest.raises(AdviceError, match=words):
        shape_of({**get_model("tiny-moe").config(), **changes})


def test_folder_and_file(tmp_path):
    get_model("tiny").write_config(tmp_path)
    assert read_config(str(tmp_path)) == read_config(str(tmp_path / "config.json")) == get_model("tiny").config()


def test_a_model_of_the_hub_that_is_in_its_cache(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants", reason="reads the cache")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder, commit = tmp_path / "models--owner--name", "0" * 40
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    get_model("tiny").write_config(folder / "snapshots" / commit)
    assert read_config("owner/name") == get_model("tiny").config()
    with pytest.raises(AdviceError, match=r"'owner/other' is no path, and the hub has no config\.json for it"):
        read_config("owner/other")


@pytest.mark.parametrize("text", ["{", json.dumps([1]), "\x80"])
def test_files_that_are_no_config(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(AdviceError, match=r"config\.json (is not JSON|holds no JSON object, but list)"):
        read_config(str(tmp_path))


@pytest.mark.parametrize("name", ["nothing", "nothing/of/that/name", "/nothing/here"])
def test_models_that_are_not_there(name):
    with pytest.raises(AdviceError, match=f"no config.json at {name}; MODEL is a folder"):
        read_config(name)
