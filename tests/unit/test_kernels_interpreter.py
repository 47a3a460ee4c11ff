"""The interpreter that the CUDA kernels are tested in leaves no trace in this process."""

import os
from importlib import import_module

import pytest
from kernel_modules import interpreter

triton = pytest.importorskip("triton")


def test_triton_is_as_before_afterwards():
    ours = "ascend_quant.kernels.cuda.refit.triton_rows"
    before = import_module(ours)
    kind = type(triton.language.sum)
    with interpreter():
        inside = import_module("triton")
        assert inside is not triton
        for function in (inside.language.sum, import_module(ours).write_rows):
            assert type(function).__name__ == "InterpretedFunction"
    assert import_module("triton") is triton and type(triton.language.sum) is kind
    assert import_module(ours) is before and import_module("ascend_quant.kernels.cuda.refit").triton_rows is before
    assert "TRITON_INTERPRET" not in os.environ
