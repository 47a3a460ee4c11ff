"""verl's FSDP checkpoints, and those that are BF16 already, by one command; what is none of them is refused."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from export_cases import Harm, run, weights, write_model
from safetensors.torch import load_file

from ascend_quant.export import fsdp

RANK = """
import json, sys
import torch, torch.distributed as dist
from pathlib import Path
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

def main(model, out):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = torch.distributed.init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    fully_shard(module, mesh=mesh)
    torch.save(module.state_dict(), Path(out) / f"model_world_size_{world}_rank_{rank}.pt")
    (Path(out) / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """`model`, and `actor`: what verl's FSDP2 engine leaves on two ranks."""
    pytest.importorskip("verl", reason="verl is not installed")
    folder = tmp_path_factory.mktemp("fsdp")
    write_model("qwen3", folder / "model")
    (folder / "actor" / "huggingface").mkdir(parents=True)
    for name in ("config.json", "generation_config.json"):
        shutil.copy(folder / "model" / name, folder / "actor" / "huggingface" / name)
    (folder / "rank.py").write_text(RANK)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [str(folder / name) for name in ("rank.py", "model", "actor")]
    done = subprocess.run([*launch, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def test_fsdps_shards_become_the_model(saved: Path, tmp_path: Path):
    done = run(saved / "actor", tmp_path / "out", "--scheme", "bf16")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("fsdp")
    expected, found = weights(saved / "model"), weights(tmp_path / "out")
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.fixture
def spoilt(saved: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be changed."""
    return Path(shutil.copytree(saved / "actor", tmp_path / "actor"))


def refused(actor: Path, said: str) -> None:
    """One line that names it, and nothing is left behind."""
    before = sorted(actor.parent.iterdir())
    done = run(actor, actor.parent / "out", "--scheme", "bf16")
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.exception
    (line,) = done.stderr.strip().splitlines()
    assert said in line
    assert sorted(actor.parent.iterdir()) == before


@pytest.mark.parametrize("looked_at", [True, False])
def test_what_a_shard_names_is_never_run(looked_at: bool, spoilt: Path, tmp_path: Path, monkeypatch):
    """Nor by verl's merger, should a shard be exchanged after it was looked at."""
    torch.save({"model.norm.weight": Harm(tmp_path / "harm")}, spoilt / "model_world_size_2_rank_0.pt")
    if not looked_at:
        monkeypatch.setattr(fsdp, "_check", lambda shard: None)
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    refused(spoilt, "posix.mkdir" if looked_at else "verl.model_merger has failed")
    assert not (tmp_path / "harm").exists()


def test_what_megatron_bridge_has_written_goes_straight_to_convert(tmp_path: Path):
    write_model("qwen2", tmp_path / "run" / "global_step_3" / "actor" / "model" / "huggingface")
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("3\n")
    done = run(tmp_path / "run", tmp_path / "out", "--scheme", "int8")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("hugging-face")
    assert load_file(tmp_path / "out" / "model.safetensors")["model.layers.0.mlp.up_proj.weight"].dtype == torch.int8
    done = run(tmp_path / "run", tmp_path / "again", "--scheme", "bf16")
    assert (done.exit_code, "is the BF16 model already" in done.stderr) == (1, True)


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
    for folder, said in (("model", "convert"), ("run", "no checkpoint"), ("none", "no folder")):
        done = run(tmp_path / folder, tmp_path / "out", "--scheme", "int8")
        assert done.exit_code == 1 and said in done.stderr
    for content, said in (("101", "global_step_101"), ("../3", "no step")):
        (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text(content)
        refused(tmp_path / "run", said)


def test_wrong_usage(tmp_path: Path):
    for out, options, said in (
        ("out", ["--scheme", "int5"], "int5"),
        ("/", ["--scheme", "int8"], "mount point"),
        (tmp_path.parent, ["--scheme", "int8"], "not empty"),
    ):
        done = run(tmp_path, tmp_path / out, *options)
        assert done.exit_code == 2 and said in " ".join(done.stderr.replace("│", " ").split())
