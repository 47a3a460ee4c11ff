"""Checkpoints as they are published: tensors for MTP are left out as vLLM does, and named; hybrid attention is right.

Plain vLLM is the reference of what is computed: a refit that equals a fresh load cannot see what is wrong in both.
"""

import gc

import pytest
import torch
from engines import FLOAT_STATE, differing, engine, logprobs, model_of, push, refit, resident
from models import MTP, checkpoint, make, perturbed, save, with_mtp
from vllm import LLM

from ascend_quant.refit import RefitError
from ascend_quant.refit.plan import Plan
from ascend_quant.transfer.checksums import Receiving, sending


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with MTP tensors, and another checkpoint with what fresh engines make of it."""
    folder, later = (make("qwen3-next", tmp_path_factory.mktemp(name)) for name in ("first", "later"))
    state = with_mtp(checkpoint(folder))
    save(state, folder)
    state = perturbed(state, seed=4)
    save(state, later)
    plain = of_plain_vllm(later)
    with engine(later) as llm:
        return folder, state, (resident(llm), refit(llm).last_receipt, logprobs(llm), plain)


def of_plain_vllm(folder):
    llm = LLM(str(folder), dtype="bfloat16", enforce_eager=True, max_model_len=64, max_num_seqs=16, **FLOAT_STATE)
    found = logprobs(llm)
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    return found


@pytest.fixture(scope="module")
def loaded(published):
    with engine(published[0]) as llm:
        yield llm


def test_a_refit_leaves_the_engine_as_a_fresh_load_does(published, loaded):
    _, state, (held, receipt, answers, _) = published
    assert refit(loaded).last_receipt.left_out.names == receipt.left_out.names == tuple(sorted(MTP))
    for way in ("by loaders", "by plan"):
        if way == "by loaders":
            refit(loaded).plan = Plan()
        found = push(loaded, state)
        assert differing(held, resident(loaded)) == [], way
        assert (found.digest, found.tensors, found.left_out) == (receipt.digest, receipt.tensors, receipt.left_out)
        assert torch.equal(logprobs(loaded), answers), way
    assert found.as_metrics()["refit/skipped"] == len(MTP)


def test_what_is_left_out_may_be_missing(published, loaded):
    _, state, (held, receipt, _, _) = published
    found = push(loaded, {name: tensor for name, tensor in state.items() if name not in MTP})
    assert (found.digest, found.left_out.names) == (receipt.digest, ())
    assert differing(held, resident(loaded)) == []


def test_the_proof_covers_what_is_left_out(published, loaded):
    _, state, _ = published
    name = MTP[0]
    for change in (0, 1):
        proof = Receiving()
        sent = dict(sending(state.items()))
        sent[name] = sent[name] + change
        weights = proof.take(list(sent.items()))
        with refit(loaded).session():
            model_of(loaded).load_weights(weights)
        if change:
            with pytest.raises(RefitError, match=name):
                proof.prove()
        else:
            assert proof.prove() == len(state) == len(MTP) + refit(loaded).last_receipt.tensors


def test_hybrid_attention_computes_what_plain_vllm_does(published):
    """On a CPU with AMX its convolution reads packed weights: 0.70 apart where they are not, int8 or no int8."""
    _, _, (_, _, answers, plain) = published
    assert (answers - plain).abs().mean() < 0.2
