"""The rollout benchmark: its command on a CPU engine, how it reads a GPU's kernels, its floors and bars."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import generation, rollout, rollout_report, trace
from benchmarks.floors import Rates, floors, products
from benchmarks.models import MODELS, get_model
from benchmarks.rollout_worker import fill
from benchmarks.tasks import Outcome, Rollouts, Task
from benchmarks.trace import Kernel

ROOT = Path(__file__).parents[2]
TINY, MIXED = get_model("tiny"), get_model("tiny-moe")


def test_command_on_the_cpu(tmp_path):
    pytest.importorskip("vllm")
    out = tmp_path / "result.json"
    size = ["--models", "tiny-moe", "--schemes", "bf16,int8-ours", "--batch", "2,3", "--prompt", "4", "--answer", "9"]
    command = [sys.executable, "-m", "benchmarks.rollout", "--device", "cpu", "--repeats", "1", *size]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_USE_NOTHING": "1"}
    run = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(out.read_text())
    assert found["command"][2] == "benchmarks.rollout" and found["faults"] == []
    assert found["environment"]["VLLM_USE_NOTHING"] == "1"
    rows = {(row["scheme"], row["batch"]): row for row in found["rows"]}
    assert rows.keys() == {(scheme, batch) for scheme in ("bf16", "int8-ours") for batch in (2, 3)}
    seconds = found["outcomes"][1]["result"]["seconds"]
    assert rows["int8-ours", 3]["rate"] == pytest.approx(3 * 9 / seconds["3"])
    assert rows["int8-ours", 3]["ratio"] == pytest.approx(rows["int8-ours", 3]["rate"] / rows["bf16", 3]["rate"])
    assert rows["bf16", 2]["ratio"] == 1 and rows["bf16", 2]["met"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--models", "8b"], "'8b' is none of: 0.5b, 7b, 32b, 30b-a3b"),
        (["--schemes", "int8"], "'int8' is none of: bf16, int8-vllm, int8-ours, fp8-vllm"),
        (["--batch", "64,x"], "'64,x': give numbers of sequences"),
        (["--batch", "0"], "'0': give numbers of sequences"),
        (["--device", "cpu", "--trace"], "only a GPU's steps"),
        (["--trace", "--answer", "64"], "a trace needs 104 tokens or more"),
    ],
)
def test_wrong_use(arguments, said):
    run = CliRunner().invoke(rollout.app, arguments)
    assert run.exit_code == 2 and said in " ".join(run.output.replace("│", " ").split())


def test_engines_take_turns_at_being_first(monkeypatch):
    asked = []
    monkeypatch.setattr(rollout, "in_turn", lambda tasks, seconds, write: asked.extend(tasks) or [])
    CliRunner().invoke(rollout.app, ["--models", "7b", "--schemes", "bf16,int8-ours", "--batch", "8"])
    assert [task.variant for task in asked] == ["bf16", "int8-ours", "int8-ours", "bf16"]
    assert {task.rollouts for task in asked} == {Rollouts((8,), 256, 512)}


@pytest.mark.parametrize("memory", [None, 0.8])
def test_an_engine_takes_the_share_of_memory_that_is_asked_for(monkeypatch, memory):
    asked = []
    monkeypatch.setattr(rollout, "in_turn", lambda tasks, seconds, write: asked.extend(tasks) or [])
    share = [] if memory is None else ["--memory", str(memory)]
    CliRunner().invoke(rollout.app, ["--models", "7b", "--schemes", "int8-ours", "--repeats", "1", *share])
    (options,) = map(generation.options_of, asked)
    assert options.get("gpu_memory_utilization") == memory and options["quantization"] == "ascend_quant"


def outcome(model: str, scheme: str, seconds: dict[str, float], device: str = "cuda", layers: int | None = None):
    rollouts = Rollouts((64,), 1, 100)
    task = Task("generation", model, device, layers, variant=scheme, rollouts=rollouts)
    return Outcome(task, 1.0, {"seconds": seconds, "traces": {}})


@pytest.mark.parametrize(
    ("ours", "theirs", "met"), [(1.41, 1.3, True), (1.39, 1.3, False), (1.5, 1.51, False), (1.41, None, True)]
)
def test_a_bar_is_a_ratio_and_never_below_the_engines_own(ours, theirs, met):
    outcomes = [outcome("qwen2.5-7b", "bf16", {"64": 1.0}), outcome("qwen2.5-7b", "int8-ours", {"64": 1 / ours})]
    outcomes += [outcome("qwen2.5-7b", "int8-vllm", {"64": 1 / theirs})] if theirs else []
    rows = {row.scheme: row for row in rollout_report.rows_of(outcomes)}
    assert rows["int8-ours"].met is met and rows["int8-ours"].ratio == pytest.approx(ours)
    assert rows["bf16"].met is None


@pytest.mark.parametrize("where", [{"device": "cpu"}, {"layers": 2}])
def test_bars_are_for_whole_models_on_a_gpu(where):
    outcomes = [outcome("qwen2.5-7b", scheme, {"64": 1.0}, **where) for scheme in ("bf16", "int8-ours")]
    assert [row.met for row in rollout_report.rows_of(outcomes)] == [None, None]


def test_the_spread_is_that_of_the_engines():
    outcomes = [outcome("tiny", "bf16", {"64": seconds}) for seconds in (64.0, 80.0)]
    (row,) = rollout_report.rows_of(outcomes)
    assert row.rates == (100.0, 80.0) and row.rate == 90 and row.spread == pytest.approx(20 / 90)


def test_a_failed_engine_ends_the_command_with_1(monkeypatch):
    task = outcome("tiny", "bf16", {}).task
    monkeypatch.setattr(rollout, "in_turn", lambda *rest: [Outcome(task, 1.0, None, "out of memory")])
    run = CliRunner().invoke(rollout.app, ["--models", "tiny"])
    assert run.exit_code == 1 and "wrong: out of memory" in run.output


def test_a_trace_that_says_nothing_is_a_fault_beside_good_seconds(monkeypatch):
    found = outcome("tiny", "bf16", {"64": 2.0})
    found.result["faults"] = ["no heads"]
    monkeypatch.setattr(rollout, "in_turn", lambda *rest: [found])
    run = CliRunner().invoke(rollout.app, ["--models", "tiny"])
    assert run.exit_code == 1 and "wrong: no heads" in run.output and "3200" in run.output


def traced(names: list[str], steps: int, model, cut: int = 0) -> trace.Trace:
    """So many steps of these kernels, each of 2 us with 1 us between them; the first `cut` kernels are missing."""
    kernels = [Kernel(name, 3.0 * i, 2.0) for i, name in enumerate(names * steps)][cut:]
    return trace.Trace.of(list(zip(*kernels, strict=True)), model)


LAYER = ["triton_red_fused_norm", "cutlass_3x_gemm", "flash_fwd", "nvjet_o", "nvjet_gu", "nvjet_d", "splitKreduce"]
STEP = ["triton_poi_fused_embedding", *LAYER * TINY.layers, "nvjet_head", "triton_red_fused_softmax", "argmax"]


@pytest.mark.parametrize("cut", [0, 5, len(STEP) - 3])
def test_products_are_told_apart_by_their_order(cut):
    found = traced(STEP, 4, TINY, cut)
    assert found.steps == 3
    shares = found.shares()
    assert {name: share.count for name, share in shares.items()} == {
        **{f"product: {name}": TINY.layers for name in ("qkv", "o", "gate_up")},
        "product: down": 2 * TINY.layers,  # with what adds its parts up
        "product: lm_head": 1,
        "attention": TINY.layers,
        "norm and other fused": TINY.layers - 1,
        "sampling and bookkeeping": 4,  # with the next step's embedding and first norm
    }
    assert sum(share.us for share in shares.values()) == pytest.approx(2.0 * len(STEP))
    assert found.busy_us() == pytest.approx(2.0 * len(STEP))
    assert found.by_name()["flash_fwd"] == (2.0 * TINY.layers, TINY.layers)


def test_products_of_an_unknown_number_keep_no_place():
    names = ["nvjet_a"] * 5 + ["nvjet_b", "fill"]
    shares = traced(names, 5, MIXED).shares()
    assert {name: share.count for name, share in shares.items()} == {"product": 6, "other": 1}
    with pytest.raises(ValueError, match="no two language-model heads among 7 kernels"):
        traced(names, 1, MIXED)


def test_a_kernel_belongs_to_one_kind():
    kinds = {
        "fused_moe_kernel": "experts: products",
        "void vllm::moe::topkGating<8>": "experts: routing",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90>": "attention",
        "void cutlass::device_kernel<vllm::cutlass_3x_gemm<signed char>": "product",
        "void vllm::dynamic_scaled_int8_quant_kernel": "quantization",
        "gate_up": "experts: products",
        "prepare": "experts: routing",
        "combine": "experts: routing",
        "quantize_pairs": "quantization",
        "norm_rows": "norm or activation with quantization",
        "int8_product_tiles": "product",
        "router_tiles": "product",
        "triton_red_fused_fused_add_rms_norm_0": "norm and other fused",
        "triton_red_fused__to_copy_abs_cutlass_scaled_mm_max_1": "quantization",
        "Memcpy HtoD (Pinned -> Device)": "other",
    }
    assert {name: trace.kind_of(name) for name in kinds} == kinds


def test_overlapping_kernels_are_counted_once():
    kernels = [Kernel("a", 0, 10), Kernel("b", 5, 2), Kernel("c", 8, 4), Kernel("d", 20, 1)]
    found = trace.Trace(kernels, [""] * 4, 1)
    assert found.busy_us() == 13
    assert {name: share.us for name, share in found.by_name().items()} == {"a": 10, "b": 0, "c": 2, "d": 1}


def test_floors_of_a_model():
    rates = Rates(copy=1e12, bf16=1e15)
    model = MODELS["qwen2.5-7b"]
    weights = {name: count * n * k for name, count, n, k in products(model)}
    shapes = model.shapes()
    quantized = sum(weights.values()) - weights["lm_head"]
    assert quantized == sum(torch.Size(shape).numel() for name, shape in shapes.items() if "proj.weight" in name), (
        "every projection, once"
    )
    one = floors(model, "int8-ours", 1, 1000, rates)
    assert one["product: gate_up"] == pytest.approx(weights["gate_up"] / 1e6, rel=1e-3)  # bytes at 1e12 a second
    assert one["product: lm_head"] == pytest.approx(2 * weights["lm_head"] / 1e6, rel=1e-3)
    many = floors(model, "int8-ours", 1 << 20, 1000, rates)
    assert many["product: gate_up"] == pytest.approx((2 << 20) * weights["gate_up"] / 2e15 * 1e6)
    assert floors(model, "bf16", 1, 1000, rates)["product: down"] == pytest.approx(2 * one["product: down"], rel=1e-2)
    assert one["attention"] == pytest.approx(1000 * 28 * 2 * 4 * 128 * 2 / 1e6)


def test_floors_of_experts():
    model, rates = MODELS["qwen3-30b-a3b"], Rates(1e12, 1e15)
    layer = sum(torch.Size(shape).numel() for name, shape in model.shapes().items() if "layers.0.mlp.experts" in name)
    all_of_them = floors(model, "int8-ours", 4096, 1, rates)["experts: products"]
    assert all_of_them == pytest.approx(48 * layer / 1e6, rel=1e-3)
    alone = floors(model, "int8-ours", 1, 1, rates)["experts: products"]
    assert alone == pytest.approx(all_of_them * 8 / 128, rel=1e-3)


def test_random_weights_have_a_models_spread():
    generator = torch.Generator().manual_seed(0)
    codes, scale, plain, norm = torch.zeros(3, 64, 96, dtype=torch.int8), *(torch.zeros(64, 96) for _ in range(3))
    places = (("w", codes.transpose(1, 2)), ("weight_scale", scale), ("head", plain), ("norm", norm))
    for name, values in places:
        fill(name, values, 127, generator)
    assert (norm == 1).all() and float(plain.std()) == pytest.approx(0.02, rel=0.05)
    assert float((codes * scale[0, 0]).std()) == pytest.approx(0.02, rel=0.05)
    assert int(codes.max()) > 110 and int(codes.min()) < -110 and codes.unique().numel() > 200
