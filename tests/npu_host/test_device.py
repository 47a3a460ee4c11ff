"""npu:0 on host memory: does it hold tensors, copy, compute and train, and fail by name where it cannot?"""

import subprocess
import sys

import pytest
import torch
import torch_npu
from naming import has_line_naming, line_naming

from npu_host import device, formats, memory


def test_one_device_of_the_atlas_a2_kind():
    assert torch.npu.is_available() and torch.npu.device_count() == 1
    assert torch.npu.get_device_name(0) == "Ascend910B1"
    assert torch.npu.memory_allocated() >= 0


def test_add_and_matmul():
    a, b = torch.arange(12.0).reshape(3, 4), torch.arange(8.0).reshape(4, 2)
    result = a.npu() @ b.npu() + 1
    assert result.device == torch.device("npu:0")
    assert result.cpu().tolist() == (a @ b + 1).tolist()


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.bool])
@pytest.mark.parametrize("shape", [(3, 5), (7,), (2, 0, 3), ()])
def test_copies_between_host_and_device_keep_every_bit(dtype, shape):
    values = torch.randn(shape).mul(50).to(dtype)
    there = values.npu()
    assert there.device.type == "npu" and torch.equal(there.cpu(), values)
    again = torch.empty_like(values)
    again.copy_(there, non_blocking=True)
    assert torch.equal(again, values)


def test_pinned_memory():
    values = torch.randn(5).pin_memory()
    assert values.is_pinned() and torch.equal(values.npu(non_blocking=True).cpu(), values)


def test_transposed_strided_and_sliced_views():
    values = torch.arange(24).reshape(4, 6)
    there = values.npu()
    assert torch.equal(there.t().contiguous().cpu(), values.t())
    assert torch.equal(there.t().cpu(), values.t())
    assert torch.equal(there[1:3, ::2].cpu(), values[1:3, ::2])
    there[2, 1:].copy_(torch.full((5,), -1))
    values[2, 1:] = -1
    assert torch.equal(there.cpu(), values)


def test_dtype_conversions_and_scalars():
    values = torch.randn(4, 8)
    there = values.npu()
    assert torch.equal(there.to(torch.bfloat16).float().cpu(), values.to(torch.bfloat16).float())
    assert there.to("cpu", torch.float64).dtype == torch.float64
    assert there.sum().item() == pytest.approx(values.sum().item(), rel=1e-6)
    assert "npu:0" in str(there)


def test_addresses_stay_through_writes_in_place():
    weight = torch.zeros(8, 8, device="npu")
    address = weight.data_ptr()
    weight[3].copy_(torch.ones(8))
    weight.mul_(2).clamp_(max=1)
    assert weight.data_ptr() == address
    assert weight.cpu().sum() == 8


def test_a_cpu_tensor_shares_the_devices_memory():
    there = torch.zeros(2, 3, device="npu")
    memory.alias(there)[1, 2] = 5
    assert there.cpu()[1, 2] == 5


def test_streams_and_events():
    stream, event = torch.npu.Stream(), torch.npu.Event(enable_timing=True)
    with torch.npu.stream(stream):
        values = torch.ones(4, device="npu") * 2
        event.record()
    event.synchronize()
    torch.npu.current_stream().wait_event(event)
    torch.npu.synchronize()
    assert event.query() and values.cpu().sum() == 8


def test_training_with_adamw_converges():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 1)).npu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(32, 8, device="npu")
    target = x.sum(dim=-1, keepdim=True)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert all(parameter.device.type == "npu" for parameter in model.parameters())


def test_an_aten_operator_without_a_kernel_fails_with_its_name():
    with pytest.raises(device.NoKernel, match=line_naming("aten::polygamma", "npu:0", "no kernel")):
        torch.polygamma(1, torch.ones(3, device="npu"))


def test_an_npu_operator_without_a_reference_fails_with_its_name():
    with pytest.raises(device.NoKernel, match=r"npu::npu_fast_gelu .* no reference kernel"):
        torch_npu.npu_fast_gelu(torch.ones(3, device="npu"))


def test_an_operator_launched_on_the_stubs_alone_is_an_error_and_never_zeros():
    code = "import torch, torch_npu; print((torch.ones(3).npu() + 1).cpu())"  # no device.install()
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert has_line_naming(done.stderr, "aclopCompileAndExecute", "no stub")
    assert done.returncode == 1 and "tensor" not in done.stdout


def test_in_place_reshaping_is_refused_rather_than_lost():
    with pytest.raises(device.NoKernel, match="in place"):
        torch.ones(2, 1, device="npu").squeeze_()


def test_an_operator_on_a_cpu_tensor_is_an_error_as_on_hardware():
    with pytest.raises(NotImplementedError, match="npu_dynamic_quant"):
        torch_npu.npu_dynamic_quant(torch.ones(2, 4, dtype=torch.bfloat16))


def test_formats_of_ordinary_tensors():
    assert formats.format_of(torch.ones(3, 3, device="npu")) == formats.ND
    assert formats.format_of(torch.ones(3, 3)) == formats.ND
