"""What cannot be converted: one line that names it, and no OUT that looks complete."""

import json
import os
import subprocess

import checkpoint_pairs
import convert_cases as cases
import pytest
import torch
from naming import line_naming

from ascend_quant.convert import ConvertError, output
from ascend_quant.profile.rules import ProfileError
from ascend_quant.schemes import UnknownScheme

NAME = "model.layers.0.mlp.up_proj.weight"
QUANTIZED = "model.layers.0.mlp.up_proj.weight_scale"
STACK = "model.layers.1.mlp.experts"


@pytest.fixture
def source(tmp_path):
    """To be spoilt."""
    return cases.write(tmp_path / "in", cases.state())


def refused(source, out, said, scheme="int8", **options) -> str:
    """The error's text; OUT is not there, or as it was."""
    before = sorted(out.rglob("*")) if out.is_dir() else None
    with pytest.raises((ConvertError, ProfileError), match=said) as error:
        cases.run(source, out, scheme, **options)
    assert "\n" not in str(error.value)
    assert (sorted(out.rglob("*")) if out.is_dir() else None) == before
    return str(error.value)


def spoil(source, change) -> None:
    """Edit the file that holds `NAME`."""
    from safetensors.torch import load_file, save_file

    places = json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = load_file(source / places[NAME])
    change(tensors)
    save_file(tensors, source / places[NAME], metadata={"format": "pt"})


def test_a_truncated_shard_is_named(source, tmp_path):
    path = sorted(source.glob("*.safetensors"))[1]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1000)
    assert str(path) in refused(source, tmp_path / "out", "cut off")
    assert not (tmp_path / "out.partial").exists()


def test_a_tensor_that_only_the_index_knows_is_named(source, tmp_path):
    spoil(source, lambda tensors: tensors.pop(NAME))
    assert NAME in refused(source, tmp_path / "out", line_naming("model.safetensors.index.json", NAME))


def test_a_tensor_that_the_index_does_not_know_is_named(source, tmp_path):
    spoil(source, lambda tensors: tensors.update({"model.extra.weight": torch.ones(2, 2)}))
    assert "model.extra.weight" in refused(source, tmp_path / "out", "does not name")


def test_a_missing_shard_is_named(source, tmp_path):
    path = sorted(source.glob("*.safetensors"))[2]
    path.unlink()
    assert path.name in refused(source, tmp_path / "out", "not found")


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("model.norm.weight", torch.int8),
        ("model.norm.weight", torch.bool),
        ("model.embed_tokens.weight", torch.uint8),
        ("model.embed_tokens.weight", torch.int64),
        ("lm_head.weight", torch.float8_e5m2),
        ("model.layers.0.self_attn.q_proj.bias", torch.int32),
    ],
)
def test_weights_that_are_carried_over_must_be_floats(name, dtype, tmp_path):
    tensors = cases.state()
    tensors[name] = tensors[name].to(dtype)
    assert name in refused(cases.write(tmp_path / "in", tensors), tmp_path / "out", "weights are BF16, F16, F32, F64")


@pytest.mark.parametrize(
    "name, tensor, said",
    [
        (NAME, torch.ones(128), "a linear layer is .outputs, inputs"),
        (NAME, torch.ones(2, 128, 8), "a linear layer is .outputs, inputs"),
        (NAME, torch.ones(0, 128), "nothing in it"),
        (NAME, torch.ones(128, 0), "nothing in it"),
        (QUANTIZED, torch.ones(128, 1), "quantized weight"),
        (f"{STACK}.w13", torch.ones(3, 256, 128), "stacks are gate_up_proj"),
        (f"{STACK}.gate_up_proj_blocks", torch.ones(3, 8, 2, dtype=torch.uint8), "stacks are|weights are"),
        ("model.layers.0.self_attn.q_proj.bias", torch.ones(cases.HIDDEN), r"\brows .* outputs"),
    ],
)
def test_what_cannot_be_quantized_is_refused_by_name(name, tensor, said, tmp_path):
    kept = tensor if tensor.dtype == torch.uint8 else tensor.to(torch.bfloat16)
    source = cases.write(tmp_path / "in", cases.state() | {name: kept})
    assert name in refused(source, tmp_path / "out", said)
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_a_causal_mask_is_no_weight(dtype, tmp_path):
    mask = {"model.layers.0.self_attn.bias": torch.ones(1, 1, 4, 4).tril().to(dtype)}
    cases.run(cases.write(tmp_path / "in", cases.state() | mask), tmp_path / "out", "int8")
    assert torch.equal(cases.read(tmp_path / "out")["model.layers.0.self_attn.bias"], *mask.values())


