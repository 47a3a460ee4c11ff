"""Does a wrong reference kernel show, and does a kernel see the schema's defaults?"""

import pytest
import torch
from naming import line_naming

from npu_host import reference


def test_a_result_that_the_meta_kernel_does_not_promise_is_an_error():
    wrong = reference.kernel(reference.Reference("npu::npu_swiglu", lambda a: a.input, on_device=False))
    with pytest.raises(reference.ResultMismatch, match=r"npu::npu_swiglu: .* promises \[\(\(2, 2\).*gave \[\(\(2, 4\)"):
        wrong(torch.ones(2, 4).npu())


def test_an_operator_has_one_reference_kernel():
    with pytest.raises(ValueError, match=line_naming("npu::npu_swiglu", "already")):
        reference.reference("npu::npu_swiglu")(lambda a: a.input)


def test_arguments_have_their_schema_names_and_defaults():
    schema = torch.ops.npu.npu_quantize.default._schema
    bound = reference.bind(schema, (1, 2, None, 12), {"axis": -1})
    assert vars(bound) == {"input": 1, "scales": 2, "zero_points": None, "dtype": 12, "axis": -1, "div_mode": True}


def test_a_kernel_reads_the_devices_memory_in_place():
    seen = []
    look = reference.Reference("npu::npu_swiglu", lambda a: (seen.append(a.input.data_ptr()), a.input[:, :2])[1], False)
    x = torch.ones(2, 4).npu()
    reference.kernel(look)(x)
    assert seen == [x.data_ptr()]
