"""What `ascend-quant advise` prints, and the status with which it ends."""

import json

import pytest

pytest.importorskip("typer", reason="the command line needs it")
pytest.importorskip("rich", reason="the command line needs it")

import typer
from typer.testing import CliRunner

from ascend_quant.advise import steps
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
        result = CliRunner().invoke(app, [str(get_model(model).write_config(folder)), *map(str, options)])
        return result.exit_code, result.output

    return run


def test_a_dense_model(run):
    status, text = run("qwen2.5-32b", "--device", "H200", "--batch", 64, "--in", 256, "--out", 512)
    assert status == 0
    for words in (
        *(part for part in steps.PARTS if part not in (steps.EXPERTS, steps.DEVICES)),
        "tokens/s",
        "Assumed:",
    ):
        assert words in text, words
    assert "int8 pays:" in text and "fp8 pays:" in text and "memory-bound" in text
    assert "measured: a large copy" in text and "mean context of 512 tokens" in text
    assert steps.EXPERTS not in text and "between devices" not in text


def test_json_says_the_same_in_figures(run):
    status, text = run("qwen2.5-7b", "--device", "h200", "--batch", 256, "--json")
    found = json.loads(text)
    assert status == 0 and list(found["rollouts"]) == ["bf16", "int8", "fp8"]
    tokens = {scheme: rollout["tokens_per_second"] for scheme, rollout in found["rollouts"].items()}
    assert found["speedups"] == {scheme: pytest.approx(tokens[scheme] / tokens["bf16"]) for scheme in ("int8", "fp8")}
    assert found["workload"] == {"tp": 1, "batch": 256, "inputs": 256, "outputs": 512}
    assert found["device"]["name"] == "H200" and found["shape"]["hidden"] == 3584 and found["assumptions"]
    assert "compute-bound" in found["verdicts"]["int8"] and found["experts"] == found["measured"] == []


def test_experts_and_measured_figures(run):
    options = ("--device", "H200", "--batch", 256, "--measured-bf16", 9819, "--measured-int8", 9419)
    status, text = run("qwen3-30b-a3b", *options, "--json")
    found = json.loads(text)
    speedup = found["speedups"]["int8"]
    assert status == 0 and "depends on the kernel of the experts" in found["verdicts"]["int8"]
    assert found["measured"][-1].startswith(f"int8 / bf16: 0.96 measured, {0.9593 / speedup:.2f} of the {speedup:.2f}")
    assert "1.22 at batch 64" in found["experts"][0] and "0.96 at batch 256" in found["experts"][0]
    assert f"to {speedup * 0.75:.2f}, not {speedup:.2f}" in found["experts"][1]  # 0.75 of the roofline at batch 64
    assert "128 experts at random: 256 tokens in a step reach 128.0, with 16.0 rows each" in found["assumptions"][-1]
    for line in (*found["measured"], *found["experts"]):
        assert line in run("qwen3-30b-a3b", *options)[1]


def test_a_device_without_fp8_and_two_of_them(run):
    status, text = run("qwen2.5-7b", "--device", "A3", "--tp", 2)
    assert status == 0 and "fp8: A3 has no fp8 units." in text and "fp8 pays" not in text
    assert "one die of the two" in text and "nobody measured this device" in text
    assert "2 devices: two ring all-reduces a layer, 10 us each" in text and "between devices" in text


def test_int8_fits_where_bf16_does_not(run):
    status, text = run("qwen2.5-32b", "--device", "A2", "--batch", 4)
    assert status == 0 and "bf16: bf16 does not fit" in text and "int8 fits, where bf16 does not." in text


def test_figures_of_ones_own_replace_the_table(run):
    options = ("--bandwidth", 2, "--bf16-rate", 300, "--int8-rate", 600, "--efficiency", 0.9)
    device = json.loads(run("qwen2.5-7b", "--device", "A2", *options, "--json")[1])["device"]
    assert device["bandwidth"] == 2e12 and device["rates"] == {"bf16": 300e12, "int8": 600e12}
    faster, slower = (
        json.loads(run("qwen2.5-7b", "--device", "A2", "--efficiency", part, "--json")[1])["rollouts"]["int8"][
            "seconds"
        ]
        for part in (0.9, 0.5)
    )
    assert faster < slower


@pytest.mark.parametrize(
    ("bandwidth", "low", "high", "words"),
    [(0.1, 1.7, 2, "int8 pays:"), (20, 0.9, 1.1, "int8 may pay or not"), (1000, 0.1, 0.9, "int8 does not pay:")],
)
def test_it_pays_where_bytes_count(run, bandwidth, low, high, words):
    """With little bandwidth the weights are all; with far too much, the kernels that quantize."""
    options = ("--device", "H200", "--bandwidth", bandwidth, "--batch", 1, "--in", 1, "--out", 1, "--json")
    found = json.loads(run("qwen2.5-7b", *options)[1])
    assert low < found["speedups"]["int8"] < high
    assert found["verdicts"]["int8"].startswith(words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device", "B200"), "no device 'B200'; known: A2"),
        (("--device", "A2", "--tp", 3), "--tp 3 does not divide the model's heads 28"),
        (("--device", "A2", "--batch", 0), "--batch must be at least 1, not 0"),
        (("--device", "A2", "--in", 0), "--in must be at least 1, not 0"),
        (("--device", "A2", "--out", -1), "--out must be at least 1, not -1"),
        (("--device", "A2", "--fp8-rate", 100), "A2 has no fp8 units"),
        (("--device", "A2", "--efficiency", 1.5), "--efficiency must be above 0 and at most 1, not 1.5"),
        (("--device", "A2", "--measured-fp8", 100), "--measured-fp8: there is no estimate for fp8"),
        (("--device", "A2", "--measured-bf16", "nan"), "--measured-bf16 must be a positive number, not nan"),
        (("--device", "A2", "--in", 10_000_000), "raise --tp"),
        ((), "--device"),
    ],
)
def test_bad_input(run, options, words):
    status, text = run("qwen2.5-7b", *options)
    assert status == 2 and words in text
    assert "Traceback" not in text
