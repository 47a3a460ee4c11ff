"""Fingerprints: an engine and a trainer that are to give the same bits must share versions, device and switches."""

import torch
from naming import has_line_naming

from ascend_quant.exact.fingerprint import differences, fingerprint


def test_a_process_has_its_own():
    found = fingerprint()
    assert found["torch"] == torch.__version__ and "device" in found
    assert all(isinstance(value, str) for value in found.values())
    assert differences(found, fingerprint()) == []


def test_a_variable_that_chooses_kernels_belongs_to_it(monkeypatch):
    before = fingerprint()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    (only,) = differences(before, fingerprint())
    assert has_line_naming(only, "ONEDNN_MAX_CPU_ISA", "absent", "AVX2")


def test_differences_name_both_sides():
    engine, trainer = {"torch": "2.13.0", "device": "H100"}, {"torch": "2.12.0", "device": "H100", "triton": "3.6.0"}
    found = differences(engine, trainer)
    assert len(found) == 2
    for said, values in zip(found, (("torch", "2.13.0", "2.12.0"), ("triton", "absent", "3.6.0")), strict=True):
        assert all(value in said for value in values)
