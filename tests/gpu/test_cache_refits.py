"""Twenty syncs into an engine with an 8-bit KV cache and captured graphs: each leaves what a fresh engine has.

With GPU_TESTS_ON=cpu the fp8 cache is tried on a CPU, without graphs and sleep.
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from trainings import ON_CPU, write_model

pytest.importorskip("vllm")
sys.path.append(str(Path(__file__).parents[1] / "engine"))

from engines import engine, model_of, refit
from models import perturbed
from safetensors.torch import load_file, save_file
from vllm import SamplingParams

from ascend_quant.kv_cache.scales import AGE, FP8, sent_name

SYNCS, COMPARED = 20, (7, 20)  # with fresh engines, one a process
SLEEPS = (0, 1, 2)  # levels before the syncs, in turn
LAYERS = 2
SETTINGS = {"skip_tokenizer_init": True, "max_model_len": 512, "kv_cache_memory_bytes": 1 << 28}
ON_A_GPU = {
    "enforce_eager": False,
    "gpu_memory_utilization": 0.2,
    "enable_sleep_mode": True,
    # else Inductor chooses by time, and so the order of sums: another one in each process
    "compilation_config": {
        "cudagraph_capture_sizes": [8],
        "inductor_compile_config": {"deterministic": True, "benchmark_combo_kernel": False},
    },
}
DEVICE = "cpu" if ON_CPU else "cuda"
WANTED = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True, detokenize=False, logprobs=0)


def scales_of(step: int) -> dict[str, torch.Tensor]:
    """As a trainer sends them for a step's weights: others in every layer, of every kind, and in every step."""
    names = [sent_name(f"model.layers.{layer}.self_attn", kind) for layer in range(LAYERS) for kind in FP8.kinds]
    found = {name: torch.tensor([0.01 * (1 + step) + 0.002 * i]) for i, name in enumerate(names)}
    return found | {AGE: torch.zeros(1, dtype=torch.int64)}


def read_back(llm) -> dict[str, float]:
    """What captured graphs read, from the device."""
    return {
        f"{name}.{kind}_scale": getattr(module, f"_{kind}_scale").item()
        for name, module in model_of(llm).named_modules()
        if name.endswith("self_attn.attn")
        for kind in FP8.kinds
    }


def started(folder: Path, cache: str):
    """An engine of INT8 weights with this cache."""
    return engine(folder, "int8", quantization_config={"kv_cache": cache}, **SETTINGS, **({} if ON_CPU else ON_A_GPU))


def sync(llm, state: dict[str, torch.Tensor]) -> None:
    with refit(llm).session():
        model_of(llm).load_weights([(name, tensor.to(DEVICE)) for name, tensor in state.items()])


def answered(llm) -> tuple[list[list[int]], list[float]]:
    """Greedy answers to eight prompts, decoded together by a graph: their tokens, and the log-probability of each."""
    prompts = [{"prompt_token_ids": [(7 * i + j) % 500 + 2 for j in range(16 + 24 * i)]} for i in range(8)]
    found = [request.outputs[0] for request in llm.generate(prompts, WANTED, use_tqdm=False)]
    logprobs = [step[token].logprob for one in found for token, step in zip(one.token_ids, one.logprobs, strict=True)]
    return [list(one.token_ids) for one in found], logprobs


def asleep_and_awake(llm, step: int) -> None:
    if level := SLEEPS[step % len(SLEEPS)]:
        llm.sleep(level=level)
        for tag in ("weights", "kv_cache")[:: 1 if step % 4 < 2 else -1]:  # in either order, of either level
            llm.wake_up(tags=[tag])


def walk(_: int, folder: Path, cache: str) -> None:
    """Twenty steps of one engine; what it answered after some of them is left in the folder."""
    state = load_file(folder / "model.safetensors")
    with started(folder, cache) as llm:
        answered(llm)
        for step in range(1, SYNCS + 1):
            if not ON_CPU:
                asleep_and_awake(llm, step)
            scales = scales_of(step) if cache == "fp8" else {}
            sync(llm, perturbed(state, step) | scales)
            if scales:
                assert read_back(llm) == {name: value.item() for name, value in scales.items() if name != AGE}, step
                assert refit(llm).last_receipt.reports["kv_scales"].age == 0
            if step in COMPARED:
                torch.save(answered(llm), folder / f"walked-{step}.pt")


def fresh(_: int, folder: Path, cache: str, step: int) -> None:
    """An engine that has loaded the step's weights from a checkpoint; its scales are set past everything of ours."""
    with started(folder, cache) as llm:
        answered(llm)  # scales are looked at before a first request alone
        if cache == "fp8":
            layers = dict(model_of(llm).named_modules())
            for name, value in scales_of(step).items():
                if name != AGE:
                    layer, _, kind = name.rpartition(".")
                    getattr(layers[layer], f"_{kind}").fill_(value.item())
                    setattr(layers[layer], f"_{kind}_float", value.item())
        llm.reset_prefix_cache()  # pages that are found again hold rounded keys; prefill computes with whole ones
        torch.save(answered(llm), folder / "fresh.pt")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cache", ["fp8", "int8"])
def test_twenty_syncs_leave_what_a_fresh_engine_has(tmp_path, cache):
    if ON_CPU and cache == "int8":
        pytest.skip("vLLM's attention for CPUs has no int8 cache")
    first = tmp_path / "first"
    write_model("qwen3", first)
    state, seen = load_file(first / "model.safetensors"), set()
    mp.spawn(walk, (first, cache))
    for step in COMPARED:
        later = tmp_path / f"step-{step}"
        write_model("qwen3", later)
        save_file(perturbed(state, step), later / "model.safetensors", {"format": "pt"})
        mp.spawn(fresh, (later, cache, step))
        (walked, own), (wanted, others) = torch.load(first / f"walked-{step}.pt"), torch.load(later / "fresh.pt")
        assert walked == wanted, step
        off = max(abs(a - b) for a, b in zip(own, others, strict=True))
        print(f"{cache}, step {step}: log-probabilities differ by {off:.1e} at most")
        seen.add(str(walked))
    assert len(seen) == len(COMPARED)  # other weights, other answers
