"""FLASHRL_* variables turn an engine of this environment into ours: no import line, no argument."""

import os
import re
import subprocess
from argparse import Namespace

import pytest
import torch
import yaml
from engines import engine, model_of, refit, worker_of
from models import make
from naming import has_line_naming
from served import PROMPT, SECONDS, VLLM, complete, server
from vllm import SamplingParams

from ascend_quant.flashrl.config import Config
from ascend_quant.flashrl.files import ConfigError
from ascend_quant.flashrl.variables import Variables
from ascend_quant.integrations.vllm.config import AscendQuantConfig
from ascend_quant.integrations.vllm.flashrl import configure, replica_of
from ascend_quant.integrations.vllm.reload_test import reload_twice
from ascend_quant.refit import RefitError

OURS = {"quant_method": "ascend_quant"}


def arguments(**given) -> Namespace:
    """The part of vLLM's EngineArgs that is looked at."""
    usual = {
        "quantization": None,
        "hf_overrides": {},
        "data_parallel_rank": None,
        "data_parallel_size": 1,
        "distributed_executor_backend": None,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
    }
    return Namespace(**{**usual, **given})


def config_of(*functions: str) -> Config:
    return Config.model_validate({"configs": [{"fn": fn} for fn in functions]})


def test_vllm_serve_answers_with_logprobs_like_an_engine_that_is_asked_for_int8(tmp_path):
    with server(tmp_path, FLASHRL_CONFIG="int8") as (address, log):
        found = complete(address)
    lines = log.read_text()
    assert "FLASHRL_CONFIG=int8: replica 0 uses fn=int8" in lines
    assert "scheme int8" in lines and has_line_naming(lines, "8 quantized parameters, 9 ", "products: torch.")
    with engine(tmp_path / "qwen2-0") as llm:
        settings = SamplingParams(max_tokens=4, temperature=0, logprobs=2)
        output = llm.generate([{"prompt_token_ids": PROMPT}], settings, use_tqdm=False)[0].outputs[0]
    logprobs = [step[token].logprob for step, token in zip(output.logprobs, output.token_ids, strict=True)]
    assert found["logprobs"]["token_logprobs"] == pytest.approx(logprobs, abs=1e-3)


def test_replicas_of_vllms_own_data_parallel_choose_by_their_rank(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump({"configs": [{"fn": "fp8"}, {"fn": "int8"}]}))
    options = ("--data-parallel-size", "2", "--api-server-count", "1")
    with server(tmp_path, *options, FLASHRL_CONFIG=str(file)) as (address, log):
        assert complete(address)["logprobs"]["token_logprobs"]
    told = [line for line in log.read_text().splitlines() if "attach.py" in line]
    assert sorted(re.search(r"scheme (\w+)", line)[1] for line in told if "scheme " in line) == ["fp8_tensor", "int8"]


def test_an_unknown_value_ends_the_server_with_the_valid_ones(tmp_path):
    command = [VLLM, "serve", str(make("qwen2", tmp_path)), "--enforce-eager"]
    run = subprocess.run(
        command, env={**os.environ, "FLASHRL_CONFIG": "int9"}, capture_output=True, text=True, timeout=SECONDS
    )
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert "FLASHRL_CONFIG='int9'" in last and "int8, int8_fast" in last and "bf16" in last


@pytest.mark.parametrize(
    ("given", "environment", "rank"),
    [
        ({}, {}, 0),
        ({}, {"VERL_REPLICA_RANK": "3"}, 3),
        ({"data_parallel_rank": 2, "data_parallel_size": 4}, {}, 2),
        ({"data_parallel_size": 2}, {}, None),
        ({"distributed_executor_backend": "external_launcher", "tensor_parallel_size": 2}, {"RANK": "5"}, 2),
    ],
)
def test_which_replica_an_engine_is(given, environment, rank):
    assert replica_of(arguments(**given), environment, configs=2) == rank
    assert replica_of(arguments(**given), environment, configs=1) == 0


