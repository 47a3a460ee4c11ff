"""Scheme names, what is registered under them, and that the package needs torch alone, and the names not even that."""

import re
import subprocess
import sys
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from ascend_quant import oracle
from ascend_quant.kernels import DuplicateKernels, NoKernels, cpu, kernels_for, serving_of
from ascend_quant.kernels.registry import ServingTable
from ascend_quant.refit import resident_class
from ascend_quant.schemes import (
    ALIASES,
    SCHEMES,
    Definition,
    DuplicateScheme,
    Scheme,
    UnknownScheme,
    UnregisteredScheme,
    definition_of,
    get_scheme,
    register,
    registry,
)

CPU = torch.device("cpu")
NOBODYS = Scheme("mxfp8", "fp8", "group", "", 32)
OTHER_INT8 = replace(SCHEMES["int8"], group=32)
LISTED = re.compile(".*".join(SCHEMES), re.DOTALL)


@pytest.fixture
def scratch():
    """What a test registers is gone afterwards."""
    with patch.dict(SCHEMES), patch.dict(registry._DEFINITIONS):
        yield


def test_names_are_their_keys():
    assert all(scheme.name == name for name, scheme in SCHEMES.items())


def test_an_unknown_scheme_lists_the_valid_ones():
    with pytest.raises(UnknownScheme, match=r"'int7'.*int8, fp8, .*int4_g32, bf16"):
        get_scheme("int7")


def test_every_scheme_has_the_definition_that_was_registered_with_it():
    assert all(definition_of(scheme).scheme is scheme for scheme in SCHEMES.values())
    assert definition_of(replace(SCHEMES["fp8"])).scheme is SCHEMES["fp8"]  # a row that came through a pickle


@pytest.mark.parametrize("scheme", [NOBODYS, OTHER_INT8], ids=["no such name", "another row"])
@pytest.mark.parametrize(
    "use",
    [
        lambda scheme: oracle.quantize(torch.ones(2, 64), scheme),
        lambda scheme: oracle.dequantize(torch.ones(2, 64), torch.ones(2), scheme),
        lambda scheme: oracle.product(torch.ones(2, 64), torch.ones(2, 64), torch.ones(2), scheme),
        lambda scheme: cpu.storage(scheme, (2, 64)),
        lambda scheme: cpu.fake_quantize(torch.ones(2, 64), scheme),
        lambda scheme: serving_of(scheme, CPU),
        resident_class,
    ],
    ids=["quantize", "dequantize", "product", "storage", "fake_quantize", "serving", "resident"],
)
def test_what_nobody_registered_is_an_error_that_lists_what_there_is(scheme, use):
    with pytest.raises(UnregisteredScheme, match=LISTED) as error:
        use(scheme)
    assert scheme.name in str(error.value) and isinstance(error.value, UnknownScheme)


@pytest.mark.parametrize("name", ["int8", *ALIASES])
def test_a_name_is_registered_once(name, scratch):
    before = dict(registry._DEFINITIONS)
    with pytest.raises(DuplicateScheme, match=name) as error:
        register(Definition(Scheme(name, "int8", "row", "another")))
    assert LISTED.search(str(error.value))
    assert before == registry._DEFINITIONS and get_scheme("int8").summary != "another"


def test_scales_that_rows_share_need_kernels(scratch):
    class OfBlocks(Definition):
        codes_dtype = "int8"

    with pytest.raises(ValueError, match="'block'"):
        register(OfBlocks(Scheme("blocks", "int8", "block", "")))
    assert "blocks" not in SCHEMES
    assert register(OfBlocks(Scheme("rows", "int8", "row", ""))) is definition_of(get_scheme("rows"))


def test_a_backend_has_kernels_for_a_scheme_once():
    table = ServingTable("cpu")
    table.register(cpu.SERVING["int8"], "int8")
    with pytest.raises(DuplicateKernels, match=r"cpu.*int8"):
        table.register(cpu.SERVING["fp8"], "fp8", "int8")
    assert table == {"int8": cpu.SERVING["int8"]}


def test_a_scheme_without_kernels_is_an_error_that_lists_what_the_backend_has():
    with pytest.raises(NoKernels, match=r"bf16.*cpu.*int8.*int4_g32"):
        serving_of(SCHEMES["bf16"], CPU)
    assert list(kernels_for(CPU).SERVING) == [scheme.name for scheme in SCHEMES.values() if scheme.quantized]


def test_names_need_not_even_torch():
    code = "import sys, ascend_quant.schemes; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_import_needs_torch_alone():
    code = (
        "import sys, ascend_quant, ascend_quant.refit, ascend_quant.oracle\n"
        "print([m for m in ('vllm', 'verl', 'ray', 'triton', 'torch_npu', 'typer') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
