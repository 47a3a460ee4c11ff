"""An exact trainer has the log-probabilities of an exact INT8 engine, bit for bit, and each of its pieces is needed."""

import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from engines import engine, send
from exact_cases import ENGINE, Sampled, logits_and_labels, loss_of, sample, sharp, trained, trainer, unequal
from models import checkpoint
from torch import nn

from ascend_quant.exact.elementwise import ExactMLP, ExactNorm
from ascend_quant.exact.experts import ExactExperts, ExactRouter
from ascend_quant.exact.linear import ExactLinear

HERE = Path(__file__).parent
FURTHER = [pytest.param(kind, marks=pytest.mark.long("ascend_quant/exact")) for kind in ("llama-odd", "mistral")]
KINDS = ("qwen2", "qwen3", "qwen3-moe", *FURTHER)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OVERRIDES = {"llama-odd": {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 64}}}
SHARDED = ("qwen2", "qwen3-moe")


@pytest.fixture(scope="module", params=KINDS)
def served(request, tmp_path_factory):
    """A checkpoint, an engine of it, and what that samples at two temperatures."""
    folder = sharp(request.param, tmp_path_factory.mktemp("models"), **OVERRIDES.get(request.param, {}))
    with engine(folder, **ENGINE) as llm:
        yield folder, llm, [sample(llm, temperature) for temperature in (1.0, 0.8)]


def test_every_token_is_the_engines(served):
    """Packed in one micro-batch, in two of another order, and padded; log-probabilities are sharp."""
    folder, _, both = served
    model = trainer(folder)
    for sampled in both:
        assert sampled.log_probs.std() > 1
        with torch.no_grad():
            assert unequal(trained(model, sampled), sampled) == 0
            for rows in ((5, 0, 3), (1,)):
                part = sampled.some(rows)
                assert unequal(trained(model, part), part) == 0, rows


def as_before(model, mixin) -> int:
    """Give modules transformers' own forward again; how many."""
    changed = [module for module in model.modules() if isinstance(module, mixin)]
    for module in changed:
        module.__class__ = nn.Linear if mixin is ExactLinear else type(module).__mro__[2]
    return len(changed)


PIECES = {  # put back to transformers' own: whether the engine's tokens are others
    "linear": (ExactLinear, True),
    "experts": (ExactExperts, True),
    "router": (ExactRouter, False),  # vLLM 0.31 rounds its weights to BF16 on a CPU, as transformers does
    "attention": ("sdpa", True),
    "log_softmax": (None, True),
    "norms": (ExactNorm, False),  # on a CPU the shared op is transformers' formula
    "silu": (ExactMLP, False),  # likewise
}


@pytest.mark.parametrize("piece", PIECES)
def test_each_piece_is_needed(served, piece):
    folder, _, (sampled, _) = served
    what, needed = PIECES[piece]
    model = trainer(folder)
    if isinstance(what, str):
        model.set_attn_implementation(what)
    elif what is not None and not as_before(model, what):
        pytest.skip("this model has no such piece")
    with torch.no_grad():
        if what is None:
            logits, labels = logits_and_labels(model, sampled)
            logits = logits.float()
            found = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
        else:
            found = trained(model, sampled)
    assert (unequal(found, sampled) > 0) is needed


def test_gradients_are_those_of_a_float32_computation(served):
    folder, _, (sampled, _) = served
    gradients = []
    for model in (trainer(folder), trainer(folder, torch.float32, ranks=None)):
        loss_of(trained(model, sampled), sampled).backward()
        gradients.append({name: w.grad.float() for name, w in model.named_parameters()})
    assert all(grad.isfinite().all() and grad.any() for grad in gradients[0].values())
    flat = [torch.cat([grad.flatten() for grad in one.values()]) for one in gradients]
    alike = torch.cosine_similarity(*flat, dim=0).item()
    assert alike > (0.95 if "moe" in folder.name else 0.98), alike


def test_the_cycle_stays_exact_over_three_refits(served):
    """Sample, train with checkpointing in two micro-batches, float32 masters, refit with what was trained."""
    folder, llm, (sampled, _) = served
    model = trainer(folder)
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    masters = {name: w.detach().float() for name, w in model.named_parameters()}
    optimizer = torch.optim.AdamW(masters.values(), lr=1e-3)
    for step in range(3):
        for rows in ((0, 1, 2), (3, 4, 5)):
            part = sampled.some(rows)
            found = trained(model, part)
            assert unequal(found, part) == 0, step
            loss_of(found, part).backward()
        for name, w in model.named_parameters():
            masters[name].grad, w.grad = w.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for name, w in model.named_parameters():
                before = w.clone()
                assert w.copy_(masters[name]).ne(before).any() or w.dim() == 1, name  # BF16 keeps a norm's weight long
        model.save_pretrained(folder / "trained")
        send(llm, checkpoint(folder / "trained"))
        sampled = sample(llm, 0.8, seed=step)
    with torch.no_grad():
        assert unequal(trained(model, sampled), sampled) == 0
    send(llm, checkpoint(folder))


def check_rank(rank: int, out: Path, folder: Path, sampled: Sampled) -> None:
    """A rank of FSDP2 with its own sequences."""
    sys.path.append(str(HERE.parent / "unit"))
    from gloo_ranks import join, leave
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from ascend_quant.exact import apply_exact

    join(rank, 2, out)
    model = trainer(folder, torch.float32, ranks=None)
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    names = list(model.state_dict())
    apply_exact(model)
    assert list(model.state_dict()) == names
    own = sampled.some(range(rank, 6, 2))
    found = trained(model, own)
    assert unequal(found, own) == 0, rank
    loss_of(found, own).backward()
    for name, w in model.named_parameters():
        grad = w.grad.full_tensor()
        assert w.dtype == grad.dtype == torch.float32 and grad.isfinite().all() and grad.any(), name
    leave()


def test_two_ranks_of_fsdp2_with_float32_masters(served, tmp_path):
    folder, _, (_, sampled) = served
    if folder.name.rpartition("-")[0] not in SHARDED:
        pytest.skip("the other kinds shard alike")
    mp.spawn(check_rank, (tmp_path, folder, sampled), nprocs=2)