@pytest.mark.parametrize("environment", [{}, {"RANK": ""}, {"RANK": "-1"}, {"RANK": "one"}])
def test_a_rank_that_is_not_known_is_named(environment):
    given = arguments(distributed_executor_backend="external_launcher")
    assert replica_of(given, environment, configs=1) == 0
    with pytest.raises(ConfigError, match=rf"RANK={environment.get('RANK')!r}"):
        replica_of(given, environment, configs=2)


@pytest.mark.parametrize(("rank", "scheme"), [("0", "int8"), ("1", "bf16"), ("2", "int8")])
def test_a_replica_of_verl_uses_its_config(monkeypatch, rank, scheme):
    monkeypatch.setenv("VERL_REPLICA_RANK", rank)
    given = arguments(hf_overrides={"rope_theta": 1.0})
    configure(given, config_of("int8", "bf16"), Variables(config="x"))
    assert given.quantization == "ascend_quant"
    assert given.hf_overrides == {"rope_theta": 1.0, "quantization_config": {**OURS, "scheme": scheme}}
    configure(given, config_of("int8", "bf16"), Variables(config="x"))  # again, for an engine beside it


def test_cores_that_choose_by_their_rank_are_given_every_replica():
    given = arguments(data_parallel_size=2)
    configure(given, config_of("int8", "fp8", "fp8_channel"), Variables(config="x", lm_head_fp32=True))
    options = given.hf_overrides["quantization_config"]
    assert options["replicas"] == [{"scheme": scheme} for scheme in ("int8", "fp8_tensor", "fp8")]
    assert options["lm_head_fp32"] and options["quant_method"] == given.quantization == "ascend_quant"
    for rank, scheme in enumerate(("int8", "fp8_tensor", "fp8", "int8")):
        config = AscendQuantConfig.from_config(options)
        config.choose(rank)
        assert config.scheme.name == config.options.scheme == scheme and config.options.lm_head_fp32


@pytest.mark.parametrize(
    ("given", "functions", "message"),
    [
        ({"quantization": "fp8"}, ("int8",), "quantization='fp8'"),
        ({"hf_overrides": {"quantization_config": {}}}, ("int8",), "quantization_config"),
        ({"hf_overrides": lambda config: config}, ("int8",), "hf_overrides"),
        ({"quantization": "fp8"}, ("fp8",), "quantization='fp8'"),
    ],
)
def test_what_does_not_go_together_is_refused(given, functions, message):
    with pytest.raises(ConfigError, match=message):
        configure(arguments(**given), config_of(*functions), Variables(config="x"))


@pytest.mark.parametrize("kind", ["qwen2", "qwen2-tied"])
def test_logits_in_float32(tmp_path, kind):
    with engine(make(kind, tmp_path), quantization_config={"lm_head_fp32": True}) as llm:
        model = model_of(llm)
        hidden_MK = torch.randn(5, 128).to(torch.bfloat16)
        head = model.model.embed_tokens if kind == "qwen2-tied" else model.lm_head
        logits_MV = model.compute_logits(hidden_MK)
        expected_MV = hidden_MK.double() @ head.weight.double().T
        assert logits_MV.dtype == torch.float32
        assert torch.allclose(logits_MV.double(), expected_MV[:, : logits_MV.shape[1]], rtol=1e-5, atol=1e-5)
        assert not torch.equal(logits_MV.to(torch.bfloat16).float(), logits_MV)


def test_reloads_over_junk_are_compared_with_the_fresh_load(tmp_path):
    with engine(make("qwen2", tmp_path), quantization_config={"test_reload": True}) as llm:
        assert refit(llm).last_receipt.number == 3
        worker = worker_of(llm)
        worker.model_runner.reload_weights = lambda: None
        with pytest.raises(RefitError, match="reload 1 gave digest"):
            reload_twice(worker)
