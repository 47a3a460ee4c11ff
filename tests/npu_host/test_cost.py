"""The cost of a refit on an NPU, counted: nothing may grow unseen, and docs/npu_ops.md tells what is."""

import os
from pathlib import Path

import pytest
import torch

from ascend_quant.kernels import npu, npu_codes
from ascend_quant.refit import proof
from npu_host import cost_models, costs, page
from npu_host.cost_counter import Counted
from npu_host.costs import Entry

SMALL = cost_models.Sizes("small", 256, 512, 2, 4, 2, 320, head=64, bias=True)


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    found = [entry for model in costs.MODELS for form in costs.FORMATS for entry in costs.entries_of(model, form)]
    if path := os.environ.get("NPU_COST"):
        costs.write_json(Path(path), found)
    return found


def test_no_count_is_over_its_budget(entries):
    over = [line for entry in entries for line in entry.over_budget()]
    assert not over, "\n".join(over)


def test_the_budgets_are_what_was_promised():
    for (model, proved), (ops, views, moved) in costs.BUDGET.items():
        layers = costs.MODELS[model].layers
        if model == "7b":
            assert ops <= (150 * layers) and views <= 300 * layers and moved <= (28 if proved else 24)
        else:
            assert ops <= 15_000 and views <= 60_000


def test_the_page_is_what_is_counted(entries):
    text = costs.section(entries)
    if os.environ.get("NPU_OPS") == "write":
        page.write_cost(text)
    assert page.cost() == text, f"write it anew: {page.COMMAND}"


def test_each_entry_has_the_keys_that_others_read(entries):
    found = [entry.as_json() for entry in entries]
    assert [(one["model"], one["format"], one["proof"]) for one in found] == [
        (model, form, on) for model in costs.MODELS for form in costs.FORMATS for on in (False, True)
    ]
    keys = "model format proof layers elements ops views bytes_per_element hidden h2d d2h waits aicpu by_step"
    assert all(list(one) == keys.split() for one in found)
    assert [one["elements"] for one in found[::4]] == [7_615_616_512, 30_532_122_624]  # as their model cards say
    for one in found:
        assert one["ops"] == sum(step[0] for step in one["by_step"].values())
        assert one["views"] == sum(step[1] for step in one["by_step"].values())


PLANTED = {
    "a copy of what is quantized": lambda x: x.clone(),
    "a cast there and back": lambda x: x.to(torch.float32).to(x.dtype),
    "a blocking copy to the device": lambda x: (torch.zeros(4).to(x.device), x)[1],
    "a look at the device": lambda x: (x.view(-1)[:1].cpu(), x)[1],
    "an operator of the AICPU": lambda x: (
        torch.zeros(4, dtype=torch.int64, device=x.device).index_add_(
            0, torch.zeros(2, dtype=torch.int64, device=x.device), torch.ones(2, dtype=torch.int64, device=x.device)
        ),
        x,
    )[1],
    "a view a row": lambda x: [x[row] for row in range(200)] and x,
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_over_the_budget(monkeypatch, what):
    right = npu.rows_of
    monkeypatch.setattr(npu, "rows_of", lambda *args, **kwargs: PLANTED[what](right(*args, **kwargs)))
    assert costs.entries_of("7b", "nz")[0].over_budget()


@pytest.mark.parametrize("layers", [1, 3])
def test_the_trainers_proof_waits_twice_however_many_tensors_there_are(layers):
    weights = [
        (name, torch.ones(tensor.shape, dtype=tensor.dtype, device="npu"))
        for bucket in cost_models.model_of(SMALL, True, layers).buckets
        for name, tensor in bucket.weights
    ]
    list(proof.sending(weights))  # makes the tables
    with Counted() as counted:
        sent = list(proof.sending(weights))
    assert len(sent) == len(weights) + 1
    assert (counted.total.waits, counted.total.h2d, counted.total.d2h) == (2, 1, 1)
    assert not counted.total.aicpu


def test_work_space_does_not_grow_from_refit_to_refit(monkeypatch):
    monkeypatch.setattr(npu_codes, "way_of", lambda device: costs.WAY._replace(elements=1 << 16))
    monkeypatch.setattr("ascend_quant.refit.batch.kernels_for", lambda device: npu)
    for layers, refits in ((1, 50), (4, 2)):
        model, peaks = cost_models.model_of(SMALL, True, layers), set()
        with Counted():
            costs.refit(model)  # makes the tables
        for _ in range(refits):
            with Counted() as counted:
                costs.refit(model)
            peaks.add((counted.peak, counted.left))
        assert len(peaks) == 1 and peaks.pop()[1] == 0
