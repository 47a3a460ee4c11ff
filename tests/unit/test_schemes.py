"""Scheme names, and that the package needs torch alone."""

import subprocess
import sys

import pytest

from ascend_quant.schemes import SCHEMES, UnknownScheme, get_scheme


def test_names_are_their_keys():
    assert all(scheme.name == name for name, scheme in SCHEMES.items())


def test_an_unknown_scheme_lists_the_valid_ones():
    with pytest.raises(UnknownScheme, match=r"'int7'.*int8, fp8, .*int4_g32, bf16"):
        get_scheme("int7")


def test_import_needs_torch_alone():
    code = (
        "import sys, ascend_quant, ascend_quant.refit, ascend_quant.oracle\n"
        "print([m for m in ('vllm', 'verl', 'ray', 'triton', 'torch_npu', 'typer') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
