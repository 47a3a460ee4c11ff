"""Generation with a 7B model of random weights: tokens per second by batch size, memory, and an NPU's kernels by name.

Each probe has one engine (BF16, int8, or vllm-ascend's own W8A8), so that a failure does not lose the results of the
others.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ascend_quant.convert.conversion import DESCRIPTION
from ascend_quant.convert.formats import description
from ascend_quant.smoke.engine import asked, engine_of, generated, need_vllm
from ascend_quant.smoke.kernels import MOST, kernels_of
from ascend_quant.smoke.probes import On, Seen, need, probe

BATCHES, PROMPT, ANSWER, PROFILED = (8, 64, 256), 128, 256, 16  # PROFILED: tokens at the middle batch size
SECONDS = 150
CONFIG = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "num_hidden_layers": 28,
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
FEW = {"num_hidden_layers": 1, "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512}
FEW |= {"num_attention_heads": 4, "num_key_value_heads": 2}
LINEAR = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
LINEAR += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def _timed(name: str, decides: str, devices: tuple[str, ...], scheme: str, ranks: int = 1, **options: Any) -> None:
    """Register the probe of one engine."""

    @probe(f"speed.{name}", decides, devices, True, SECONDS, ranks)
    def run(on: On) -> Seen:
        return generation(on, scheme, tensor_parallel_size=ranks, **options)


BOTH = ("cuda", "npu")
_timed("bf16", "tokens a second of a whole 7B in BF16", BOTH, "bf16")
_timed("int8", "the same with int8", BOTH, "int8")
_timed(
    "w8a8", "the same with vllm-ascend's own W8A8, which no refit can change", ("npu",), "bf16", quantization="ascend"
)
_timed("bf16_4", "the same in BF16 on four devices", BOTH, "bf16", ranks=4)
_timed("int8_4", "the same with int8 on four devices", BOTH, "int8", ranks=4)


def generation(on: On, scheme: str, **options: Any) -> Seen:
    """Generate with an engine that captures graphs only for these batch sizes; on a CPU it captures none."""
    if options.get("quantization") == "ascend":
        need("vllm_ascend")
        os.environ["VLLM_ASCEND_ENABLE_NZ"] = "1"  # vllm-ascend's weights are in FRACTAL_NZ by default, as ours
    need_vllm(on)
    batches = (2, 4) if on.small else BATCHES
    sizes = {"max_model_len": PROMPT + ANSWER + 8, "max_num_seqs": max(batches)}
    graphs = on.device.type != "cpu"
    if graphs:
        options |= {"compilation_config": {"cudagraph_capture_sizes": list(batches)}, "gpu_memory_utilization": 0.8}
    seen = Seen()
    with tempfile.TemporaryDirectory(prefix="aq-smoke-") as folder, tempfile.TemporaryDirectory() as profile:
        begun = time.monotonic()
        _write(Path(folder), CONFIG | FEW if on.small else CONFIG)
        with engine_of(
            Path(folder), scheme, graphs, load_format="dummy", enable_prefix_caching=False, **sizes, **options
        ) as llm:
            seen.values["start, s"] = round(time.monotonic() - begun, 1)
            seen.values["bytes of weights"] = sum(asked(llm, "smoke_weights"))
            seen.values["tokens/s by batch"] = {str(batch): round(_rate(llm, batch, on.small), 1) for batch in batches}
            if on.device.type == "npu":
                asked(llm, "smoke_profile", profile)
                generated(llm, _prompts(batches[len(batches) // 2]), PROFILED)
                asked(llm, "smoke_profile")
        if on.device.type == "npu":
            found = kernels_of(profile)
            seen.values["us of all kernels"] = round(sum(one["us"] for one in found), 1)
            seen.values[f"kernels of a prefill and {PROFILED} tokens"] = found[:MOST]
            seen.holds(bool(found), "the profiler has seen no kernel")
    return seen


def _rate(llm: Any, batch: int, few: bool) -> float:
    """Return tokens per second for whole answers, including prefill."""
    prompts = _prompts(batch)
    generated(llm, prompts, 8)  # compiles kernels
    begun = time.perf_counter()
    answers = generated(llm, prompts, 8 if few else ANSWER)
    return sum(map(len, answers)) / (time.perf_counter() - begun)


def _prompts(batch: int) -> list[list[int]]:
    made = torch.Generator("cpu").manual_seed(batch)
    return torch.randint(500, (batch, PROMPT), generator=made, device="cpu").tolist()


def _write(folder: Path, config: dict[str, Any]) -> None:
    """Write the files that an engine without weights reads: config, and description for vllm-ascend's W8A8."""
    (folder / "config.json").write_text(json.dumps(config))
    layers = range(config["num_hidden_layers"])
    quantized = {f"model.layers.{layer}.{name}.weight" for layer in layers for name in LINEAR}
    names = [*sorted(quantized), "model.embed_tokens.weight", "lm_head.weight"]
    (folder / DESCRIPTION).write_text(json.dumps(description(quantized, names)))
