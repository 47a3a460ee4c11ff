"""On a GPU: kernels that make codes of activations, in CUDA graphs, where one may start before the last has ended."""

import pytest
import torch

from ascend_quant import oracle

pytestmark = pytest.mark.gpu

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def captured(function):
    """A CUDA graph of a function's kernels, its outputs, and the names of the kernels."""
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    on_gpu = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return graph, outputs, [name for name in on_gpu if not name.startswith(("Mem", "cuda"))]


def agrees(found, x):
    codes, scale = oracle.quantize_rows(x)
    assert torch.equal(found[1], scale.unsqueeze(-1))
    assert torch.equal(found[0], codes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [2048, 3584, 18944, 53248])
def test_codes_alone(dtype, columns):
    from ascend_quant.kernels.cuda.serve.products import quantize_tokens

    torch.manual_seed(columns)
    x = (torch.randn(300, columns, device="cuda") * 2.0 ** torch.randint(-10, 10, (300, 1), device="cuda")).to(dtype)
    graph, found, kernels = captured(lambda: quantize_tokens(x))
    assert len(kernels) == 1, kernels
    agrees(found, x)
    x.mul_(3)
    graph.replay()
    agrees(found, x)


@pytest.mark.parametrize("exponent", [126, 0, -99, -100, -110])
def test_every_pair_of_mantissas(exponent):
    from test_reciprocals import every_value_up_to_every_magnitude

    from ascend_quant.kernels.cuda.serve.products import quantize_tokens

    x = every_value_up_to_every_magnitude(exponent).cuda()
    agrees(quantize_tokens(x), x)


@pytest.mark.parametrize("tokens", [1, 64, 300])
def test_a_chain_of_kernels_that_start_early(tokens):
    """Each reads what the last has written, into memory that earlier ones have read."""
    from ascend_quant.kernels.cuda.serve.triton_fused_tokens import rms_norm_quantize, silu_mul_quantize
    from ascend_quant.kernels.cuda.serve.triton_tokens import quantize_tokens

    torch.manual_seed(tokens)
    weight = (1 + torch.randn(4096, device="cuda") / 8).bfloat16()
    x, residual = torch.randn(2, tokens, 4096, device="cuda").bfloat16()

    def chain(wait):
        total, outputs = residual, []
        for _ in range(20):
            codes, scale, total = rms_norm_quantize(x, weight, 1e-6, total)
            wait()
            outputs += [codes, scale, *silu_mul_quantize(total)]
            wait()
            outputs += quantize_tokens(total)
            wait()
        return [output.clone() for output in outputs]

    expected = chain(torch.cuda.synchronize)
    graph, found, _ = captured(lambda: chain(lambda: None))
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_in_a_compiled_graph(dtype):
    from ascend_quant.kernels.cuda.serve.products import quantize_tokens

    x = torch.randn(100, 3584, device="cuda").to(dtype)
    torch._dynamo.mark_dynamic(x, 0)
    compiled = torch.compile(lambda x: quantize_tokens(x * 2), fullgraph=True)
    agrees(compiled(x), x * 2)
    agrees(compiled(x[:33]), x[:33] * 2)