@pytest.mark.parametrize("leaf", ["gate_up_proj", "down_proj"])
def test_a_stack_of_experts_that_is_a_matrix_is_refused_by_name(leaf, tmp_path):
    tensors = cases.stacked(cases.state())
    tensors[f"{STACK}.{leaf}"] = tensors[f"{STACK}.{leaf}"][0].clone()
    refused(cases.write(tmp_path / "in", tensors), tmp_path / "out", rf"experts\.{leaf}")


def test_gpt2s_weights_are_inputs_by_outputs_and_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=50)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "in")
    refused(tmp_path / "in", tmp_path / "out", r"\brows .* outputs")


@pytest.mark.parametrize("value, dtype", [(3.4e38, torch.float32), (-1e300, torch.float64)])
def test_weights_beyond_bf16_are_named_as_such(value, dtype, tmp_path):
    tensors = cases.state(dtype=dtype)
    tensors[NAME][3, 5] = value
    said = f"{NAME}: 1 of {tensors[NAME].numel()} elements are beyond BF16's range"
    refused(cases.write(tmp_path / "in", tensors), tmp_path / "out", said)


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
@pytest.mark.parametrize("name, count", [(NAME, cases.MIDDLE * cases.HIDDEN), ("model.norm.weight", cases.HIDDEN)])
def test_weights_that_are_not_finite_are_named_and_counted(bad, name, count, tmp_path):
    tensors = cases.state()
    tensors[name].view(-1)[torch.tensor([3, 100])] = bad
    for scheme in ("int8", "fp8_tensor", "int4_g32"):
        source = cases.write(tmp_path / scheme, tensors, 2)
        refused(source, tmp_path / f"{scheme}-out", f"{name}: 2 of {count} elements are NaN or infinite", scheme)
        assert not list((tmp_path / f"{scheme}-out.partial").rglob("*.writing"))


def test_an_already_quantized_input_says_how_to_go_on(source, tmp_path):
    cases.run(source, tmp_path / "int8", "int8")
    cases.run(source, tmp_path / "slim", "int8", format="modelslim")
    for folder in ("int8", "slim"):
        refused(tmp_path / folder, tmp_path / "out", "already quantized .*--scheme bf16", "fp8")
    config = tmp_path / "int8" / "config.json"
    config.write_text(json.dumps(cases.CONFIG))
    said = refused(tmp_path / "int8", tmp_path / "out", "is I8: already quantized", "fp8")
    assert "_proj.weight" in said


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


@pytest.mark.parametrize("pattern", ["model.layers.0.mlp.up", "re:.*gate_up_proj_", "re:up_proj", NAME])
def test_a_pattern_that_matches_nothing_is_named(pattern, source, tmp_path):
    assert pattern in refused(source, tmp_path / "out", "matches no layer", ignore=("re:.*o_proj", pattern))


def test_a_pattern_that_is_none_is_named(source, tmp_path):
    refused(source, tmp_path / "out", r"--ignore: 're:\('", ignore=("re:(",))


def test_a_tied_head_may_be_ignored(tmp_path):
    tensors = cases.state()
    del tensors["lm_head.weight"]
    cases.run(cases.write(tmp_path / "in", tensors), tmp_path / "out", "int8", ignore=("lm_head",))


