"""What may be handed over as a weight, and what becomes of it before kernels read its memory."""

import numpy as np
import pytest
import torch
from naming import line_naming

from ascend_quant.engine.source import Source
from ascend_quant.refit import RefitError
from ascend_quant.refit.plan import Call, Entry
from ascend_quant.transfer.validate import check_sent, checked, is_freed, is_plain, made_plain, pairs

W = torch.arange(12.0).view(3, 4)
FREED, GATHERED = W.clone(), W.clone()
FREED.untyped_storage().resize_(0)  # as FSDP does
PACKED = torch.quantize_per_tensor(W, 1.0, 0, torch.qint8), torch.nested.nested_tensor([W, W])
SPARSE = torch.nested.nested_tensor([W, W], layout=torch.jagged), W.to_sparse(), W.to_sparse_csr()
FLIPPED = torch._neg_view(W), torch.complex(W, W).conj().imag  # their signs are in no memory
EXPANDED = W[:1].expand(3, 4), W[:, :1].expand(3, 4), W[0, 0].expand(3, 4), W[:1, :1].expand(1, 1)


@pytest.mark.parametrize("sent", [None, 1.0, [[1.0]], np.ones((3, 4)), W.to("meta"), FREED, *PACKED, *SPARSE])
def test_what_is_no_dense_tensor_is_named(sent):
    with pytest.raises(RefitError, match=r"^fc\.weight: got "):
        list(checked([("norm", W), ("fc.weight", sent)]))
    with pytest.raises(RefitError, match=r"^fc\.weight: got "):
        Call([("norm", W), ("fc.weight", sent)], {"norm": Entry(W.shape), "fc.weight": Entry(W.shape)})


@pytest.mark.parametrize("name", [None, 3, b"fc.weight", ("fc", "weight")])
def test_a_name_is_a_string(name):
    with pytest.raises(RefitError, match=line_naming(repr(name), "pairs")):
        check_sent(name, W)


@pytest.mark.parametrize(
    "sent",
    [W, W.T, W[1:], W[:, :2], W[:0], W.half(), W.double(), torch.nn.Parameter(W), *EXPANDED, *FLIPPED],
)
def test_values_stay_and_memory_is_what_kernels_read(sent):
    check_sent("w", sent)
    plain = made_plain(sent)
    assert torch.equal(plain, sent.to(plain.dtype)) and plain.shape == sent.shape
    assert plain.dtype != torch.float64 and not plain.is_neg()
    assert all(stride or size < 2 for size, stride in zip(plain.shape, plain.stride(), strict=True))
    assert not is_plain(sent) or plain is sent  # a plan takes such tensors as they are


@pytest.mark.parametrize(
    "stack",
    [
        torch.rand(3, 5, 9)[..., :8],
        torch.rand(5, 3, 9).permute(1, 0, 2)[..., :8],
        torch.rand(5, 3, 8).permute(1, 0, 2),
        torch.rand(3, 8, 5).transpose(1, 2),
        torch.rand(8, 5, 3).permute(2, 1, 0),
        torch.rand(3, 7, 8)[:, :5],
    ],
    ids=lambda stack: str(stack.stride()),
)
def test_whole_rows_of_experts_are_found_however_they_lie(stack):
    """A rank's half of the columns gets its scales from the whole rows."""
    source = Source("experts.down_proj", plain := made_plain(stack), 0, stack, coded=False)
    for expert in range(3):
        for half in (slice(0, 4), slice(4, 8)):
            assert torch.equal(source.whole_rows(plain[expert][:, half]), stack[expert])


def test_a_kept_call_sees_what_is_no_tensor_any_more():
    entry = Entry(W.shape, by_loader=True)
    call = Call([("fc.weight", W)], {"fc.weight": entry})
    assert call.addresses([("fc.weight", W + 1)]) is not None
    for junk in (None, W.tolist(), W.to("meta"), W.to_sparse()):
        with pytest.raises(RefitError, match=r"fc\.weight: got "):
            call.addresses([("fc.weight", junk)])
    assert call.addresses([("fc.weight", GATHERED)]) is not None
    GATHERED.untyped_storage().resize_(0)
    with pytest.raises(RefitError, match=r"fc\.weight: got .* freed"):  # its shape and strides are as they were
        call.addresses([("fc.weight", GATHERED)])


def test_memory_that_is_freed_in_part_is_freed():
    tensor = torch.ones(4, 8)
    first, last = tensor[:3], tensor[3:]
    assert not is_freed(tensor[1:, :3])
    tensor.untyped_storage().resize_(tensor.nbytes - 1)
    with pytest.raises(RefitError, match=r"fc\.weight: got .* freed"):
        check_sent("fc.weight", tensor)
    assert is_freed(last) and not is_freed(first) and not is_freed(tensor[:0])


@pytest.mark.parametrize(
    "weights", [{"fc.weight": W}, W.sum(), None, 3, [("fc.weight", W), "fc.weight"], [("a", W, W)]]
)
def test_weights_that_are_no_pairs_are_refused(weights):
    with pytest.raises(RefitError, match="pairs"):
        list(pairs(weights))


@pytest.mark.parametrize("weights", [[("a", W)], (["a", W],), {"a": W}.items(), iter([("a", W)]), []])
def test_weights_that_are_pairs_come_as_they_are(weights):
    assert [tuple(one) for one in pairs(weights)] == ([] if weights == [] else [("a", W)])
