"""What an engine's kernels compute reaches `kernels` by registration alone: twice is once, another one is an error."""

import pytest

from ascend_quant.kernels import engine_products
from ascend_quant.kernels.engine_products import NoProduct, engine_product, register
from ascend_quant.kernels.storage import Serving


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch):
    monkeypatch.setattr(engine_products, "_products", {})


def one(*_):
    return 1


def other(*_):
    return 2


def test_what_is_registered_is_found_and_the_rest_named():
    table, serving = {}, Serving(one, other, "somebody's")
    for _ in range(2):
        register({"int8_linear": one}, {"fp8": serving}, table)
    assert engine_product("int8_linear") is one and table == {"fp8": serving}
    with pytest.raises(NoProduct) as raised:
        engine_product("plain_experts")
    assert repr("plain_experts") in str(raised.value)


def test_a_second_engine_is_refused():
    table = {"int8": Serving(one, one, "our own")}
    with pytest.raises(ValueError, match="int8"):
        register({}, {"int8": Serving(other, other, "theirs")}, table)
    register({"int8_linear": one}, {}, table)
    with pytest.raises(ValueError, match="int8_linear"):
        register({"int8_linear": other}, {}, table)
    assert engine_product("int8_linear") is one


def test_on_cuda_every_quantized_scheme_is_served_once_vllms_products_are_there():
    pytest.importorskip("triton")
    from ascend_quant.integrations.vllm.layers import cuda_products
    from ascend_quant.kernels.cuda.serve import products as cuda_serving
    from ascend_quant.schemes import SCHEMES

    cuda_products.register()
    quantized = {name for name, scheme in SCHEMES.items() if scheme.quantized}
    assert cuda_serving.SERVING.keys() == quantized
    assert engine_product("plain_experts") is cuda_products.plain_experts
    assert engine_product("int8_linear") is cuda_products.int8_linear
