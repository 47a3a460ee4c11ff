"""Our serving functions as torch.compile and torch.export see them: whole, and without a wait for the device."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_quant.kernels.npu import ops as npu_ops
from ascend_quant.kernels.npu.serve import experts as npu_experts
from ascend_quant.kernels.npu.serve import linear as npu_linear
from npu_host import older_version, recorder
from npu_host.serving_cases import BF16, F16, FORMS, I32, SWIGLU_QUANT, Case, activations, int8, resident, scales

pytestmark = pytest.mark.each_version


class NoWaiting(TorchDispatchMode):
    """Refuses what makes the host wait for the device."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "bincount")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.__name__.split(".")[0], kwargs or {}
        on_npu = any(isinstance(value, torch.Tensor) and value.device.type == "npu" for value in args)
        to_host = torch.device(kwargs.get("device") or "npu").type == "cpu" or (name == "copy_" and args[0].is_cpu)
        by_mask = name in ("index", "index_put", "index_put_") and any(
            getattr(index, "dtype", None) == torch.bool for index in args[1]
        )
        if on_npu and (name in self.WAITS or to_host or by_mask):
            raise AssertionError(f"{name} waits for the device")
        return func(*args, **kwargs)


def linear_call(function, dtype=BF16, bias=False):
    x_MK, scale_N = activations(0, 5, 48, dtype).npu(), scales(0, 32).npu()
    return function, (x_MK, resident(int8(0, 32, 48), True), scale_N, *([scale_N.to(dtype)] if bias else []))


def experts_call(form: str, dtype=BF16, map_of_experts=None):
    case = Case(0, torch.tensor([[0, 1], [2, 0], [2, 1]]), 3, 16, 64, dtype, map_of_experts)
    return FORMS[form], tuple(value for value in case.arguments() if value is not None)


def plain_call(dtype=BF16):
    w13, w2 = (torch.randn(3, *shape).to(dtype).npu() for shape in ((32, 24), (24, 16)))
    x_MK, ids = torch.randn(3, 24).to(dtype).npu(), torch.tensor([[0, 1], [2, 0], [2, 1]]).npu()
    return npu_experts.plain_experts, (x_MK, torch.rand(3, 2).npu(), ids, w13, w2)


CALLS = {
    "linear": lambda: linear_call(npu_linear.linear, bias=True),
    "linear to float16": lambda: linear_call(npu_linear.linear, F16, bias=True),
    "experts": lambda: experts_call("apart"),
    "experts of a rank": lambda: experts_call("apart", map_of_experts=torch.tensor([1, -1, 0], dtype=I32)),
    "fused experts": lambda: experts_call("fused"),
    "fused experts to float16": lambda: experts_call("fused", F16),
    "plain experts": plain_call,
}


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_compiled_without_graph_breaks(name, dynamic, fresh_dynamo):
    function, arguments = CALLS[name]()
    compiled = torch.compile(function, fullgraph=True, backend="eager", dynamic=dynamic)
    assert torch.equal(compiled(*arguments).cpu(), function(*arguments).cpu())


class Layer(torch.nn.Module):
    """A serving function with its weights as buffers; the first `inputs` arguments are the call's."""

    def __init__(self, function, arguments, inputs: int):
        super().__init__()
        self.function, self.rest = function, len(arguments) - inputs
        for i, value in enumerate(arguments[inputs:]):
            self.register_buffer(f"weight_{i}", value)

    def forward(self, *inputs):
        return self.function(*inputs, *(getattr(self, f"weight_{i}") for i in range(self.rest)))


@pytest.mark.parametrize("name", CALLS)
def test_exported_with_any_number_of_tokens(name):
    function, arguments = CALLS[name]()
    inputs = 3 if "experts" in name else 1
    layer, rows = Layer(function, arguments, inputs), torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(layer, arguments[:inputs], dynamic_shapes=(({0: rows},) * inputs,))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert any(target.startswith("npu.") for target in targets)
    more = [torch.cat([value, value, value[:1]]) for value in arguments[:inputs]]
    assert torch.equal(program.module()(*more).cpu(), layer(*more).cpu())


@pytest.mark.parametrize("name", CALLS)
def test_fake_tensors_on_the_npu(name):
    function, arguments = CALLS[name]()
    real = function(*arguments)
    with FakeTensorMode():
        fake = function(*(torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="npu") for a in arguments))
    assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)


@pytest.mark.parametrize("name", CALLS)
def test_nothing_waits_for_the_device(name):
    function, arguments = CALLS[name]()
    with NoWaiting():
        function(*arguments)


@pytest.mark.skipif(not older_version.is_there(), reason=f"{older_version.VARIABLE} is not set")
def test_torch_npu_2_7_takes_all_these_calls(monkeypatch, tmp_path):
    there = npu_ops.has_operator
    monkeypatch.setattr(npu_ops, "has_operator", lambda name: name != SWIGLU_QUANT[2] and there(name))
    monkeypatch.setattr(recorder, "calls", {})
    with torch.inference_mode():
        for call in CALLS.values():
            function, arguments = call()
            function(*arguments)
    calls = [found for found in recorder.calls.values() if found.caller.startswith("ascend_quant.kernels.npu.")]
    said = verdicts(tmp_path)
    taken = zip(recorder.calls.values(), said, strict=True)
    assert len(calls) > 10 and not [(call.operator, why) for call, why in taken if why and call in calls]
    product = next(call for call in calls if call.operator == "npu::npu_quant_matmul")
    product.arguments["x1"]["dtype"] = "bfloat16"  # no int8
    assert verdicts(tmp_path) != said


def verdicts(folder) -> list[str]:
    recorder.write_calls(folder / "calls.json")
    return older_version.verdicts(folder / "calls.json")
