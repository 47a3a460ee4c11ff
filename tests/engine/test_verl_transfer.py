"""verl's weight transfer into a real engine: it ends, whatever happens, and tells both sides the truth.

A real vLLM engine in this process with our worker extension, verl's own sender in another one. No test may hang:
that the sender's process ends is the point of half of them.
"""

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from naming import line_naming

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="the engine tests need vLLM")

import torch

from ascend_quant.refit import RefitError

pytestmark = pytest.mark.timeout(240)

DEADLINE = 120
SENDER = """
import asyncio, importlib.util, sys, time
from multiprocessing import resource_tracker
from pathlib import Path
import torch, verl
from safetensors.torch import load_file
from ascend_quant.refit.proof import sending

# verl's file by its path: its package would import vLLM, which a trainer needs and a sender does not
source = Path(verl.__file__).parent / "workers/rollout/vllm_rollout/bucketed_weight_transfer.py"
spec = importlib.util.spec_from_file_location("transfer", source)
spec.loader.exec_module(transfer := importlib.util.module_from_spec(spec))

class Sender(transfer.BucketedWeightSender):
    def _init_buffer(self):
        super()._init_buffer()
        print("segment", self.shm.name, flush=True)
        if mode == "die":  # as when a whole process group is killed: nobody cleans up after it
            resource_tracker.unregister(self.shm._name, "shared_memory")

def weights():
    sent = 0
    for name, tensor in load_file(checkpoint).items():
        if mode == "die" and sent > 2 << 20:
            print("between two buckets", flush=True)
            time.sleep(600)
        if mode == "nan" and sent > 1 << 20 and name.endswith("proj.weight"):
            tensor.view(-1)[7], sent = float("nan"), -(1 << 30)
            print("nan", name, flush=True)
        sent += tensor.nbytes
        yield name, tensor

def journey(stream):
    for i, (name, tensor) in enumerate(stream):
        if i == 20 and mode in ("flip", "lose"):
            print(mode, name, flush=True)
            if mode == "lose":
                continue
            tensor = tensor.clone()
            tensor.view(torch.uint8).view(-1)[-2] ^= 1  # the last bit of the last element
        yield name, tensor

print("ready", flush=True)
for line in sys.stdin:
    mode, handle, checkpoint = line.split()
    stream = weights() if mode == "bare" else journey(sending(weights()))
    asyncio.run(Sender(handle, bucket_size_mb=1, use_shm=True).async_send_weights(stream))
    print("sent", flush=True)
"""


