"""The option kv_cache in a real engine's configuration, from `hf_overrides` and from a checkpoint, and in an engine."""

import json

import pytest

pytest.importorskip("vllm", reason="the engine tests need vLLM")

from models import make
from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs

from ascend_quant.integrations.vllm.kv_cache.options import KvCacheError, problem_of_engine

pytestmark = pytest.mark.timeout(300)
with_fp8 = pytest.mark.skipif(problem_of_engine("fp8") is not None, reason="no FP8 cache here: AVX-512 or AMX")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make("qwen3", tmp_path_factory.mktemp("model"))


def arguments(folder, **options):
    config = {"quant_method": "ascend_quant", "scheme": "int8", **options}
    overrides = {"quantization_config": config} if options else {}
    return {
        **{"model": str(folder), "dtype": "bfloat16", "enforce_eager": True, "max_model_len": 64},
        **{"quantization": "ascend_quant", "hf_overrides": overrides},
    }


def cache_dtype(**given) -> str:
    return EngineArgs(**given).create_engine_config().cache_config.cache_dtype


@with_fp8
def test_options_and_checkpoints_set_the_dtype(folder, tmp_path):
    asked = arguments(folder, kv_cache="fp8")
    assert cache_dtype(**asked) == "fp8" and cache_dtype(**asked, kv_cache_dtype="fp8_e4m3") == "fp8"
    assert not cache_dtype(**arguments(folder, kv_cache="auto")).startswith("fp8")
    copied = make("qwen3", tmp_path)
    config = json.loads((copied / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "ascend_quant", "scheme": "int8", "kv_cache": "fp8"}
    (copied / "config.json").write_text(json.dumps(config))
    assert cache_dtype(**arguments(copied)) == "fp8"


@with_fp8
def test_another_dtype_beside_it(folder):
    with pytest.raises(KvCacheError, match=r"kv_cache=fp8.*fp8_e5m2"):
        cache_dtype(**arguments(folder, kv_cache="fp8"), kv_cache_dtype="fp8_e5m2")


def test_int8_on_a_cpu(folder):
    with pytest.raises(KvCacheError, match=r"kv_cache=int8.*CPU"):
        cache_dtype(**arguments(folder, kv_cache="int8"))


@with_fp8
def test_an_engine_generates_with_it(folder, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    llm = LLM(**arguments(folder, kv_cache="fp8"), disable_log_stats=True, kv_cache_memory_bytes=64 << 20)
    assert llm.llm_engine.vllm_config.cache_config.cache_dtype == "fp8"
    wanted = SamplingParams(max_tokens=4, ignore_eos=True)
    found = llm.generate([{"prompt_token_ids": [3, 4, 5]}], wanted, use_tqdm=False)
    assert len(found[0].outputs[0].token_ids) == 4
