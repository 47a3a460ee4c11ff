"""Two ranks hold the slices of what one rank holds: tensor parallel (dense, MoE) and expert parallel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import checkpoint, expected, make
from naming import has_line_naming

HERE = Path(__file__).parent


ENGINES = [
    ("qwen2-tied", "tp", "int8", {}),
    ("qwen3-moe", "tp", "int8", {}),
    ("qwen3-moe", "ep", "int8", {}),
    ("qwen2-tied", "tp", "fp8_tensor", {}),
    ("qwen3-moe", "tp", "int4_g32", {"moe_intermediate_size": 128}),
]


@pytest.fixture(scope="module", params=ENGINES, ids=lambda engine: "-".join(engine[:3]))
def two_ranks(request, tmp_path_factory):
    kind, parallel, scheme, sizes = request.param
    folder = tmp_path_factory.mktemp("models")
    first, second = make(kind, folder, seed=0, **sizes), make(kind, folder, seed=1, **sizes)
    out = folder / "dump.pt"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]]),
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }
    command = [sys.executable, str(HERE / "tp_dump.py"), str(out), str(first), str(second), "2", parallel, scheme]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return torch.load(out), first, second, parallel, scheme


def test_ranks_hold_slices_after_load_and_refit(two_ranks):
    result, first, second, parallel, scheme = two_ranks
    for moment, folder in (("loaded", first), ("refitted", second)):
        whole = expected(checkpoint(folder), scheme)
        for rank, held in enumerate(result[moment]):
            held = {name.replace(".routed_experts", ""): tensor for name, tensor in held.items()}
            assert held.keys() == whole.keys()
            for name, tensor in held.items():
                assert torch.equal(tensor, own_part(name, whole[name], rank, parallel, scheme)), (moment, rank, name)
    assert all(count >= len(checkpoint(second)) // 2 for count in result["tensors"])


def test_ranks_generate_and_refuse(two_ranks):
    result = two_ranks[0]
    assert torch.isfinite(result["logprobs"]).all()
    assert all(has_line_naming(message, "q_proj", "the model expects") for message in result["refused"])


def test_a_checkpoint_that_one_rank_alone_could_open_is_refused_on_both(two_ranks):
    """Each rank's weights are whole, and together they are of two steps."""
    failed, refused, healed = two_ranks[0]["one rank"]
    assert "elsewhere" in failed and has_line_naming(refused, "refuses", "elsewhere") and healed in ("length", "stop")


def test_a_byte_that_one_rank_alone_has_written_is_refused_on_both(two_ranks):
    done, refused, healed = two_ranks[0]["private write"]
    assert done == [None, None] and has_line_naming(refused, "refuses", "outside") and healed in ("length", "stop")


def test_experts_of_other_ranks_are_known_by_number_and_name(two_ranks):
    result, parallel = two_ranks[0], two_ranks[3]
    if parallel != "ep":
        pytest.skip("each rank holds a part of every expert")
    for said in result["experts"]:
        for name, message in zip((".6.down_proj", ".5.down_prj", ".01.up_proj"), said, strict=True):
            assert f"extra tensor model.layers.1.mlp.experts{name}.weight" in message


def own_part(name: str, tensor: torch.Tensor, rank: int, parallel: str, scheme: str) -> torch.Tensor:
    """What rank `rank` of two holds of a whole tensor, by Megatron's rules; groups of a row are split as it is."""
    is_scale = name.endswith("_scale") and not scheme.startswith("int4")
    if "w13_weight" in name or "w2_weight" in name:
        if parallel == "ep":
            return tensor.chunk(2)[rank]
        if "w13" in name:
            return torch.cat([half.chunk(2, dim=1)[rank] for half in tensor.chunk(2, dim=1)], dim=1)
        return tensor if is_scale else tensor.chunk(2, dim=2)[rank]
    if "qkv_proj" in name:
        q, k, v = tensor.split([tensor.shape[0] // 2, tensor.shape[0] // 4, tensor.shape[0] // 4])
        return torch.cat([part.chunk(2)[rank] for part in (q, k, v)])
    if "gate_up_proj" in name:
        return torch.cat([half.chunk(2)[rank] for half in tensor.chunk(2)])
    if "o_proj" in name or "down_proj" in name:
        return tensor if is_scale else tensor.chunk(2, dim=1)[rank]
    if "embed_tokens" in name or "lm_head" in name:
        padded = torch.zeros(64, tensor.shape[1], dtype=tensor.dtype)
        padded[: len(tensor)] = tensor
        return padded.chunk(2)[rank]
    return tensor
