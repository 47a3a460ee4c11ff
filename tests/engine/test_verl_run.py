"""Real GRPO runs of verl on a CPU with an int8 rollout: the receipts are logged, and they answer to the truth.

The negative control stops following the trainer after some steps. The mismatch metrics must show it, in the settings in
which the steps before stay close to the trainer.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="the engine tests need vLLM")

import torch
from safetensors.torch import load_file, save_file
from verl_runs import (
    DEADLINE,
    ENGINES_LOG,
    MOST_STEPS,
    QUANTIZED,
    STEPS,
    VERLS,
    digests,
    end,
    log_engines,
    logged,
    prepare,
    receipts,
    train,
)

from ascend_quant.datasets import prepare as prepare_data
from launch import ROOT

pytestmark = pytest.mark.timeout(600)

# where vLLM has an fp8 KV cache on CPUs, whose scales then come with every sync: three a layer, and their age
SERVES_FP8 = torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()
KV_CACHE = ("+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=fp8",) if SERVES_FP8 else ()
SCALES = 2 * 3 + 1 if SERVES_FP8 else 0
ESS = "rollout_corr/rollout_is_eff_sample_size"
FOLLOWED = 2
FROZEN = MOST_STEPS - FOLLOWED  # steps of the run whose rollout stops following
FREEZING = f"""
from ascend_quant.integrations.verl.receiving.receiver import DrainingReceiver
from ascend_quant.integrations.verl.receiving.worker import RefitWorkerExtension

class FreezingExtension(RefitWorkerExtension):
    syncs = 0

    def update_weights_from_ipc(self, peft_config=None, base_sync_done=False, use_shm=False):
        self.syncs += 1
        if self.syncs <= 1 + {FOLLOWED}:  # one before the first step
            return super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
        receiver = DrainingReceiver(self._get_zmq_handle(), self.device, use_shm)
        receiver.receive_weights(lambda weights, is_last: None)