@pytest.mark.parametrize("scheme, format, said", [
    ("int8", "fp8", "int8 is written as compressed-tensors or modelslim; format fp8 holds fp8_block, fp8_tensor"),
    ("fp8_block", "modelslim", "fp8_block is written as fp8; format modelslim holds int8"),
    ("fp8", "gguf", "unknown format 'gguf'; this version writes: compressed-tensors, fp8, modelslim"),
    ("fp8_tensor", "compressed-tensors", "fp8_tensor with experts is written as fp8"),
])  # fmt: skip
def test_a_scheme_and_a_format_that_do_not_go_together(scheme, format, said, source, tmp_path):
    refused(source, tmp_path / "out", said, scheme, format=format)


def test_an_unknown_scheme(source, tmp_path):
    for name in ("int5", "fp8_block:64x64"):
        with pytest.raises(UnknownScheme, match="this version has"):
            cases.run(source, tmp_path / "out", name)


def test_out_is_in_is_in_it_around_it_or_not_empty(source, tmp_path):
    for out in (source, source / "out", tmp_path):
        refused(source, out, "the same folder, or one is in the other")
    (tmp_path / "link").symlink_to(source)
    refused(source, tmp_path / "link", "the same folder")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("a")
    refused(source, tmp_path / "full", "is not empty")
    refused(source, tmp_path / "no" / "such", "is no folder")
    (tmp_path / "empty").mkdir()
    cases.run(source, tmp_path / "empty", "int8")
    refused(source, tmp_path / "empty", "is not empty")


def test_in_must_be_a_checkpoint(source, tmp_path):
    refused(tmp_path / "nothing", tmp_path / "out", "is no folder")
    index = source / "model.safetensors.index.json"
    kept = index.read_text()
    index.write_text("{}")
    refused(source, tmp_path / "out", "has no weight_map")
    index.write_text(kept)
    (source / "config.json").write_text("{")
    refused(source, tmp_path / "out", "config.json is no JSON")
    (source / "config.json").unlink()
    refused(source, tmp_path / "out", "config.json not found")
    norm = cases.write(tmp_path / "norm", {"model.norm.weight": torch.ones(3)}, 1)
    refused(norm, tmp_path / "out", "no linear layer")


@pytest.mark.parametrize(
    "section, value", [("quantization_config", "int8"), ("compression_config", ["int8"]), ("text_config", 8)]
)
@pytest.mark.parametrize("scheme", ["int8", "bf16"])
def test_sections_of_the_config_that_are_no_objects_are_named(section, value, scheme, tmp_path):
    source = cases.write(tmp_path / "in", {NAME: torch.ones(2, 2)}, 1, cases.CONFIG | {section: value})
    refused(source, tmp_path / "out", f"config.json: {section} is .*, and no object", scheme)


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, '{"a": 1, "a": 2}'])
def test_a_config_that_nobody_should_read_is_named(text, source, tmp_path):
    (source / "config.json").write_text(text)
    refused(source, tmp_path / "out", "config.json is no JSON")


@pytest.mark.parametrize("file", [3, None, ["a"], True, "model-00001-of-00003.dat", "../model.bin"])
def test_an_index_that_names_no_safetensors_files_is_named(file, source, tmp_path):
    index = source / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"][NAME] = file
    index.write_text(json.dumps(content))
    assert NAME in refused(source, tmp_path / "out", r"no \*\.safetensors file")


def test_an_index_that_leads_out_of_its_folder_is_named(source, tmp_path):
    index = source / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    outside = source.parent / "outside.safetensors"
    outside.write_bytes((source / content["weight_map"][NAME]).read_bytes())
    for file in ("../outside.safetensors", str(outside), "./model.safetensors"):
        index.write_text(json.dumps(content | {"weight_map": {**content["weight_map"], NAME: file}}))
        assert repr(file)[:40] in refused(source, tmp_path / "out", NAME)