class Sender:
    """verl's sender in its own process. It dies for real when it says that it is between two buckets."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SENDER],
            env={**os.environ, "VERL_PLATFORM": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            if line.startswith("between"):
                self.process.kill()
            self.lines.put(line.strip())

    def expect(self, start: str) -> str:
        """The rest of the next line, which must begin with this word."""
        line = self.lines.get(timeout=DEADLINE)
        assert line.startswith(start), line
        return line.removeprefix(start).strip()

    def send(self, handle: str, folder: Path, mode: str = "good") -> None:
        self.process.stdin.write(f"{mode} {handle} {folder}/model.safetensors\n")
        self.process.stdin.flush()


@pytest.fixture(scope="module")
def senders():
    """Two, since one of them will die; they start while the engine does."""
    started = [Sender(), Sender()]
    yield started
    for sender in started:
        sender.process.kill()
        sender.process.wait(timeout=DEADLINE)


@pytest.fixture(scope="module")
def sender(senders):
    senders[0].expect("ready")
    return senders[0]


@pytest.fixture(scope="module")
def doomed(senders):
    senders[1].expect("ready")
    return senders[1]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
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
def engine(checkpoints, senders):
    from verl.plugin.platform import set_platform
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    from ascend_quant.integrations.verl.platform import PlatformCPU

    environment = {
        "VERL_PLATFORM": "cpu",
        "VERL_RAY_JOB_ID": f"test-{checkpoints[0].name}",  # part of the socket's path
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
            str(checkpoints[0]),
            quantization="ascend_quant",
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=32,
            worker_extension_cls="ascend_quant.integrations.verl.worker.RefitWorkerExtension",
        )
        llm.collective_rpc("monkey_patch_model", args=(64,))
        yield llm
        del llm
        cleanup_dist_env_and_memory()


@pytest.fixture(scope="module")
def handle(engine) -> str:
    return engine.collective_rpc("_get_zmq_handle")[0]


def receive(engine) -> dict[str, float]:
    engine.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": True})
    return engine.collective_rpc("refit_receipt")[0]


def generate(engine) -> list[int]:
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": [5, 6, 7, 8]}
    return (
        engine.generate(prompt, SamplingParams(max_tokens=4, detokenize=False), use_tqdm=False)[0].outputs[0].token_ids
    )


def nothing_left(handle: str, segment: str) -> bool:
    return not Path("/dev/shm", segment).exists() and not Path(handle.removeprefix("ipc://")).exists()


def test_a_good_sync_lands(engine, handle, sender, checkpoints):
    receipts = []
    for folder in (checkpoints[0], checkpoints[1], checkpoints[0]):
        sender.send(handle, folder)
        receipts.append(receive(engine))
        segment = sender.expect("segment")
        sender.expect("sent")
        assert nothing_left(handle, segment)
    first, other, again = receipts
    assert first["refit/digest"] == again["refit/digest"] != other["refit/digest"]
    assert other["refit/changed"] > 0.9 and other["refit/nonfinite"] == 0
    assert other["refit/proved"] == other["refit/tensors"] == 4 * 12 + 3
    assert len(generate(engine)) == 4


@pytest.mark.parametrize(("mode", "fault"), [("flip", "has other values"), ("lose", "is missing")])
def test_what_changes_on_the_way_fails_the_sync(engine, handle, sender, checkpoints, mode, fault):
    sender.send(handle, checkpoints[1], mode)
    with pytest.raises(RefitError, match=line_naming("weight sync", "1 of 51 parameters")) as error:
        receive(engine)
    segment = sender.expect("segment")
    assert f"{sender.expect(mode)} {fault}" in str(error.value)
    sender.expect("sent")
    assert nothing_left(handle, segment)
    with pytest.raises(Exception, match="refuses to generate"):
        generate(engine)


def test_weights_without_digests_fail_a_sync_that_wants_a_proof(engine, handle, sender, checkpoints, monkeypatch):
    from ascend_quant.integrations.verl.worker import RefitWorkerExtension

    sender.send(handle, checkpoints[1], "bare")
    with pytest.raises(RefitError, match="never came"):
        receive(engine)
    sender.expect("segment")
    sender.expect("sent")
    with pytest.raises(Exception, match="refuses to generate"):
        generate(engine)

    monkeypatch.setattr(RefitWorkerExtension, "refit_wants_proof", False)
    sender.send(handle, checkpoints[1], "bare")
    healed = receive(engine)
    sender.expect("segment")
    sender.expect("sent")
    assert healed["refit/proved"] == 0 and len(generate(engine)) == 4


def test_a_nan_fails_the_sync_and_leaves_no_sender_waiting(engine, handle, sender, checkpoints):
    sender.send(handle, checkpoints[1], "nan")
    with pytest.raises(RefitError) as error:
        receive(engine)
    segment = sender.expect("segment")
    assert sender.expect("nan") in str(error.value)
    sender.expect("sent")
    assert nothing_left(handle, segment)
    with pytest.raises(Exception, match="refuses to generate"):
        generate(engine)


def test_a_dead_sender_is_noticed_and_the_next_sync_heals(engine, handle, sender, doomed, checkpoints):
    doomed.send(handle, checkpoints[1], "die")
    with pytest.raises(RefitError, match="last bucket"):
        receive(engine)
    segment = doomed.expect("segment")
    doomed.expect("between two buckets")
    assert doomed.process.wait(timeout=DEADLINE) == -9
    assert not Path("/dev/shm", segment).exists()
    with pytest.raises(Exception, match="refuses to generate"):
        generate(engine)

    sender.send(handle, checkpoints[0])  # to the same address, where the dead sender's socket file still lies
    healed = receive(engine)
    segment = sender.expect("segment")
    sender.expect("sent")
    assert healed["refit/nonfinite"] == 0 and len(generate(engine)) == 4
    assert nothing_left(handle, segment)


def test_an_error_of_the_receiver_itself_leaves_no_sender_waiting(engine, handle, sender, checkpoints, monkeypatch):
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer

    def no_memory(*_, **__):
        raise OSError("no memory")

    monkeypatch.setattr(transfer, "rebuild_shared_memory", no_memory)
    sender.send(handle, checkpoints[1])
    with pytest.raises(OSError, match="no memory"):
        receive(engine)
    sender.expect("segment")
    sender.expect("sent")


def test_a_sender_that_never_comes_is_an_error(engine, monkeypatch):
    from ascend_quant.integrations.verl import receiver

    monkeypatch.setattr(receiver, "FIRST_MESSAGE_SECONDS", 1)
    with pytest.raises(RefitError, match="no trainer"):
        receive(engine)
