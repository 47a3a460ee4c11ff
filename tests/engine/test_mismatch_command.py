"""`ascend-quant mismatch` as users call it, on tiny models; its figures against independent computations.

One model has a deliberately wrecked layer: an input channel of layer 1's attention is a thousand times larger, its
weights as much smaller. BF16 hardly notices; int8 activations keep nothing else.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from models import VOCAB, checkpoint, is_quantized, make, save
from naming import has_line_naming
from oracle_model import logprobs
from transformers import AutoModelForCausalLM

from ascend_quant import oracle
from ascend_quant.integrations.vllm.layers.plain import PlainLinearMethod
from ascend_quant.mismatch.watch import Linear
from ascend_quant.schemes import SCHEMES

COMMAND = "import typer; from ascend_quant.commands.mismatch import mismatch; typer.run(mismatch)"
WRECKED = "model.layers.1.self_attn.qkv_proj"
MAX_TOKENS = 16


def run(*arguments: object, expected: int = 0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", COMMAND, *map(str, arguments), "--gpu-memory-utilization", "0.3"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=500, env={**os.environ, "COLUMNS": "120"})
    assert found.returncode == expected, found.stdout[-3000:] + found.stderr[-5000:]
    return found


def write_prompts(folder: Path) -> Path:
    generator = torch.Generator().manual_seed(5)
    lines = [torch.randint(2, VOCAB, (4 + i,), generator=generator).tolist() for i in range(12)]
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": line}) for line in lines))
    return path


def wreck(folder: Path) -> None:
    state = checkpoint(folder)
    layer = "model.layers.1"
    state[f"{layer}.input_layernorm.weight"][7] *= 1000
    for shard in "qkv":
        state[f"{layer}.self_attn.{shard}_proj.weight"][:, 7] /= 1000
    save(state, folder)


@pytest.fixture(scope="module")
def wrecked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrecked")
    model, prompts = make("qwen2", folder), write_prompts(folder)
    wreck(model)
    report, plot = folder / "report.json", folder / "plot.png"
    options = "--scheme", "int8", "--prompts", prompts, "--max-tokens", MAX_TOKENS
    ended = run(
        model, *options, "--threshold", 1.2, "--out", report, "--raw", "--plot", plot, "--fail-above", 1e-9,
        "--length", 10240, expected=3,
    )  # fmt: skip
    return model, options, json.loads(report.read_text()), ended, plot


def tokens_of(sequences: list[dict]) -> list[tuple[float, float]]:
    return [pair for one in sequences for pair in zip(one["rollout"], one["train"], strict=True)]


@pytest.mark.parametrize("part", ["mismatch", "noise"])
def test_the_figures_follow_from_the_raw_tokens(wrecked, part):
    report = wrecked[2]
    found, raw = report[part], tokens_of(report["raw"][part])
    weights = [math.exp(train - rollout) for rollout, train in raw]
    clipped = [min(weight, 1.2) for weight in weights]
    count = len(raw)
    assert (found["tokens"], found["sequences"]) == (count, 12 if part == "mismatch" else 6)
    wanted = {
        "k1_kl": sum(rollout - train for rollout, train in raw) / count,
        "k3_kl": sum(weight - 1 - math.log(weight) for weight in weights) / count,
        "mean_abs": sum(abs(rollout - train) for rollout, train in raw) / count,
        "max_abs": max(abs(rollout - train) for rollout, train in raw),
        "weight_mean": sum(clipped) / count,
        "weight_largest": max(weights),
        "ess": sum(clipped) ** 2 / (count * sum(weight**2 for weight in clipped)),
        "clipped": sum(weight > 1.2 for weight in weights) / count,
    }
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-12)
    quantiles = [found[f"p{percent}_abs"] for percent in (50, 90, 99)]
    assert 0 <= quantiles[0] <= quantiles[1] <= quantiles[2] <= found["max_abs"]
    products = [math.exp(math.fsum(one["train"]) - math.fsum(one["rollout"])) for one in report["raw"][part]]
    assert found["sequence_weights"]["largest"] == pytest.approx(max(products))


def test_each_policy_scored_the_same_tokens(wrecked):
    model, _, report, _, _ = wrecked
    check_policies(model, report)


def check_policies(model: Path, report: dict) -> None:
    """The quantized and the BF16 engine's log-probabilities, against transformers and the oracle in float32."""
    sequences = report["raw"]["mismatch"]
    asked = [{"prompt_token_ids": one["prompt"] + one["response"]} for one in sequences]
    kept = torch.tensor([i >= len(one["prompt"]) for one in sequences for i in range(1, count(one))])
    rollout, train = torch.tensor(tokens_of(sequences), dtype=torch.float64).T
    quantized, exact = (logprobs(model, asked, scheme)[kept] for scheme in (report["scheme"], "bf16"))
    effect = (rollout - train).abs().mean()
    distances = [(rollout - quantized).abs().mean(), (train - exact).abs().mean()]
    print(effect, distances)
    assert max(distances) < effect / 3
    assert report["noise"]["mean_abs"] < effect / 10


