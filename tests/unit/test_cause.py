"""Which exception of a log is named as the cause, and of which process, on the texts that the packages print."""

import subprocess
import sys
from pathlib import Path

import pytest

from ascend_quant.processes.cause import cause_in, is_consequence, of_log

RECORDED = Path(__file__).parent / "data" / "cause"  # of real runs; most frames and machine paths are taken out


def traceback_of(code: str) -> list[str]:
    """What Python prints of a program that fails."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode, code
    return done.stderr.splitlines()


def test_of_a_remote_traceback_the_innermost_process_is_named():
    """A real run of verl with transformers 5.9, whose model asks for flash-attn."""
    cause = of_log(RECORDED / "flash_attention.log")
    assert cause.error.startswith("ImportError: FlashAttention2 has been toggled on")
    assert cause.where == "WorkerDict.actor_rollout_init_model, 192.0.2.2, pid 17923"
    file, _, line = cause.log.rpartition(":")
    assert Path(file).read_text().splitlines()[int(line) - 1].startswith("ImportError")


def test_where_every_prompt_failed_the_prompts_error_is_named():
    """A real run of Moonlight's recipe, whose tokens verl did not find."""
    cause = of_log(RECORDED / "every_prompt_failed.log")
    assert cause.error.startswith("ValueError") and "<｜end▁of▁sentence｜>" in cause.error
    assert cause.where == "EarlyAgentLoopWorker, pid 1488"


def test_processes_that_write_at_the_same_time_are_told_apart():
    broken = traceback_of("import no_such_package")
    closed = traceback_of("raise ConnectionResetError('by peer')")
    lines = [f"(A pid={pid}) {line}" for pair in zip(broken, closed, strict=False) for pid, line in enumerate(pair, 1)]
    raised = cause_in(lines)
    assert raised.text.startswith("ModuleNotFoundError") and raised.where == "A, pid 1"


def test_what_somebody_has_handled_is_no_cause():
    logged = [f"(E pid=3) WARNING 11-23 10:00:00 [a.py:1] {line}" for line in traceback_of("{}['x']")]
    at_exit = traceback_of("class A:\n def __del__(self): 1 / 0\na = A()\nopen('/nosuch/file')")
    assert cause_in([*logged, *at_exit]).text.startswith("FileNotFoundError")
    assert cause_in(logged) is None


def test_what_a_whole_step_has_followed_is_no_cause():
    early, late = traceback_of("{}['early']"), traceback_of("{}['late']")
    step = "(TaskRunner pid=5) step:3 - loss:0.5"
    assert cause_in([*early, step, *late]).text == "KeyError: 'late'"
    assert cause_in([*early, step]) is None
    assert cause_in([*early, "again"], before=len(early)) is None


def test_of_a_chain_the_last_that_is_no_consequence_counts():
    chained = "try:\n open('/nosuch/data')\nexcept OSError as e:\n raise {} from e"
    assert "/nosuch/data" in cause_in(traceback_of(chained.format("ConnectionResetError('gone')"))).text
    assert cause_in(traceback_of(chained.format("RuntimeError('cannot load')"))).text == "RuntimeError: cannot load"


def test_a_worker_that_was_killed_is_named_with_its_host(tmp_path):
    """As Ray 2.60 prints it in the driver."""
    log = tmp_path / "log"
    named = ("class_name: Rank", "actor_id: 0b62", "pid: 4711", "name: rank7", "namespace: 1", "ip: 192.0.2.3")
    lines = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>']
    lines += ["ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."]
    raylet = "(raylet) A worker died or was killed while executing a task by an unexpected system error."  # any time
    log.write_text("\n".join([*lines, *(f"\t{one}" for one in named), "The actor is dead because ..", raylet]))
    assert of_log(log).where == "rank7, 192.0.2.3, pid 4711"


@pytest.mark.parametrize(
    "text",
    [
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer [10.0.0.1]",
        "ascend_quant.integrations.verl.receiving.receiver.SenderGone: the trainer closed ipc:///tmp after 3 messages",
        "ascend_quant.transfer.errors.RefitError: weight sync failed: the trainer closed ipc:///x after 3 messages, "
        "before its last bucket: look in the trainer's log",
    ],
)
def test_what_another_process_has_caused_is_a_consequence(text):
    assert is_consequence(text)
    assert not is_consequence("ascend_quant.transfer.errors.RefitError: weight sync failed: layers.1.weight has 3 NaN")
