"""The interpreter that the CUDA kernels are tested in leaves no trace in this process."""

import os
import subprocess
import sys
from importlib import import_module

import pytest
from kernel_modules import interpreter

triton = pytest.importorskip("triton")


def test_triton_is_as_before_afterwards():
    ours = "ascend_quant.kernels.triton_rows"
    before = import_module(ours)
    kind = type(triton.language.sum)
    with interpreter():
        inside = import_module("triton")
        assert inside is not triton and type(inside.language.sum) is not kind
        assert type(import_module(ours).write_rows) is type(inside.language.sum)
    assert import_module("triton") is triton and type(triton.language.sum) is kind
    assert import_module(ours) is before and import_module("ascend_quant.kernels").triton_rows is before
    assert "TRITON_INTERPRET" not in os.environ


def test_torch_compile_works_in_the_same_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    subprocess.run([sys.executable, script], check=True, env={**os.environ, "PYTHONPATH": path}, timeout=300)


SCRIPT = """
import torch
from kernel_modules import interpreter


def compiled(function):
    x = torch.randn(50)
    torch.testing.assert_close(torch.compile(function)(x), function(x))


compiled(lambda x: x.sin() + 1)
with interpreter():
    from ascend_quant.kernels.cuda import digest

    assert digest(torch.zeros(3, 4)) == 0
compiled(lambda x: x.cos() + 2)
"""
