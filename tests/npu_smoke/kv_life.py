"""python -m npu_smoke.kv_life FOLDER: an engine with an int8 KV cache (C8) through syncs and a sleep; a line of JSON.

The trainer is a model on the host: its weights and the largest keys and values that it has seen are what is sent.
"""

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from npu_smoke.life import _said, _serves

SIZES = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 256,
}
PROMPTS = [[3, 5, 7 + i] * (5 + 20 * i) for i in range(4)]
ANSWER = 32


def main() -> None:
    folder = Path(sys.argv[1])
    trainer(0).config.save_pretrained(folder)
    with _engine(folder, "int8") as llm:
        found, tokens = {"held after each sync": []}, []
        for step in range(3):
            _asked(llm, "c8_sync", step)
            found["held after each sync"].append(_asked(llm, "c8_held", step))
            tokens.append(_generated(llm))
        found["other tokens after a sync"] = tokens[0] != tokens[1] != tokens[2]
        llm.sleep(level=1)
        llm.wake_up()
        found["held after a sleep"] = _asked(llm, "c8_held", 2)
        found["same tokens after a sleep"] = _generated(llm) == tokens[2]
        found["refused without scales"] = _said(lambda: _asked(llm, "c8_sync", 0, False))
        found["served meanwhile"] = _serves(lambda: _generated(llm))
        _asked(llm, "c8_sync", 2)
        found["served then"] = _serves(lambda: _generated(llm))
    with _engine(folder, "auto") as llm:
        _asked(llm, "c8_sync", 2, False)
        pairs = [pair for one in zip(tokens[2], _generated(llm), strict=True) for pair in zip(*one, strict=True)]
        found["tokens as with a BF16 cache"] = sum(a == b for a, b in pairs) / len(pairs)
    print(json.dumps(found))


def trainer(step: int):
    """A model of one step."""
    import torch
    import transformers

    torch.manual_seed(step)
    with torch.device("cpu"):
        config = transformers.Qwen3Config(**SIZES, architectures=["Qwen3ForCausalLM"], tie_word_embeddings=False)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def sent(step: int, scales: bool = True) -> dict[str, Any]:
    """Its weights, and behind them the scales of what it has seen."""
    import torch
    from transformers.modeling_utils import AttentionInterface

    from ascend_quant.integrations.verl.kv_maxima import Maxima, looking
    from ascend_quant.refit.kv_scales import INT8

    model, maxima, original = trainer(step), Maxima(INT8), AttentionInterface.get_interface
    AttentionInterface.get_interface = looking(original)
    try:
        maxima.look_first(model, torch.device("cpu"))
    finally:
        AttentionInterface.get_interface = original
    return dict(model.state_dict()) | (dict(maxima.as_sent(model, torch.device("cpu"))) if scales else {})


class Extension:
    """Methods that vLLM adds to its worker class."""

    def c8_sync(self, step: int, scales: bool = True) -> None:
        """As a trainer's sync."""
        model = self.model_runner.model
        with model.ascend_quant_refit.session():
            model.load_weights([(name, tensor.to(self.device)) for name, tensor in sent(step, scales).items()])

    def c8_held(self, step: int) -> bool:
        """Whether all that attention reads is of the step: scales, and one over them."""
        import torch

        from ascend_quant.refit.kv_scales import NAME

        found = dict(self.model_runner.model.named_modules())
        for name, values in sent(step).items():
            if NAME.search(name) is None:
                continue
            layer, kind = found[name.rpartition(".")[0]], name[-len("k_scale")]
            scale = values.to(torch.bfloat16)
            wanted = {f"{kind}_cache_scale": scale, f"_c8_{kind}_aq_scale_nz_bnsd": scale}
            wanted[f"_c8_{kind}_inv_scale"] = 1 / scale.float()
            if not all(torch.equal(getattr(layer, key).cpu().flatten(), value) for key, value in wanted.items()):
                return False
        return True


@contextmanager
def _engine(folder: Path, cache: str):
    from vllm import LLM

    from ascend_quant.integrations.vllm import register

    register()
    llm = LLM(
        str(folder),
        dtype="bfloat16",
        quantization="ascend_quant",
        hf_overrides={"quantization_config": {"quant_method": "ascend_quant", "scheme": "bf16", "kv_cache": cache}},
        load_format="dummy",
        skip_tokenizer_init=True,
        enable_sleep_mode=True,
        additional_config={"weight_nz_mode": 0},
        max_model_len=192,
        gpu_memory_utilization=0.3,
        worker_extension_cls="npu_smoke.kv_life.Extension",
        seed=0,
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def _asked(llm: Any, method: str, *args: Any) -> Any:
    (answer,) = llm.collective_rpc(method, args=args)
    return answer


def _generated(llm: Any) -> list[list[int]]:
    from vllm import SamplingParams

    wanted = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], wanted, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


if __name__ == "__main__":
    main()
