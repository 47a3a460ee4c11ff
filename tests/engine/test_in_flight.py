"""Requests in flight when a refit fails, with the engine's core in the caller's process; else test_separate_core.py."""

from pathlib import Path

import pytest
import torch
from engines import engine, model_of, refit, worker_of
from models import checkpoint, make
from naming import line_naming
from safetensors.torch import save_file
from vllm import SamplingParams
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as SecondRunner

from ascend_quant.integrations.wrapping import MARK
from ascend_quant.refit import RefitError

REQUESTS = 8
WANTED = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = make("qwen2", tmp_path_factory.mktemp("models"))
    with engine(folder) as llm:
        yield llm, checkpoint(folder)


def spoilt(state):
    *rest, (name, tensor) = state.items()
    return [*rest, (name, tensor * float("nan"))]


def wakes_up_with_other_bytes(worker):
    """As after sleep level 1, which no CPU worker has."""
    refit = worker.model_runner.model.ascend_quant_refit
    refit.slept(1)
    codes = next(resident for resident in refit.residents if resident.codes).data
    codes.view(-1)[0] ^= 1
    refit.woke(["weights"])
    assert refit.unseen and refit.why_not_servable() is None


FAILURES = {
    "NaN": lambda worker, state: worker.model_runner.model.load_weights(spoilt(state)),
    "missing": lambda worker, state: incomplete(worker, state),
    "left open": lambda worker, state: worker.model_runner.model.load_weights(list(state.items())[:5]),
}


def incomplete(worker, state):
    with worker.model_runner.model.ascend_quant_refit.session():
        worker.model_runner.model.load_weights(list(state.items())[:-2])


def answers(llm) -> list[list[int]]:
    prompts = [{"prompt_token_ids": [3, 4, 5 + i]} for i in range(REQUESTS)]
    return [request.outputs[0].token_ids for request in llm.generate(prompts, WANTED, use_tqdm=False)]


@pytest.mark.parametrize("failure", FAILURES)
def test_they_end_with_the_reason_and_the_engine_heals(loaded, failure):
    llm, state = loaded
    before = answers(llm)
    for i in range(REQUESTS):
        llm.llm_engine.add_request(f"{failure}-{i}", {"prompt_token_ids": [3, 4, 5 + i]}, WANTED)
    for _ in range(5):
        llm.llm_engine.step()
    assert llm.llm_engine.get_num_unfinished_requests() == REQUESTS
    if failure == "left open":
        llm.collective_rpc(FAILURES[failure], args=(state,))
    else:
        with pytest.raises(RefitError):
            llm.collective_rpc(FAILURES[failure], args=(state,))
    ended = [request.outputs[0] for request in llm.llm_engine.step()]
    assert [output.finish_reason for output in ended] == ["error"] * REQUESTS
    assert all(refit(llm).why_not_servable() in output.stop_reason for output in ended)
    assert all(1 <= len(output.token_ids) < WANTED.max_tokens for output in ended)
    assert not llm.llm_engine.has_unfinished_requests()
    with pytest.raises(RefitError, match="refuses to generate"):
        answers(llm)
    llm.collective_rpc("reload_weights")
    assert answers(llm) == before


def test_weights_that_wake_up_changed_are_seen_when_a_request_comes(loaded):
    llm, _ = loaded
    before = answers(llm)
    llm.collective_rpc(wakes_up_with_other_bytes)
    with pytest.raises(RefitError, match=r"changed outside"):
        answers(llm)
    llm.collective_rpc("reload_weights")
    llm.llm_engine.add_request("held", {"prompt_token_ids": [3, 4, 5]}, WANTED)
    llm.llm_engine.step()
    llm.collective_rpc(wakes_up_with_other_bytes)
    (ended,) = (request.outputs[0] for request in llm.llm_engine.step())
    assert ended.finish_reason == "error" and "changed outside" in ended.stop_reason
    llm.collective_rpc("reload_weights")
    llm.collective_rpc(wakes_up_with_other_bytes)
    llm.collective_rpc("reload_weights")  # nobody looks at what is overwritten
    assert answers(llm) == before


