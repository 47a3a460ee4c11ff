"""Short GRPO runs of verl on a CPU, as a user starts them: what they are given, and what they log."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from ascend_quant.demo.task import TINY, Addition, build_model, save_tokenizer, write_parquet

DEADLINE = 420
STEPS = 2
MOST_STEPS = 7  # that there are prompts for
OURS, VERLS = "ascend_quant.integrations.verl.main_ppo", "verl.trainer.main_ppo"
ENGINES_LOG = "engines.log"
QUANTIZED = "+actor_rollout_ref.rollout.quantization=ascend_quant"

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return sum(c in "02468" for c in solution_str) / max(1, len(solution_str))
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


def prepare(folder: Path, name: str = "qwen2", shape: dict = TINY) -> Path:
    """Write a model, prompts and a reward into the folder, and return it."""
    model = build_model(name, seed=0, shape=shape).to(torch.bfloat16)
    model.save_pretrained(folder / "model")
    save_tokenizer(folder / "model")
    write_parquet(folder / "train.parquet", prompts=8 * MOST_STEPS, seed=0, task=Addition())
    (folder / "reward.py").write_text(REWARD)
    return folder


def log_engines(folder: Path, monkeypatch) -> None:
    """Have the engines' lines written to a file; verl has vLLM's level at WARN, which ours would follow."""
    monkeypatch.setenv("FLASHRL_LOGGING_FILE", str(folder / ENGINES_LOG))
    monkeypatch.setenv("FLASHRL_LOGGING_LEVEL", "INFO")


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


def receipts(folder: Path) -> list[str]:
    """The engines' lines on their refits, of a run after `log_engines`."""
    return [line for line in (folder / ENGINES_LOG).read_text().splitlines() if "Receipt(number=" in line]


def digests(folder: Path) -> list[str]:
    """Of all bytes of an engine's weights, of each of its refits."""
    return [re.search(r" digest='([0-9a-f]{16})'", line)[1] for line in receipts(folder)]


def end(run: subprocess.Popen) -> None:
    """End this run, if it has not ended: first politely, so that Ray ends its own processes."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        if run.poll() is None:
            os.killpg(run.pid, how)
            try:
                run.wait(timeout=30)
            except subprocess.TimeoutExpired:
                continue