"""


@pytest.fixture
def folder(tmp_path):
    return prepare(tmp_path)


def test_every_step_has_its_receipt_and_a_rollout_that_stops_following_is_seen(folder, monkeypatch):
    log_engines(folder, monkeypatch)
    (folder / "freezing.py").write_text(FREEZING)
    extension = "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls=freezing.FreezingExtension"
    offload = "actor_rollout_ref.actor.fsdp_config.param_offload=True"
    steps = train(folder, QUANTIZED, extension, offload, *KV_CACHE, steps=FOLLOWED + FROZEN)
    followed, frozen = steps[:FOLLOWED], steps[FOLLOWED:]
    assert len(frozen) == FROZEN
    if SERVES_FP8:
        assert all(step["refit/kv_scales/sent"] == 1 for step in followed)
        assert sum("Scales(age=0)" in line for line in receipts(folder)) == FOLLOWED
    assert len(set(digests(folder))) == len(digests(folder)) == 1 + FOLLOWED
    for number, step in enumerate(followed, 2):
        assert step["refit/number"] == number
        assert step["refit/verified"] == 2 * 12 + 3 + SCALES
        assert min(step["refit/kernel_ms"], step["refit/wait_ms"]) > 0
        assert step["refit/kernel_ms"] + step["refit/wait_ms"] < step["refit/milliseconds"]
        assert step["refit/proved"] == step["refit/verified"]  # its old name
        assert f" bytes={step['refit/bytes_sent']}, " in receipts(folder)[number - 1]
        assert step["refit/gather_ms"] > 0 and step["refit/wake_ms"] > 0
        assert 0 < step["refit/changed"] <= 1
        assert step[ESS] > 0.8
    assert {step["refit/number"] for step in frozen} == {followed[-1]["refit/number"]}
    assert min(step[ESS] for step in frozen) < 0.8


def test_a_plugin_left_out_is_one_clear_error(folder, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "")
    with pytest.raises(AssertionError, match="leaves out ascend_quant"):
        train(folder, QUANTIZED)


def make_hard_for_int8(checkpoint: Path) -> None:
    """One massive channel in front of every quantized layer takes the codes from the others; a sharper policy shows it.

    Where it does not, the trainer's log-probabilities, which are BF16, hide what int8 adds.
    """
    weights = load_file(checkpoint)
    for name, weight in weights.items():
        if name.endswith("layernorm.weight"):
            weight[0] *= 16
    weights["lm_head.weight"] *= 10
    save_file(weights, checkpoint, metadata={"format": "pt"})


def test_replicas_of_two_schemes_have_figures_of_their_own(folder, monkeypatch):
    make_hard_for_int8(folder / "model" / "model.safetensors")
    (folder / "flashrl.yaml").write_text("configs: [{fn: int8}, {fn: bf16}]")
    monkeypatch.setenv("FLASHRL_CONFIG", str(folder / "flashrl.yaml"))
    log_engines(folder, monkeypatch)
    steps = train(folder, "actor_rollout_ref.actor.optim.lr=1e-4", workers=2)
    assert len(steps) == STEPS
    for step in steps:
        assert step["refit/verified"] == 2 * 12 + 3
        each = [step[f"refit/replica{rank}/milliseconds"] for rank in (0, 1)]
        assert min(each) > 0 and max(each) == step["refit/milliseconds"]
        assert step["refit/changed"] > 0
        assert step["rollout_corr/replica0/samples"] + step["rollout_corr/replica1/samples"] == 8 * 4
        assert step["rollout_corr/replica0/k3_kl"] > 4 * step["rollout_corr/replica1/k3_kl"]
        between = sorted(step[f"rollout_corr/replica{rank}/k3_kl"] for rank in (0, 1))
        assert between[0] <= step["rollout_corr/k3_kl"] <= between[1]
    assert len(set(digests(folder))) == len(digests(folder)) == 2 * (1 + STEPS)
    log = (folder / "output.log").read_text(errors="replace")
    for rank, scheme in enumerate(("int8", "bf16")):
        assert len(re.findall(rf"rollout replica {rank} serves with .*scheme='{scheme}'", log)) == 1


def test_verls_own_entry_follows_flashrls_variables(folder, monkeypatch):
    monkeypatch.setenv("FLASHRL_CONFIG", "int8")
    log_engines(folder, monkeypatch)
    steps = train(folder, main=VERLS)
    assert len(steps) == 2 and all(step[ESS] > 0.8 for step in steps)
    assert (
        len(receipts(folder)) == 1 + 2
    )  # a sync before the first step, and one after each; the engine loads nothing itself
    assert all(f"tensors={2 * 12 + 3}, " in line for line in receipts(folder))
    assert len(set(digests(folder))) == 3
    assert "scheme int8" in (folder / ENGINES_LOG).read_text()


@pytest.mark.timeout(1500)
@pytest.mark.long("docs/verl.md", "ascend_quant/integrations/verl")
def test_the_page_s_command_for_cpus_trains(tmp_path: Path):
    """docs/verl.md as it stands, behind its `run.sh data`, in a folder that has nothing else."""
    block = re.search(r"```bash\n(\./run\.sh data addition.*?)```", (ROOT / "docs/verl.md").read_text(), re.DOTALL)[1]
    prepare_data("addition", None, tmp_path / "data")
    lines = [line for line in block.splitlines() if not line.startswith(("./run.sh", "source "))]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    script = "\n".join(lines).replace("\npython", f"\n{sys.executable}")
    run = subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=environment, start_new_session=True)
    try:
        assert run.wait(timeout=3 * DEADLINE) == 0  # verl's own processes are more than a test's
    finally:
        end(run)
    steps = logged(tmp_path / "runs" / "addition")
    assert {one.name for one in tmp_path.iterdir()} == {"data", "runs"}, "of which git knows what to do"
    assert len(steps) == 2 and all(step["refit/verified"] == 2 * 12 + 3 for step in steps)
    assert all(step[ESS] > 0.8 for step in steps)