def test_a_good_refit_lets_them_go_on(loaded):
    llm, state = loaded
    for i in range(REQUESTS):
        llm.llm_engine.add_request(f"good-{i}", {"prompt_token_ids": [3, 4, 5 + i]}, WANTED)
    llm.llm_engine.step()
    model_of(llm).load_weights(state.items())
    reasons = []
    while llm.llm_engine.has_unfinished_requests():
        reasons += [request.outputs[0].finish_reason for request in llm.llm_engine.step() if request.finished]
    assert reasons == ["length"] * REQUESTS


def cut_off(folder: Path, path: Path) -> None:
    path.write_bytes((folder / "model.safetensors").read_bytes()[:1000])


UNOPENED = {
    "no folder": lambda folder, to: None,
    "an empty folder": lambda folder, to: to.mkdir(),
    "a file that is cut off": lambda folder, to: (to.mkdir(), cut_off(folder, to / "model.safetensors")),
    "a file without tensors": lambda folder, to: (to.mkdir(), save_file({}, to / "model.safetensors")),
}


@pytest.mark.parametrize("kind", UNOPENED)
def test_a_checkpoint_that_cannot_be_opened_leaves_the_weights_and_the_requests(loaded, tmp_path, kind):
    llm, _ = loaded
    before, digest, receipt = answers(llm), refit(llm).digest(), refit(llm).last_receipt
    UNOPENED[kind](Path(llm.llm_engine.model_config.model), tmp_path / "step-2")
    for i in range(REQUESTS):
        llm.llm_engine.add_request(f"{kind}-{i}", {"prompt_token_ids": [3, 4, 5 + i]}, WANTED)
    llm.llm_engine.step()
    with pytest.raises(RefitError, match=line_naming(tmp_path / "step-2")):
        llm.collective_rpc("reload_weights", kwargs={"weights_path": str(tmp_path / "step-2")})
    found = {}
    while llm.llm_engine.has_unfinished_requests():
        found |= {request.request_id: request.outputs[0].token_ids for request in llm.llm_engine.step()}
    assert [found[f"{kind}-{i}"] for i in range(REQUESTS)] == before == answers(llm)
    assert (refit(llm).digest(), refit(llm).last_receipt) == (digest, receipt)
    llm.collective_rpc("reload_weights")  # from where it came from before
    assert answers(llm) == before and refit(llm).last_receipt.number == receipt.number + 1


def test_a_checkpoint_whose_second_file_cannot_be_opened_has_been_written_in_part(loaded, tmp_path):
    llm, state = loaded
    before = answers(llm)
    first, second = dict(list(state.items())[:6]), dict(list(state.items())[6:])
    for number, part in enumerate((first, second), 1):
        save_file(part, tmp_path / f"model-0000{number}-of-00002.safetensors")
    cut_off(Path(llm.llm_engine.model_config.model), tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(Exception, match="header"):  # of safetensors
        llm.collective_rpc("reload_weights", kwargs={"weights_path": str(tmp_path)})
    with pytest.raises(RefitError, match="refuses to generate"):
        answers(llm)
    llm.collective_rpc("reload_weights")
    assert answers(llm) == before


def by_the_worker(llm, given):
    llm.collective_rpc("reload_weights", kwargs=given)


def by_the_second_runner(llm, given):
    """That GPUs have, its method on this engine's runner: the model and all that it reads are the same."""
    assert hasattr(SecondRunner.reload_weights, MARK)  # up to 0.31 it ends in the first one's, which has a guard too
    SecondRunner.reload_weights(worker_of(llm).model_runner, given["weights_iterator"], None, False)


@pytest.mark.parametrize("reload", [by_the_worker, by_the_second_runner])
def test_weights_in_kernel_format_are_refused_before_a_byte_is_written(loaded, reload):
    """vLLM would copy them into parameters itself: BF16 values into codes."""
    llm, state = loaded
    digest, name = refit(llm).digest(), "model.layers.0.mlp.gate_up_proj.weight"
    fused = torch.randn(model_of(llm).get_parameter(name).shape, dtype=torch.bfloat16)
    with pytest.raises(RefitError, match="is_checkpoint_format=False"):
        reload(llm, {"weights_iterator": iter([(name, fused)]), "is_checkpoint_format": False})
    assert refit(llm).digest() == digest and answers(llm)
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(state.items())})
