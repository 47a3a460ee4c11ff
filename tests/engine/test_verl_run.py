"""Real GRPO runs of verl on a CPU with an int8 rollout: the receipts are logged, and they answer to the truth.

The negative control stops following the trainer after some steps. The mismatch metrics must show it, in the settings in
which the steps before stay close to the trainer.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from naming import has_line_naming

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="the engine tests need vLLM")

import torch
from safetensors.torch import load_file, save_file

from launch.demo.model import TINY, build_model, save_tokenizer, vocabulary
from launch.demo.tasks import Addition, write_parquet

pytestmark = pytest.mark.timeout(600)

DEADLINE = 420
STEPS = 2
WIDE = TINY | {"hidden_size": 256}  # matrices of such rows travel packed to engines elsewhere
OURS, VERLS = "ascend_quant.integrations.verl.main_ppo", "verl.trainer.main_ppo"
QUANTIZED = "+actor_rollout_ref.rollout.quantization=ascend_quant"
TRANSPORT = Path(__file__).with_name("tcp_checkpoint_engine.py")
FULLY_ASYNC = "ascend_quant.integrations.verl.main_fully_async"
ELSEWHERE = (  # an engine on a device that is not the trainer's
    "actor_rollout_ref.hybrid_engine=False",
    "++actor_rollout_ref.rollout.nnodes=1",
    "++actor_rollout_ref.rollout.n_gpus_per_node=1",
    "++actor_rollout_ref.rollout.checkpoint_engine.backend=tcp",
    f"++actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module={TRANSPORT.stem}",
    "++ray_kwargs.ray_init.num_gpus=2",
)


class Apart(NamedTuple):
    """A run whose engine is elsewhere, with a sync before the first step and one after each.

    Attributes:
        main: that starts it.
        send: what the trainer sends.
        settings: of its mode.
        corrupts: the sync with a wrong bit; it ends the run.
        figures: how many of the syncs before it have figures in the log.
        named: what the error names.
        model: that is trained.
        tensors: it has, as checkpoints do.
        coded: of those that leave as codes; a layer's experts leave as two.
    """

    main: str
    send: str
    settings: tuple[str, ...]
    corrupts: int
    figures: int
    named: str
    model: str
    tensors: int
    coded: int


APART = (
    Apart(
        *(OURS, "int8"),
        (
            *("trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.parameter_sync_step=1"),
            "+actor_rollout_ref.rollout.engine_kwargs.ascend_quant.rounding=carried",
        ),
        *(3, 1, r"weight sync failed.*model\.embed_tokens\.weight.*values"),
        *("qwen3-moe", 2 * (9 + 3 * 8) + 3, 2 * (4 + 2)),
    ),
    Apart(
        *(FULLY_ASYNC, "delta"),
        (
            *("data.train_batch_size=0", "data.gen_batch_size=1", "rollout.nnodes=1", "rollout.n_gpus_per_node=1"),
            *("rollout.total_rollout_steps=24", "async_training.trigger_parameter_sync_step=1"),
            *("async_training.staleness_threshold=0.5", "++ray_kwargs.ray_init.num_cpus=32"),
            "actor_rollout_ref.actor.optim.lr=1e-6",
        ),
        *(4, 3, r"ascend_quant\.delta\.0: format"),
        *("qwen2", 2 * 12 + 3, 2 * 7),
    ),
)
START = {
    f"start_up/{stage}"
    for stage in (
        *("driver", "trainer", "dataset", "workers_placed", "models", "models/actor", "models/other", "engines"),
        *("engines/weights", "engines/trial_run", "engines/graphs_and_warm-up", "engines/other", "checkpoint"),
        *("first_sync", "before_step_1", "step_1", "step_1/prompts_sent_1", "step_1/gen_1"),
        *("step_1/update_actor_1", "total"),
    )
}
# where vLLM has an fp8 KV cache on CPUs, whose scales then come with every sync: three a layer, and their age
SERVES_FP8 = torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()
KV_CACHE = ("+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=fp8",) if SERVES_FP8 else ()
SCALES = 2 * 3 + 1 if SERVES_FP8 else 0
ESS = "rollout_corr/rollout_is_eff_sample_size"

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return sum(c in "02468" for c in solution_str) / max(1, len(solution_str))
"""

FOLLOWED, FROZEN = 2, 5  # steps of the run whose rollout stops following
FREEZING = f"""
from ascend_quant.integrations.verl.receiver import DrainingReceiver
from ascend_quant.integrations.verl.worker import RefitWorkerExtension

class FreezingExtension(RefitWorkerExtension):
    syncs = 0

    def update_weights_from_ipc(self, peft_config=None, base_sync_done=False, use_shm=False):
        self.syncs += 1
        if self.syncs <= 1 + {FOLLOWED}:  # one before the first step
            return super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
        receiver = DrainingReceiver(self._get_zmq_handle(), self.device, use_shm)
        receiver.receive_weights(lambda weights, is_last: None)
"""

ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "GLOO_SOCKET_IFNAME": "lo",
}


