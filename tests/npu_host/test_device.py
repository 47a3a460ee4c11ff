"""npu:0 on host memory fails by name where it cannot compute, and never gives zeros."""

import subprocess
import sys

import pytest
import torch
import torch_npu
from naming import has_line_naming, line_naming

from npu_host import device, two_ranks


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


PART_OF_A_CACHED_BLOCK = """
from npu_host import stubs
stubs.start()
import torch, torch_npu
from npu_host import device
device.install()
MIB = 2**20

def reserved():
    torch.npu.empty_cache()
    torch.empty(64 * MIB, dtype=torch.int8, device="npu")  # cached at once
    part = torch.empty(24 * MIB, dtype=torch.int8, device="npu")
    return torch.npu.memory_reserved()

before = reserved()
torch.npu.memory._set_allocator_settings("expandable_segments:False")  # as verl does before each sync
print(before > 80 * MIB, reserved() > 80 * MIB)
"""


def test_the_limit_of_splits_goes_with_the_first_settings_that_verl_makes():
    """As docs/environment.md says of PYTORCH_NPU_ALLOC_CONF: torch_npu then forgets what the variable has."""
    environment = two_ranks.environment() | {"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:30"}
    command = [sys.executable, "-W", "ignore", "-c", PART_OF_A_CACHED_BLOCK]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout.split()[-2:] == ["True", "False"], done.stderr[-2000:]
