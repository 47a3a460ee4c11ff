"""FlashRL's `.pt` profiles: those its own code writes are read, ours are taken by its own code; code is never run.

flash-llm-rl is a test-only dependency: where it is not installed, the tests that run it are skipped.
"""

import pickle
from pathlib import Path

import pytest
import torch
from checkpoint_pairs import ALL, Pair, make_pair
from naming import line_naming
from safetensors.torch import load_file

from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.profile.compare import compare_int8
from ascend_quant.profile.files import load, save
from ascend_quant.profile.rules import Profile, Rule
from ascend_quant.profile.w8a8 import read_w8a8


@pytest.fixture(scope="module")
def flashrl():
    """Its module of quantization functions."""
    return pytest.importorskip("flash_rl.flash_quantization", reason="flash-llm-rl is not installed")


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    """What FlashRL knows: all factors but those of v."""
    return make_pair("qwen2", tmp_path_factory.mktemp("pair"), ALL - {"v_proj"})


def tokenizer(folder: Path) -> None:
    """FlashRL loads one."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>").save_pretrained(folder)


def profile_of(pair: Pair) -> Profile:
    return compare_int8(Checkpoint(pair.bf16), read_w8a8(Checkpoint(pair.w8a8))).profile


def test_what_flashrl_writes_is_read_as_what_we_find(flashrl, tmp_path):
    """Its factors come from a norm's BF16 ratio and from least squares: they agree to that."""
    pytest.importorskip("compressed_tensors")
    pair = make_pair("qwen2", tmp_path, ALL - {"v_proj"}, arithmetic="bfloat16")
    tokenizer(pair.w8a8)
    flashrl.profiling_int8(str(pair.bf16), str(pair.w8a8), str(tmp_path / "theirs.pt"))
    theirs, ours = load(tmp_path / "theirs.pt"), profile_of(pair)
    assert theirs.scheme == "int8"
    assert theirs.rules.keys() == ours.rules.keys()
    for name, rule in ours.rules.items():
        other = theirs.rules[name]
        assert rule.quantized == other.quantized
        for part, tensor in rule.tensors().items():
            tolerance = 2.0**-22 if part == "scale" and "up_proj" not in name else 2.0**-7
            torch.testing.assert_close(other.tensors()[part], tensor, rtol=tolerance, atol=0, msg=f"{name} {part}")
        for part in other.tensors().keys() - rule.tensors().keys():  # ones, found by least squares
            assert part == "output_factor"
            torch.testing.assert_close(other.output_factor, torch.ones_like(other.output_factor), rtol=0.01, atol=0)


def test_what_we_write_is_taken_by_flashrl(flashrl, pair, tmp_path, monkeypatch):
    """Its own `int8` function gives the checkpoint's codes and norms. It asks CUDA for a device; here is none."""
    save(profile_of(pair), tmp_path / "ours.pt")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    bf16, w8a8 = load_file(pair.bf16 / "model.safetensors"), load_file(pair.w8a8 / "model.safetensors")
    made = dict(flashrl.get_quantize_fn("int8")(bf16.items(), torch.load(tmp_path / "ours.pt")))
    for name, tensor in made.items():
        assert tensor.dtype == w8a8[name].dtype, name
        difference = tensor.float() - w8a8[name].float()
        if tensor.dtype == torch.int8:
            assert float((difference == 0).float().mean()) >= 0.995, name  # halves fall either way in w * (1 / scale)
            assert int(difference.abs().max()) <= 1, name
        else:
            assert not difference.any(), name


def test_flashrls_fp8_profile_is_a_list_of_names(tmp_path):
    torch.save(["a.weight", "b.weight"], tmp_path / "fp8.pt")
    assert load(tmp_path / "fp8.pt").scheme == "fp8"
    assert load(tmp_path / "fp8.pt").rules == {"a.weight": Rule(True), "b.weight": Rule(True)}


