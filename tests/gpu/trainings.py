"""Short trainings of small models, as `./run.sh train RECIPE` makes them on this machine.

The models are random and of each recipe's architecture, with few layers and a small hidden size; heads and groups are
such that every kernel for GPUs takes them. With GPU_TESTS_ON=cpu all that depends on the device is a CPU's, to try
these tests where there is no GPU; recipes for Megatron cannot be tried so.
"""

import os
from pathlib import Path

import torch

from ascend_quant.integrations.verl.training.attention_settings import LIBRARY, PACKED
from benchmarks.report import Outcome
from benchmarks.train_files import save_tokenizer
from benchmarks.train_run import Arm, carry_out
from launch.recipes import Recipe, load

ON_CPU = os.environ.get("GPU_TESTS_ON") == "cpu"
GPUS = 1 if ON_CPU else torch.cuda.device_count()
SECONDS = 840  # below pytest's limit
PROMPT, ANSWER, PROMPTS = 16, 32, 4
SMALL = {  # what a recipe's step is cut to
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.1,
    "actor_rollout_ref.rollout.n": 8,  # half of the answers are right by chance: of so many never all or none
    "data.train_batch_size": PROMPTS,
    "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
    "trainer.total_epochs": 1,
    "actor_rollout_ref.rollout.agent": "{num_workers: 1}",  # each of these is a process to start
    "reward.num_workers": 1,
    "transfer_queue.backend": "{SimpleStorage: {num_data_storage_units: 1}}",
    "data.dataloader_num_workers": 0,
    "actor_rollout_ref.actor.optim.lr_warmup_steps": 0,  # megatron-core refuses one as long as the run
}
ON_A_GPU = {"actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes": 1 << 30}  # others may use it too
ON_A_CPU = {
    "stack": "cpu",
    "actor_rollout_ref.actor.fsdp_config.param_offload": "false",  # FSDP pins what waits on the host: it asks a GPU
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": "false",
    "actor_rollout_ref.actor.use_kl_loss": "false",  # and a reference model always waits there
    "trainer.device": "cpu",
    "actor_rollout_ref.model.external_lib": LIBRARY,  # as the stack cuda13 sets it
    "actor_rollout_ref.model.override_config": f"{{attn_implementation: {PACKED}}}",
    "actor_rollout_ref.rollout.enforce_eager": "true",
    "actor_rollout_ref.rollout.free_cache_engine": "false",
    "actor_rollout_ref.rollout.enable_sleep_mode": "false",
}
SHAPE = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,  # answers are not all the same, and a wrong logit is seen in their log-probabilities
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": True}
LATENT = {  # attention of DeepSeek-V3, with the ranks that its kernels are made for
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "topk_method": "noaux_tc",  # else vLLM's router has no e_score_correction_bias, which the trainer has
}
WIDE = "-wide"  # heads of 128 in place of 64, which an exact engine refuses on GPUs
ARCHITECTURES = {
    "qwen2": SHAPE,
    f"qwen2{WIDE}": SHAPE | {"hidden_size": 512},
    "qwen3": SHAPE | {"head_dim": 64},
    "qwen3_moe": SHAPE | EXPERTS | {"head_dim": 64, "num_experts": 8},
    f"qwen3_moe{WIDE}": SHAPE | EXPERTS | {"head_dim": 128, "num_experts": 8},
    "deepseek_v3": SHAPE | EXPERTS | LATENT,
}


def architecture_of(recipe: Recipe) -> str:
    """Of the recipe's model, by its name: a key of ARCHITECTURES."""
    name = recipe.model.place.rpartition("/")[2].lower()
    if name.startswith(("moonlight", "kimi")):
        return "deepseek_v3"
    family = "qwen2" if not name.startswith("qwen3") else "qwen3_moe" if "-a" in name else "qwen3"
    return f"{family}{WIDE}" if recipe.is_exact else family


def write_model(architecture: str, folder: Path) -> None:
    """A checkpoint in BF16 with a tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture.removesuffix(WIDE), **ARCHITECTURES[architecture])
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    save_tokenizer(SHAPE["vocab_size"], folder)


def train(
    name: str, models: Path, logs: Path, gpus: int, steps: int, changes: dict[str, object] | None = None
) -> Outcome:
    """Train a recipe with the small model of its architecture; see `benchmarks.train_run.carry_out`."""
    recipe = load(name)
    fields = SMALL | (ON_A_CPU if ON_CPU else ON_A_GPU) | (changes or {})
    arm = Arm(
        recipe=name,
        model=architecture_of(recipe),
        scheme=recipe.rollout.scheme,
        prompt=PROMPT,
        answer=ANSWER,
        steps=steps,
        gpus=gpus,
        device="cpu" if ON_CPU else "cuda",
        changes=tuple(f"{key}={value}" for key, value in fields.items()),
    )
    return carry_out(arm, models, logs, SECONDS)
