"""`ascend-quant mismatch` as users call it, on tiny models; its figures against independent computations.

One model has a deliberately wrecked layer: an input channel of layer 1's gate and up is a thousand times larger, its
weights as much smaller. BF16 hardly notices; int8 activations keep nothing else. It is measured once, with an fp8
cache, so that four engines serve most tests here.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import rounded_attention
import torch
import torch.nn.functional as F
from models import VOCAB, checkpoint, is_quantized, make, save
from naming import has_line_naming
from oracle_model import logprobs
from rounded_attention import bf16, everywhere
from transformers import AutoModelForCausalLM

from ascend_quant import oracle
from ascend_quant.integrations.vllm.layers.plain import PlainLinearMethod
from ascend_quant.mismatch.watch import Linear
from ascend_quant.schemes import SCHEMES

COMMAND = "import typer; from ascend_quant.commands.mismatch import mismatch; typer.run(mismatch)"
WRECKED = "model.layers.1.mlp.gate_up_proj"


def run(*arguments: object, expected: int = 0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", COMMAND, *map(str, arguments), "--gpu-memory-utilization", "0.3", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, "COLUMNS": "160"})
    assert found.returncode == expected, found.stdout[-3000:] + found.stderr[-5000:]
    return found


@pytest.fixture(scope="module")
def wrecked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrecked")
    model = make("qwen2", folder)
    state = checkpoint(model)
    state["model.layers.1.post_attention_layernorm.weight"][7] *= 1000
    for shard in ("gate", "up"):
        state[f"model.layers.1.mlp.{shard}_proj.weight"][:, 7] /= 1000
    save(state, model)
    drawn, prompts = torch.Generator().manual_seed(5), folder / "prompts.jsonl"
    rows = [torch.randint(2, VOCAB, (4 + i,), generator=drawn).tolist() for i in range(12)]
    prompts.write_text("\n".join(json.dumps({"prompt": row}) for row in rows))
    options = "--scheme", "int8", "--kv-cache", "fp8", "--prompts", prompts, "--max-tokens", 80
    ended = run(model, *options, "--fail-above", 1e-9, expected=3)
    return model, json.loads(ended.stdout), ended.stderr


def parts(report: dict) -> dict[str, dict]:
    return {"mismatch": report["mismatch"], **report["parts"], "noise": report["noise"]}


def tokens_of(sequences: list[dict], policy: str) -> torch.Tensor:
    return torch.tensor([logprob for one in sequences for logprob in one[policy]], dtype=torch.float64)


def test_the_figures_follow_from_the_tokens(wrecked):
    report = wrecked[1]
    assert list(parts(report)) == ["mismatch", "weights", "cache", "noise"]
    for name, found in parts(report).items():
        rollout, train = (tokens_of(report["sequences"][name], policy) for policy in ("rollout", "train"))
        assert found["sequences"] == len(report["sequences"][name]) == (6 if name == "noise" else 12)
        terms = (train - rollout).exp() - 1 - (train - rollout)
        assert found["k3_kl"] == pytest.approx(terms.mean().item(), abs=1e-12)
        assert sum(one["tokens"] for one in found["positions"]) == len(rollout)
    assert {one["first"] for one in report["mismatch"]["positions"]} == {0, 64}


def test_each_policy_scored_the_same_tokens(wrecked):
    """The sampling and the BF16 engine's log-probabilities, against transformers and the oracle in float32."""
    model, report, _ = wrecked
    sequences = report["sequences"]["weights"]
    asked = [{"prompt_token_ids": one["prompt"] + one["response"]} for one in sequences]
    kept = [i >= len(one["prompt"]) for one in sequences for i in range(1, len(one["prompt"]) + len(one["response"]))]
    rollout, train = (tokens_of(sequences, policy) for policy in ("rollout", "train"))
    quantized, exact = (logprobs(model, asked, one)[torch.tensor(kept)] for one in ("int8", "bf16"))
    effect, distances = (
        (rollout - train).abs().mean(),
        [(rollout - quantized).abs().mean(), (train - exact).abs().mean()],
    )
    print(effect, distances)
    assert max(distances) < effect / 3
    assert report["noise"]["mean_abs"] < effect / 10


