"""verl's own FSDP2 engine on a tiny model, and the gradients of the same model that reads one sequence at a time.

For tests with several ranks, on CPUs (tests/unit) and on GPUs (tests/gpu).
"""

from functools import partial

import torch

PROMPT = 3
LENGTHS = (5, 16, 9, 7)  # an odd number of tokens: Ulysses pads
TOKENS = 24  # of a micro-batch: there are two
SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 1}  # fewer than ranks: repeated


def plain_model(tied: bool = False):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, **HEADS, tie_word_embeddings=tied, attn_implementation="sdpa"))


def texts() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randint(0, SIZES["vocab_size"], (length,)) for length in LENGTHS]


def expected_gradients() -> dict[str, torch.Tensor]:
    """Of the mean negative log-probability of all tokens after the prompts."""
    model = plain_model().train()
    losses = []
    for ids in texts():
        log_probs = model(ids.unsqueeze(0), use_cache=False).logits[0].log_softmax(-1)
        losses.append(-log_probs[PROMPT - 1 : -1].gather(-1, ids[PROMPT:, None]))
    torch.cat(losses).mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def build(folder, attention: str, ulysses: int, dtype: str = "fp32", offload: bool = False):
    """The engine; `dtype` is that of its products. With `offload` its weights wait on the host."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from ascend_quant.integrations.verl.training.attention_settings import LIBRARY

    model = HFModelConfig(
        path=str(folder / "model"),
        load_tokenizer=False,
        external_lib=LIBRARY,
        override_config={"attn_implementation": attention},
        use_remove_padding=True,
        enable_gradient_checkpointing=True,
    )
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        use_torch_compile=False,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=TOKENS // ulysses,
        ulysses_sequence_parallel_size=ulysses,
        param_offload=offload,
        mixed_precision={"param_dtype": dtype, "reduce_dtype": "fp32"},
    )
    optimizer = FSDPOptimizerConfig(lr=0.0, total_training_steps=10)
    made = FSDPEngineWithLMHead(model, engine, optimizer, CheckpointConfig(save_contents=["model", "hf_model"]))
    made.initialize()
    return made


def gradients(engine) -> tuple[dict[str, torch.Tensor], int]:
    """Whole gradients by name, and how many micro-batches there were."""
    from verl.utils import tensordict_utils
    from verl.workers.utils.losses import sft_loss

    ids = texts()[engine.get_data_parallel_rank() :: engine.get_data_parallel_size()]
    masks = [(torch.arange(len(one)) >= PROMPT).float() for one in ids]
    jagged = partial(torch.nested.as_nested_tensor, layout=torch.jagged)
    data = tensordict_utils.get_tensordict(
        {
            "input_ids": jagged(ids),
            "position_ids": jagged([torch.arange(len(one)) for one in ids]),
            "loss_mask": jagged(masks),
        },
        {
            "use_remove_padding": True,
            "use_dynamic_bsz": True,
            "temperature": 1.0,
            "calculate_entropy": False,
            "max_token_len_per_gpu": engine.engine_config.max_token_len_per_gpu,
        },
    )
    with engine.train_mode():
        engine.optimizer_zero_grad()
        out = engine.forward_backward_batch(data, partial(sft_loss, None))
        return {n: p.grad.full_tensor().cpu() for n, p in engine.module.named_parameters()}, len(out["loss"])


def worst(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    return max(((found[name] - one).norm() / one.norm()).item() for name, one in expected.items())
