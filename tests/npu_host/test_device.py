"""npu:0 on host memory fails by name where it cannot compute, and never gives zeros."""

import subprocess
import sys

import pytest
import torch
import torch_npu
from naming import has_line_naming, line_naming

from npu_host import device


def test_an_operator_without_a_kernel_or_a_reference_fails_with_its_name():
    with pytest.raises(device.NoKernel, match=line_naming("aten::polygamma", "npu:0", "no kernel")):
        torch.polygamma(1, torch.ones(3, device="npu"))
    with pytest.raises(device.NoKernel, match=line_naming("npu::npu_fast_gelu", "no reference kernel")):
        torch_npu.npu_fast_gelu(torch.ones(3, device="npu"))


@pytest.mark.long("tests/npu_host")
def test_an_operator_launched_on_the_stubs_alone_is_an_error_and_never_zeros():
    code = "import torch, torch_npu; print((torch.ones(3).npu() + 1).cpu())"  # no device.install()
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert has_line_naming(done.stderr, "aclopCompileAndExecute", "no stub")
    assert done.returncode == 1 and "tensor" not in done.stdout