def cut_to_fp8(x: torch.Tensor) -> torch.Tensor:
    """To the next code of e4m3 towards zero: vLLM's writer for CPUs drops the bits that do not fit."""
    kept = bf16(x).clamp(-448, 448)
    step = 2.0 ** (kept.abs().clamp(min=2**-6).log2().floor() - 3)
    return (kept / step).trunc() * step


def test_the_part_of_the_cache_is_its_rounding(wrecked):
    """As much as rounding keys and values does in transformers; beside the weights, both in the rollout."""
    model, report, _ = wrecked
    sequences, loaded = report["sequences"]["cache"], rounded_attention.load(model)
    exact, cut = (
        torch.cat(
            [rounded_attention.logprobs(loaded, one["prompt"], one["response"], everywhere(each)) for one in sequences]
        )
        for each in (bf16, cut_to_fp8)
    )
    engine = tokens_of(sequences, "rollout") - tokens_of(sequences, "train")
    print(engine.std(), (cut - exact).std())
    assert 0.5 < engine.std() / (cut - exact).std() < 2
    kl = {name: one["k3_kl"] for name, one in parts(report).items()}
    assert kl["noise"] < min(kl["weights"], kl["cache"]) / 3
    assert 0.5 * max(kl["cache"], kl["weights"]) < kl["mismatch"] < 3 * (kl["cache"] + kl["weights"])


def test_layer_errors_are_those_of_the_oracle_in_transformers(wrecked):
    model, report, _ = wrecked
    found = {layer["name"]: layer["error"] for layer in report["layers"]}
    assert report["layers"][0]["name"] == WRECKED
    assert report["layers"][0]["error"] > 5 * report["layers"][1]["error"]
    assert found == pytest.approx(errors_in_float32(model, report), rel=0.05)  # the engine's inputs are BF16
    weights = [checkpoint(model)[f"model.layers.1.mlp.{shard}_proj.weight"] for shard in ("gate", "up")]
    assert report["layers"][0]["extra_bytes"] == sum(w.nbytes - w.numel() - 4 * len(w) for w in weights)


def errors_in_float32(folder: Path, report: dict, ranks: int = 1) -> dict[str, float]:
    """Of every linear layer and mixture, by vLLM's names: a float32 forward pass, the oracle's products beside it.

    Args:
        ranks: each quantizes its own slice of what goes into a row-parallel layer (with int8).
    """
    scheme, model = SCHEMES["int8"], AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    squares: dict[str, list[torch.Tensor]] = {}

    def note(name: str, rounded: torch.Tensor, exact: torch.Tensor) -> None:
        norms = torch.stack([(rounded - exact).square().sum(-1), exact.square().sum(-1)])
        squares.setdefault(fused(name), []).append(norms)

    def linear(name: str):
        def hook(module, inputs, output):
            x = inputs[0].reshape(-1, inputs[0].shape[-1])
            count = ranks if name.endswith(("o_proj", "down_proj")) else 1
            codes, scale = oracle.quantize(module.weight, scheme)
            slices = zip(x.chunk(count, -1), codes.chunk(count, -1), strict=True)
            note(name, sum(oracle.product(*pair, scale, scheme) for pair in slices), F.linear(x, module.weight))

        return hook

    def experts(name: str):
        def hook(module, inputs, output):
            x, ids, weights = inputs
            codes, scale = oracle.quantize(module.down_proj, scheme)
            total = 0
            for rank, part in enumerate(codes.chunk(ranks, -1)):
                halves = [half.chunk(ranks, 1)[rank] for half in module.gate_up_proj.chunk(2, 1)]
                w13 = oracle.quantize(torch.cat(halves, 1), scheme)
                total = total + oracle.experts(x, weights, ids, *w13, part, scale, scheme)
            note(name, total, output)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and is_quantized(f"{name}.weight"):
            module.register_forward_hook(linear(name))
        elif name.endswith(".experts"):
            module.register_forward_hook(experts(name))
    ratios: dict[str, list[torch.Tensor]] = {}
    sequences = report["sequences"]["mismatch"]
    total = sum(len(one["prompt"]) + len(one["response"]) for one in sequences)
    every = math.ceil(total / 512)
    for one in sequences:
        with torch.no_grad():
            model(torch.tensor([one["prompt"] + one["response"]]))
        for name, found in squares.items():
            error, norm = sum(found)
            ratios.setdefault(name, []).append(torch.where(norm > 0, error / norm, torch.nan))
        squares.clear()
    return {name: torch.cat(found)[::every].nanmean().sqrt().item() for name, found in ratios.items()}


