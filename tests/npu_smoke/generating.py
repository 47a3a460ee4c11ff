"""python -m npu_smoke.generating SCHEME FOLDER: 7B's layers with random weights, timed; a line of JSON."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

MODEL = "qwen2.5-7b"
BATCHES = (16, 64)
PROMPT, ANSWER = 128, 128
OURS = {
    "quantization": "ascend_quant",
    "hf_overrides": {"quantization_config": {"quant_method": "ascend_quant", "scheme": "int8"}},
}
OPTIONS = {"bf16": {}, "int8": OURS, "w8a8": {"quantization": "ascend"}}
DESCRIPTION = "quant_model_description.json"  # by which vllm-ascend knows a checkpoint of ModelSlim


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scheme", choices=OPTIONS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    options = parser.parse_args()
    from benchmarks.models import get_model

    model = get_model(MODEL).cut(options.layers)
    model.write_config(options.folder)
    if options.scheme == "w8a8":
        (options.folder / DESCRIPTION).write_text(json.dumps(description(model.shapes())))
    begin = time.perf_counter()
    llm = _engine(options.folder, options.scheme)
    try:
        startup = time.perf_counter() - begin
        rates = {str(batch): _rate(llm, batch, model.vocab) for batch in BATCHES}
    finally:
        llm.llm_engine.engine_core.shutdown()
    print(json.dumps({"tokens/s": rates, "startup, s": startup, "layers": options.layers, "model": MODEL}))


def description(shapes: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """What ModelSlim writes of each tensor: linear layers are W8A8 with dynamic scales, the rest is not quantized."""
    found = {"model_quant_type": "W8A8_DYNAMIC"}
    for name in shapes:
        linear = name.endswith("_proj.weight")
        found[name] = "W8A8_DYNAMIC" if linear else "FLOAT"
        if linear:
            stem = name.removesuffix("weight")
            found |= {f"{stem}weight_scale": "W8A8_DYNAMIC", f"{stem}weight_offset": "W8A8_DYNAMIC"}
    return found


def _engine(folder: Path, scheme: str) -> Any:
    from vllm import LLM

    from ascend_quant.integrations.vllm import register

    register()
    return LLM(
        str(folder),
        dtype="bfloat16",
        load_format="dummy",
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=PROMPT + ANSWER + 8,
        max_num_seqs=max(BATCHES),
        gpu_memory_utilization=0.5,
        seed=0,
        **OPTIONS[scheme],
    )


def _rate(llm: Any, batch: int, vocabulary: int) -> float:
    """Tokens a second of whole answers, prompts and all."""
    import torch
    from vllm import SamplingParams

    made = torch.Generator().manual_seed(batch)
    prompts = torch.randint(vocabulary, (batch, PROMPT), generator=made).tolist()
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    for tokens in (8, ANSWER):  # the first is for what is compiled
        wanted = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        answers = llm.generate(asked, wanted, use_tqdm=False)
        seconds = time.perf_counter() - begin
    return sum(len(answer.outputs[0].token_ids) for answer in answers) / seconds


if __name__ == "__main__":
    main()