def overrides(folder: Path, ray_folder: str, workers: int, steps: int) -> list[str]:
    rollout = {
        "name": "vllm",
        "n": 4,
        "tensor_model_parallel_size": 1,
        "enforce_eager": True,
        "free_cache_engine": False,
        "enable_sleep_mode": False,
        "max_model_len": 32,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 512,
        "log_prob_micro_batch_size_per_gpu": 16,
        "calculate_log_probs": True,
        "checkpoint_engine.update_weights_bucket_megabytes": 1,
        "agent.num_workers": 1,
    }
    actor = {
        "strategy": "fsdp2",
        "fsdp_config.strategy": "fsdp2",
        "fsdp_config.use_torch_compile": False,
        "use_torch_compile": False,
        "ppo_mini_batch_size": 8,
        "ppo_micro_batch_size_per_gpu": 8,
        "optim.lr": 3e-3,
        "use_kl_loss": False,
    }
    settings = {
        "algorithm.adv_estimator": "grpo",
        "algorithm.rollout_correction.rollout_is": "token",
        "algorithm.rollout_correction.rollout_is_threshold": 2.0,
        "data.train_files": folder / "train.parquet",
        "data.val_files": folder / "train.parquet",
        "data.train_batch_size": 8,
        "data.max_prompt_length": 8,
        "data.max_response_length": 16,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.path": folder / "model",
        "actor_rollout_ref.model.use_remove_padding": False,
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        **{f"++actor_rollout_ref.rollout.{key}": value for key, value in rollout.items()},
        **{f"actor_rollout_ref.actor.{key}": value for key, value in actor.items()},
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": folder / "reward.py",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "trainer.device": "cpu",
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": workers,
        "trainer.total_training_steps": steps,
        "trainer.logger": "[console,file]",
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": folder / "checkpoints",
        "ray_kwargs.ray_init.num_cpus": 16,
        "+ray_kwargs.ray_init.num_gpus": workers,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "+ray_kwargs.ray_init.object_store_memory": 300_000_000,
        "+ray_kwargs.ray_init._temp_dir": ray_folder,
        "hydra.run.dir": folder / "hydra",
    }
    return [f"{key}={value}" for key, value in settings.items()]


def train(folder: Path, *more: str, main: str = OURS, workers: int = 1, steps: int = STEPS) -> list[dict[str, float]]:
    """Run main_ppo to its end and return each step's metrics from verl's own file logger."""
    ray_folder = tempfile.mkdtemp(prefix="aq-")  # pytest's own folders are too long for Ray's sockets
    log = folder / "metrics.jsonl"
    command = [sys.executable, "-m", main, *overrides(folder, ray_folder, workers, steps), *more]
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": paths, "VERL_FILE_LOGGER_PATH": str(log)}
    with open(folder / "output.log", "wb") as output:
        run = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            code = run.wait(timeout=DEADLINE)
        finally:
            end(run)
            shutil.rmtree(ray_folder, ignore_errors=True)
    assert code == 0, (folder / "output.log").read_text(errors="replace")[-9000:]
    return logged(folder)


