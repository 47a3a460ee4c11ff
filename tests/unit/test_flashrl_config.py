"""FlashRL's YAML files: what is read, written, handed to vLLM, and refused."""

from pathlib import Path

import pytest
import yaml
from naming import line_naming

from ascend_quant.flashrl.config import QUANTIZATION, Config, Replica, read, resolve
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


def written(tmp_path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_each_function_is_a_scheme_of_ours():
    for name, function in FUNCTIONS.items():
        assert function.name == name
        assert SCHEMES[function.scheme].codes == (None if name == "bf16" else name.partition("_")[0])
        assert function.meaning and "\n" not in function.meaning


def test_an_fp8_function_shares_scales_as_flashrls_does():
    """A channel's in fp8_channel; else a tensor's, or with vLLM's online FP8 that of tensors side by side."""
    shares = {name: SCHEMES[function.scheme].shares for name, function in FUNCTIONS.items() if name.startswith("fp8")}
    assert shares.pop("fp8_channel") == "row" and set(shares.values()) == {"tensor"}


def test_the_plugin_has_this_name():
    from ascend_quant.engine.options import NAME

    assert QUANTIZATION == NAME


@pytest.mark.parametrize("rank", range(7))
def test_replica_r_uses_entry_r_mod_k(file, rank):
    assert resolve(str(file)).for_replica(rank).fn == ["int8", "fp8", "bf16"][rank % 3]


def test_options(file, profile):
    int8, fp8, bf16 = read(file).replicas
    assert int8.options() == {"scheme": "int8", "profile": str(profile)}
    assert fp8.options() == {"scheme": "fp8_tensor"}
    assert bf16.options() == {"scheme": "bf16"}


def test_our_own_keys_reach_the_engine(profile):
    options = Replica(fn="int8_fast", profile=str(profile), frozen_scales=True, ignore=["re:.*o_proj"]).options()
    assert options["frozen_scales"] is True and options["ignore"] == ["re:.*o_proj"]
    assert Replica(fn="fp8_channel", ignore=["re:.*o_proj"]).options() == {"scheme": "fp8", "ignore": ["re:.*o_proj"]}


def test_the_engine_gets_a_whole_path_and_only_where_it_smooths(profile, monkeypatch):
    monkeypatch.chdir(profile.parent)
    assert Replica(profile=profile.name).options()["profile"] == str(profile)
    for fn in ("bf16", "fp8", "fp8_channel"):
        assert "profile" not in Replica(fn=fn, profile=profile.name).options()


def test_a_profile_of_ours_is_found_by_its_stem(tmp_path):
    for suffix in (".safetensors", ".json"):
        (tmp_path / f"kept{suffix}").touch()
    assert Replica(profile=str(tmp_path / "kept")).options()["profile"] == str(tmp_path / "kept.safetensors")
    (tmp_path / "kept.json").unlink()
    with pytest.raises(ConfigError, match=r"no file .*kept\.json"):
        Replica(profile=str(tmp_path / "kept")).options()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_name_needs_no_file(name):
    assert [replica.fn for replica in resolve(f" {name} ").replicas] == [name]


def test_disregarded_names_each_key_that_is_not_followed(file):
    int8, fp8, bf16 = read(file).replicas
    keys = [line.partition("=")[0] for line in int8.disregarded()]
    assert keys == ["model", "load_format", "distributed_executor_backend", "params_to_ignore"]
    keys = [line.partition("=")[0] for line in fp8.disregarded()]
    assert keys == ["load_format", "module_attribute_to_preserve", "quantization"]
    assert bf16.disregarded() == []


def test_disregarded_says_what_would_surprise():
    assert "fn=int8 decides: ascend_quant, scheme int8" in Replica(quantization="fp8").disregarded()[0]
    assert "fn=fp8 decides: ascend_quant, scheme fp8_tensor" in Replica(fn="fp8", quantization="fp8").disregarded()[0]
    assert Replica(fn="fp8", quantization="ascend_quant").disregarded() == []
    for fn in ("bf16", "fp8", "fp8_tensor"):
        assert f"fn={fn} needs none" in Replica(fn=fn, profile="p.pt").disregarded()[0]
    assert "M/profile.pt" in Replica(model="M").disregarded()[-1]
    assert "frozen_scales?" in Replica(frozen_scale=True).disregarded()[0]


def test_what_was_read_is_written_again(file, tmp_path):
    read(file).write(tmp_path / "copy.yaml")
    assert yaml.safe_load((tmp_path / "copy.yaml").read_text()) == yaml.safe_load(file.read_text())
    assert read(tmp_path / "copy.yaml") == read(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("configs: [{fn: int7}]", r"configs\.0\.fn: .*valid are: int8, .*bf16.*'int7'"),
        ("configs: []", r"configs: .*at least 1"),
        ("config: [{fn: int8}]", "configs: Field required"),
        ("{configs: [{fn: int8}], config: []}", "config: Extra inputs"),
        ("- fn: int8", "holds no mapping"),
        ("configs: [{fn: int8", "no YAML"),
        ("configs: [{frozen_scales: 'no'}]", r"frozen_scales: .*valid boolean.*'no'"),
        ("configs: [{frozen_scales: true}]", r"a profile: fn=int8, profile=None"),
        ("configs: [{fn: bf16, profile: p.pt, frozen_scales: true}]", "fn=bf16"),
        ("configs: [{fn: fp8, profile: p.pt, frozen_scales: true}]", "a profile: fn=fp8"),
        ("configs: [{ignore: lm_head}]", "ignore: .*valid list"),
        ("configs: [{fn: int8, columns: !!python/tuple [1]}]", "python/tuple"),
        ("configs: [{fn: int8, fn: bf16}]", "'fn'"),
        (f"configs: [{{fn: {'x' * 100_000}}}]", "fn"),
        (f"configs: [{'{fn: int7}, ' * 5000}]", "4997 more"),
        (f"configs: [{{fn: bf16, profile: [{'x, ' * 50_000}]}}]", "profile"),
    ],
)
def test_a_file_that_holds_what_it_may_not(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as error:
        resolve(str(path))
    assert str(path) in str(error.value) and len(str(error.value)) < 2000 and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "value",
    [
        "int7",
        "INT8",
        "",
        "no/such.yaml",
        "./owner/name",
        "/no/such/file.yaml",
        "~/no.yaml",
        "~nobody-here/x",
        "x" * 5000,
    ],
)
def test_an_unknown_value_lists_the_valid_ones(value):
    with pytest.raises(ConfigError) as error:
        resolve(value)
    assert f"{value!r:.200}" in str(error.value) and len(str(error.value)) < 1000
    assert all(name in str(error.value) for name in [*FUNCTIONS, "YAML", "owner/name/path.yaml"])


def test_a_profile_that_no_file_can_be_called():
    for value in ("/", "..", "x" * 5000):
        with pytest.raises(ConfigError):
            Replica(profile=value).options()


def test_a_folder_is_not_a_config(tmp_path):
    with pytest.raises(ConfigError, match=line_naming(tmp_path)):
        resolve(str(tmp_path))


def test_configs_is_the_name_in_both_worlds():
    assert Config(replicas=[Replica(fn="bf16")]) == Config(configs=[{"fn": "bf16"}])
