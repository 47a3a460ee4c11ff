"""What cannot be converted: one line that names it, and no OUT that looks complete."""

import json
import os
import subprocess
from pathlib import Path

import checkpoint_pairs
import convert_cases as cases
import pytest
import torch
from naming import line_naming

from ascend_quant.convert import conversion
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.schemes import UnknownScheme

NAME = "model.layers.0.mlp.up_proj.weight"
STACK = "model.layers.1.mlp.experts"


@pytest.fixture
def source(tmp_path):
    """To be spoilt."""
    return cases.write(tmp_path / "in", cases.state())


def refused(source, out, said, scheme="int8", **options) -> str:
    """The error's text; OUT is not there, or as it was."""
    before = sorted(out.rglob("*")) if out.is_dir() else None
    with pytest.raises(cases.REFUSED, match=said) as error:
        cases.run(source, out, scheme, **options)
    assert "\n" not in str(error.value)
    assert (sorted(out.rglob("*")) if out.is_dir() else None) == before
    return str(error.value)


def test_a_layer_that_the_groups_do_not_divide_is_named_before_anything_is_written(tmp_path):
    tensors = cases.state() | {NAME: torch.randn(8, 200).to(torch.bfloat16)}
    source = cases.write(tmp_path / "in", tensors)
    layer = NAME.removesuffix(".weight")
    whole = layer.replace("up_proj", "gate_up_proj")  # as engines have it
    assert f"--ignore {whole}" in refused(source, tmp_path / "out", f"{layer}: rows of 200 elements", "int4_g128")
    refused(source, tmp_path / "out", f"{layer}.*{whole}", "int4_g128", ignore=(layer,))
    assert not (tmp_path / "out.partial").exists()
    cases.run(source, tmp_path / "out", "int4_g128", ignore=(whole,))
    assert torch.equal(cases.read(tmp_path / "out")[NAME], tensors[NAME])


def test_files_that_are_not_the_indexs_are_named(source, tmp_path):
    first, second, third = sorted(source.glob("*.safetensors"))
    index, out = source / "model.safetensors.index.json", tmp_path / "out"
    text, held = index.read_text(), second.read_bytes()
    second.write_bytes(held[:-1000])
    refused(source, out, line_naming(second))
    second.write_bytes(held)
    content = json.loads(text)
    del content["weight_map"]["lm_head.weight"]
    for change, named in (("{}", "weight_map"), (json.dumps(content), "lm_head.weight")):
        index.write_text(change)
        refused(source, out, named)
    content["weight_map"] |= {"lm_head.weight": first.name, "model.extra.weight": first.name}
    index.write_text(json.dumps(content))
    refused(source, out, r"model\.extra\.weight|lm_head\.weight")
    index.write_text(text)
    third.unlink()
    refused(source, out, line_naming(third.name))
    index.unlink()  # one of the files is half a model
    refused(source, out, line_naming(third))
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(
    "name, tensor, named",
    [
        (NAME, torch.ones(128), []),
        (NAME, torch.ones(2, 128, 8), []),
        (NAME, torch.ones(0, 128), []),
        (f"{NAME}_scale", torch.ones(128, 1), []),
        (f"{STACK}.w13", torch.ones(3, 256, 128), ["gate_up_proj"]),
        (f"{STACK}.gate_up_proj", torch.ones(256, 128), []),
        ("model.layers.0.self_attn.q_proj.bias", torch.ones(cases.HIDDEN), ["outputs"]),  # as of Conv1D
        ("model.norm.weight", torch.ones(cases.HIDDEN, dtype=torch.int8), ["BF16, F16, F32, F64"]),
        ("model.embed_tokens.weight", torch.ones(61, cases.HIDDEN, dtype=torch.uint8), ["BF16, F16, F32, F64"]),
        ("model.layers.1.mlp.experts.down_proj", torch.ones(3, cases.HIDDEN, cases.MIDDLE), []),  # beside its parts
    ],
)
def test_tensors_that_cannot_be_converted_are_refused_by_name(name, tensor, named, tmp_path):
    kept = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
    source = cases.write(tmp_path / "in", cases.state() | {name: kept})
    refused(source, tmp_path / "out", line_naming(name, *named))
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("scheme", ["int8", "fp8_tensor", "int4_g32"])
def test_values_that_no_scale_holds_are_named_and_counted(scheme, tmp_path):
    spoilt = [(NAME, bad, 2, torch.bfloat16) for bad in (torch.nan, -torch.inf)]
    spoilt += [("model.norm.weight", torch.nan, 2, torch.bfloat16), (NAME, -1e300, 2, torch.float64)]  # beyond BF16
    for at, (name, bad, count, dtype) in enumerate(spoilt):
        tensors = cases.state(dtype=dtype)
        tensors[name].view(-1)[torch.tensor([3, 100])] = bad
        source = cases.write(tmp_path / f"in{at}", tensors, 2)
        refused(source, tmp_path / f"out{at}", line_naming(f"{name}: {count} of {tensors[name].numel()}"), scheme)
        assert not list((tmp_path / f"out{at}.partial").rglob("*.writing"))


