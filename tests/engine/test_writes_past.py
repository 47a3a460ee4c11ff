"""Writes past the refit into an engine of the caller's process, as TRL has it: refused, and healed by the next sync.

Over HTTP: test_http_refusals.py. By one rank of two: test_parallel.py.
"""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import cloudpickle
import pytest
import torch
from engines import addresses, engine, logprobs, model_of, refit, send
from models import checkpoint, make
from naming import has_line_naming
from safetensors.torch import save_file
from stranger import BUCKET
from torch import nn
from vllm import SamplingParams
from vllm.config import WeightTransferConfig
from vllm.v1.worker.worker_base import WorkerWrapperBase

from ascend_quant.integrations.vllm.serving import calls
from ascend_quant.refit import RefitError

NAME, NORM = "model.layers.1.mlp.down_proj.weight", "model.norm.weight"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """An engine, its checkpoint's tensors, and what a fresh engine says: it is one."""
    folder = make("qwen2", tmp_path_factory.mktemp("models"))
    options = {
        "worker_extension_cls": "stranger.Extension",
        "weight_transfer_config": WeightTransferConfig(backend="nccl"),
    }
    with engine(folder, **options) as llm, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRANGER_WIRE", str(folder.parent))
        yield llm, checkpoint(folder), logprobs(llm), folder


def threes(llm, name=NAME):
    return torch.full(model_of(llm).get_parameter(name).shape, 3.0, dtype=torch.bfloat16)


def parameter(llm, name=NAME):
    return model_of(llm).get_parameter(name)


def module(llm):
    return model_of(llm).get_submodule(NAME.rpartition(".")[0])


@torch.no_grad()
def by_copy(llm):
    parameter(llm).copy_(threes(llm))


@torch.no_grad()
def by_slice(llm):
    parameter(llm)[:] = threes(llm)


def by_storage(llm):
    codes = threes(llm).char()
    parameter(llm).untyped_storage().copy_(codes.untyped_storage())


def by_name(llm):
    for name, tensor in checkpoint(Path(llm.llm_engine.model_config.model)).items():
        if name in dict(model_of(llm).named_parameters()) and parameter(llm, name).shape == tensor.shape:
            parameter(llm, name).data.copy_(2 * tensor)


def by_new_data(llm):
    parameter(llm).data = threes(llm).char()


def by_new_parameter(llm):
    module(llm).weight = nn.Parameter(threes(llm).char(), requires_grad=False)


def by_swapping(llm):
    first, second = (parameter(llm, NAME.replace(".1.", f".{i}.")) for i in (0, 1))
    first.data, second.data = second.data, first.data


def by_attribute(llm):
    codes = module(llm)._parameters.pop("weight")
    module(llm).weight = codes.data.clone().fill_(3)


def new_scales(llm):
    module(llm).weight_scale.data = 2 * module(llm).weight_scale.data


def of_worker(worker):
    """Called by RPC: one row, the last, which no sample holds."""
    worker.model_runner.model.get_parameter(NAME).data[77].fill_(3)


def of_model(model):
    model.get_parameter(NAME).data[77].fill_(3)


def in_an_open_update(llm):
    """After the rows were written, before the update that writes them has ended."""
    state = checkpoint(Path(llm.llm_engine.model_config.model))
    llm.collective_rpc("start_weight_update")
    model_of(llm).load_weights(list(state.items()))
    llm.collective_rpc("write_row", args=(NAME,))
    llm.collective_rpc("finish_weight_update")


WRITES = {  # and the parameter that the refusal names; none where the samples are as they were: all bytes are compared
    "data.copy_": (lambda llm: parameter(llm).data.copy_(threes(llm)), NAME),
    "copy_": (by_copy, NAME),
    "detach().copy_": (lambda llm: parameter(llm).detach().copy_(threes(llm)), NAME),
    "p[:] =": (by_slice, NAME),
    "foreach": (lambda llm: torch._foreach_copy_([parameter(llm).data], [threes(llm)]), NAME),
    "out=": (lambda llm: torch.add(threes(llm).char(), 0, out=parameter(llm).data), NAME),
    "numpy": (lambda llm: parameter(llm).detach().numpy().fill(3), NAME),
    "dlpack": (lambda llm: torch.from_dlpack(parameter(llm).detach()).fill_(3), NAME),
    "storage": (by_storage, NAME),
    "the whole model by name": (by_name, "model.layers.0.self_attn.o_proj.weight"),
    "scales alone": (lambda llm: module(llm).weight_scale.data.mul_(2), NAME),
    "a norm": (lambda llm: parameter(llm, NORM).data.mul_(2), NORM),
    "p.data =": (by_new_data, NAME),
    "another parameter": (by_new_parameter, NAME),
    "two swapped": (by_swapping, NAME.replace(".1.", ".0.")),
    "an attribute": (by_attribute, NAME),
    "scales' p.data =": (new_scales, f"{NAME}_scale"),
    "a row by RPC": (lambda llm: llm.collective_rpc(of_worker), None),
    "a row by pickled RPC": (lambda llm: llm.collective_rpc(cloudpickle.dumps(of_worker)), None),
    "a row by apply_model": (lambda llm: llm.apply_model(of_model), None),
    "a row by apply_model, of a lambda": (lambda llm: llm.apply_model(lambda model: of_model(model)), None),
    "a row by apply_model, of a partial": (lambda llm: llm.apply_model(partial(of_model)), None),
    "a row by an extension": (lambda llm: llm.collective_rpc("write_row", args=(NAME,)), None),
    "kernel format": (
        lambda llm: llm.collective_rpc("load_in_kernel_format", args=(llm.llm_engine.model_config.model,)),
        None,
    ),
    "a row in an open update": (in_an_open_update, None),
}


