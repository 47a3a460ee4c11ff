"""Sizes of a model from its config.json, wherever that is."""

import json

import pytest
from naming import line_naming

from ascend_quant.advise import AdviceError
from ascend_quant.advise.configs import read_config
from ascend_quant.advise.families import shape_of
from ascend_quant.advise.layers import Attention, Experts, Mlp
from ascend_quant.advise.shapes import Layer
from benchmarks.models import MODELS, get_model


@pytest.mark.parametrize("name", MODELS)
def test_sizes(name):
    model = get_model(name)
    found = shape_of(model.config())
    feed = Experts(model.experts, model.top_k, model.expert_width) if model.experts else Mlp(model.width)
    assert found.layers == (Layer(Attention(model.heads, model.kv_heads, model.head_dim), feed, model.layers),)
    assert (found.hidden, found.vocab, found.tied) == (model.hidden, model.vocab, model.tied)


def test_what_a_config_may_leave_out():
    config = get_model("qwen2.5-7b").config()
    for key in ("num_key_value_heads", "tie_word_embeddings"):
        del config[key]
    found = shape_of({**config, "head_dim": None, "model_type": "llama"})
    assert found.layers[0].mixer == Attention(28, 28, 128) and not found.tied
    assert shape_of({**config, "tie_word_embeddings": True}).tied


def test_layers_without_experts():
    transformers = pytest.importorskip("transformers", reason="whose rule it is")
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeDecoderLayer

    config = {**get_model("tiny-moe").config(), "num_hidden_layers": 6}
    for step, alone in ((2, [3]), (1, []), (1, [0, 0, 5]), (3, [0, 5]), (7, []), (4, [1, 2])):
        config |= {"decoder_sparse_step": step, "mlp_only_layers": alone}
        theirs = transformers.Qwen3MoeConfig(**config)
        layers = [Qwen3MoeDecoderLayer(theirs, layer).mlp for layer in range(6)]
        found = sum(layer.times for layer in shape_of(config).layers if isinstance(layer.feed, Experts))
        assert found == sum(hasattr(mlp, "experts") for mlp in layers), (step, alone)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "rwkv"}, "model_type 'rwkv'"),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank must be .* not None"),
        ({"model_type": None}, "model_type None"),
        ({"hidden_size": "3584"}, "hidden_size must be .* not '3584'"),
        ({"vocab_size": 0}, "vocab_size must be .* not 0"),
        ({"num_hidden_layers": None}, "num_hidden_layers must be .* not None"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": 28, "num_key_value_heads": 5}, "num_key_value_heads 5"),
        ({"num_attention_heads": 28, "num_key_value_heads": 56}, "num_key_value_heads 56"),
        ({"hidden_size": 3585, "num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": None}, "3585"),
        ({"model_type": "qwen3"}, "num_experts"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings .* 'false'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"use_sliding_window": "no"}, "use_sliding_window"),
        *(({"mlp_only_layers": value}, "mlp_only_layers") for value in ("all", 3, True, [[1]], [-1], [2**30], {})),
        ({"use_sliding_window": True, "sliding_window": 0, "max_window_layers": 1}, "sliding_window must be"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok 7 is more than the 6 experts"),
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
    with pytest.raises(AdviceError, match=line_naming("'owner/other'", "config.json")):
        read_config("owner/other")


@pytest.mark.parametrize("text", ["{", json.dumps([1]), "\x80", "[" * 100_000, '{"a": 1, "a": 2}', "9" * 5000])
def test_files_that_are_no_config(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(AdviceError, match=r"config\.json"):
        read_config(str(tmp_path))


@pytest.mark.parametrize("name", ["nothing", "nothing/of/that/name", "/nothing/here", "n" * 5000])
def test_models_that_are_not_there(name):
    with pytest.raises(AdviceError, match=f"no config.json at {name[:200]}; MODEL is a folder"):
        read_config(name)
