"""A safetensors file that is written in any order, a few rows at a time."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file

from ascend_quant.convert.formats import Spec
from ascend_quant.convert.shard_file import BYTES, Layout, ShardFile
from ascend_quant.profile.checkpoints import BadCheckpoint

TENSORS = {
    "codes": torch.randint(-127, 128, (5, 173), dtype=torch.int8),  # an odd number of bytes
    "fp8": torch.randn(3, 7).to(torch.float8_e4m3fn),
    "norm": torch.randn(11).to(torch.bfloat16),
    "scale": torch.randn(5, 1),
    "shape": torch.tensor([5, 173]),
    "number": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
    "flags": torch.tensor([True, False, True]),
}
DTYPES = {
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.bool: "BOOL",
}
SPECS = {name: Spec(DTYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in TENSORS.items()}


def write(path) -> None:
    """Backwards, row by row."""
    with ShardFile(path, SPECS) as file:
        for name, tensor in reversed(TENSORS.items()):
            rows = tensor if tensor.dim() else tensor.reshape(1)
            for row in reversed(range(len(rows))):
                file.write(name, row, rows[row])
        file.finish()


def assert_read(path) -> None:
    """By the library, and every tensor is aligned."""
    content, found = path.read_bytes(), load_file(path)
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}
    assert all(told["data_offsets"][0] % BYTES[told["dtype"]] == 0 for told in header.values())
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_the_library_reads_what_was_written_in_any_order_by_a_system_that_takes_a_part(tmp_path, monkeypatch):
    """A signal, or 2 GiB at once: POSIX allows to write less than was given."""
    write(tmp_path / "b.safetensors")
    assert_read(tmp_path / "b.safetensors")
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, content, at: pwrite(handle, content[:3], at))
    write(tmp_path / "a.safetensors")
    assert_read(tmp_path / "a.safetensors")


def test_another_header_or_another_size_does_not_fit(tmp_path):
    path = tmp_path / "a.safetensors"
    assert not Layout(SPECS).fits(path)
    write(path)
    assert Layout(SPECS).fits(path)
    assert not Layout(SPECS | {"scale": Spec("F32", (1, 5))}).fits(path)
    with path.open("ab") as file:
        file.write(b"x")
    assert not Layout(SPECS).fits(path)


def test_elements_of_another_width_or_without_whole_bytes_are_refused(tmp_path):
    with ShardFile(tmp_path / "a", SPECS) as file, pytest.raises(ValueError, match=r"scale .*F32 .*bfloat16"):
        file.write("scale", 0, torch.zeros(5, 1, dtype=torch.bfloat16))
    with pytest.raises(BadCheckpoint, match=r"\bF4\b"):
        Layout({"a": Spec("F4", (2, 2))})
