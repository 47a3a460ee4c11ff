"""What `ascend-quant advise` prints, and the status with which it ends."""

import json

import pytest
from naming import has_line_naming

pytest.importorskip("typer", reason="the command line needs it")
pytest.importorskip("rich", reason="the command line needs it")

import typer
from typer.testing import CliRunner

from ascend_quant.advise import roofline, steps
from ascend_quant.commands.advise import advise
from benchmarks.models import get_model


@pytest.fixture
def run(tmp_path):
    """Run the command for a model of the benchmark; returns the status and what was printed, its lines unbroken."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(advise)

    def run(model, *options):
        folder = tmp_path / model
        folder.mkdir(exist_ok=True)
        return of(get_model(model).write_config(folder), *options)

    def of(folder, *options):
        result = CliRunner().invoke(app, [str(folder), *map(str, options)])
        return result.exit_code, result.output

    run.of = of
    return run


def test_a_dense_model(run):
    status, text = run("qwen2.5-32b", "--device", "H200", "--batch", 64, "--in", 256, "--out", 512)
    assert status == 0
    for words in (
        *(part for part in steps.PARTS if part not in (steps.EXPERTS, steps.DEVICES)),
        *("bf16, fp8 cache", "int8, int8 cache", "int8-vllm", "fp8, fp8 cache"),
        *("waves", "tokens/s", "sequences fit", "Assumed:"),
    ):
        assert words in text, words
    assert "int8 pays:" in text and "fp8 pays:" in text and "memory-bound" in text and roofline.WEIGHTS in text
    assert "measured" in text and "mean context of 512 tokens" in text and "captured graphs" in text
    assert steps.EXPERTS not in text and "between devices" not in text and "…" not in text


def test_json_says_the_same_in_figures(run):
    status, text = run("qwen2.5-7b", "--device", "h200", "--batch", 256, "--json")
    found = json.loads(text)
    caches = {name: ("", ", int8 cache", ", fp8 cache") for name in ("bf16", "int8")}
    caches |= {name: ("", ", fp8 cache") for name in ("int8-vllm", "fp8")}
    assert status == 0
    assert list(found["rollouts"]) == [f"{name}{cache}" for name in caches for cache in caches[name]]
    tokens = {scheme: rollout["tokens_per_second"] for scheme, rollout in found["rollouts"].items()}
    assert found["speedups"] == {
        name: pytest.approx(tokens[name] / tokens["bf16"]) for name in tokens if name != "bf16"
    }
    assert found["workload"]["batch"] == 256 and found["workload"]["memory"] == 0.9
    assert found["device"]["name"] == "H200" and found["shape"]["hidden"] == 3584 and found["assumptions"]
    assert "compute-bound" in found["verdicts"]["int8"] and found["measured"] == []
    assert {"quantized", "scales", "rest", "sequence", "fits"} <= set(found["rollouts"]["int8"]["memory"])


def test_experts_and_measured_figures(run):
    options = ("--device", "H200", "--batch", 256, "--measured-bf16", 9819, "--measured-int8", 9419)
    status, text = run("qwen3-30b-a3b", *options, "--json")
    found = json.loads(text)
    speedup = found["speedups"]["int8"]
    assert status == 0
    assert found["measured"][-1].startswith(
        f"int8 / bf16: 0.96 measured, {0.9593 / speedup:.2f} of the expected {speedup:.2f}"
    )
    assert has_line_naming(found["assumptions"][-1], "128 experts", "256 tokens", "128.0", "16.0 rows")
    for line in found["measured"]:
        assert line in run("qwen3-30b-a3b", *options)[1]


def test_a_device_without_fp8_and_two_of_them(run):
    status, text = run("qwen2.5-7b", "--device", "A3", "--tp", 2)
    assert status == 0 and "fp8: A3 has no fp8 units." in text and "fp8 pays" not in text
    assert has_line_naming(text, "int8 cache: ", "C8", "A3") and has_line_naming(text, "fp8 cache: ", "C8", "A3")
    assert ", fp8 cache" not in text and ", int8 cache" not in text
    assert "one die" in text and "nobody measured" in text
    assert has_line_naming(text, "2 devices", "10 us") and "between devices" in text
    assert has_line_naming(text, "vllm-ascend's W8A8-dynamic kernels", "A3")


def test_int8_fits_where_bf16_does_not(run):
    status, text = run("qwen2.5-32b", "--device", "A2", "--batch", 4)
    assert status == 0 and "bf16: bf16 does not fit" in text and "int8 fits, where bf16 does not." in text
    assert run("qwen2.5-32b", "--device", "A2", "--batch", 4, "--memory", 0.5)[0] == 2  # 32.9 GiB of 32


def test_no_verdict_without_graphs_unless_the_host_was_measured(run):
    status, text = run("qwen2.5-7b", "--device", "A2", "--eager")
    assert status == 0 and has_line_naming(text, "int8: no verdict") and "pays" not in text and "captured" not in text
    found = json.loads(run("qwen2.5-7b", "--device", "A2", "--eager", "--launch-us", 100, "--json")[1])
    assert found["speedups"]["int8"] < 1 and found["verdicts"]["int8"].startswith("int8 ")  # more kernels, one by one
    assert has_line_naming(" ".join(found["assumptions"]), "100 us")


def test_a_config_of_several_towers(run, tmp_path):
    config = {
        "model_type": "qwen2_5_vl",
        "vision_config": {"depth": 32},
        "text_config": get_model("qwen2.5-7b").config(),
    }
    (tmp_path / "seeing").mkdir()
    (tmp_path / "seeing" / "config.json").write_text(json.dumps(config))
    result = run.of(tmp_path / "seeing", "--device", "H100")
    assert result[0] == 0 and has_line_naming(result[1], "Left out", "the vision tower")


def test_figures_of_ones_own_replace_the_table(run):
    options = ("--bandwidth", 2, "--bf16-rate", 300, "--int8-rate", 600)
    device = json.loads(run("qwen2.5-7b", "--device", "A2", *options, "--json")[1])["device"]
    assert device["bandwidth"] == 2e12 and device["rates"] == {"bf16": 300e12, "int8": 600e12}


@pytest.mark.parametrize(
    ("bandwidth", "low", "high", "words"),
    [(0.1, 1.7, 2, "int8 pays:"), (20, 0.9, 1.1, "int8 may pay or not"), (1000, 0.1, 0.9, "int8 does not pay:")],
)
def test_it_pays_where_bytes_count(run, bandwidth, low, high, words):
    """With little bandwidth the weights are all; with far too much, the kernels that quantize."""
    options = ("--device", "A2", "--bandwidth", bandwidth, "--batch", 1, "--in", 1, "--out", 1, "--json")
    found = json.loads(run("qwen2.5-7b", *options)[1])
    assert low < found["speedups"]["int8"] < high
    assert found["verdicts"]["int8"].startswith(words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device", "B200"), "no device 'B200'; known: A2"),
        (("--device", "A2", "--tp", 3), "--tp 3 … heads 28"),
        (("--device", "A2", "--batch", 0), "--batch … 1 … 1000000000, not 0"),
        (("--device", "A2", "--in", 0), "--in … at least 1"),
        (("--device", "A2", "--out", -1), "--out … at least 1"),
        (("--device", "A2", "--fp8-rate", 100), "A2 has no fp8 units"),
        (("--device", "A2", "--memory", 1.5), "--memory is a share"),
        (("--device", "A2", "--launch-us", 5), "--launch-us is for --eager"),
        (("--device", "A2", "--expert-parallel"), "--expert-parallel: "),
        (("--device", "A2", "--bandwidth", 1e-320), "--bandwidth"),
        (("--device", "A2", "--batch", 10**400), "--batch"),
        (("--device", "A2", "--tp", 10**400), "--tp"),
        (("--device", "A2", "--out", "9" * 5000), "--out"),
        (("--device", "A2", "--measured-fp8", 100), "--measured-fp8: … fp8"),
        (("--device", "A2", "--measured-bf16", "nan"), "--measured-bf16 … not nan"),
        (("--device", "A2", "--in", 10_000_000), "raise --tp"),
        ((), "--device"),
    ],
)
def test_bad_input(run, options, words):
    status, text = run("qwen2.5-7b", *options)
    assert status == 2 and has_line_naming(text, words)
    assert "Traceback" not in text
