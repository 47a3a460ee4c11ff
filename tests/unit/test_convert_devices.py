"""A device that is not there, or that makes other codes, is refused before anything is written."""

import pytest
import torch
from naming import line_naming

from ascend_quant.convert import ConvertError, quantizer
from ascend_quant.convert.devices import check_device, open_device
from ascend_quant.schemes import SCHEMES

CPU = torch.device("cpu")


def test_a_device_that_agrees_is_taken():
    for scheme in SCHEMES.values():
        if scheme.quantized:
            check_device(open_device("cpu"), scheme)


def test_a_device_that_multiplies_with_a_reciprocal_is_refused(monkeypatch):
    def div(values, divisor, out):
        return torch.mul(values, 1 / divisor, out=out)

    monkeypatch.setattr(quantizer.torch, "div", div)
    with pytest.raises(ConvertError, match=line_naming("cpu", "codes of scheme fp8")):
        check_device(CPU, SCHEMES["fp8"])


def test_a_device_without_fp8_is_refused(monkeypatch):
    def absent(*ignored, **also):
        raise RuntimeError("no kernel for Float8_e4m3fn\nat some line")

    monkeypatch.setattr(quantizer.torch, "div", absent)
    with pytest.raises(ConvertError, match=line_naming("cpu", "fp8: no kernel for Float8_e4m3fn;", "--device cpu")):
        check_device(CPU, SCHEMES["fp8"])


def test_a_device_that_is_not_there_is_refused():
    absent = "npu" if not hasattr(torch, "npu") else "cuda"
    with pytest.raises(ConvertError, match=line_naming(f"no device '{absent}'", "--device cpu")):
        open_device(absent)
