"""npu_format_cast between ND and FRACTAL_NZ: a new tensor in torch_npu's own allocation, its bytes in the new order."""

from npu_host import formats
from npu_host.reference import reference


@reference("npu::npu_format_cast", on_device=True)
def npu_format_cast(a):
    if formats.format_of(a.input) == a.acl_format:
        return a.input  # as torch_npu does
    cast = formats.empty(a.input, a.acl_format)
    formats.write(cast, formats.read(a.input))
    return cast


@reference("npu::npu_format_cast_.acl_format", on_device=True)
def npu_format_cast_(a):
    cast = npu_format_cast(a)
    return a.input.set_(cast.untyped_storage(), 0, cast.shape, cast.stride())
