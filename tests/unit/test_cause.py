"""Which exception of a log is named as the cause, and what is advised: on the texts that the packages print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch.cause import LONGEST, Cause, consequence, first, fix, of_log
from launch.tracebacks import exceptions

RECORDED = Path(__file__).parent / "data" / "cause"  # of real runs; most frames and machine paths are taken out


def traceback_of(code: str) -> list[str]:
    """What Python prints of a program that fails."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode, code
    return done.stderr.splitlines()


def test_of_a_remote_traceback_the_innermost_process_is_named():
    """A real run of verl with transformers 5.9, whose model asks for flash-attn."""
    lines = (RECORDED / "flash_attention.log").read_text().splitlines()
    raised = first(lines)
    assert raised.text.startswith("ImportError: FlashAttention2 has been toggled on")
    assert (raised.process, raised.pid) == ("WorkerDict.actor_rollout_init_model", 17923)
    assert "FlashAttention2" in lines[raised.line - 1] and raised.line == len(lines)


def test_where_every_prompt_failed_the_prompts_error_is_named():
    """A real run of Moonlight's recipe, whose tokens verl did not find."""
    raised = first((RECORDED / "every_prompt_failed.log").read_text().splitlines())
    assert raised.type == "ValueError" and "<｜end▁of▁sentence｜>" in raised.text
    assert (raised.process, raised.pid) == ("EarlyAgentLoopWorker", 1488)


def test_processes_that_write_at_the_same_time_are_told_apart():
    broken = traceback_of("import no_such_package")
    closed = traceback_of("raise ConnectionResetError('by peer')")
    lines = [f"(A pid={pid}) {line}" for pair in zip(broken, closed, strict=False) for pid, line in enumerate(pair, 1)]
    found = [(chain[0].type, chain[0].pid) for chain in exceptions(lines)]
    assert sorted(found) == [("ConnectionResetError", 2), ("ModuleNotFoundError", 1)]
    assert first(lines).pid == 1


def test_what_somebody_has_handled_is_no_cause():
    logged = [f"(E pid=3) WARNING 11-23 10:00:00 [a.py:1] {line}" for line in traceback_of("{}['x']")]
    at_exit = traceback_of("class A:\n def __del__(self): 1 / 0\na = A()\ndel a\nopen('/nosuch/file')")
    assert [chain[0].type for chain in exceptions([*logged, *at_exit])] == ["FileNotFoundError"]


def test_what_a_whole_step_has_followed_is_no_cause():
    early, late = traceback_of("{}['early']"), traceback_of("{}['late']")
    step = "(TaskRunner pid=5) step:3 - loss:0.5"
    remote = [f"(W pid=7) {line}" for line in early]
    assert "late" in first([*remote, step, *(f"(W pid=8) {line}" for line in late)]).text
    assert first([*remote, step]) is None


def test_of_a_chain_the_last_that_is_no_consequence_counts():
    chained = "try:\n open('/nosuch/data')\nexcept OSError as e:\n raise {} from e"
    assert "/nosuch/data" in first(traceback_of(chained.format("ConnectionResetError('gone')"))).text
    assert first(traceback_of(chained.format("RuntimeError('cannot load')"))).text == "RuntimeError: cannot load"


def test_an_exception_without_a_message_says_where_it_was_raised():
    assert re.fullmatch(
        r"AssertionError: in check \(.*:1\)", first(traceback_of("def check(): assert 0\ncheck()")).text
    )


def test_at_most_five_lines_each_of_them_one(tmp_path):
    log = tmp_path / "log"
    log.write_text("\n".join(traceback_of("raise FileNotFoundError('a\\nb ' + 'c' * 10_000)")))
    lines = of_log(log).lines()
    assert [line.partition(":")[0] for line in lines] == ["cause", "log", "fix"]
    assert all("\n" not in line and len(line) < LONGEST + 10 for line in lines)
    assert Cause("a\nb").lines() == ["cause: a b"]
    log.write_text("all is well\n")
    assert of_log(log) is None


CUDA = (  # torch 2.11's words, of a GPU of 139 GiB
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.80 GiB "
    "of which 9.06 GiB is free. Including non-PyTorch memory, this process has 130.74 GiB memory in use."
)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("ModuleNotFoundError: No module named 'flash_attn.bert_padding'", r"\bflash_attn\b"),
        ("ImportError: FlashAttention2 has been toggled on, but it cannot be used due to", "attn_implementation"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'", "--data"),
        ("OSError: Can't load the configuration of '/models/x'. If you were trying to load it from", "--model"),
        (CUDA, "^device memory"),
        ("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total", "^device memory"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't", "^host memory"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "^host memory"),
        ("ValueError: No available memory for the cache blocks. Try increasing", "gpu_memory_utilization"),
        ("ValueError: To serve at least one request with the model's max seq len (4096), (2.0 GiB KV cache is needed, "
         "which is larger than the available KV cache memory (1.0 GiB).", "max_model_len"),
        ("ValueError: Free memory on device cuda:0 (9.06/139.8 GiB) on startup is less than", "nvidia-smi"),
        ("OSError: [Errno 28] No space left on device", r"\bdf -h"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1a2b'", "--shm-size"),
        ("Crash: SIGBUS", "--shm-size"),
        ("OSError: [Errno 98] Address already in use", r"\bports\b"),
        ("hydra.errors.ConfigCompositionException: Could not override 'trainer.nosuch'.", "recipe show"),
        ("AssertionError: in __init__ (/x/megatron/core/optimizer_param_scheduler.py:160)", "lr_warmup_steps"),
        ("Exited with code 2: default_worker.py: error: unrecognized arguments: --nosuch 1", "engine_kwargs"),
    ],
)  # fmt: skip
def test_what_is_known_to_help_is_advised(text, advice):
    assert re.search(advice, fix(text))
    assert not consequence(text)


def test_our_own_words_stay_as_they_are():
    text = "ascend_quant.refit.errors.RefitError: weight sync failed: layers.1.mlp.down_proj.weight has 3 NaN"
    assert not consequence(text) and fix(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "ray.exceptions.RayActorError: The actor died",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer [10.0.0.1]",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited",
        "ascend_quant.integrations.verl.receiver.SenderGone: the trainer closed ipc:///tmp/x after 3 messages",
        "ascend_quant.refit.errors.RefitError: weight sync failed: the trainer closed ipc:///x after 3 messages, "
        "before its last bucket: look in the trainer's log",
        "zmq.error.ContextTerminated: Context was terminated",
    ],
)
def test_what_another_process_has_caused_is_a_consequence(text):
    assert consequence(text)
