"""Workers' own files of SkyRL and OpenRLHF (docker/locks/trainers.txt), and what prime-rl's calls: each sync arrives.

Tensors come through their CUDA IPC functions, with a handle that reads a file and torch.cuda told about one device.
"""

import base64
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch
from engines import engine, logprobs, refit
from models import checkpoint, make
from safetensors import safe_open
from vllm import LLM
from vllm.config.weight_transfer import WeightTransferConfig

from ascend_quant.refit import RefitError

LOCK = Path(__file__).parents[2] / "docker/locks/trainers.txt"
SKYRL = "skyrl.backends.skyrl_train.inference_servers.new_inference_worker_wrap.NewInferenceWorkerWrap"
OPENRLHF = "openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap"
DEVICE = "GPU-0"
HANDLE_ARGUMENTS = 7  # of CUDA IPC; both trainers write the device's number into the last one


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    """Both packages in a folder of their own, without what they require."""
    folder = tmp_path_factory.mktemp("trainers")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", folder]
    subprocess.run([*pip, "-r", LOCK], check=True, timeout=300)
    backends = ModuleType("skyrl.backends")  # its own imports pydantic models that ask for Python 3.12
    backends.__path__ = [str(folder / "skyrl/backends")]
    with mock.patch.object(sys, "path", [*sys.path, str(folder)]), mock.patch.dict(sys.modules):
        sys.modules["skyrl.backends"] = backends
        yield


@contextmanager
def one_device() -> Iterator[None]:
    """What their functions ask torch of a GPU."""
    facts = SimpleNamespace(uuid=DEVICE)
    with (
        mock.patch("torch.cuda.current_device", lambda: 0),
        mock.patch("torch.cuda.get_device_properties", lambda device: facts),
        mock.patch("torch.cuda.synchronize", lambda: None),
        mock.patch("torch.accelerator.synchronize", lambda: None),
    ):
        yield


def read(folder: str, names: list[str], *_) -> torch.Tensor:
    """These tensors of a checkpoint, one behind the other; a single one as it is."""
    with safe_open(f"{folder}/model.safetensors", "pt") as file:
        tensors = [file.get_tensor(name) for name in names]
    return tensors[0] if len(tensors) == 1 else torch.cat([tensor.view(-1) for tensor in tensors])


def handles(folder: Path, names: list[str]) -> dict[str, tuple]:
    return {DEVICE: (read, (str(folder), names, *[None] * (HANDLE_ARGUMENTS - 2)))}


@contextmanager
def synced(folder: Path, extension: str, **settings) -> Iterator[tuple[LLM, Path, list[str]]]:
    """An engine, the checkpoint that is to be sent, its names: at the end it has what a fresh engine has."""
    start, then = make("qwen2", folder), make("qwen2", folder, seed=1)
    with engine(start, worker_extension_cls=extension, **settings) as llm:
        before = refit(llm).last_receipt.digest
        yield llm, then, list(checkpoint(then))
        after, found = refit(llm).last_receipt.digest, logprobs(llm)
    with engine(then) as fresh:
        assert refit(fresh).last_receipt.digest == after != before
        assert torch.equal(logprobs(fresh), found)


def test_openrlhf_sends_tensor_by_tensor(tmp_path):
    def send(names: list[str]) -> None:
        for name in names:
            tensor = state[name]
            told = (name, tensor.dtype, tensor.shape, handles(then, [name]))
            with one_device():
                llm.collective_rpc("update_weight_cuda_ipc", args=told)

    with synced(tmp_path, OPENRLHF) as (llm, then, names):
        state = checkpoint(then)
        send(names[:5])
        with pytest.raises(RefitError):
            logprobs(llm)
        send(names[5:])


def test_skyrl_sends_in_chunks_between_start_and_finish(tmp_path):
    def send(names: list[str]) -> None:
        tensors = [state[name] for name in names]
        info = {
            "names": names,
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
            "sizes": [tensor.numel() for tensor in tensors],
            "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles(then, names))).decode(),
        }
        with one_device():
            llm.collective_rpc("update_weights_ipc", args=(info,))

    transfer = WeightTransferConfig(backend="nccl")  # it asks for one, and sends through its own functions
    with synced(tmp_path, SKYRL, weight_transfer_config=transfer) as (llm, then, names):
        state = checkpoint(then)
        llm.collective_rpc("skyrl_start_weight_update")
        send(names[:5])
        with pytest.raises(RefitError):
            logprobs(llm)
        send(names[5:])
        llm.collective_rpc("skyrl_finish_weight_update")


def test_prime_rl_reads_a_folder(tmp_path):
    with synced(tmp_path, "prime_rl_calls.Worker") as (llm, then, _):
        llm.collective_rpc("update_from", args=(str(then),))