@pytest.mark.parametrize("kind", ["qwen2", "qwen3-moe"])
def test_ours_comes_back_as_it_was(kind, tmp_path):
    """All factors, v's among them; in `.pt` output factors go through a division and a product in float32."""
    saved = profile_of(make_pair(kind, tmp_path))
    for file, tolerance in (("profile.pt", 1e-6), ("profile", 0)):
        save(saved, tmp_path / file)
        loaded = load(tmp_path / file)
        assert loaded.rules.keys() == saved.rules.keys()
        for name, rule in saved.rules.items():
            held = loaded.rules[name].tensors()
            assert held.keys() == rule.tensors().keys() and loaded.rules[name].quantized == rule.quantized, name
            for part, tensor in rule.tensors().items():
                torch.testing.assert_close(held[part], tensor, rtol=tolerance, atol=0, msg=f"{name} {part}")
    assert (loaded.scheme, loaded.arithmetic, loaded.notes) == (saved.scheme, saved.arithmetic, saved.notes)


def test_a_row_without_a_scale_stays_one(tmp_path):
    save(Profile("int8", {"a": Rule(True, scale=torch.tensor([0.5, 0.0]))}), tmp_path / "p.pt")
    assert load(tmp_path / "p.pt").rules["a"].scale.tolist() == [0.5, 0.0]
    assert torch.load(tmp_path / "p.pt")["a"]["output_scale"].flatten().tolist() == [2.0, 0.0]


class Evil:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("written", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_a_file_that_carries_code_is_refused_and_not_run(written, tmp_path):
    """A real malicious pickle: loaded the usual way it makes a file."""
    written({"a": Evil(tmp_path / "ran")}, tmp_path / "evil.pt")
    with pytest.raises(BadCheckpoint, match=line_naming(tmp_path / "evil.pt")):
        load(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()
    torch.load(tmp_path / "evil.pt", weights_only=False) if written is torch.save else pickle.loads(
        (tmp_path / "evil.pt").read_bytes()
    )
    assert (tmp_path / "ran").exists()


ENTRY = {"input_scale": 1.0, "output_scale": torch.ones(2, 1) * 3, "type": torch.int8}


@pytest.mark.parametrize(
    "content, said",
    [
        ({"a": {"input_scale": 1.0}}, "a: .*input_scale"),
        ({"a": ENTRY | {"input_scale": torch.tensor([1.0, torch.nan])}}, "a: input_scale"),
        ({"a": ENTRY | {"input_scale": 2.0}}, "a: input_scale is 2"),
        (7, r"p\.pt .*\bint\b"),
        ([7], r"p\.pt: 7\b"),
        ({"a": ENTRY | {"weight_scale": torch.ones(3)}}, "a: weight_scale .*3 .*2 "),
        ({"a": ENTRY | {"weight_scale": -torch.ones(2)}}, "a: .*scale"),
        ({"a.up_proj.": ENTRY, "a.down_proj.": ENTRY | {"input_scale": torch.ones(3)}}, "a.up_proj.: .*3 "),
        ({"a" * 9000: [[[[[["x" * 9000]]]]]]}, "FlashRL int8 profile"),
    ],
)
def test_other_content_is_refused(content, said, tmp_path):
    torch.save(content, tmp_path / "p.pt")
    with pytest.raises(BadCheckpoint, match=said) as error:
        load(tmp_path / "p.pt")
    assert len(str(error.value)) < 1000 and "\n" not in str(error.value)


def test_missing_files(tmp_path):
    for name in ("p.pt", "p.safetensors", "p"):
        with pytest.raises(BadCheckpoint, match=line_naming("ascend-quant profile", tmp_path / "p")):
            load(tmp_path / name)
    (tmp_path / "junk.pt").write_bytes(b"\x80junk")
    with pytest.raises(BadCheckpoint, match=r"junk\.pt"):
        load(tmp_path / "junk.pt")
