"""verl's FSDP checkpoints, and those that are BF16 already, by one command; what is none of them is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from export_cases import run, weights, write_model
from safetensors.torch import load_file

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
    done = run(saved / "actor", tmp_path / "out", "--scheme", "bf16", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["kind"] == "fsdp"
    expected, found = weights(saved / "model"), weights(tmp_path / "out")
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_fsdps_shards_in_int8(saved: Path, tmp_path: Path):
    done = run(saved / "actor", tmp_path / "out", "--scheme", "int8")
    assert done.exit_code == 0, done.output
    assert weights(tmp_path / "out")["model.layers.0.mlp.up_proj.weight"].dtype == torch.int8


def test_verls_merger_fails_loudly(saved: Path, tmp_path: Path):
    shutil.copytree(saved / "actor", tmp_path / "actor")
    (tmp_path / "actor" / "model_world_size_2_rank_1.pt").unlink()
    done = run(tmp_path / "actor", tmp_path / "out", "--scheme", "bf16")
    assert done.exit_code == 1
    assert "verl.model_merger has failed" in done.stderr
    assert "rank_1.pt" in done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["actor"]


def test_what_megatron_bridge_has_written_goes_straight_to_convert(tmp_path: Path):
    write_model("qwen2", tmp_path / "run" / "global_step_3" / "actor" / "model" / "huggingface")
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("3\n")
    done = run(tmp_path / "run", tmp_path / "out", "--scheme", "int8", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["kind"] == "hugging-face"
    assert load_file(tmp_path / "out" / "model.safetensors")["model.layers.0.mlp.up_proj.weight"].dtype == torch.int8
    done = run(tmp_path / "run", tmp_path / "again", "--scheme", "bf16")
    assert (done.exit_code, "is the BF16 model already" in done.stderr) == (1, True)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path):
    write_model("qwen2", tmp_path / "model")
    (tmp_path / "empty").mkdir()
    for folder, said in (
        ("model", "use `ascend-quant convert`"),
        ("empty", "holds no checkpoint"),
        ("none", "is no folder"),
    ):
        done = run(tmp_path / folder, tmp_path / "out", "--scheme", "int8")
        assert done.exit_code == 1
        assert said in done.stderr


@pytest.mark.parametrize(
    "options, said",
    [
        (["--scheme", "int5"], "unknown scheme 'int5'"),
        (["--scheme", "bf16", "--keep-bf16", "kept"], "leave it out"),
    ],
)
def test_wrong_usage(tmp_path: Path, options: list[str], said: str):
    done = run(tmp_path, tmp_path / "out", *options)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_out_must_be_new(tmp_path: Path):
    done = run(tmp_path, tmp_path.parent, "--scheme", "int8")
    assert done.exit_code == 2
    assert "no empty folder" in " ".join(done.stderr.replace("│", " ").split())
