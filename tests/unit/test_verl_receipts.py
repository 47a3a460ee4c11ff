"""Receipts of many workers become one step's metrics; replicas that differ are an error."""

import pytest

from ascend_quant.integrations.verl.receipts import merge
from ascend_quant.refit import RefitError


def receipt(digest, milliseconds=1.0, nonfinite=0, changed=0.5, tensors=10, proved=10):
    values = dict(tensors=tensors, bytes=20, milliseconds=milliseconds, nonfinite=nonfinite, changed=changed)
    values["proved"] = proved
    return {f"refit/{name}": value for name, value in {**values, "digest": digest}.items()}


def test_merges_ranks_and_replicas():
    first = [receipt(7, milliseconds=3.0, changed=0.2), receipt(8, nonfinite=1, tensors=99, proved=9)]
    second = [receipt(7, milliseconds=9.0, changed=0.2), receipt(8, nonfinite=2)]
    assert merge([first, second]) == {
        "refit/tensors": 10,
        "refit/bytes": 20,
        "refit/milliseconds": 9.0,
        "refit/nonfinite": 3,
        "refit/changed": pytest.approx(0.35),
        "refit/proved": 9,
        "refit/digest": 7,
    }


def test_replicas_that_differ_are_an_error():
    with pytest.raises(RefitError, match=r"different weights: digests \[8, 9\] at tensor-parallel rank 1"):
        merge([[receipt(7), receipt(8)], [receipt(7), receipt(9)]])


def test_a_worker_without_a_receipt_is_an_error():
    with pytest.raises(RefitError, match=r"\(1, 0\)"):
        merge([[receipt(7)], [None]])
