"""The cost of a refit on an NPU, counted: nothing may grow unseen, and docs/npu_ops.md tells what is."""

import os

import pytest
import torch

from ascend_quant.kernels import npu
from ascend_quant.kernels.npu.refit import codes as npu_codes
from ascend_quant.kernels.npu.refit import write as npu_write
from ascend_quant.transfer import checksums
from npu_host import cost_models, costs, page
from npu_host.cost_counter import Counted
from npu_host.costs import Entry

pytestmark = pytest.mark.long(
    *("ascend_quant/kernels", "ascend_quant/refit", "ascend_quant/oracle", "tests/npu_host", "docs/npu_ops.md")
)
SMALL = cost_models.Sizes("small", 256, 512, 2, 4, 2, 320, head=64, bias=True)


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return [entry for model in costs.MODELS for form in costs.FORMATS for entry in costs.entries_of(model, form)]


def test_no_count_is_over_its_budget(entries):
    over = [line for entry in entries for line in entry.over_budget()]
    assert not over, "\n".join(over)


def test_the_page_is_what_is_counted(entries):
    text = costs.section(entries)
    if os.environ.get("NPU_OPS") == "write":
        page.write_cost(text)
    assert page.cost() == text, f"write it anew: {page.COMMAND}"


def test_the_models_are_as_large_as_their_cards_say(entries):
    assert [entry.elements for entry in entries[::4]] == [7_615_616_512, 30_532_122_624]


PLANTED = {
    "a copy of what is quantized": lambda x: x.clone(),
    "an operator of the AICPU": lambda x: (
        torch.zeros(4, dtype=torch.int64, device=x.device).index_add_(
            0, torch.zeros(2, dtype=torch.int64, device=x.device), torch.ones(2, dtype=torch.int64, device=x.device)
        ),
        x,
    )[1],
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_over_the_budget(monkeypatch, what):
    right = npu_write.rows_of
    monkeypatch.setattr(npu_write, "rows_of", lambda *args, **kwargs: PLANTED[what](right(*args, **kwargs)))
    assert costs.entries_of("7b", "nz")[0].over_budget()


@pytest.mark.parametrize("layers", [1, 3])
def test_the_trainers_proof_waits_twice_however_many_tensors_there_are(layers):
    weights = [
        (name, torch.ones(tensor.shape, dtype=tensor.dtype, device="npu"))
        for bucket in cost_models.model_of(SMALL, True, layers).buckets
        for name, tensor in bucket.weights
    ]
    list(checksums.sending(weights))  # makes the tables
    with Counted() as counted:
        sent = list(checksums.sending(weights))
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
