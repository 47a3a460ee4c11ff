"""Readers of settings and tables, tried with files that are nearly right: each takes one, or refuses it in a line."""

import math
from pathlib import Path

import pytest
import yaml
from fuzzing import TEXTS, as_json, changed, damaged, fuzzed, held, json_files
from hypothesis import example, given
from hypothesis import strategies as st

from ascend_quant.advise import AdviceError
from ascend_quant.advise.configs import read_config
from ascend_quant.advise.devices import get_device
from ascend_quant.advise.families import shape_of
from ascend_quant.advise.verdicts import advise
from ascend_quant.advise.workloads import Workload
from ascend_quant.documents import BadDocument, parse_json, parse_yaml, read_json, read_yaml
from ascend_quant.flashrl import config as flashrl
from ascend_quant.flashrl.entry import entry, notes
from ascend_quant.flashrl.files import ConfigError
from ascend_quant.flashrl.variables import TABLE, VariableError, from_environment
from ascend_quant.kernels import tuned
from ascend_quant.mismatch import prompts
from benchmarks.models import get_model

CONFIGS = [get_model(name).config() for name in ("tiny", "tiny-moe", "qwen2.5-7b", "qwen3-30b-a3b")]
DEEPSEEK = CONFIGS[0] | {
    "model_type": "deepseek_v3",
    "q_lora_rank": None,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 72,
}
HYBRID = CONFIGS[1] | {
    "model_type": "qwen3_next",
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
CONFIGS += [DEEPSEEK, {"model_type": "qwen2_5_vl", "vision_config": {}, "text_config": CONFIGS[0]}, HYBRID]
FLASHRL = {
    "configs": [
        {"fn": "int8", "model": "W8A8", "profile": "p.pt", "load_format": "auto", "frozen_scales": True},
        {"fn": "fp8_channel", "ignore": ["re:.*o_proj"], "module_attribute_to_preserve": ["workspace"]},
        {"fn": "bf16", "params_to_ignore": {"a": [1, 2.5, None]}},
    ]
}
TILES = tuned.Tiles(64, 128, 128, 4, 4, 4, tma=True)._asdict()
GROUPED = tuned.GroupedTiles(16, 64, 256, 4, 3, 1, False, 128, 256, 4, 3, 1, False, False)._asdict()
TUNED = {
    "linear": {"32x64": {"16": {"by": "cutlass"}, "64": {"by": "triton", **TILES}}},
    "experts": {"8x16x32x2": {"64": {"by": "triton", **GROUPED}}},
}
PROMPTS = [{"prompt": "1+2="}, {"prompt": [{"role": "user", "content": "a"}]}, {"prompt": [3, 1], "answer": 7}]
SIGNS = st.text("[]{}&*!|>:-#?'\"\\%@`,<=.+ \n\tab01eE_~", max_size=30)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The working folder, in which nothing must be written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def yaml_files(right):
    return changed(right).map(lambda tree: yaml.safe_dump(tree, allow_unicode=True).encode()).flatmap(damaged)


@fuzzed(120)
@given(SIGNS | TEXTS)
@example("&a [*a]")
def test_texts_of_any_signs(text):
    held(lambda: parse_yaml(text, "one"), BadDocument)
    held(lambda: parse_json(text, "one"), BadDocument)


@fuzzed(120)
@given(json_files(CONFIGS[0]), yaml_files(FLASHRL) | SIGNS.map(str.encode))
def test_files_of_json_and_yaml(here, json_bytes, yaml_bytes):
    for name, content, read in (("a.json", json_bytes, read_json), ("a.yaml", yaml_bytes, read_yaml)):
        (here / name).write_bytes(content)
        found = held(lambda: read(here / name), BadDocument)  # noqa: B023  called here
        assert found is None or isinstance(found, dict)


@fuzzed(150)
@given(st.sampled_from(CONFIGS).flatmap(json_files), st.sampled_from(["A2", "H200"]), st.integers(1, 9))
def test_configs_that_advise_reads(here, content, device, tp):
    """What it says of one has figures that are numbers."""
    (here / "config.json").write_bytes(content)
    shape = held(lambda: shape_of(read_config(str(here))), AdviceError)
    if shape is not None:
        workload = Workload(tp, 64, 256, 512)
        advice = held(lambda: advise(shape, get_device(device), workload, {}), AdviceError)
        assert advice is None or all(0 < found.tokens_per_second < math.inf for found in advice.rollouts.values())


@fuzzed(150)
@given(yaml_files(FLASHRL))
@example(b'"\\x1E": null\nconfigs: [{fn: int8}]')
def test_flashrls_files(here, content):
    """What is read can be written, and read again as the same."""
    (here / "config.yaml").write_bytes(content)
    found = held(lambda: flashrl.read(here / "config.yaml"), ConfigError)
    held(lambda: flashrl.check_is_config(here / "config.yaml"), ConfigError)
    if found is not None:
        held(
            lambda: [(replica.function, replica.disregarded(), notes(replica)) for replica in found.replicas],
            ConfigError,
        )
        written_and_read(found, here / "copy.yaml")


@fuzzed(150)
@given(
    st.sampled_from(["int8", "fp8", "bf16"]) | TEXTS,
    st.none() | TEXTS,
    st.none() | TEXTS,
    st.booleans(),
    st.lists(st.builds("{}={}".format, st.sampled_from("abc") | TEXTS, SIGNS | TEXTS) | TEXTS, max_size=2),
)
@example("int8", None, None, False, ["x='1e-6'"])
@example("int8", "\udcff", None, False, [])
@example("int8", None, None, False, ["\r=:"])
def test_words_of_setup(here, fn, model, profile, frozen, columns):
    found = held(lambda: entry(fn, model, profile, frozen, columns), ConfigError)
    if found is not None:
        written_and_read(flashrl.Config(replicas=[found]), here / "config.yaml")


def written_and_read(config: flashrl.Config, file: Path) -> None:
    """A config is written as it is, or refused and not written."""
    try:
        config.write(file)
    except ConfigError as refused:
        assert len(str(refused).splitlines()) == 1 and not file.exists()
    else:
        assert repr(flashrl.read(file)) == repr(config)  # NaN is not equal to itself
        file.unlink()


@fuzzed(120)
@given(st.dictionaries(st.sampled_from([row.name for row in TABLE] * 2 + ["FLASHRL_X", "PATH"]), TEXTS, max_size=4))
@example({"FLASHRL_CONFIG": "0\r0"})
@example({"FLASHRL_LMHEAD_FP32": "1" * 5000})
def test_environments(environment):
    held(lambda: from_environment(environment), VariableError)
    name = environment.get("FLASHRL_CONFIG", "int8")
    if "/" not in name or name.startswith(("/", ".", "~")):  # others are asked of the hub
        held(lambda: flashrl.resolve(name), ConfigError)


@fuzzed(150)
@given(json_files(TUNED))
@example(b'{"linear": {"32\\r64": {}}}')
def test_tuned_tables(here, content):
    """What is read can be saved, and read again as the same."""
    (here / "gpu.json").write_bytes(content)
    table = held(lambda: tuned.load(here / "gpu.json"), tuned.BadTable)
    if table is not None:
        tuned.save(here / "copy.json", table)
        assert tuned.load(here / "copy.json") == {kind: shapes for kind, shapes in table.items() if shapes}
        (here / "copy.json").unlink()


@fuzzed(100)
@given(st.lists(st.sampled_from(PROMPTS).flatmap(changed).map(as_json), max_size=3).map(b"\n".join).flatmap(damaged))
def test_prompts(here, content):
    for name in ("prompts.jsonl", "prompts.txt", "prompts.parquet"):
        (here / name).write_bytes(content)
        held(lambda: prompts.read(here / name), prompts.PromptError)  # noqa: B023  called here
