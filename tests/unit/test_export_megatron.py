"""A checkpoint that Megatron-core's own classes have written comes back as the model's weights, bit for bit."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from export_cases import run, weights, write_model
from naming import has_line_naming

from ascend_quant import oracle
from ascend_quant.schemes import get_scheme

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
pytest.importorskip("verl", reason="verl is not installed")

RUNS = {
    "qwen2": {"tensor": 2},
    "qwen3": {"pipeline": 2},
    "qwen3_moe": {"expert": 2},
}


@pytest.fixture(scope="module", params=list(RUNS))
def saved(request, tmp_path_factory) -> Path:
    """A folder with `model`, and `checkpoint`, which two ranks have written."""
    folder = tmp_path_factory.mktemp(request.param)
    write_model(request.param, folder / "model")
    script = Path(__file__).with_name("megatron_checkpoint.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    arguments = [str(folder / "model"), str(folder / "checkpoint"), json.dumps(RUNS[request.param])]
    done = subprocess.run([*launch, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def test_bf16_is_the_model(saved: Path, tmp_path: Path):
    done = run(saved / "checkpoint", tmp_path / "out", "--scheme", "bf16", "--hf-model", saved / "model")
    assert done.exit_code == 0, done.output
    expected, found = weights(saved / "model"), weights(tmp_path / "out")
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(found[name], tensor), name
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out"]
    assert (tmp_path / "out" / "tokenizer_config.json").is_file()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    done = run(saved / "checkpoint", tmp_path / "other", "--scheme", "bf16")
    assert done.exit_code == 1 and "--hf-model" in done.stderr and not (tmp_path / "other").exists()


def test_one_command_to_fp8(saved: Path, tmp_path: Path):
    done = run(saved / "checkpoint", tmp_path / "out", "--scheme", "fp8_block", "--hf-model", saved / "model")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("torch_dist")
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert (section["quant_method"], section["weight_block_size"]) == ("fp8", [128, 128])
    name = "model.layers.1.self_attn.o_proj.weight"
    codes, scale = oracle.quantize(weights(saved / "model")[name], get_scheme("fp8_block"))
    found = weights(tmp_path / "out")
    assert torch.equal(found[name].view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(found[f"{name}_scale_inv"], scale)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out"]


def test_verls_layout_and_the_newest_step(saved: Path, tmp_path: Path):
    actor = tmp_path / "run" / "global_step_20" / "actor"
    shutil.copytree(saved / "checkpoint", actor / "model" / "dist_ckpt")
    shutil.copytree(saved / "model", actor / "model" / "huggingface", ignore=shutil.ignore_patterns("*.safetensors*"))
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("20")
    done = run(tmp_path / "run", tmp_path / "out", "--scheme", "bf16", "--json")
    assert done.exit_code == 0, done.output
    said = {"kind": "torch_dist", "step": 20, "scheme": "bf16", "out": str(tmp_path / "out")}
    assert json.loads(done.stdout) == said | {"checkpoint": str(actor / "model" / "dist_ckpt")}
    assert set(weights(tmp_path / "out")) == set(weights(saved / "model"))


def test_a_damaged_checkpoint_is_refused(saved: Path, tmp_path: Path):
    shutil.copytree(saved / "checkpoint", tmp_path / "checkpoint")
    for file in (tmp_path / "checkpoint").glob("*.distcp"):
        file.write_bytes(file.read_bytes()[:64])
    done = run(tmp_path / "checkpoint", tmp_path / "out", "--scheme", "bf16", "--hf-model", saved / "model")
    assert done.exit_code == 1
    assert has_line_naming(done.stderr, "copy", tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / ".metadata").write_bytes(b"")
    done = run(tmp_path / "checkpoint", tmp_path / "out", "--scheme", "bf16", "--hf-model", saved / "model")
    assert done.exit_code == 1
    assert has_line_naming(done.stderr, ".metadata")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint"]
