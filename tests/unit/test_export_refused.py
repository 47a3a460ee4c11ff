"""Checkpoints of Megatron that are not the model's, or would do harm: one line that names it, and nothing is left."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from export_cases import MODELS, Harm, run, weights, write_model
from torch.distributed import checkpoint
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from ascend_quant.convert import conversion
from ascend_quant.convert.model import Expected, _renamed, read_config, shapes
from ascend_quant.export.torch_dist import read_metadata
from ascend_quant.profile.checkpoints import BadCheckpoint

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
pytest.importorskip("verl", reason="verl is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

LAYERS, MLP, ATTENTION = "decoder.layers.", "decoder.layers.mlp.", "decoder.layers.self_attention."
SHAPES = {  # of a qwen2 of two layers: hidden 128, 4 heads and 2 key-value heads of 32, intermediate 160
    "embedding.word_embeddings.weight": (160, 128),
    "decoder.final_layernorm.weight": (128,),
    f"{ATTENTION}linear_qkv.weight": (2, 256, 128),
    f"{ATTENTION}linear_qkv.bias": (2, 256),
    f"{ATTENTION}linear_qkv.layer_norm_weight": (2, 128),
    f"{ATTENTION}linear_proj.weight": (2, 128, 128),
    f"{MLP}linear_fc1.weight": (2, 320, 128),
    f"{MLP}linear_fc1.layer_norm_weight": (2, 128),
    f"{MLP}linear_fc2.weight": (2, 128, 160),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with config.json alone."""
    from transformers import AutoConfig

    folder = tmp_path_factory.mktemp("model")
    AutoConfig.for_model("qwen2", architectures=["Qwen2ForCausalLM"], **MODELS["qwen2"]).save_pretrained(folder)
    return folder


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    """What Megatron holds, in float32."""
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def save(state: dict[str, torch.Tensor], folder: Path) -> Path:
    """In torch.distributed's own format."""
    checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(folder), no_dist=True)
    return folder


def export(folder: Path, model: Path, *options: str | Path):
    return run(folder, folder.parent / "out", "--hf-model", model, *(options or ("--scheme", "bf16")))


def refused(folder: Path, model: Path, said: str, *options: str | Path) -> None:
    before = sorted(folder.parent.iterdir())
    done = export(folder, model, *options)
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.exception
    assert said in " ".join(done.stderr.split())
    assert sorted(folder.parent.iterdir()) == before


def test_the_model_itself_is_exported(state, model, tmp_path):
    folder = save(state, tmp_path / "checkpoint")
    assert export(folder, model).exit_code == 0
    found = weights(tmp_path / "out")
    down = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(found[down], state[f"{MLP}linear_fc2.weight"][1].bfloat16())
    assert len(found) == 2 + 2 * 12


@pytest.mark.parametrize(
    "key, tensor, named",
    [
        (f"{MLP}linear_fc2.weight", None, "model.layers.0.mlp.down_proj.weight"),
        (f"{ATTENTION}linear_qkv.bias", None, "model.layers.0.self_attn.k_proj.bias"),
        ("decoder.final_layernorm.weight", None, "model.norm.weight"),
        (f"{MLP}linear_fc2.weight", torch.ones(2, 64, 256), "mlp.down_proj.weight"),
        (f"{MLP}linear_fc1.weight", torch.ones(2, 255, 128), "mlp.gate_proj.weight"),
        (f"{MLP}linear_fc1.weight", torch.ones(2, 1, 128), f"{LAYERS}0.mlp.linear_fc1.weight"),
        (f"{MLP}linear_fc2.weight", torch.ones(3, 128, 160), "0 to 2 (3)"),
        ("output_layer.weight", torch.ones(160, 128), "lm_head.weight"),
        (f"{MLP}linear_fc2.weight", torch.ones(2, 128, 160, dtype=torch.int8), "torch.int8"),
        (f"{MLP}linear_fc2.adapter.linear_in.weight", torch.ones(2, 4, 160), "mlp.linear_fc2.adapter.linear_in.weight"),
        (f"{MLP}linear_fc2.weight", torch.full((2, 128, 160), torch.nan), "model.layers.0.mlp.down_proj.weight: 20480"),
        ("decoder.final_layernorm.weight", torch.full((128,), 3.4e38), "model.norm.weight: 128 of 128 elements"),
    ],
)  # fmt: skip
def test_tensors_that_are_not_the_models_are_named(key, tensor, named, state, model, tmp_path):
    state.pop(key, None)
    refused(save(state if tensor is None else state | {key: tensor}, tmp_path / "checkpoint"), model, named)


