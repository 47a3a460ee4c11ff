"""A weight sync on paper: bytes are those of the tensors, what changes is what a random walk changes, pages follow."""

import json
import math

import pytest
import torch

from ascend_quant.advise import AdviceError, syncs
from ascend_quant.advise.devices import get_device
from ascend_quant.advise.families import shape_of
from ascend_quant.advise.syncs import Route
from ascend_quant.refit import coding, delta
from ascend_quant.schemes import SCHEMES
from benchmarks import sync_time
from benchmarks.models import get_model

MODELS = ("qwen2.5-7b", "qwen2.5-32b", "qwen3-30b-a3b")
H200 = get_device("H200")


@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_those_of_the_tensors(name):
    model = get_model(name)
    shape = shape_of(model.config())
    bf16 = int8 = 0
    for tensor, dims in model.shapes().items():
        bf16 += 2 * math.prod(dims)
        codes = ("_proj" in tensor and not tensor.endswith("bias")) and len(dims) > 1
        int8 += math.prod(dims[:-1]) * (dims[-1] + coding.TAIL) if codes else 2 * math.prod(dims)
    assert syncs.TAIL == coding.TAIL
    assert syncs.sent_bytes(shape, "bf16") == pytest.approx(bf16, rel=1e-3)  # norms and biases are left out
    assert syncs.sent_bytes(shape, "int8") == pytest.approx(int8, rel=1e-3)


def test_what_changes_is_what_a_random_walk_changes():
    generator, sender = torch.Generator().manual_seed(0), delta.Sender()
    w = [torch.randn(256, 3584, generator=generator) * 0.02 for _ in range(2)]
    for _ in range(2):
        sender.against = sender.number
        quantized = coding.coded([("w", w[0].bfloat16())], SCHEMES["int8"])
        *blobs, _ = sender.blobs([quantized, [("e", w[1].bfloat16())]])
        w = [one + 1e-6 * torch.randn(one.shape, generator=generator).sign() for one in w]
    found = [blob.numel() / (2 * one.numel()) for (_, blob), one in zip(blobs, w, strict=True)]
    assert found == pytest.approx([syncs.CODES_CHANGED, syncs.PLAIN_CHANGED], rel=0.2)


def test_a_measured_sync_of_a_7b_is_met():
    found = syncs.syncs(shape_of(get_model("qwen2.5-7b").config()), H200, Route(2, 1))
    assert [*found] == ["bf16", "int8"] and not found["bf16"].unknown
    assert found["bf16"].together == pytest.approx(0.656, rel=0.03)
    assert set(found["int8"].seconds) <= set(syncs.HOPS)


@pytest.mark.parametrize("device", ["H200", "A3"])
def test_the_wire_is_bytes_over_it_and_one_device_gathers_nothing(device):
    shape = shape_of(get_model("qwen3-30b-a3b").config())
    found = syncs.syncs(shape, get_device(device), Route(1, 2, 10e9))
    for send in syncs.SENDS:
        assert found[send].bytes == syncs.sent_bytes(shape, send)
        assert found[send].seconds["wire"] == pytest.approx(syncs.sent_bytes(shape, send) / 7e9)
        assert found[send].seconds["gather"] == 0 and found[send].unknown
    assert found["delta"].together < found["int8"].together < found["bf16"].together
    far, near = (syncs.syncs(shape, H200, Route(trainers, 2, 10e9))["bf16"] for trainers in (16, 8))
    assert far.seconds["gather"] > 40 * near.seconds["gather"]


@pytest.mark.parametrize("route", [(0, 1, None), (1, 1, 1.0), (1, 1, 1e14)])
def test_routes_that_are_none(route):
    with pytest.raises(AdviceError, match=r"--(sync-from|wire)"):
        Route(*route)


def test_the_pages_have_the_table():
    for page in sync_time.PAGES:
        text = page.read_text()
        assert sync_time.into(text) == text and text.count("| qwen3-235b-a22b |") == 6


def test_the_command_prints_it(tmp_path):
    typer = pytest.importorskip("typer")
    from typer.testing import CliRunner

    from ascend_quant.commands.advise import advise

    app = typer.Typer()
    app.command()(advise)
    folder = str(get_model("qwen2.5-7b").write_config(tmp_path))
    asked = [folder, "--device", "H200", "--sync-from", "8", "--wire", "50"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0 and "delta" in shown.output and "a weight sync" in shown.output
    found = json.loads(CliRunner().invoke(app, [*asked, "--json"]).output)["sync"]
    assert [*found["sends"]] == [*syncs.SENDS] and found["wire"] == 50e9
    assert CliRunner().invoke(app, [folder, "--device", "H200", "--wire", "50"]).exit_code == 2
    without = json.loads(CliRunner().invoke(app, [folder, "--device", "H200", "--json"]).output)
    assert "sync" not in without
