"""Our NPU kernels on npu:0: bytes, counters and digests are the oracle's, as tests/unit sees on the CPU's tensors."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from ascend_quant import oracle
from ascend_quant.kernels import npu, reciprocals
from ascend_quant.kernels.npu import ops as npu_ops
from ascend_quant.kernels.npu.refit import codes as npu_codes
from ascend_quant.kernels.npu.refit import write as npu_write

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # the cases are those of the other devices
from kernel_modules import Kernels
from write_cases import COPIES, DTYPES, FLOAT32, LAYOUTS, Case, awkward_values, cases, check

pytestmark = pytest.mark.each_version

NPU = Kernels(npu, torch.device("npu:0"))


@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(cases().filter(lambda case: case.kind in ("int8", "int8 codes", *FLOAT32, *COPIES)))
def test_any_case_equals_the_oracle(case):
    check(NPU, [case])


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_in_one_batch(monkeypatch, dtype):
    monkeypatch.setattr(npu_write, "ELEMENTS", 200)
    batch = []
    for i, layout in enumerate(LAYOUTS):
        columns = slice(2, 9) if layout.startswith("columns") else slice(None)
        for kind in ("int8", "int8 codes", *FLOAT32):
            batch.append(Case(kind, awkward_values(5 + i, 16, dtype, i), layout, columns, 60 * i, 2 * i + 1))
    check(NPU, batch)


def test_the_fused_operators_are_taken_and_without_one_the_chain(monkeypatch):
    assert npu_codes.way_of(NPU.device)[:2] == (npu_codes.absmax_by_norm, npu_codes.codes_fused)

    def without(name):
        raise npu_ops.MissingOperator(f"{name} is not there")

    monkeypatch.setattr(npu_codes, "operator", without)
    npu_codes.way_of.cache_clear()
    assert npu_codes.way_of(NPU.device).codes is reciprocals.codes_of
    check(NPU, [Case("int8", awkward_values(9, 33, torch.bfloat16, 1))])
    npu_codes.way_of.cache_clear()


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32])
def test_digests_equal_the_oracle(dtype):
    tensors = [torch.randint(-100, 100, shape).to(dtype) for shape in ((7, 9), (5,), (2, 3, 4))]
    found = npu.digests([tensor.npu() for tensor in tensors]).tolist()
    assert found == [oracle.digest(tensor) for tensor in tensors]