def logged(folder: Path) -> list[dict[str, float]]:
    """What each line of the run's metrics holds."""
    return [json.loads(line)["data"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def end(run: subprocess.Popen) -> None:
    """End this run, if it has not ended: first politely, so that Ray ends its own processes."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        if run.poll() is None:
            os.killpg(run.pid, how)
            try:
                run.wait(timeout=30)
            except subprocess.TimeoutExpired:
                continue


@pytest.fixture
def folder(tmp_path, request):
    name = getattr(request, "param", "qwen2")
    model = build_model(name, seed=0, shape=TINY if name == "qwen2" else WIDE).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    write_parquet(tmp_path / "train.parquet", prompts=8 * (FOLLOWED + FROZEN), seed=0, task=Addition())
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "freezing.py").write_text(FREEZING)
    return tmp_path


def test_every_step_has_its_receipt_and_a_rollout_that_stops_following_is_seen(folder):
    extension = "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls=freezing.FreezingExtension"
    offload = "actor_rollout_ref.actor.fsdp_config.param_offload=True"
    steps = train(folder, QUANTIZED, extension, offload, *KV_CACHE, steps=FOLLOWED + FROZEN)
    followed, frozen = steps[:FOLLOWED], steps[FOLLOWED:]
    assert len(frozen) == FROZEN
    tensors = {step["refit/tensors"] for step in followed}
    assert tensors == {2 * 12 + 3 + SCALES}
    if SERVES_FP8:
        assert all((step["refit/kv_scales/sent"], step["refit/kv_scales/age"]) == (1, 0) for step in followed)
        assert len({step["refit/kv_scales/digest"] for step in followed}) == FOLLOWED
    assert len({step["refit/digest"] for step in followed}) == FOLLOWED
    for step in followed:
        assert step["refit/nonfinite"] == 0
        assert min(step["refit/kernel_ms"], step["refit/wait_ms"]) > 0
        assert step["refit/kernel_ms"] + step["refit/wait_ms"] < step["refit/milliseconds"]
        assert step["refit/proved"] == step["refit/tensors"]
        assert step["refit/bytes_sent"] == step["refit/bytes"] > 0
        assert step["refit/bytes_ahead"] > 0  # before the weights were put away
        assert step["refit/gather_ms"] > 0 and step["refit/memory_ms"] > 0
        assert 0 < step["refit/changed"] <= 1
        assert step[ESS] > 0.8
    start, *later = [{name: value for name, value in step.items() if name.startswith("start_up/")} for step in steps]
    assert not any(later) and start.keys() >= START and all(seconds >= 0 for seconds in start.values())
    stages = [value for name, value in start.items() if name.count("/") == 1 and name != "start_up/total"]
    assert sum(stages) == pytest.approx(start["start_up/total"]) and start["start_up/step_1"] > 0
    assert start["start_up/engines"] > start["start_up/engines/weights"] > 0
    assert start["start_up/models"] > start["start_up/models/actor"] > 0
    assert has_line_naming((folder / "output.log").read_text(), "first step, seconds:")
    assert all(0 < step["refit/update/cosine"] <= 1 and step["refit/update/share"] > 0 for step in followed)
    assert {step["refit/digest"] for step in frozen} == {followed[-1]["refit/digest"]}
    assert min(step[ESS] for step in frozen) < 0.8


@pytest.mark.parametrize(
    ("folder", "run"), [(run.model, run) for run in APART], indirect=["folder"], ids=[run.send for run in APART]
)
def test_a_bit_that_changes_on_its_way_to_an_engine_elsewhere_ends_the_run_and_is_named(folder, run):
    """The engine has a device of its own; its weights come through a checkpoint engine, and a worker beside it."""
    shutil.copy(TRANSPORT, folder)
    send = f"+actor_rollout_ref.rollout.engine_kwargs.ascend_quant.send={run.send}"  # codes from the second sync on
    wrong = f"++actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.tcp.corrupts={run.corrupts}"
    with pytest.raises(AssertionError, match=run.named):
        train(folder, QUANTIZED, *ELSEWHERE, *run.settings, send, wrong, main=run.main)
    synced = [step for step in logged(folder) if "refit/proved" in step]
    assert len({step["refit/digest"] for step in synced}) == len(synced) == run.figures
    for step in synced:
        assert step["refit/proved"] == step["refit/tensors"] == run.tensors
        assert step["refit/bytes"] > 0
    if run.send == "int8":  # with half a byte less of each number of embedding and head, and 96 bytes more of each row
        saved = 2 * len(vocabulary()) * (WIDE["hidden_size"] // 2 - 96)
        assert synced[-1]["refit/bytes_sent"] == synced[-1]["refit/bytes"] - saved
    assert synced[-1]["refit/sent_as_codes"] == run.coded
    if run.send == "delta":  # all, all as codes, and what of these has changed
        whole, codes, changed = (step["refit/bytes_sent"] for step in synced)
        assert whole > codes > 0.5 * whole and changed < 0.1 * codes


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
    steps = train(folder, "actor_rollout_ref.actor.optim.lr=1e-4", workers=2)
    assert len(steps) == STEPS
    for step in steps:
        for rank in (0, 1):
            assert step[f"refit/replica{rank}/proved"] == step[f"refit/replica{rank}/tensors"] == 2 * 12 + 3
        assert step["refit/replica0/digest"] != step["refit/replica1/digest"]
        assert step["refit/replica0/changed"] > 0 == step["refit/replica1/changed"]
        assert step["rollout_corr/replica0/samples"] + step["rollout_corr/replica1/samples"] == 8 * 4
        assert step["rollout_corr/replica0/k3_kl"] > 4 * step["rollout_corr/replica1/k3_kl"]
        between = sorted(step[f"rollout_corr/replica{rank}/k3_kl"] for rank in (0, 1))
        assert between[0] <= step["rollout_corr/k3_kl"] <= between[1]
    for rank in (0, 1):
        assert len({step[f"refit/replica{rank}/digest"] for step in steps}) == 2
    log = (folder / "output.log").read_text(errors="replace")
    for rank, scheme in enumerate(("int8", "bf16")):
        assert len(re.findall(rf"rollout replica {rank} serves with .*scheme='{scheme}'", log)) == 1


def test_verls_own_entry_follows_flashrls_variables(folder, monkeypatch):
    monkeypatch.setenv("FLASHRL_CONFIG", "int8")
    monkeypatch.setenv("FLASHRL_LOGGING_FILE", str(folder / "flashrl.log"))
    monkeypatch.setenv("FLASHRL_LOGGING_LEVEL", "INFO")  # verl has vLLM's level at WARN, which ours would follow
    steps = train(folder, main=VERLS)
    assert len(steps) == 2 and all(step[ESS] > 0.8 for step in steps)
    receipts = [line for line in (folder / "flashrl.log").read_text().splitlines() if "Receipt(number=" in line]
    assert len(receipts) == 1 + 2  # a sync before the first step, and one after each; the engine loads nothing itself
    assert all(f"tensors={2 * 12 + 3}, " in line for line in receipts)
    assert len({line.partition("digest=")[2] for line in receipts}) == 3
    assert "scheme int8" in (folder / "flashrl.log").read_text()
