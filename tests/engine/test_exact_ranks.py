"""An exact trainer, which has whole weights, computes what two tensor parallel ranks of an exact engine do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exact_cases import Sampled, loss_of, sharp, trained, trainer, unequal

HERE = Path(__file__).parent


@pytest.mark.parametrize("kind", ["qwen2", "qwen3-moe"])
def test_two_ranks(kind, tmp_path):
    """Another number of ranks is another policy."""
    folder, out = sharp(kind, tmp_path), tmp_path / "sampled.pt"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]]),
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }
    command = [sys.executable, str(HERE / "exact_ranks.py"), str(out), str(folder)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    both, model = [Sampled(*one) for one in torch.load(out)], trainer(folder, ranks=2)
    for sampled in both:
        found = trained(model, sampled)
        assert unequal(found, sampled) == 0
    loss_of(found, sampled).backward()
    assert all(w.grad.isfinite().all() and w.grad.any() for w in model.parameters())
    with torch.no_grad():
        assert unequal(trained(trainer(folder, ranks=1), sampled), sampled) > 0