def count(one: dict) -> int:
    return len(one["prompt"]) + len(one["response"])


def test_the_wrecked_layer_comes_first_and_is_suggested(wrecked):
    model, _, report, ended, _ = wrecked
    assert report["layers"][0]["name"] == WRECKED
    assert report["layers"][0]["error"] > 5 * report["layers"][1]["error"]
    suggestion = report["suggested_ignore"]
    assert suggestion["ignore"] == suggestion["layers"] == [WRECKED]
    (culprit,) = report["culprits"]
    assert (culprit["what"], culprit["name"], culprit["channels"]) == ("layer", WRECKED, [7])
    assert report["layers"][1]["times"] < 2 < culprit["times"]
    parts = [checkpoint(model)[f"model.layers.1.self_attn.{shard}_proj.weight"] for shard in "qkv"]
    assert suggestion["extra_bytes"] == sum(part.nbytes - part.numel() - 4 * len(part) for part in parts)
    assert f'["{WRECKED}"]' in ended.stdout
    assert "is above --fail-above 1e-09" in ended.stderr


def test_layer_errors_are_those_of_the_oracle_in_transformers(wrecked):
    model, _, report, _, _ = wrecked
    found = {layer["name"]: layer["error"] for layer in report["layers"]}
    wanted = errors_in_float32(model, report)
    assert found == pytest.approx(wanted, rel=0.05)  # the engine's inputs are BF16


def errors_in_float32(folder: Path, report: dict, ranks: int = 1) -> dict[str, float]:
    """Of every linear layer and mixture, by vLLM's names: a float32 forward pass, the oracle's products beside it.

    Args:
        ranks: each quantizes its own slice of what goes into a row-parallel layer (with int8).
    """
    sequences, scheme = report["raw"]["mismatch"], SCHEMES[report["scheme"]]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    squares: dict[str, list[torch.Tensor]] = {}

    def note(name: str, rounded: torch.Tensor, exact: torch.Tensor) -> None:
        norms = torch.stack([(rounded - exact).square().sum(-1), exact.square().sum(-1)])
        squares.setdefault(fused(name), []).append(norms)

    def linear(name: str):
        def hook(module, inputs, output):
            x = inputs[0].reshape(-1, inputs[0].shape[-1])
            parts = ranks if name.endswith(("o_proj", "down_proj")) else 1
            codes, scale = oracle.quantize(module.weight, scheme)
            slices = zip(x.chunk(parts, -1), codes.chunk(parts, -1), strict=True)
            rounded = sum(oracle.product(*pair, scale, scheme) for pair in slices)
            note(name, rounded, F.linear(x, module.weight))

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
    for one in sequences:
        with torch.no_grad():
            model(torch.tensor([one["prompt"] + one["response"]]))
        for name, parts in squares.items():
            error, norm = sum(parts)
            ratios.setdefault(name, []).append((error / norm)[norm > 0])  # the padding token's embedding is zero
        squares.clear()
    return {name: torch.cat(parts).mean().sqrt().item() for name, parts in ratios.items()}


def fused(name: str) -> str:
    owner, _, leaf = name.rpartition(".")
    names = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
    return f"{owner}.{(names | {'gate_proj': 'gate_up_proj', 'up_proj': 'gate_up_proj'}).get(leaf, leaf)}"


def test_every_third_token_is_looked_at_however_they_come():
    """Calls of 4, 1, 0 and 5 tokens; then the layer's own method is as it was."""
    x, weight = torch.randn(10, 16), torch.randn(8, 16).bfloat16()
    method = PlainLinearMethod()
    module = SimpleNamespace(quant_method=method, weight=weight)
    layer = Linear("layer", module, SCHEMES["int8"], every=3)
    for part in x.split([4, 1, 0, 5]):
        assert torch.equal(method.apply(module, part.bfloat16()), F.linear(part.bfloat16(), weight))
    errors = layer.errors()
    exact = x[::3].bfloat16().float() @ weight.float().T
    assert errors["norm_squared"] == pytest.approx(exact.square().sum(-1).tolist(), rel=1e-5)
    assert "apply" not in vars(method)


def test_the_plot_and_the_table_are_there(wrecked):
    from matplotlib.image import imread

    _, _, report, ended, plot = wrecked
    assert imread(plot).shape[:2] == (720, 1680)
    for words in ("int8 / bf16", "noise: bf16 / bf16", WRECKED, f"{report['mismatch']['k3_kl']:.4g}"):
        assert words in ended.stdout