def test_an_already_quantized_input_says_how_to_go_on(source, tmp_path):
    cases.run(source, tmp_path / "int8", "int8")
    cases.run(source, tmp_path / "slim", "int8", format="modelslim")
    pair = checkpoint_pairs.make_pair("qwen2", tmp_path)
    for folder in (tmp_path / "int8", tmp_path / "slim", pair.w8a8):
        refused(folder, tmp_path / "out", line_naming("already quantized", "--scheme bf16"), "fp8")
    (tmp_path / "int8" / "config.json").write_text(json.dumps(cases.CONFIG))
    refused(tmp_path / "int8", tmp_path / "out", r"_proj\.weight .*I8", "fp8")


def test_patterns_schemes_and_formats_that_do_not_go_together(source, tmp_path):
    out = tmp_path / "out"
    for pattern in ("model.layers.0.mlp.up", "re:up_proj", "re:("):
        refused(source, out, line_naming(pattern), ignore=("re:.*o_proj", pattern))
    for scheme, format, named in (
        ("int8", "fp8", ["compressed-tensors", "modelslim"]),
        ("fp8_block", "modelslim", ["fp8_block"]),
        ("fp8", "gguf", ["'gguf'", "compressed-tensors, fp8, modelslim"]),
        ("fp8_tensor", "compressed-tensors", ["experts"]),
    ):
        refused(source, out, line_naming(*named), scheme, format=format)
    for name in ("int5", "fp8_block:64x64"):
        with pytest.raises(UnknownScheme):
            cases.run(source, out, name)
    tensors = cases.state()
    del tensors["lm_head.weight"]  # tied, and ignored all the same; a causal mask is no weight
    mask = {"model.layers.0.self_attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()}
    cases.run(cases.write(tmp_path / "tied", tensors | mask), out, "int8", ignore=("lm_head",))
    assert torch.equal(cases.read(out)["model.layers.0.self_attn.bias"], *mask.values())


def test_out_is_in_is_in_it_around_it_or_not_empty(source, tmp_path):
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("a")
    (tmp_path / "empty").mkdir()
    for out in [*(tmp_path / name for name in ("in", "in/out", "", "link", "full", "no/such")), Path("/")]:
        with pytest.raises(BadCheckpoint):
            cases.run(source, out, "int8")
    assert {path.name for path in tmp_path.iterdir()} == {"in", "link", "full", "empty"}
    cases.run(source, tmp_path / "empty", "int8")
    refused(source, tmp_path / "empty", line_naming(tmp_path / "empty"))


@pytest.mark.parametrize("scheme", ["int8", "bf16"])
def test_in_must_be_a_checkpoint(scheme, source, tmp_path):
    config, out = source / "config.json", tmp_path / "out"
    refused(tmp_path / "nothing", out, line_naming(tmp_path / "nothing"), scheme)
    for text in ("{", "[" * 100_000):
        config.write_text(text)
        refused(source, out, "config.json", scheme)
    config.unlink()
    refused(source, out, line_naming("config.json"), scheme)
    norm = cases.write(tmp_path / "norm", {"model.norm.weight": torch.ones(3)}, 1)
    refused(norm, out, line_naming(norm), scheme)
    (norm / "model.safetensors").rename(norm / "adapter_model.safetensors")
    refused(norm, out, "LoRA", scheme)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth"])
def test_weights_that_are_not_read_are_named(name, tmp_path):
    folder = cases.write(tmp_path / "in", cases.state(), 1)
    (folder / "model.safetensors").rename(folder / name)
    for scheme in ("int8", "bf16"):
        refused(folder, tmp_path / "out", line_naming(name), scheme)
    (folder / name).unlink()
    refused(folder, tmp_path / "out", line_naming("safetensors"))


@pytest.mark.parametrize("target", ["nowhere", ".."])
def test_links_that_would_be_left_out_are_named(target, source, tmp_path):
    (source / "tokenizer.json").symlink_to(target)
    refused(source, tmp_path / "out", "tokenizer.json")
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("scheme", ["int8", "bf16"])
@pytest.mark.parametrize(
    "name", ["adapter_model.safetensors", "lora_adapter/adapter_model.bin", "model/adapter/adapter_config.json"]
)
def test_an_adapter_beside_the_weights_is_named(name, scheme, source, tmp_path):
    """The index does not name it, and what it was trained for would not be in OUT."""
    if scheme == "bf16":
        cases.run(source, tmp_path / "int8", "int8")
        source = tmp_path / "int8"
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_text("{}")
    refused(source, tmp_path / "out", name, scheme)
    assert not (tmp_path / "out.partial").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mount is not permitted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_is_too_small_or_fills_up_is_named_and_the_same_command_goes_on_when_there_is_room(
    small_disk, source, monkeypatch
):
    refused(source, small_disk, line_naming(small_disk))
    other = small_disk / "other"
    other.write_bytes(bytes(7 << 19))
    refused(source, small_disk / "out", line_naming(small_disk) + ".*: [0-9,]+ bytes .*[0-9,]+")
    assert not list((small_disk / "out.partial").rglob("*.safetensors"))
    monkeypatch.setattr(conversion, "check_room", lambda folder, needed: None)  # others write meanwhile
    with pytest.raises(OSError, match="No space left"):
        cases.run(source, small_disk / "out", "int8")
    assert not list((small_disk / "out.partial").rglob("*.writing"))
    other.unlink()
    cases.run(source, small_disk / "out", "int8")
    cases.assert_same(cases.read(small_disk / "out"), cases.expected(cases.state(), "int8", "compressed-tensors"))
    assert os.listdir(small_disk) == ["out"]
