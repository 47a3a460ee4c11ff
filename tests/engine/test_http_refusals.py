"""`vllm serve` and a trainer over HTTP that does it wrong: it hears why, with 409, and its next complete sync heals.

The tensors travel in a file (stranger.py); all else is vLLM's: its endpoints, its NCCL transfer, its worker.
"""

import json
import os
import threading
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import requests
import torch
from models import checkpoint, make, save
from naming import has_line_naming, line_naming
from safetensors.torch import save_file
from served import PROMPT, post, server, wanted
from stranger import BUCKET
from trl.generation import vllm_client

HERE = Path(__file__).parent
NAME, LAST = "model.layers.1.self_attn.o_proj.weight", "model.norm.weight"


class Trainer(NamedTuple):
    """One that sends weights to the server at an address, by way of a folder."""

    address: str
    folder: Path

    def call(self, path: str, **body) -> tuple[int, str]:
        return post(self.address, f"/{path}", body)

    def rpc(self, method: str, *args: str, **kwargs) -> tuple[int, str]:
        return self.call("collective_rpc", method=method, args=args, kwargs=kwargs)

    def init(self) -> tuple[int, str]:
        where = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}
        return self.call("init_weight_transfer_engine", init_info=where)

    def start(self) -> tuple[int, str]:
        return self.call("start_weight_update")

    def update(self, tensors: dict[str, torch.Tensor], names: Iterable[str] | None = None) -> tuple[int, str]:
        save_file(tensors, self.folder / BUCKET)
        names = list(tensors if names is None else names)
        dtypes = [str(tensors[name].dtype).removeprefix("torch.") for name in names]
        shapes = [list(tensors[name].shape) for name in names]
        return self.call("update_weights", update_info={"names": names, "dtype_names": dtypes, "shapes": shapes})

    def finish(self) -> tuple[int, str]:
        return self.call("finish_weight_update")

    def started(self, tensors: dict[str, torch.Tensor], names: Iterable[str] | None = None) -> tuple[int, str]:
        """What is said of an update once it has been started."""
        assert self.start()[0] == 200
        return self.update(tensors, names)

    def sync(self, tensors: dict[str, torch.Tensor]) -> list[int]:
        return [answer[0] for answer in (self.started(tensors), self.finish())]

    def ask(self) -> tuple[int, str]:
        return post(self.address, "/v1/completions", wanted(logprobs=4))

    def health(self) -> tuple[int, str]:
        with urllib.request.urlopen(f"{self.address}/health", timeout=20) as answer:
            return answer.status, answer.read().decode()

    def refusing(self) -> float:
        """Of its metrics."""
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=20) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith("ascend_quant_refusing")]
        (line,) = lines
        return float(line.rpartition(" ")[2])


class Served(NamedTuple):
    trainer: Trainer
    state: dict[str, torch.Tensor]
    fresh: dict


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    options = (
        "--quantization",
        "ascend_quant",
        "--worker-extension-cls",
        "stranger.Extension",
        "--max-model-len",
        "256",
    )
    wire = ("--weight-transfer-config", '{"backend": "nccl"}')
    path = os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])
    variables = {"VLLM_SERVER_DEV_MODE": "1", "STRANGER_WIRE": str(folder), "PYTHONPATH": path}
    with server(folder, *options, *wire, **variables) as (address, _):
        trainer = Trainer(address, folder)
        yield Served(trainer, checkpoint(folder / "qwen2-0"), said(trainer))


def said(trainer: Trainer) -> dict:
    """Tokens and log-probabilities."""
    status, body = trainer.ask()
    assert status == 200, body
    choice = json.loads(body)["choices"][0]
    return {key: choice[key] for key in ("text", "logprobs", "finish_reason")}


def changed(state: dict[str, torch.Tensor], name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**state, name: tensor}


