"""Ways in which a weight sync can go wrong, between real processes: named, at once, and healed by the next one.

A real vLLM engine in this process with our worker extension, verl's own sender in another. After each fault the engine
refuses to generate, and the next good sync leaves the bytes of a fresh one: no weights of two steps are ever mixed.
"""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="the engine tests need vLLM")

import sync_faults as faults
import torch

from ascend_quant.refit import RefitError

pytestmark = pytest.mark.timeout(240)

DEADLINE = AT_ONCE = 90  # seconds: of a line, and of a sync that fails, on a busy machine
ENDS = [f"{act}, {moment}" for act in ("is killed", "fails") for moment in faults.MOMENTS]
PAUSES = [f"{act}, between two buckets" for act in ("stands still for a second", "is slow")]


class Trainer:
    """The process that sends."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("weights_sender.py"))],
            env={**os.environ, "VERL_PLATFORM": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def send(self, fault: str, handle: str, folder: Path) -> None:
        while not self.lines.empty():  # of a test that has failed
            self.lines.get()
        self.process.stdin.write("\t".join([fault, handle, f"{folder}/model.safetensors"]) + "\n")
        self.process.stdin.flush()

    def until(self, start: str) -> list[str]:
        """The lines up to the one that begins so."""
        lines = [self.lines.get(timeout=DEADLINE)]
        while not lines[-1].startswith(start):
            lines.append(self.lines.get(timeout=DEADLINE))
        return lines


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    trainer = Trainer()
    yield trainer
    trainer.process.kill()
    trainer.process.wait(timeout=DEADLINE)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[Path]:
    """A tiny Qwen2 of about five one-megabyte buckets, and the same with other weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=4)
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    config = Qwen2Config(vocab_size=64, max_position_embeddings=64, tie_word_embeddings=False, **sizes, **heads)
    folders = [tmp_path_factory.mktemp(f"model{seed}") for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folders


@pytest.fixture(scope="module")
def engine(models, trainer):
    from verl.plugin.platform import set_platform
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    from ascend_quant.integrations.verl.platform import PlatformCPU

    environment = {
        "VERL_PLATFORM": "cpu",
        "VERL_RAY_JOB_ID": f"test-{os.getpid()}",  # part of the socket's path
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        set_platform(PlatformCPU())
        llm = LLM(
            str(models[0]),
            quantization="ascend_quant",
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=32,
            worker_extension_cls="ascend_quant.integrations.verl.receiving.worker.RefitWorkerExtension",
        )
        llm.collective_rpc("monkey_patch_model", args=(64,))
        yield llm
        del llm
        cleanup_dist_env_and_memory()


def receive(engine) -> tuple[dict[str, float], str]:
    """The metrics of a sync, and the digest of what is in the engine."""
    engine.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": True})
    metrics, digests = engine.collective_rpc("refit_receipt")[0]
    return metrics, digests["weights"]


def generate(engine) -> list[int]:
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": [5, 6, 7, 8]}
    return (
        engine.generate(prompt, SamplingParams(max_tokens=4, detokenize=False), use_tqdm=False)[0].outputs[0].token_ids
    )


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """A fault that keeps the trainer from sending anything is to fail its test, not to be waited for ten minutes."""
    from ascend_quant.integrations.verl.receiving import receiver

    monkeypatch.setattr(receiver, "FIRST_MESSAGE_SECONDS", AT_ONCE)


class Syncs:
    """Weight syncs into one engine."""

    def __init__(self, engine, trainer: Trainer, models: list[Path]) -> None:
        self.engine, self.trainer, self.models = engine, trainer, models
        self.handle = engine.collective_rpc("_get_zmq_handle")[0]
        trainer.until("ready")
        self.digest = self.good()

    def good(self) -> str:
        """The digest of what is in the engine after a sync without a fault."""
        self.trainer.send("good", self.handle, self.models[0])
        metrics, digest = receive(self.engine)
        assert self.trainer.until("ended")[-1] == "ended code 0"
        assert metrics["refit/verified"] == 4 * 12 + 3
        return digest

    def failing(self, fault: str) -> tuple[Exception, list[str]]:
        """The engine's error, and what the trainer's process said."""
        begun = time.monotonic()
        self.trainer.send(fault, self.handle, self.models[1])
        with pytest.raises(RefitError) as error:
            receive(self.engine)
        said = self.trainer.until("ended")
        assert time.monotonic() - begun < AT_ONCE
        return error.value, said

    def check_refused_and_healed(self, said: list[str]) -> None:
        with pytest.raises(Exception, match="refuses to generate"):
            generate(self.engine)
        for line in said:
            if line.startswith("segment"):
                assert not Path("/dev/shm", line.split()[1]).exists()
        assert self.good() == self.digest and len(generate(self.engine)) == 4
        assert not Path(self.handle.removeprefix("ipc://")).exists()


@pytest.fixture(scope="module")
def syncs(engine, trainer, models) -> Syncs:
    return Syncs(engine, trainer, models)


@pytest.mark.parametrize("fault", faults.WRONG)
def test_what_changes_on_the_way_is_refused(syncs, fault):
    _, said = syncs.failing(fault)
    assert said[-1] == "ended code 0", "the trainer's process was not let go"
    syncs.check_refused_and_healed(said)


@pytest.mark.parametrize("fault", faults.UNSOUND)
def test_weights_that_no_engine_may_serve_are_refused(syncs, fault):
    _, said = syncs.failing(fault)
    assert said[-1] == "ended code 0", "the trainer's process was not let go"
    syncs.check_refused_and_healed(said)


@pytest.mark.parametrize("fault", ENDS)
def test_a_trainer_that_ends_in_a_sync_is_noticed(syncs, fault):
    _, said = syncs.failing(fault)
    assert said[-1] == ("ended signal 9" if "killed" in fault else "ended code 1")
    syncs.check_refused_and_healed(said)


@pytest.mark.parametrize("fault", [*faults.HARMLESS, *PAUSES])
def test_what_does_no_harm_goes_through(syncs, fault):
    syncs.trainer.send(fault, syncs.handle, syncs.models[0])
    _, digest = receive(syncs.engine)
    assert syncs.trainer.until("ended")[-1] == "ended code 0"
    assert digest == syncs.digest and len(generate(syncs.engine)) == 4


@pytest.mark.parametrize("bucket", [1, 3])
def test_an_engine_that_fails_in_a_sync_lets_the_trainer_go(syncs, bucket, monkeypatch):
    from ascend_quant.integrations.verl.receiving.worker import RefitWorkerExtension

    left, update = [bucket], RefitWorkerExtension._update_weights

    def failing(self, *args, **kwargs):
        left[0] -= 1
        if not left[0]:
            raise OSError("no space left on device")
        return update(self, *args, **kwargs)

    monkeypatch.setattr(RefitWorkerExtension, "_update_weights", failing)
    syncs.trainer.send("good", syncs.handle, syncs.models[1])
    with pytest.raises(RefitError, match="OSError: no space left on device"):
        receive(syncs.engine)
    said = syncs.trainer.until("ended")
    assert said[-1] == "ended code 0"
    monkeypatch.undo()
    syncs.check_refused_and_healed(said)


def test_a_trainer_that_never_comes_is_noticed(syncs, monkeypatch):
    from ascend_quant.integrations.verl.receiving import receiver

    monkeypatch.setattr(receiver, "FIRST_MESSAGE_SECONDS", 1)
    with pytest.raises(RefitError, match="no trainer"):
        receive(syncs.engine)
    monkeypatch.undo()
    syncs.check_refused_and_healed([])


def test_an_engine_that_cannot_map_the_buffer_lets_the_trainer_go(syncs, monkeypatch):
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer

    def no_memory(*_, **__):
        raise OSError("no memory")

    monkeypatch.setattr(transfer, "rebuild_shared_memory", no_memory)
    syncs.trainer.send("good", syncs.handle, syncs.models[1])
    with pytest.raises(OSError, match="no memory"):
        receive(syncs.engine)
    said = syncs.trainer.until("ended")
    monkeypatch.undo()
    syncs.check_refused_and_healed(said)


def test_weights_without_digests_serve_where_none_are_wanted(syncs, monkeypatch):
    from ascend_quant.integrations.verl.receiving.worker import RefitWorkerExtension

    monkeypatch.setattr(RefitWorkerExtension, "refit_wants_proof", False)
    syncs.trainer.send("the digests are lost", syncs.handle, syncs.models[0])
    metrics, digest = receive(syncs.engine)
    assert syncs.trainer.until("ended")[-1] == "ended code 0"
    assert metrics["refit/verified"] == 0 and digest == syncs.digest and len(generate(syncs.engine)) == 4


def test_a_good_sync_lands(syncs):
    syncs.trainer.send("good", syncs.handle, syncs.models[1])
    metrics, digest = receive(syncs.engine)
    syncs.trainer.until("ended")
    assert digest != syncs.digest and metrics["refit/changed"] > 0.9
    assert syncs.good() == syncs.digest
