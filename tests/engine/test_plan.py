"""A plan learnt in one refit leads the next ones to the bytes of vLLM's loaders, and knows what it does not know."""

import pytest
import torch
from engines import differing, engine, model_of, push, refit, resident, send
from models import checkpoint, expected, make, perturbed, stacked

from ascend_quant.integrations.vllm import compat
from ascend_quant.refit import RefitError
from ascend_quant.refit.plan import Plan

DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module", params=["qwen2", "qwen2-tied", "llama-odd", "qwen3-moe"])
def loaded(request, tmp_path_factory):
    folder = make(request.param, tmp_path_factory.mktemp("models"))
    with engine(folder) as llm:
        yield llm, checkpoint(folder)


@pytest.fixture
def through_loaders(loaded, monkeypatch):
    """Names of the tensors that vLLM's loaders get."""
    names = []
    record = refit(loaded[0]).record
    monkeypatch.setattr(refit(loaded[0]), "record", lambda name, entry: (names.append(name), record(name, entry)))
    return names


def needs_loader(state) -> list[str]:
    """A vocabulary is padded with zeros, which no tensor holds."""
    return [name for name in state if name.endswith(("embed_tokens.weight", "lm_head.weight"))]


def test_by_plan_and_by_loaders_give_the_same(loaded, through_loaders):
    llm, first = loaded
    state = perturbed(first, seed=5)
    push(llm, first)
    through_loaders.clear()
    by_plan = push(llm, state)
    assert set(through_loaders) <= set(needs_loader(state))
    held = resident(llm)
    assert differing(held, expected(state)) == []
    push(llm, first)
    refit(llm).plan = Plan()
    send(llm, state)
    by_loaders = refit(llm).last_receipt
    assert set(through_loaders) >= {DOWN} if DOWN in state else through_loaders
    assert differing(held, resident(llm)) == []
    assert (by_plan.digest, by_plan.changed, by_plan.tensors, by_plan.bytes) == (
        by_loaders.digest,
        by_loaders.changed,
        by_loaders.tensors,
        by_loaders.bytes,
    )
    assert by_plan.digest == refit(llm).digest()  # read back from the buffers


def test_a_generator_that_reuses_one_buffer(loaded):
    llm, first = loaded
    state = perturbed(first, seed=6)
    buffer = torch.empty(max(tensor.numel() for tensor in state.values()), dtype=torch.bfloat16)

    def one_by_one():
        for name, tensor in state.items():
            view = buffer[: tensor.numel()].view(tensor.shape)
            yield name, view.copy_(tensor)
            buffer.fill_(float("nan"))

    with refit(llm).session():
        model_of(llm).load_weights(one_by_one())
    assert differing(resident(llm), expected(state)) == []


def test_another_dtype_and_other_strides(loaded, through_loaders):
    llm, first = loaded
    push(llm, first)
    through_loaders.clear()
    wide = {name: tensor.float() * 1.001 for name, tensor in first.items()}
    push(llm, wide)
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in wide.items()}
    assert differing(resident(llm), expected(rounded)) == []
    assert set(through_loaders) <= set(needs_loader(first))
    through_loaders.clear()
    name = next(name for name in first if name.endswith("down_proj.weight"))
    transposed = {**first, name: first[name].T.contiguous().T}
    send(llm, transposed)
    assert differing(resident(llm), expected(first)) == []
    assert name in through_loaders
    through_loaders.clear()
    push(llm, first)  # what was strange once is learnt again
    push(llm, first)
    assert through_loaders.count(name) == 1


@pytest.mark.parametrize("loaded", ["qwen3-moe"], indirect=True)
@pytest.mark.parametrize("by_vllm", [True, False])
def test_from_single_experts_to_stacks_and_back(loaded, through_loaders, by_vllm, monkeypatch):
    monkeypatch.setattr(compat, "TAKES_STACKED", by_vllm)  # False: vLLM 0.23's loaders know single experts only
    llm, first = loaded
    push(llm, first)
    state = perturbed(first, seed=7)
    stacks = [name for name in stacked(state) if name.endswith((".gate_up_proj", ".experts.down_proj"))]
    through_loaders.clear()
    left = push(llm, stacked(state))
    assert set(through_loaders) >= set(stacks)
    assert differing(resident(llm), expected(state)) == []
    through_loaders.clear()
    assert push(llm, stacked(state)).digest == left.digest
    assert not set(through_loaders) & set(stacks)
    if not by_vllm:
        assert all(
            len(refit(llm).plan.entries[name].writes) == 1 for name in stacks
        )  # one run of rows, not one an expert
    mixed = {**stacked(state), **{n: t for n, t in state.items() if ".experts.1.gate" in n}}
    with pytest.raises(RefitError, match="written twice"):
        push(llm, mixed)
    push(llm, first)
    assert differing(resident(llm), expected(first)) == []
