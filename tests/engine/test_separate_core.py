"""With the engine core in a process of its own: what its clients see of a bad refit, and of a crash in one."""

import json
import os
import subprocess
import sys
from pathlib import Path

from models import checkpoint, make, save
from naming import has_line_naming
from served import complete, post, server, wanted

HERE = Path(__file__).parent


def seen(script: str, folder: Path) -> dict:
    """What the script wrote about an engine with a small model."""
    out = folder / "seen.json"
    command = [sys.executable, str(HERE / script), str(make("qwen2", folder)), str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return json.loads(out.read_text())


def test_a_bad_refit_refuses_requests_one_by_one_and_the_engine_lives_to_be_healed(tmp_path):
    found = seen("refusing_core.py", tmp_path)
    assert "o_proj" in found["error"] and "1 of 16384 elements are NaN" in found["error"]
    assert found["refused"] == [["error", 0], ["error", 0]]
    assert found["at start"] == found["healed"] == found["healed again"] == ["length", 4]
    assert found["unseen"] == [True] and found["seen"] == ["error", 0]


def test_after_a_crash_in_a_refit_nothing_is_answered_and_the_next_engine_starts_from_the_checkpoint(tmp_path):
    found = seen("crashing_core.py", tmp_path)
    assert "answered" not in (found["refit"], found["after"]) and found["after"] == "EngineDeadError"
    ((receipt, read_back, refusal),) = found["restarted"]
    assert receipt == read_back and refusal is None
    assert found["restarted"] == found["at start"] and found["tokens again"] == found["tokens"]


def reloaded(address: str, path: Path | str) -> tuple[int, str]:
    return post(address, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}})


def test_http_clients_hear_why_and_a_wrong_path_changes_nothing(tmp_path):
    spoilt = make("qwen2", tmp_path, seed=7)
    state = checkpoint(spoilt)
    state[name := "model.layers.1.self_attn.o_proj.weight"][0, 0] = float("nan")
    save(state, spoilt)
    with server(tmp_path, "--quantization", "ascend_quant", VLLM_SERVER_DEV_MODE="1") as (address, _):
        before = complete(address)
        status, said = reloaded(address, "step-3")  # paths with slashes vLLM takes out
        assert status == 409 and "step-3" in said
        assert complete(address) == before
        status, said = reloaded(address, spoilt)
        assert status == 409 and name in said
        for more in ({}, {"stream": True}):
            _, said = post(address, "/v1/completions", wanted(**more))
            assert has_line_naming(said, "refuses", name, "NaN")
        assert reloaded(address, tmp_path / "qwen2-0")[0] == 200
        assert complete(address) == before