@pytest.mark.parametrize(
    "change, named",
    [
        ({"hidden_size": 64}, "(150, 128)"),
        ({"num_key_value_heads": 1}, "self_attention.linear_qkv"),
        ({"vocab_size": 200}, "160 rows"),
        ({"vocab_size": "150"}, "vocab_size"),
        ({"num_attention_heads": 3}, "linear_qkv"),
        *(({key: None}, f"no {key}") for key in ("num_hidden_layers", "num_attention_heads", "vocab_size")),
        ({"architectures": ["AutoModel"]}, "AutoModel"),
    ],
)
def test_another_models_config_is_named(change, named, state, model, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(model, other)
    config = json.loads((other / "config.json").read_text()) | change
    (other / "config.json").write_text(json.dumps(config))
    refused(save(state, tmp_path / "checkpoint"), other, named)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_models_folder_that_cannot_be_read_is_named(name, state, model, tmp_path):
    other, folder = Path(shutil.copytree(model, tmp_path / "other")), save(state, tmp_path / "checkpoint")
    for content in ("{", "[]"):
        (other / name).write_text(content)
        refused(folder, other, name)


def test_what_metadata_names_is_never_run(state, model, tmp_path):
    folder = save(state, tmp_path / "checkpoint")
    for found, said in ((Harm(tmp_path / "harm"), "'posix.mkdir'"), ([torch.float32], "list")):
        (folder / ".metadata").write_bytes(pickle.dumps(found))
        refused(folder, model, said)
    assert not (tmp_path / "harm").exists()


KEY = f"{MLP}linear_fc2.weight"


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda one, places: places.update({i: _elsewhere(info) for i, info in places.items()}), ".."),
        (lambda one, places: setattr(one, "chunks", _half(one)), KEY),
        (lambda one, places: places.clear(), "embedding.word_embeddings.weight"),
    ],
)
def test_metadata_that_says_what_cannot_be_is_refused(change, said, state, model, tmp_path):
    folder = save(state, tmp_path / "checkpoint")
    found = read_metadata(folder / ".metadata")
    change(found.state_dict_metadata[KEY], found.storage_data)
    (folder / ".metadata").write_bytes(pickle.dumps(found))
    refused(folder, model, said)


def _elsewhere(info):
    info.relative_path = f"../{info.relative_path}"
    return info


def _half(one) -> list[ChunkStorageMetadata]:
    """The first layer of two, as a piece."""
    return [ChunkStorageMetadata(torch.Size((0, 0, 0)), torch.Size((1, *one.size[1:])))]


def test_a_command_that_has_failed_half_way_can_be_given_again(state, model, tmp_path, monkeypatch):
    folder = save(state, tmp_path / "checkpoint")

    def full(*ignored: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(conversion, "_written_anew", full)
        refused(folder, model, "No space left", "--scheme", "int8")
    assert export(folder, model, "--scheme", "int8").exit_code == 0


def test_what_could_only_fail_later_is_wrong_usage(state, model, tmp_path):
    folder = save(state, tmp_path / "checkpoint")
    assert export(folder, model, "--scheme", "bf16", "--ignore", "re:.*").exit_code == 2
    assert list(tmp_path.iterdir()) == [folder]


def test_a_link_to_an_empty_folder_or_to_nothing_is_filled(state, model, tmp_path):
    folder = save(state, tmp_path / "checkpoint")
    (tmp_path / "out").symlink_to("new")
    assert export(folder, model).exit_code == 0
    assert (tmp_path / "out").is_symlink() and (tmp_path / "new" / "config.json").is_file()
    assert run(folder, tmp_path / "no" / "out", "--scheme", "bf16", "--hf-model", model).exit_code == 2
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "name, shape",
    [
        ("model.norm.weight", (64,)),
        ("model.extra.weight", (64,)),
        ("model.layers.1.mlp.experts.3.up_proj.weight", None),
        ("model.layers.1.mlp.experts.4.up_proj.weight", (96, 128)),
    ],
)
def test_what_is_exported_must_be_the_model(name, shape, tmp_path):
    write_model("qwen3_moe", tmp_path)
    expected, held = Expected(tmp_path, read_config(tmp_path)), shapes(weights(tmp_path))
    expected.check(held)
    changed = {key: one for key, one in held.items() if key != name} | ({} if shape is None else {name: shape})
    with pytest.raises(BadCheckpoint, match=name):
        expected.check(changed)


def test_layers_of_multi_token_prediction_are_the_models_own_if_it_says_so(model, tmp_path):
    config = read_config(model)
    found = Expected(model, config).shapes
    more = dict(found) | {f"model.layers.{layer}.eh_proj.weight": (128, 256) for layer in (2, 3)}
    Expected(model, config | {"num_nextn_predict_layers": 2}).check(more)
    for layers in (0, 1):
        with pytest.raises(BadCheckpoint, match=r"layers\.[23]\.eh_proj"):
            Expected(model, config | {"num_nextn_predict_layers": layers}).check(more)


def test_names_as_transformers_4_saves_them():
    """Its mapping of Qwen2.5-VL: from the names of a checkpoint to the model's."""
    mapping = {"^visual": "model.visual", r"^model(?!\.(language_model|visual))": "model.language_model"}
    own = ["model.visual.blocks.0.mlp.up_proj.weight", "model.language_model.norm.weight", "lm_head.weight"]
    saved = ["visual.blocks.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"]
    assert [_renamed(name, mapping) for name in own] == saved
