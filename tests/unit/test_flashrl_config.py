"""FlashRL's YAML files: what is read, written, handed to vLLM, and refused."""

import pytest
import yaml
from naming import has_line_naming, line_naming

from ascend_quant.flashrl.config import Replica, read, resolve
from ascend_quant.flashrl.files import ConfigError
from ascend_quant.flashrl.functions import FUNCTIONS
from ascend_quant.schemes import SCHEMES

FLASHRL_FILE = """\
configs:
- distributed_executor_backend: external_launcher
  fn: int8
  load_format: auto
  model: W8A8
  params_to_ignore: [q_scale]
  profile: PROFILE
- {fn: fp8, load_format: auto, quantization: fp8, module_attribute_to_preserve: [workspace]}
- {fn: bf16}
"""


@pytest.fixture
def profile(tmp_path):
    file = tmp_path / "profile.pt"
    file.touch()
    return file


@pytest.fixture
def file(tmp_path, profile):
    path = tmp_path / "config.yaml"
    path.write_text(FLASHRL_FILE.replace("PROFILE", str(profile)))
    return path


def test_each_function_is_a_scheme_that_needs_no_file():
    """FP8's scales are shared as FlashRL's: a channel's in fp8_channel, else a tensor's."""
    for name, function in FUNCTIONS.items():
        scheme = SCHEMES[function.scheme]
        assert [replica.fn for replica in resolve(f" {name} ").replicas] == [name]
        assert scheme.codes == (None if name == "bf16" else name.partition("_")[0])
        if name.startswith("fp8"):
            assert scheme.shares == ("row" if name == "fp8_channel" else "tensor")


def test_replica_r_uses_entry_r_mod_k_and_is_told_what_is_not_followed(file, profile):
    config = resolve(str(file))
    assert [config.for_replica(rank).fn for rank in range(4)] == ["int8", "fp8", "bf16", "int8"]
    int8, fp8, bf16 = config.replicas
    assert int8.options() == {"scheme": "int8", "profile": str(profile)}
    assert (fp8.options(), bf16.options()) == ({"scheme": "fp8_tensor"}, {"scheme": "bf16"})
    assert [[line.partition("=")[0] for line in one.disregarded()] for one in (int8, fp8, bf16)] == [
        ["model", "load_format", "distributed_executor_backend", "params_to_ignore"],
        ["load_format", "module_attribute_to_preserve", "quantization"],
        [],
    ]
    assert Replica(fn="fp8", quantization="ascend_quant").disregarded() == []
    for surprising, named in (({"fn": "bf16", "profile": "p.pt"}, "profile"), ({"frozen_scale": True}, "frozen_scale")):
        assert has_line_naming(Replica(**surprising).disregarded()[0], named)


def test_our_own_keys_and_a_whole_path_reach_the_engine_where_it_smooths(profile, monkeypatch):
    monkeypatch.chdir(profile.parent)
    asked = {"profile": profile.name, "ignore": ["re:.*o_proj"]}
    wanted = {"profile": str(profile), "ignore": ["re:.*o_proj"], "frozen_scales": True}
    assert Replica(fn="int8_fast", frozen_scales=True, **asked).options().items() >= wanted.items()
    assert Replica(fn="fp8_channel", **asked).options() == {"scheme": "fp8", "ignore": ["re:.*o_proj"]}


def test_a_profile_of_ours_is_found_by_its_stem(tmp_path):
    for suffix in (".safetensors", ".json"):
        (tmp_path / f"kept{suffix}").touch()
    assert Replica(profile=str(tmp_path / "kept")).options()["profile"] == str(tmp_path / "kept.safetensors")
    (tmp_path / "kept.json").unlink()
    with pytest.raises(ConfigError, match=line_naming(tmp_path / "kept.json")):
        Replica(profile=str(tmp_path / "kept")).options()


def test_what_was_read_is_written_again(file, tmp_path):
    read(file).write(tmp_path / "copy.yaml")
    assert yaml.safe_load((tmp_path / "copy.yaml").read_text()) == yaml.safe_load(file.read_text())
    assert read(tmp_path / "copy.yaml") == read(file)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("configs: [{fn: int7}]", ["configs.0.fn", "int8, …bf16", "'int7'"]),
        ("configs: []", ["configs"]),
        ("{configs: [{fn: int8}], config: []}", ["config:"]),
        ("- fn: int8", []),
        ("configs: [{fn: int8", ["YAML"]),
        ("configs: [{frozen_scales: true}]", ["profile", "fn=int8"]),
        ("configs: [{fn: fp8, profile: p.pt, frozen_scales: true}]", ["profile", "fn=fp8"]),
        ("configs: [{fn: int8, columns: !!python/tuple [1]}]", ["python/tuple"]),
        ("configs: [{fn: int8, fn: bf16}]", ["'fn'"]),
        (f"configs: [{'{fn: int7}, ' * 5000}]", ["fn"]),
    ],
)
def test_a_file_that_holds_what_it_may_not(tmp_path, text, named):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=line_naming(path, *named)) as error:
        resolve(str(path))
    assert len(str(error.value)) < 2000 and "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["int7", "", "no/such.yaml", "./owner/name", "~nobody-here/x", "x" * 5000])
def test_an_unknown_value_lists_the_valid_ones(value):
    with pytest.raises(ConfigError) as error:
        resolve(value)
    assert f"{value!r:.200}" in str(error.value) and len(str(error.value)) < 1000
    assert all(name in str(error.value) for name in [*FUNCTIONS, "owner/name/path.yaml"])
    with pytest.raises(ConfigError):
        Replica(profile=f"/no/such/{value}/").options()