def test_the_suggestion_heals_as_the_oracle_says(wrecked):
    """A third engine scores what the BF16 one sampled; beside it, the healed policy in float32."""
    model, _, report, ended, _ = wrecked
    found, sequences = report["with_suggestion"], report["raw"]["noise"]
    asked = [{"prompt_token_ids": one["prompt"] + one["response"]} for one in sequences]
    kept = torch.tensor([i >= len(one["prompt"]) for one in sequences for i in range(1, count(one))])
    left = tuple(f"model.layers.1.self_attn.{shard}_proj" for shard in "qkv")
    exact, healed, sick = (logprobs(model, asked, *options)[kept] for options in (("bf16",), ("int8", left), ("int8",)))
    ratio, without = healed - exact, sick - exact
    wanted = (ratio.exp() - 1 - ratio).mean().item()
    rounding = (torch.tensor([one for each in sequences for one in each["rollout"]]) - exact).square().mean().item()
    assert wanted / 2 < found["k3_kl"] < 2 * (wanted + rounding)  # both engines round, as their kernels do
    assert found["k3_kl"] < (without.exp() - 1 - without).mean() / 10
    assert (found["tokens"], found["sequences"]) == (len(ratio), 6)
    assert f"{found['k3_kl']:.3g}" in ended.stdout


def test_int4_is_measured_as_int8_is(tmp_path):
    """Groups of 32; activations stay as they are."""
    model, file = make("qwen2", tmp_path), tmp_path / "report.json"
    options = "--prompts", write_prompts(tmp_path), "--max-tokens", MAX_TOKENS, "--out", file, "--raw"
    ended = run(model, "--scheme", "int4_g32", *options)
    report = json.loads(file.read_text())
    check_policies(model, report)
    assert report["culprits"] == [] and report["with_suggestion"] is None
    assert "No single layer" in ended.stdout and "nothing to ignore" not in ended.stdout
    found = {layer["name"]: layer for layer in report["layers"]}
    assert {name: layer["error"] for name, layer in found.items()} == pytest.approx(
        errors_in_float32(model, report), rel=0.05
    )
    down = checkpoint(model)["model.layers.0.mlp.down_proj.weight"]
    assert found["model.layers.0.mlp.down_proj"]["extra_bytes"] == down.nbytes - down.numel() // 2 - down.numel() // 16


def test_scheme_bf16_is_the_noise_floor(tmp_path, monkeypatch):
    """A model of experts, without a tokenizer, built-in prompts as random tokens, some left out; FlashRL's variable."""
    monkeypatch.setenv("FLASHRL_CONFIG", "int8")
    model = make("qwen3-moe", tmp_path)
    for path in model.glob("tokenizer*"):
        path.unlink()
    options = "--max-tokens", 8, "--tokens", 80, "--ignore", r"re:.*\.o_proj$", "--json"
    ended = run(model, "--scheme", "bf16", *options)
    report = json.loads(ended.stdout)  # where nothing else is
    assert report["layers"] == [] and report["prompts_left_out"] == 6
    assert report["ignore"] == [r"re:.*\.o_proj$"] and "raw" not in report
    assert report["mismatch"]["mean_abs"] < 0.01 and report["mismatch"]["k3_kl"] < 1e-4
    assert has_line_naming(ended.stderr, "no tokenizer", "random tokens")
    assert has_line_naming(ended.stderr, "6 prompts", "--tokens 80")
    assert "FLASHRL_CONFIG" in ended.stderr


def test_two_ranks_with_experts(tmp_path, monkeypatch):
    """Each rank holds half of every expert, with weights of another size; a layer of experts has one figure."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    model = make("qwen3-moe", tmp_path)
    state = checkpoint(model)
    for name, tensor in state.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[:, : tensor.shape[1] // 2] *= 4
    save(state, model)
    options = "--scheme", "int8", "--prompts", write_prompts(tmp_path), "--max-tokens", MAX_TOKENS
    run(model, *options, "--tp", 2, "--no-try-suggestion", "--out", tmp_path / "report.json", "--raw")
    report = json.loads((tmp_path / "report.json").read_text())
    found = {layer["name"]: layer for layer in report["layers"]}
    assert len(found) == 6 and "model.layers.1.mlp.experts" in found
    wanted = errors_in_float32(model, report, ranks=2)
    assert {name: layer["error"] for name, layer in found.items()} == pytest.approx(wanted, rel=0.03)
    qkv = [state[f"model.layers.0.self_attn.{shard}_proj.weight"] for shard in "qkv"]
    cost = found["model.layers.0.self_attn.qkv_proj"]["extra_bytes"]
    assert cost == sum(part.numel() - 4 * len(part) for part in qkv)


def test_a_model_that_does_not_load_gives_its_last_words(tmp_path, monkeypatch):
    """The cause is told by a process of the engine, before its main process says that another has failed."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    model = make("qwen2", tmp_path)
    state = checkpoint(model)
    del state["model.layers.1.mlp.down_proj.weight"]
    save(state, model)
    ended = run(model, "--scheme", "int8", "--max-tokens", 4, "--tokens", 4, expected=1)
    assert "model.layers.1.mlp.down_proj" in ended.stderr and "The whole log: " in ended.stderr
    assert "Traceback" not in ended.stdout
    log = Path(ended.stderr.split("The whole log: ")[1].split("\n")[0])
    assert "down_proj" in log.read_text()
    shutil.rmtree(log.parent)
