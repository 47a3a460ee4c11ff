"""Can a graph be made of the operators? Dynamo, export and fake tensors run torch_npu's own Meta kernels."""

import pytest
import torch
import torch_npu
from torch._subclasses.fake_tensor import FakeTensorMode

from npu_host import device, formats

BF16, F32, I8 = torch.bfloat16, torch.float32, torch.int8


class Linear(torch.nn.Module):
    """W8A8: dynamic per-token activations, per-channel weights (K, N)."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        codes = torch.randint(-127, 128, (inputs, outputs), dtype=I8).npu()
        self.register_buffer("weight", torch_npu.npu_format_cast(codes, formats.NZ))
        self.register_buffer("scale", torch.rand(outputs).npu() / 500)

    def forward(self, x):
        codes, per_token = torch_npu.npu_dynamic_quant(x)
        return torch_npu.npu_quant_matmul(
            codes, self.weight, self.scale, pertoken_scale=per_token, output_dtype=x.dtype
        )


class Experts(torch.nn.Module):
    """Two grouped products with SwiGLU and a quantization in between, rows sorted by expert."""

    def __init__(self, experts: int, hidden: int):
        super().__init__()
        up, down = (torch.randint(-127, 128, (experts, hidden, n), dtype=I8).npu() for n in (2 * hidden, hidden))
        self.register_buffer("up", torch_npu.npu_format_cast(up, formats.NZ))
        self.register_buffer("down", torch_npu.npu_format_cast(down, formats.NZ))
        self.register_buffer("up_scale", torch.rand(experts, 2 * hidden).npu() / 500)
        self.register_buffer("down_scale", (torch.rand(experts, hidden) / 500).to(BF16).npu())

    def forward(self, x, ends):
        codes, per_token = torch_npu.npu_dynamic_quant(x)
        codes, per_token, _ = torch_npu.npu_grouped_matmul_swiglu_quant(codes, self.up, ends, self.up_scale, per_token)
        return torch_npu.npu_grouped_matmul(
            [codes],
            [self.down],
            scale=[self.down_scale],
            per_token_scale=[per_token],
            split_item=2,
            group_type=0,
            group_list=ends,
            group_list_type=0,
            output_dtype=BF16,
        )[0]


class SynchronizingLinear(Linear):
    def forward(self, x):
        return super().forward(x) * int(x.float().abs().max().item() > 1)


def linear_case():
    return Linear(64, 48), (torch.randn(5, 64).to(BF16).npu(),)


def experts_case():
    return Experts(3, 32), (torch.randn(7, 32).to(BF16).npu(), torch.tensor([2, 2, 7]).npu())


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", [linear_case, experts_case])
def test_compiled_without_graph_breaks(case, backend, dynamic):
    model, inputs = case()
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    assert torch.equal(compiled(*inputs).cpu(), model(*inputs).cpu())


def test_a_host_synchronization_breaks_the_graph():
    _, inputs = linear_case()
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        torch.compile(SynchronizingLinear(64, 48), fullgraph=True, backend="eager")(*inputs)


def test_exported_with_a_dynamic_batch():
    model, (x,) = linear_case()
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=4096)},))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert "npu.npu_dynamic_quant.default" in called and "npu.npu_quant_matmul.default" in called
    more = torch.randn(9, 64).to(BF16).npu()
    assert torch.equal(program.module()(more).cpu(), model(more).cpu())


def test_fake_tensors_on_the_npu():
    with FakeTensorMode():
        x = torch.empty(4, 64, dtype=BF16, device="npu")
        codes, per_token = torch_npu.npu_dynamic_quant(x)
        weight, scale = torch.empty(64, 48, dtype=I8, device="npu"), torch.empty(48, device="npu")
        y = torch_npu.npu_quant_matmul(codes, weight, scale, pertoken_scale=per_token, output_dtype=BF16)
        assert (y.shape, y.dtype, y.device) == ((4, 48), BF16, torch.device("npu:0"))


def test_the_public_format_cast_has_no_meta_kernel():
    """A format cast belongs into weight loading: torch_npu 2.13 cannot trace it, and neither can this harness."""
    with FakeTensorMode(), pytest.raises((NotImplementedError, RuntimeError, device.NoKernel)):
        torch_npu.npu_format_cast(torch.empty(16, 32, dtype=I8, device="npu"), formats.NZ)
