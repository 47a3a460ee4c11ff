"""Receipts of many workers become one step's metrics; replicas that serve alike and differ are an error."""

import pytest

from ascend_quant.integrations.verl.receipts import merge
from ascend_quant.refit import RefitError


def receipt(digest, milliseconds=1.0, nonfinite=0, changed=0.5, tensors=10, proved=10, clamped=3):
    values = dict(tensors=tensors, bytes=20, milliseconds=milliseconds, nonfinite=nonfinite, changed=changed)
    values |= {"proved": proved, "clamped": clamped, "kernel_ms": milliseconds / 4, "wait_ms": milliseconds / 2}
    values |= {"memory_ms": milliseconds / 8}
    return {f"refit/{name}": value for name, value in {**values, "digest": digest}.items()}


def test_merges_ranks_and_replicas():
    first = [receipt(7, milliseconds=3.0, changed=0.2), receipt(8, clamped=4, nonfinite=1, tensors=99, proved=9)]
    second = [receipt(7, milliseconds=9.0, changed=0.2), receipt(8, nonfinite=2)]
    together = {
        "refit/tensors": 10,
        "refit/bytes": 20,
        "refit/milliseconds": 9.0,
        "refit/kernel_ms": 2.25,
        "refit/wait_ms": 4.5,
        "refit/memory_ms": 1.125,
        "refit/nonfinite": 3,
        "refit/clamped": 7,  # of a model's two ranks; a replica has the same
        "refit/changed": pytest.approx(0.35),
        "refit/proved": 9,
        "refit/digest": 7,
    }
    replica0 = {
        "refit/replica0/tensors": 10,
        "refit/replica0/bytes": 20,
        "refit/replica0/milliseconds": 3.0,
        "refit/replica0/kernel_ms": 0.75,
        "refit/replica0/wait_ms": 1.5,
        "refit/replica0/memory_ms": 0.375,
        "refit/replica0/nonfinite": 1,
        "refit/replica0/clamped": 7,
        "refit/replica0/changed": pytest.approx(0.35),
        "refit/replica0/proved": 9,
        "refit/replica0/digest": 7,
    }
    metrics = merge({0: first, 3: second}, {0: "int8", 3: "int8"})
    replica3 = {name for name in metrics if name.startswith("refit/replica3/")}
    assert {name: value for name, value in metrics.items() if name not in replica3} == together | replica0
    assert metrics["refit/replica3/milliseconds"] == 9.0 and metrics["refit/replica3/clamped"] == 6
    assert len(replica3) == len(replica0)


def test_one_replica_has_no_figures_of_its_own():
    assert merge({0: [receipt(7)]}, {0: "int8"}) == receipt(7)


def test_replicas_that_serve_alike_and_differ_are_an_error():
    replicas = {0: [receipt(7), receipt(8)], 1: [receipt(1), receipt(2)], 2: [receipt(7), receipt(9)]}
    with pytest.raises(RefitError, match=r"replicas \[0, 2\] serve different.*digests \[8, 9\] at worker 1"):
        merge(replicas, {0: "int8", 1: "bf16", 2: "int8"})


def test_replicas_of_different_schemes_have_different_bytes():
    metrics = merge({0: [receipt(7, clamped=5)], 1: [receipt(9, clamped=0)]}, {0: "int8", 1: "bf16"})
    assert (metrics["refit/replica0/digest"], metrics["refit/replica1/digest"]) == (7, 9)
    assert metrics["refit/clamped"] == 5  # a copy of the model that loses more, not the sum of the copies


def test_a_worker_without_a_receipt_is_an_error():
    with pytest.raises(RefitError, match=r"\(4, 0\)"):
        merge({2: [receipt(7)], 4: [None]}, {2: "int8", 4: None})


def test_replicas_whose_caches_have_other_scales_or_none_are_an_error():
    scales = {"refit/kv_scales/digest": 5, "refit/kv_scales/sent": 1, "refit/kv_scales/age": 0}
    receipts = [receipt(7) | scales, receipt(7) | scales, receipt(7)]
    metrics = merge({0: receipts[:1], 1: receipts[1:2]}, {0: "int8", 1: "int8"})
    assert metrics.items() >= scales.items()
    for other in (receipts[2], receipts[1] | {"refit/kv_scales/digest": 6}):
        with pytest.raises(RefitError, match=r"replicas \[0, 1\] serve different"):
            merge({0: receipts[:1], 1: [other]}, {0: "int8", 1: "int8"})
