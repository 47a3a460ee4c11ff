"""verl's own FSDP2 engine on two gloo ranks: packed, in micro-batches, checkpointed, with and without Ulysses.

Every gradient against one plain model that reads one sequence at a time; then what the engine saves.
"""

import subprocess
import sys

import export_cases
import pytest
import torch.multiprocessing as mp
from gloo_ranks import join, leave
from packed_engine import build, expected_gradients, gradients, plain_model, worst

pytest.importorskip("verl", reason="the engine is verl's")

RANKS = 2


def check_rank(rank: int, folder) -> None:
    join(rank, RANKS, folder)
    import verl  # noqa: F401  the plugin brings the cpu platform

    from ascend_quant.exact import packing
    from ascend_quant.integrations.verl.training import packed_attention

    expected = expected_gradients()
    read, times = packing.from_positions, []
    packing.from_positions = lambda *a: times.append(1) or read(*a)
    for ulysses in (1, RANKS):
        engine = build(folder, packed_attention.PACKED, ulysses)
        times.clear()
        found, micro_batches = gradients(engine)
        assert worst(found, expected) < 1e-5, (ulysses, worst(found, expected))
        assert len(times) == micro_batches > ulysses - 1
    engine.save_checkpoint(str(folder / "saved"))
    assert worst(gradients(build(folder, "sdpa", RANKS))[0], expected) > 0.1, "the measure sees heads not exchanged"
    leave()


LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
start, *saved = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in sys.argv[1:])
for model in saved:
    assert model.config._attn_implementation == "sdpa", model.config._attn_implementation
    for (name, one), other in zip(model.named_parameters(), start.parameters(), strict=True):
        assert torch.equal(one.bfloat16(), other.bfloat16()), name  # an export is BF16
"""


def test_the_engines_gradients_and_its_checkpoint(tmp_path, monkeypatch):
    from ascend_quant.integrations.verl.training.attention_settings import PACKED

    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    plain_model().save_pretrained(tmp_path / "model")
    mp.spawn(check_rank, (tmp_path,), nprocs=RANKS)
    saved = tmp_path / "saved"
    assert PACKED not in (saved / "huggingface" / "config.json").read_text()
    done = export_cases.run(saved, tmp_path / "exported", "--scheme", "bf16")
    assert done.exit_code == 0, done.output
    folders = [tmp_path / "model", saved / "huggingface", tmp_path / "exported"]
    command = [sys.executable, "-c", LOAD, *map(str, folders)]  # a process that knows nothing of us
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
