"""What a layer keeps of each scheme, and shapes that a scheme or a device does not take."""

import pytest
import torch
from naming import line_naming
from torch import nn

from ascend_quant.engine.layout import layouts_of
from ascend_quant.integrations.vllm import buffers
from ascend_quant.integrations.vllm.layers import register_products
from ascend_quant.kernels import NoKernels, serving_of
from ascend_quant.kernels.cuda.serve.products import storage as cuda_storage
from ascend_quant.refit import RefitError
from ascend_quant.schemes import SCHEMES, get_scheme


@pytest.mark.parametrize(
    ("scheme", "codes", "scale"),
    [
        ("int8", (torch.int8, (3, 200, 256)), (torch.float32, (3, 200, 1))),
        ("fp8", (torch.float8_e4m3fn, (3, 200, 256)), (torch.float32, (3, 200, 1))),
        ("fp8_tensor", (torch.float8_e4m3fn, (3, 200, 256)), (torch.float32, (3, 200, 1))),
        ("fp8_block", (torch.float8_e4m3fn, (3, 200, 256)), (torch.float32, (3, 2, 2))),
        ("int4_g128", (torch.int32, (3, 200, 32)), (torch.bfloat16, (3, 200, 2))),
        ("int4_g32", (torch.int32, (3, 200, 32)), (torch.bfloat16, (3, 200, 8))),
    ],
)
def test_parameters_of_a_scheme(scheme, codes, scale):
    layer = nn.Module()
    name = buffers.register(layer, "weight", get_scheme(scheme), (3, 200, 256), {"weight_loader": print})
    held = layer.weight, getattr(layer, name)
    assert [(tensor.dtype, tuple(tensor.shape)) for tensor in held] == [codes, scale]
    for_loaders = layouts_of(layer)["weight"].stand_in if scheme.startswith("int4") else layer.weight
    assert for_loaders.shape == (3, 200, 256) and for_loaders.weight_loader is print
    assert serving_of(get_scheme(scheme), torch.device("cpu")).by


def test_groups_that_do_not_fit_say_what_to_do():
    with pytest.raises(RefitError, match=line_naming("w2: 173 input channels", "groups of 32")):
        buffers.register(nn.Module(), "w2", get_scheme("int4_g32"), (64, 173), {})


def test_what_gpu_kernels_do_not_take_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    for scheme in ("fp8", "fp8_tensor", "fp8_block"):
        with pytest.raises(ValueError, match=line_naming("compute capability 8.0", "int8")):
            cuda_storage(get_scheme(scheme), (64, 128))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    with pytest.raises(ValueError, match=line_naming("96 input channels", "multiples of 128")):
        cuda_storage(get_scheme("fp8_block"), (64, 96))
    assert cuda_storage(get_scheme("fp8_block"), (65, 128)).scale.shape == (1, 1)
    assert cuda_storage(get_scheme("int8"), (64, 96)).codes.shape == (64, 96)


def test_every_scheme_is_served_where_it_can_be():
    quantized = [scheme for scheme in SCHEMES.values() if scheme.quantized]
    for device in ("cpu", "cuda"):
        register_products(device)
        assert all(serving_of(scheme, torch.device(device)) for scheme in quantized)
    with pytest.raises(NoKernels, match=line_naming("scheme bf16", "cpu", ": int8, fp8")):
        serving_of(get_scheme("bf16"), torch.device("cpu"))
