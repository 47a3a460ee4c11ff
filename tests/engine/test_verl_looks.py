"""Under verl the engine looks at its weights no oftener than before there was a guard: its code writes by refits alone.

The engine's core has a process of its own, as in verl's server, and verl's own sender another.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")

from models import make
from vllm import LLM, SamplingParams

SENDER = Path(__file__).with_name("weights_sender.py")
SYNCS = 3


@pytest.fixture
def sender(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("VERL_RAY_JOB_ID", f"looks-{os.getpid()}")  # part of the socket's path
    command = [sys.executable, str(SENDER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


def said(process: subprocess.Popen, start: str) -> str:
    return next(line for line in process.stdout if line.startswith(start))


def ask(llm: LLM) -> str:
    settings = SamplingParams(max_tokens=2, detokenize=False, ignore_eos=True)
    (answer,) = llm.generate([{"prompt_token_ids": [3, 4, 5]}], settings, use_tqdm=False)
    return answer.outputs[0].finish_reason


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("extension", "stream", "digests"),
    [
        ("Ours", "good", {}),
        ("Verls", "the digests are lost", {"digest": SYNCS}),  # by the post-load pass that ends verl's own sync
    ],
)
def test_steps_of_verl_read_weights_back_no_oftener(tmp_path, monkeypatch, sender, extension, stream, digests):
    folder = make("qwen2", tmp_path)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    llm = LLM(
        str(folder),
        quantization="ascend_quant",
        load_format="dummy",
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=64,
        worker_extension_cls=f"counted_looks.{extension}",
    )
    try:
        llm.collective_rpc("monkey_patch_model", args=(61,))
        said(sender, "ready")
        (handle,) = llm.collective_rpc("_get_zmq_handle")
        for _ in range(SYNCS):
            sender.stdin.write("\t".join([stream, handle, f"{folder}/model.safetensors"]) + "\n")
            sender.stdin.flush()
            llm.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": True})
            assert said(sender, "ended").split() == ["ended", "code", "0"]
            assert [ask(llm), ask(llm)] == ["length"] * 2
        looks = {"bytes": 1, **digests}  # the first refit notes some, in case of a glance
        assert llm.collective_rpc("looks") == [looks]
        ask(llm)  # behind a stranger's call, which `looks` is
        assert llm.collective_rpc("looks") == [{**looks, "digest": looks.get("digest", 0) + 1}]
    finally:
        llm.llm_engine.engine_core.shutdown()