def test_one_of_two_files_without_an_index_is_half_a_model(source, tmp_path):
    (source / "model.safetensors.index.json").unlink()
    gone = sorted(source.glob("*.safetensors"))[1]
    gone.unlink()
    assert str(gone) in refused(source, tmp_path / "out", "not found")


def test_an_adapter_is_no_model(tmp_path):
    source = cases.write(tmp_path / "in", {NAME: torch.ones(2, 2)}, 1)
    (source / "model.safetensors").rename(source / "adapter_model.safetensors")
    refused(source, tmp_path / "out", "LoRA adapter")


@pytest.mark.parametrize("name, target, said", [
    ("tokenizer.json", "nowhere", "a link to nothing"),
    ("chat", "folder", "a link to a folder"),
    ("tokenizer.json", os.mkfifo, "is no file"),
    (os.fsdecode(b"\xff.txt"), None, "no name in UTF-8"),
])  # fmt: skip
def test_files_that_would_be_left_out_or_cannot_be_named(name, target, said, source, tmp_path):
    (tmp_path / "folder").mkdir()
    if target is None:
        (source / name).write_text("")
    elif callable(target):
        target(source / name)
    else:
        (source / name).symlink_to(tmp_path / target)
    refused(source, tmp_path / "out", said)
    assert not (tmp_path / "out.partial").exists()


def test_out_cannot_be_the_working_folder_the_root_a_loop_or_bytes(source, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.chdir(tmp_path / "empty")
    for out in ("", "/", tmp_path / "loop", tmp_path / os.fsdecode(b"\xff")):
        with pytest.raises(ConvertError):
            cases.run(source, type(source)(out), "int8")
    assert (tmp_path / "empty").is_dir() and list((tmp_path / "empty").iterdir()) == []


def test_two_tensors_that_would_have_one_name(tmp_path):
    tensors = cases.state() | cases.stacked(cases.state())
    refused(cases.write(tmp_path / "in", tensors), tmp_path / "out", "would both become .*experts")


def test_an_absent_device_is_named(source, tmp_path):
    absent = "npu" if not hasattr(torch, "npu") else "cuda"
    refused(source, tmp_path / "out", f"no device '{absent}' here", device=absent)


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


def test_a_disk_that_is_too_small_is_named_before_anything_is_written(small_disk, source, tmp_path):
    (small_disk / "other").write_bytes(bytes(7 << 19))
    refused(source, small_disk / "out", "is too full: [0-9,]+ bytes are needed, [0-9,]+ are free")
    assert not list((small_disk / "out.partial").rglob("*.safetensors"))
    refused(source, small_disk, "is a mount point|is not empty")


def test_a_disk_that_fills_up_is_named_and_the_same_command_goes_on_when_there_is_room(
    small_disk, source, tmp_path, monkeypatch
):
    monkeypatch.setattr(output, "check_room", lambda folder, needed: None)  # others write meanwhile
    other = small_disk / "other"
    other.write_bytes(bytes(7 << 19))
    refused(source, small_disk / "out", r"the disk of .*out is full; make room, and run the same command again")
    assert not list((small_disk / "out.partial").rglob("*.writing"))
    other.unlink()
    cases.run(source, small_disk / "out", "int8")
    cases.assert_same(cases.read(small_disk / "out"), cases.expected(cases.state(), "int8", "compressed-tensors"))
    assert os.listdir(small_disk) == ["out"]


def test_a_mount_point_is_refused(small_disk, source):
    refused(source, small_disk, "is a mount point")


def test_an_int8_checkpoint_by_others_is_not_quantized_twice(tmp_path):
    pair = checkpoint_pairs.make_pair("qwen2", tmp_path)
    refused(pair.w8a8, tmp_path / "out", "already quantized .*compressed-tensors")
