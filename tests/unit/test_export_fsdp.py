"""verl's FSDP checkpoints, and those that are BF16 already, by one command; what is none of them is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from export_cases import MODELS, Harm, run, weights, write_model
from safetensors.torch import load_file

from ascend_quant.export import find

RANK = """
import copy, sys
import torch, torch.distributed as dist
from omegaconf import OmegaConf
from pathlib import Path
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

def adapted(module, out):
    import peft

    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    module = peft.get_peft_model(module, config)
    copy.deepcopy(module).merge_and_unload().to(torch.bfloat16).save_pretrained(Path(out).parent / "merged")
    return module

def main(model, out):
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    lora = Path(out).name == "lora"
    shape, names = ((1, world), ("ddp", "fsdp")) if lora else ((world,), ("fsdp",))
    mesh = torch.distributed.init_device_mesh("cpu", shape, mesh_dim_names=names)
    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    module = adapted(module, out) if lora else module
    fully_shard(module, mesh=mesh)
    FSDPCheckpointManager(
        module, torch.optim.SGD(module.parameters()), lr_scheduler=None, processing_class=None,
        checkpoint_config=OmegaConf.create({"save_contents": ["model"], "load_contents": ["model"]}),
    ).save_checkpoint(out)
    dist.destroy_process_group()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp") / "model"
    write_model("qwen3", folder)
    return folder


