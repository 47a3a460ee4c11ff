"""`ascend-quant kernels`, and what the doctor makes of it and of FlashRL's patch."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from naming import has_line_naming
from npu_tools import write_tool
from typer.testing import CliRunner

from ascend_quant.cli import app
from ascend_quant.kernels import serving_of
from ascend_quant.schemes import SCHEMES
from launch.doctor.checks.kernels import kernels


def run(*arguments: str):
    return CliRunner().invoke(app, ["kernels", *arguments])


def test_what_multiplies_on_this_cpu():
    result = run("cpu", "--json")
    said = json.loads(result.stdout)
    assert result.exit_code == 0 and said["device"] == "cpu"
    quantized = [scheme for scheme in SCHEMES.values() if scheme.quantized]
    assert said["products"] == {scheme.name: serving_of(scheme, torch.device("cpu")).by for scheme in quantized}
    assert "int8: torch._int_mm\n" in run("cpu").stdout


@pytest.mark.parametrize("device", ["npu", "nonsense"])
def test_a_device_that_is_not_here(device: str):
    result = run(device, "--json")
    assert result.exit_code == 1 and f"no device '{device}' here" in result.stderr and not result.stdout


def test_a_device_that_makes_other_bytes(monkeypatch):
    from ascend_quant.convert import quantizer

    right = quantizer.Quantizer.quantize

    def wrong(self, w_NK, take):
        return right(self, w_NK, lambda first, codes_RK: take(first, codes_RK ^ 1))

    monkeypatch.setattr(quantizer.Quantizer, "quantize", wrong)
    result = run("cpu")
    assert result.exit_code == 1 and has_line_naming(result.stderr, "scheme int8")


def test_the_doctor_asks_the_real_command():
    found = kernels("cpu")
    assert (found.device, found.problem, found.patch) == ("cpu", None, "")
    assert found.products["int8"] == "torch._int_mm"
    assert "no device 'cuda' here" in kernels("cuda").problem


def test_flashrl_s_patch_is_seen_and_stays(tmp_path: Path, monkeypatch):
    """The real cleanup, of a file of our own: without a terminal it shows what it would do and changes nothing."""
    file = tmp_path / "usercustomize.py"
    text = "import sys\ntry: import flash_rl\nexcept ImportError: pass\n"
    file.write_text(text)
    real = shutil.which("ascend-quant", path=str(Path(sys.executable).parent))
    write_tool(
        tmp_path / "ascend-quant", f'if [[ $1 == cleanup ]]; then set -- cleanup --path {file}; fi\nexec {real} "$@"\n'
    )
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert "-try: import flash_rl" in kernels("cpu").patch
    assert file.read_text() == text