@pytest.mark.parametrize("how", WRITES)
def test_a_write_is_refused_before_a_token_and_the_next_sync_heals(served, how):
    llm, state, fresh, _ = served
    write, name = WRITES[how]
    before = addresses(llm)
    write(llm)
    for _ in range(2):
        with pytest.raises(RefitError) as refused:
            llm.generate([{"prompt_token_ids": [3, 4, 5]}], use_tqdm=False)
        assert name is None or has_line_naming(str(refused.value), name)
    send(llm, state)
    assert torch.equal(logprobs(llm), fresh) and addresses(llm) == before


def test_requests_in_flight_end_at_a_write_by_rpc(served):
    llm, state, fresh, _ = served
    llm.llm_engine.add_request("in flight", {"prompt_token_ids": [3, 4, 5]}, SamplingParams(max_tokens=20))
    llm.llm_engine.step()
    llm.collective_rpc("write_row", args=(NAME,))
    (ended,) = (request.outputs[0] for request in llm.llm_engine.step())
    assert ended.finish_reason == "error" and refit(llm).why_not_servable() in ended.stop_reason
    send(llm, state)
    assert torch.equal(logprobs(llm), fresh)


def as_trl(llm, state, folder):
    for name, tensor in state.items():
        model_of(llm).load_weights([(name, tensor)])


def by_update_api(llm, state, folder):
    save_file(state, folder.parent / BUCKET)
    info = {
        "names": list(state),
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in state.values()],
        "shapes": [list(tensor.shape) for tensor in state.values()],
    }
    llm.collective_rpc("start_weight_update")
    llm.collective_rpc("update_weights", kwargs={"update_info": info})
    llm.collective_rpc("finish_weight_update")


def by_reload(llm, state, folder):
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})


def as_openrlhf(llm, state, folder):
    for name, tensor in state.items():
        llm.collective_rpc("load_one", args=(name, tensor))


@pytest.mark.parametrize(("sync", "expected"), [(as_trl, 0), (by_update_api, 0), (by_reload, 0), (as_openrlhf, 1)])
def test_syncs_cost_no_digest_but_those_by_a_strangers_code_one(served, monkeypatch, sync, expected):
    llm, state, fresh, folder = served
    read, digest = [], refit(llm).digest
    monkeypatch.setattr(refit(llm), "digest", lambda: read.append(True) or digest())
    number = refit(llm).last_receipt.number
    for _ in range(2):
        sync(llm, state, folder)
        assert torch.equal(logprobs(llm), fresh)
        logprobs(llm)
    assert len(read) == 2 * expected and refit(llm).last_receipt.number == number + 2


@pytest.mark.parametrize("transfer", [None, mock.Mock()])
def test_an_update_that_failed_is_ended_on_the_worker_behind_its_wrapper(transfer):
    """SkyRL's worker sets the flag without a transfer."""
    wrapper = WorkerWrapperBase()
    wrapper.worker = SimpleNamespace(_weight_update_active=True, weight_transfer_engine=transfer)
    calls._abandon(wrapper, "half a sync", if_open=False)
    assert not wrapper.worker._weight_update_active
    assert transfer is None or transfer.reset_weight_update_target.call_count == 1


class Worker:
    """With a method of verl's extension, of our own one, and of a stranger's."""

    from stranger import Extension
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension as Verls
    from vllm.v1.worker.gpu_worker import Worker as Vllms

    from ascend_quant.mismatch.watch import Extension as Ours

    update_weights_from_ipc, reload_weights = Verls.update_weights_from_ipc, Vllms.reload_weights
    apply_model, write_row, mismatch_watch = Vllms.apply_model, Extension.write_row, Ours.mismatch_watch


@pytest.mark.parametrize(
    ("method", "given", "strange"),
    [
        ("update_weights_from_ipc", (), False),
        ("reload_weights", ("a folder",), False),
        ("mismatch_watch", (), False),
        ("apply_model", (of_model,), True),
        ("write_row", (), True),
        ("reset_weights", (), True),
        (of_worker, (), True),
        (b"pickled", (), True),
        ("that is not there", (), False),
    ],
)
def test_whose_code_a_call_runs(method, given, strange):
    assert calls.may_write(Worker(), method, given) == strange
