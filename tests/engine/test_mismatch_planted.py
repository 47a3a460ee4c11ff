"""`ascend-quant mismatch` on models of which it is known what is wrong, and on healthy ones, through its engines.

By hand, ASCEND_QUANT_PLANTED=1: some twenty engines start. tests/unit/test_mismatch_culprits.py has the same models
without engines; what is blamed and suggested here goes by the engine's names.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import outlier_models as models
import pytest
import torch
from test_mismatch_command import run
from torch import nn

pytestmark = pytest.mark.skipif(not os.environ.get("ASCEND_QUANT_PLANTED"), reason="by hand: ASCEND_QUANT_PLANTED=1")

NORM_FED = {r"re:.*\.qkv_proj$", r"re:.*\.gate_up_proj$"}
LAYER, EXPERTS = "model.layers.2.self_attn.o_proj", "model.layers.1.mlp.experts"


def report_of(model: Path, *options: object) -> dict:
    """Without a tokenizer the prompts are 16 times 32 random tokens."""
    file = model / "report.json"
    run(model, "--scheme", "int8", "--max-tokens", 32, "--out", file, *options)
    found = json.loads(file.read_text())
    tried = found["with_suggestion"] and found["with_suggestion"]["k3_kl"]
    print(f"KL {found['mismatch']['k3_kl']:.2g}, noise {found['noise']['k3_kl']:.2g}, with the suggestion {tried}")
    print([(one["what"], one["name"], one["times"]) for one in found["culprits"]])
    print(f"largest factor {max(layer['times'] for layer in found['layers']):.2f}")
    return found


def saved(model: nn.Module, folder: Path) -> Path:
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("make", "plant", "what", "name", "ignore"),
    [
        (models.dense, models.one_layer, "layer", LAYER, {LAYER}),
        (models.dense, models.one_kind, "kind", "down_proj", {r"re:.*\.down_proj$"}),
        (models.mixture_model, models.one_expert, "expert", EXPERTS, {EXPERTS}),
        (models.dense, models.inputs_of_all, "channels", None, NORM_FED),
        (models.dense, models.embedding, "embedding", "model.embed_tokens", NORM_FED),
        (models.dense, models.head, "head", "lm_head", set()),
    ],
)
def test_the_culprit_is_named_alone(
    tmp_path: Path, make: Callable, plant: Callable, what: str, name: str | None, ignore: set[str]
):
    found = report_of(saved(models.planted(make(3), plant), tmp_path / "model"))
    (culprit,) = found["culprits"]
    assert culprit["what"] == what and name in (None, culprit["name"])
    assert culprit["channels"] == (models.CHANNELS if what in ("channels", "embedding", "head") else [])
    assert culprit["experts"] == ([3] if what == "expert" else [])
    assert set(found["suggested_ignore"]["ignore"]) == ignore


@pytest.mark.parametrize("make", [models.dense, models.mixture_model])
def test_nothing_is_to_blame_in_a_healthy_model(tmp_path: Path, make: Callable):
    assert report_of(saved(make(0), tmp_path / "model"))["culprits"] == []


def test_nor_in_the_trained_model_of_the_demo(tmp_path: Path):
    from launch.demo.tasks import all_problems
    from launch.demo.training import Choices
    from launch.demo.warmup import make_start

    make_start(Choices((), 1, 0, "qwen2"), tmp_path / "start", lambda done: None)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(problem.prompt for problem in all_problems()))
    assert report_of(tmp_path / "start", "--prompts", prompts)["culprits"] == []
