"""Trainers of one's own, in another process than `vllm serve`: weight updates over HTTP, and a shared folder."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gloo_wire
import pytest
import torch
from engines import engine, refit
from models import checkpoint, make
from served import PROMPT, post, server, wanted
from transformers import AutoModelForCausalLM
from vllm import SamplingParams

OURS = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    options = ("--quantization", "ascend_quant", *gloo_wire.OPTIONS)
    with server(folder, *options, VLLM_SERVER_DEV_MODE="1", PYTHONPATH=OURS) as (address, log):
        yield address, log


def fresh(folder: Path) -> tuple[str, list[int]]:
    """Of an engine that starts on a checkpoint: its digest, and the tokens that follow PROMPT."""
    with engine(folder) as llm:
        settings = SamplingParams(max_tokens=4, temperature=0)
        output = llm.generate([{"prompt_token_ids": PROMPT}], settings, use_tqdm=False)[0].outputs[0]
        return refit(llm).last_receipt.digest, list(output.token_ids)


def answered(address: str) -> list[int]:
    status, body = post(address, "/v1/completions", wanted(return_token_ids=True))
    assert status == 200, body
    return json.loads(body)["choices"][0]["token_ids"]


def loaded(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)


def test_two_updates_of_vllms_own_trainer(served, tmp_path):
    """Its classes on both sides: init; twice start, update, finish; a request waits where the engine is paused."""
    address, log = served
    model = loaded(make("qwen2", tmp_path, seed=1))
    send = gloo_wire.sender(address, model)
    for seed in (1, 2):
        then = make("qwen2", tmp_path, seed=seed)
        model.load_state_dict(checkpoint(then))
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(post, address, "/v1/completions", wanted(max_tokens=50, ignore_eos=True))
            assert post(address, "/pause?mode=keep", {})[0] == 200
            send()
            assert post(address, "/resume", {})[0] == 200
            status, body = running.result()
        assert (status, json.loads(body)["choices"][0]["finish_reason"]) == (200, "length"), body
        assert (gloo_wire.digests(log.read_text())[-1], answered(address)) == fresh(then)


def test_a_folder_that_the_server_reads(served, tmp_path):
    address, log = served
    then = make("qwen2", tmp_path, seed=3)
    asked = {"method": "reload_weights", "kwargs": {"weights_path": str(then)}}
    assert post(address, "/collective_rpc", asked)[0] == 200
    assert (gloo_wire.digests(log.read_text())[-1], answered(address)) == fresh(then)