def fused(name: str) -> str:
    owner, _, leaf = name.rpartition(".")
    names = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
    return f"{owner}.{(names | {'gate_proj': 'gate_up_proj', 'up_proj': 'gate_up_proj'}).get(leaf, leaf)}"


def test_the_tables_are_there(wrecked):
    _, report, printed = wrecked
    for words in ("int8, fp8 cache", "bf16, fp8 cache", WRECKED, f"{report['mismatch']['k3_kl']:.4g}", "64 to 256"):
        assert words in printed
    assert has_line_naming(printed, "--fail-above 1e-09")


def test_every_third_token_is_looked_at_however_they_come():
    """Calls of 4, 1, 0 and 5 tokens; then the layer's own method is as it was."""
    x, weight = torch.randn(10, 16), torch.randn(8, 16).bfloat16()
    method = PlainLinearMethod()
    module = SimpleNamespace(quant_method=method, weight=weight)
    layer = Linear("layer", module, SCHEMES["int8"], every=3)
    for part in x.split([4, 1, 0, 5]):
        assert torch.equal(method.apply(module, part.bfloat16()), F.linear(part.bfloat16(), weight))
    exact = x[::3].bfloat16().float() @ weight.float().T
    assert layer.errors()["norm"] == pytest.approx(exact.square().sum(-1).tolist(), rel=1e-5)
    assert "apply" not in vars(method)


def test_two_ranks_with_experts_and_no_tokenizer(tmp_path, monkeypatch):
    """Each rank holds half of every expert, with weights of another size; FlashRL's variable is not followed."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setenv("FLASHRL_CONFIG", "int8")
    model = make("qwen3-moe", tmp_path)
    for path in model.glob("tokenizer*"):
        path.unlink()
    state = checkpoint(model)
    for name, tensor in state.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[:, : tensor.shape[1] // 2] *= 4
    save(state, model)
    ended = run(model, "--scheme", "int8", "--max-tokens", 16, "--tokens", 160, "--tp", 2)
    report = json.loads(ended.stdout)
    assert report["prompts_left_out"] == 6 and report["parts"] == {}
    found = {layer["name"]: layer for layer in report["layers"]}
    assert len(found) == 6 and "model.layers.1.mlp.experts" in found
    wanted = errors_in_float32(model, report, ranks=2)
    assert {name: layer["error"] for name, layer in found.items()} == pytest.approx(wanted, rel=0.03)
    qkv = [state[f"model.layers.0.self_attn.{shard}_proj.weight"] for shard in "qkv"]
    cost = found["model.layers.0.self_attn.qkv_proj"]["extra_bytes"]
    assert cost == sum(part.numel() - 4 * len(part) for part in qkv)
    assert has_line_naming(ended.stderr, "no tokenizer", "random tokens") and "FLASHRL_CONFIG" in ended.stderr
    assert has_line_naming(ended.stderr, "6 prompts", "--tokens 160")


def test_a_model_that_does_not_load_gives_its_last_words(tmp_path, monkeypatch):
    """The cause is told by a process of the engine, before its main process says that another has failed."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    model = make("qwen2", tmp_path)
    state = checkpoint(model)
    del state["model.layers.1.mlp.down_proj.weight"]
    save(state, model)
    ended = run(model, "--scheme", "int8", "--max-tokens", 4, "--tokens", 4, expected=1)
    assert "model.layers.1.mlp.down_proj" in ended.stderr
    assert "Traceback" not in ended.stdout
    log = Path(re.search(r": (/\S+)$", ended.stderr.strip())[1])
    assert "down_proj" in log.read_text()
    shutil.rmtree(log.parent)