def spoilt(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[7] = value
    return tensor


def half(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All but what a message has room for."""
    return dict(list(state.items())[:-8])


def half_an_update(trainer, state):
    assert trainer.started(half(state))[0] == 200
    return trainer.finish()


def a_dead_trainer(trainer, state):
    """And a new one that does not introduce itself."""
    assert trainer.started(half(state))[0] == 200
    return trainer.start()


def a_second_trainer(trainer, state):
    """One that introduces itself ends the first one's update."""
    assert trainer.started(half(state))[0] == 200
    assert Trainer(*trainer).init()[0] == 200
    return trainer.update(state)


def not_finite(trainer, state, value):
    """Seen at once on CPUs, where nothing is asynchronous; elsewhere at the end."""
    answer = trainer.started(changed(state, NAME, spoilt(state[NAME], float(value))))
    return trainer.finish() if answer[0] == 200 else answer


def no_finish(trainer, state):
    assert trainer.started(state)[0] == 200
    return trainer.ask()


def bad_description(trainer, state):
    assert trainer.start()[0] == 200
    return trainer.call("update_weights", update_info={"names": [NAME], "dtype_names": [], "shapes": []})


def a_broken_wire(trainer, state):
    assert trainer.started(half(state))[0] == 200
    (trainer.folder / BUCKET).unlink(missing_ok=True)
    info = {"names": [NAME], "dtype_names": ["bfloat16"], "shapes": [[1, 1]]}
    return trainer.call("update_weights", update_info=info)


def another_model(trainer, state):
    return trainer.rpc("reload_weights", weights_path=str(make("qwen2", trainer.folder, seed=9, num_hidden_layers=1)))


def a_spoilt_folder(trainer, state):
    folder = make("qwen2", trainer.folder, seed=8)
    save(changed(state, NAME, spoilt(state[NAME], float("nan"))), folder)
    return trainer.rpc("reload_weights", weights_path=str(folder))


def no_folder(trainer, state):
    return trainer.rpc("reload_weights", weights_path="step-3")


def kernel_format(trainer, state):
    return trainer.rpc("reload_weights", weights_path="step-3", is_checkpoint_format=False)


def a_row_past(trainer, state):
    assert trainer.rpc("write_row", NAME)[0] == 200
    return trainer.ask()


def codes_past(trainer, state):
    assert trainer.rpc("load_in_kernel_format", str(trainer.folder / "qwen2-0"))[0] == 200
    return trainer.ask()


class Failure(NamedTuple):
    """A way to fail: what it gets, the names in it, and whether the weights from before go on serving."""

    of: Callable[[Trainer, dict], tuple[int, str]]
    names: tuple[str, ...]
    serves: bool = False


FAILURES = {
    "half an update": Failure(half_an_update, (LAST, "finish_weight_update")),
    "a dead trainer": Failure(a_dead_trainer, ("start_weight_update",)),
    "a second trainer": Failure(a_second_trainer, ("update_weights", "start_weight_update")),
    "no finish": Failure(no_finish, ("open",)),
    "no start": Failure(lambda trainer, state: trainer.update(state), ("start_weight_update",), serves=True),
    "finish alone": Failure(lambda trainer, state: trainer.finish(), ("start_weight_update",), serves=True),
    "a wrong name": Failure(
        lambda trainer, state: trainer.started({"model.layers.9.nope.weight": state[NAME]}), ("layers.9.nope.weight",)
    ),
    "one tensor too many": Failure(
        lambda trainer, state: trainer.started({**state, "lm_head.nope": state[LAST].clone()}), ("lm_head.nope",)
    ),
    "a wrong shape": Failure(
        lambda trainer, state: trainer.started({NAME: state[NAME][:, :64].contiguous()}), (NAME, "128", "64")
    ),
    "codes": Failure(lambda trainer, state: trainer.started({NAME: state[NAME].char()}), (NAME, "torch.int8")),
    "a NaN": Failure(lambda trainer, state: not_finite(trainer, state, "nan"), (NAME, "NaN")),
    "an infinity": Failure(lambda trainer, state: not_finite(trainer, state, "inf"), (NAME,)),
    "a tensor twice": Failure(lambda trainer, state: trainer.started(state, [NAME, LAST, NAME]), (NAME,)),
    "a bad description": Failure(bad_description, ("dtype_names",)),
    "a broken wire": Failure(a_broken_wire, ("update_weights", BUCKET)),
    "another model": Failure(another_model, ("model.layers.1.input_layernorm.weight",)),
    "a folder with a NaN": Failure(a_spoilt_folder, (NAME, "NaN")),
    "no folder": Failure(no_folder, ("step-3",), serves=True),
    "kernel format": Failure(kernel_format, ("is_checkpoint_format=False",), serves=True),
    "a row past the refit": Failure(a_row_past, ("outside a refit",)),
    "codes past the refit": Failure(codes_past, ("outside a refit",)),
}


ANEW = {  # where an update is still open: a new trainer's first call, or a sync of another kind
    "no finish": lambda trainer: trainer.init()[0],
    "a dead trainer": lambda trainer: trainer.rpc("reload_weights", weights_path=str(trainer.folder / "qwen2-0"))[0],
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_trainer_hears_why_and_its_next_complete_sync_heals(served, kind):
    trainer, state, fresh = served
    failure = FAILURES[kind]
    status, told = failure.of(trainer, state)
    assert status == 409 and has_line_naming(told, *failure.names), (status, told)
    if failure.serves:
        assert said(trainer) == fresh and trainer.health() == (200, "") and trainer.refusing() == 0
    else:
        status, told = trainer.ask()
        assert status == 409 and "refuses" in told, (status, told)
        status, told = trainer.health()
        assert status == 200 and json.loads(told)["status"] == "refusing" and trainer.refusing() == 1
        assert has_line_naming(json.loads(told)["reason"], "refuses")
    if kind in ANEW:
        assert ANEW[kind](trainer) == 200
    assert trainer.sync(state) == [200, 200]
    assert said(trainer) == fresh and trainer.health() == (200, "") and trainer.refusing() == 0


def test_a_refused_update_is_read_to_its_end(served):
    """Its sender would wait for ever: a broadcast ends once all have taken it."""
    trainer, state, fresh = served
    status, told = trainer.started({"model.layers.9.nope.weight": state[NAME].clone(), **state})
    assert status == 409 and has_line_naming(told, "layers.9.nope.weight"), (status, told)
    assert not (trainer.folder / BUCKET).exists()
    assert trainer.sync(state) == [200, 200] and said(trainer) == fresh


def test_the_first_trainer_goes_on_where_a_second_one_only_starts(served):
    trainer, state, fresh = served
    assert trainer.started(half(state))[0] == 200
    assert trainer.start()[0] == 409
    assert trainer.update({name: state[name] for name in state.keys() - half(state).keys()})[0] == 200
    assert trainer.finish()[0] == 200 and said(trainer) == fresh


def test_what_is_in_flight_ends_with_the_reason(served):
    trainer, state, fresh = served
    ended = []
    asked = wanted(max_tokens=250, ignore_eos=True)
    whole = threading.Thread(target=lambda: ended.append(post(trainer.address, "/v1/completions", asked)))
    whole.start()
    with requests.post(f"{trainer.address}/v1/completions", json={**asked, "stream": True}, stream=True) as answer:
        lines = answer.iter_lines(decode_unicode=True)
        next(lines)
        assert trainer.start()[0] == 200
        rest = "\n".join(lines)
    whole.join()
    ((status, told),) = ended
    assert status == 409 and has_line_naming(told, "refuses", "open")
    assert has_line_naming(rest, "refuses", "open", "409")
    assert trainer.init()[0] == 200 and trainer.sync(state) == [200, 200] and said(trainer) == fresh


def sent_by(client: vllm_client.VLLMClient, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A sync of TRL's, whose tensors travel in the file."""
    save_file(tensors, folder / BUCKET)
    told = [(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for name, tensor in tensors.items()]
    with mock.patch.object(vllm_client, "packed_nccl_broadcast_producer"):
        client.update_named_params(told, iter(tensors.items()))


def test_trls_own_client_raises_the_reason(served):
    """What has status 500 it sends again, with pauses, and raises at last that there were too many."""
    trainer, state, fresh = served
    client = vllm_client.VLLMClient(base_url=trainer.address)
    with pytest.raises(Exception, match=line_naming("409", "refuses", LAST, "finish_weight_update")):
        sent_by(client, trainer.folder, half(state))
    with pytest.raises(Exception, match=line_naming("409", "refuses", LAST)):
        client.generate([PROMPT], max_tokens=4)
    with pytest.raises(Exception, match=line_naming("409", NAME, "NaN")):
        sent_by(client, trainer.folder, changed(state, NAME, spoilt(state[NAME], float("nan"))))
    sent_by(client, trainer.folder, state)
    assert len(client.generate([PROMPT], max_tokens=4)["completion_ids"]) == 1 and said(trainer) == fresh


def test_an_error_that_refuses_no_weights_stays_vllms_own(served):
    trainer, _, fresh = served
    status, told = trainer.rpc("fail")
    assert status == 500 and "a fault of its own" in told and said(trainer) == fresh