def trained(model: Path, name: str) -> Path:
    """What verl's checkpoint manager writes on two ranks of FSDP2, in a folder beside the model."""
    pytest.importorskip("verl", reason="verl is not installed")
    folder = model.parent / name
    folder.mkdir()
    (folder.parent / "rank.py").write_text(RANK)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [str(model.parent / "rank.py"), str(model), str(folder)]
    done = subprocess.run([*launch, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def saved(model: Path) -> Path:
    return trained(model, "actor")


@pytest.fixture(scope="module")
def lora(model: Path) -> Path:
    """With PEFT's adapters; beside it, in `merged`, what PEFT makes of them."""
    pytest.importorskip("peft", reason="peft is not installed")
    return trained(model, "lora")


def assert_exported(checkpoint: Path, out: Path, expected: Path, *options: str | Path) -> None:
    done = run(checkpoint, out, "--scheme", "bf16", *options)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("fsdp")
    assert_same(weights(out), weights(expected))


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_fsdps_shards_become_the_model(saved: Path, model: Path, tmp_path: Path):
    assert_exported(saved, tmp_path / "out", model)


def test_an_adapter_is_merged_as_peft_merges_it(lora: Path, model: Path, tmp_path: Path):
    assert_exported(lora, tmp_path / "out", lora.parent / "merged")
    name = "model.layers.1.mlp.down_proj.weight"
    assert not torch.equal(weights(tmp_path / "out")[name], weights(model)[name])
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".safetensors"}


def test_the_models_folder_is_where_it_is_said_to_be(saved: Path, model: Path, tmp_path: Path):
    """Config and tokenizer are carried over as they are; verl's own folder need not be there."""
    actor = Path(shutil.copytree(saved, tmp_path / "actor"))
    (model / "tokenizer.json").write_text("{}")
    assert_exported(actor, tmp_path / "one", model, "--hf-model", model)
    shutil.rmtree(actor / "huggingface")
    refused(actor, "--hf-model")
    assert_exported(actor, tmp_path / "other", model, "--hf-model", model)
    for out in ("one", "other"):
        assert (tmp_path / out / "tokenizer.json").read_text() == "{}"


@pytest.fixture
def spoilt(saved: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be changed."""
    return Path(shutil.copytree(saved, tmp_path / "actor"))


def refused(actor: Path, said: str) -> None:
    """One line that names it, and nothing is left behind."""
    before = sorted(actor.parent.iterdir())
    done = run(actor, actor.parent / "out", "--scheme", "bf16")
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.exception
    (line,) = done.stderr.strip().splitlines()
    assert said in line
    assert sorted(actor.parent.iterdir()) == before


def test_what_a_shard_names_is_never_run(spoilt: Path, tmp_path: Path, monkeypatch):
    torch.save({"model.norm.weight": Harm(tmp_path / "harm")}, spoilt / "model_world_size_2_rank_0.pt")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    refused(spoilt, "posix.mkdir")
    assert not (tmp_path / "harm").exists()


HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
PEFT, NORM, Q = "base_model.model.", "model.norm.weight", "base_model.model.model.layers.0.self_attn.q_proj."


def one_rank(folder: Path, model: Path, state: dict[str, torch.Tensor], **meta: object) -> Path:
    """What a single rank leaves: plain tensors, and what verl notes of an adapter."""
    shutil.copytree(model, folder / "huggingface", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(state, folder / "model_world_size_1_rank_0.pt")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    (folder / "lora_train_meta.json").write_text(json.dumps(meta))
    return folder


def adapted(model: Path) -> dict[str, torch.Tensor]:
    """PEFT's names, with an adapter of rank 4 on one layer."""
    state = {f"{PEFT}{name}": tensor for name, tensor in weights(model).items()}
    state[f"{Q}base_layer.weight"] = state.pop(f"{Q}weight")
    rows, columns = state[f"{Q}base_layer.weight"].shape
    parts = {"A": torch.ones(4, columns), "B": torch.ones(rows, 4)}
    return state | {f"{Q}lora_{part}.default.weight": tensor for part, tensor in parts.items()}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_modules_own_names_become_those_of_checkpoints(name: str, tmp_path: Path):
    """transformers 5 holds experts in stacks, and a tied head twice."""
    from transformers import AutoModelForCausalLM

    write_model(name, tmp_path / "model")
    state = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).state_dict()
    actor = one_rank(tmp_path / "actor", tmp_path / "model", state)
    assert_exported(actor, tmp_path / "out", tmp_path / "model")


@pytest.mark.parametrize(
    "change, named",
    [
        ({f"{Q}lora_B.default.weight": None}, "lora_B"),
        ({f"{Q}lora_A.default.weight": torch.ones(8, 128), f"{Q}lora_B.default.weight": torch.ones(192, 8)}, "q_proj"),
        ({f"{Q}lora_magnitude_vector.default.weight": torch.ones(192)}, "lora_magnitude_vector"),
        ({f"{PEFT}model.embed_tokens.lora_embedding_A.default": torch.ones(4, 150)}, "lora_embedding_A"),
        ({f"{PEFT}model.embed_tokens.lora_A.default.weight": torch.ones(4, 128)}, "embed_tokens"),
        ({f"{PEFT}model.layers.7.mlp.up_proj.lora_A.default.weight": torch.ones(4, 128)}, "layers.7"),
        ({f"{PEFT}lm_head.modules_to_save.default.weight": torch.ones(150, 128)}, "modules_to_save"),
    ],
)
def test_an_adapter_that_is_more_than_pairs_of_one_rank_is_named(change, named, model: Path, tmp_path: Path):
    state = {name: tensor for name, tensor in (adapted(model) | change).items() if tensor is not None}
    refused(one_rank(tmp_path / "actor", model, state, r=4, lora_alpha=8), named)


@pytest.mark.parametrize("meta", [{}, {"r": 4}, {"r": 4, "lora_alpha": 0}, {"r": "4", "lora_alpha": 8}])
def test_an_adapter_that_nobody_knows_how_to_scale_is_refused(meta: dict, model: Path, tmp_path: Path):
    refused(one_rank(tmp_path / "actor", model, adapted(model), **meta), "lora_train_meta.json")


def test_an_adapter_without_its_model_is_refused(model: Path, tmp_path: Path):
    alone = {name: tensor for name, tensor in adapted(model).items() if "lora_" in name}
    refused(one_rank(tmp_path / "actor", model, alone, r=4, lora_alpha=8), "save_lora_only")


@pytest.mark.parametrize("prefix", ["", PEFT])
def test_a_tied_head_is_the_embedding_or_is_refused(prefix: str, tmp_path: Path):
    write_model("qwen2", tmp_path / "tied")
    state = {f"{prefix}{name}": tensor.float() for name, tensor in weights(tmp_path / "tied").items()}
    head = state[f"{prefix}{EMBEDDING}"].clone()
    same = one_rank(tmp_path / "same", tmp_path / "tied", state | {f"{prefix}{HEAD}": head.clone()})
    assert_exported(same, tmp_path / "one", tmp_path / "tied")
    head[-1, -1] += 1
    other = one_rank(tmp_path / "other", tmp_path / "tied", state | {f"{prefix}{HEAD}": head})
    refused(other, HEAD)
    config = json.loads((tmp_path / "tied" / "config.json").read_text())
    untied = Path(shutil.copytree(other / "huggingface", tmp_path / "untied"))
    (untied / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    done = run(other, tmp_path / "both", "--scheme", "bf16", "--hf-model", untied)
    assert done.exit_code == 0, done.output
    assert_same(weights(tmp_path / "both"), weights(tmp_path / "tied") | {HEAD: head.bfloat16()})


def test_an_adapter_of_a_tied_head_is_refused(tmp_path: Path):
    write_model("qwen2", tmp_path / "tied")
    pair = {f"{PEFT}lm_head.lora_A.default.weight": torch.ones(4, 128)}
    pair |= {f"{PEFT}lm_head.lora_B.default.weight": torch.ones(150, 4)}
    state = {f"{PEFT}{name}": tensor for name, tensor in weights(tmp_path / "tied").items()} | pair
    refused(one_rank(tmp_path / "actor", tmp_path / "tied", state, r=4, lora_alpha=8), "lm_head")


def test_parts_that_are_no_one_tensor_are_named(spoilt: Path):
    """A rank has another tensor, or another value of one that each has whole; there are fewer ranks than parts."""
    first, second = sorted(spoilt.glob("*.pt"))
    state = torch.load(second, weights_only=True)
    torch.save(state | {"more": torch.ones(1)}, second)
    refused(spoilt, "more")
    torch.save(state | {NORM: torch.ones(128)}, second)
    torch.save(torch.load(first, weights_only=True) | {NORM: torch.zeros(128)}, first)
    refused(spoilt, NORM)
    for ranks, said in ((0, "world_size"), ("2", "world_size"), (1, "model_world_size_1_rank_0.pt")):
        (spoilt / "fsdp_config.json").write_text(json.dumps({"world_size": ranks}))
        refused(spoilt, said)
    first.rename(spoilt / "model_world_size_1_rank_0.pt")
    refused(spoilt, "model")


def test_what_megatron_bridge_has_written_goes_straight_to_convert(tmp_path: Path):
    write_model("qwen2", tmp_path / "run" / "global_step_3" / "actor" / "model" / "huggingface")
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("3\n")
    done = run(tmp_path / "run", tmp_path / "out", "--scheme", "int8")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("hugging-face, step 3 ")
    assert load_file(tmp_path / "out" / "model.safetensors")["model.layers.0.mlp.up_proj.weight"].dtype == torch.int8
    done = run(tmp_path / "run", tmp_path / "again", "--scheme", "bf16")
    assert (done.exit_code, "model/huggingface" in done.stderr.replace("\n", "")) == (1, True)


def test_the_step_is_that_of_the_folder_that_is_taken(tmp_path: Path, monkeypatch):
    steps = {"run/global_step_2/actor": 2, "run/global_step_10/actor": 10, "m/iter_0000100": 100, "global_step_x": None}
    for name in steps:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / ".metadata").touch()
    for folder, newest, step in (("run", "10", 10), ("run", "2", 2), ("m", "100", 100)):
        (tmp_path / folder / "latest_checkpointed_iteration.txt").write_text(newest)
        assert find(tmp_path / folder).step == step
    for name, step in steps.items():
        assert find(tmp_path / name).step == step
        monkeypatch.chdir(tmp_path / name)
        assert find(Path()).step == step


def test_shards_that_are_not_the_models_are_named(spoilt: Path):
    _, second = sorted(spoilt.glob("*.pt"))
    held = second.read_bytes()
    second.unlink()
    refused(spoilt, second.name)
    second.write_bytes(held[:5000])
    refused(spoilt, second.name)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path):
    write_model("qwen2", tmp_path / "model")
    (tmp_path / "run").mkdir()
    for folder, said in (("model", "ascend-quant convert"), ("run", "fsdp_config.json")):
        done = run(tmp_path / folder, tmp_path / "out", "--scheme", "int8")
        assert done.exit_code == 1 and said in done.stderr
    for content, said in (("101", "global_step_101"), ("../3", "'../3'")):
        (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text(content)
        refused(tmp_path / "run", said)


def test_wrong_usage(tmp_path: Path):
    for folder, out, options, said in (
        ("", "out", ["--scheme", "int5"], "int5"),
        ("", "/", ["--scheme", "int8"], "mount point"),
        ("", tmp_path.parent, ["--scheme", "int8"], "not empty"),
        ("none", "out", ["--scheme", "int8"], "none"),
        ("", "out", ["--scheme", "int8", "--hf-model", tmp_path / "none"], "none"),
    ):
        done = run(tmp_path / folder, tmp_path / out, *options)
        assert done.exit_code == 2 and said in " ".join(done.stderr.replace("│", " ").split())
