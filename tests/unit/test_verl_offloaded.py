"""What leaves is made before an update's weights wait on the host, and used for these alone: verl's own engine."""

from contextlib import nullcontext

import pytest

pytest.importorskip("verl", reason="the engine is verl's")
pytest.importorskip("vllm", reason="verl's workers need vLLM")

import torch
import torch.multiprocessing as mp
from gloo_ranks import join, leave

from ascend_quant.refit.coding import coded
from ascend_quant.refit.proof import Receiving
from ascend_quant.schemes import SCHEMES

RANKS = 1  # shares of more are gathered in test_verl_gathering.py
INT8 = SCHEMES["int8"]
CODED = "model.layers.0.mlp.up_proj.weight"


def worker_of(folder, ahead: bool = True):
    """The worker that sends, with verl's engine, whose weights wait on the host."""
    from packed_engine import build
    from verl.workers.engine_workers import ActorRolloutRefWorker

    from ascend_quant.integrations.verl import packed_attention, sender, sent_figures

    own = object.__new__(sender.sends_weights(ActorRolloutRefWorker, "bfloat16").actor_worker_cls)
    own.engine, own.figures = build(folder, packed_attention.PACKED, 1, offload=True), sent_figures.SentFigures()
    own.makes_ahead, own.bucket = ahead, 1 << 30
    own.engine.to = own.offloaded.before(own.engine.to)
    return own


def update(own, by: float, mode: str = "train") -> None:
    """Every weight grows; the engine takes its weights and gives them back as around an update or a pass."""
    engine, trains = own.engine, mode == "train"
    around = own.offloaded.updating() if trains else nullcontext()
    with around, engine.train_mode() if trains else engine.eval_mode(), torch.no_grad():
        for parameter in engine.module.parameters() if by else ():
            parameter.add_(by)


def expected(own) -> dict[str, torch.Tensor]:
    """Of verl's whole weights."""
    found = {}
    for name, whole in own.engine.get_per_tensor_param()[0]:
        if name in own.coded:
            name, whole = coded([(name, whole)], INT8)[0]
        found[name] = whole.bfloat16() if whole.is_floating_point() and whole.dim() == 2 else whole
    return found


def synced(own) -> int:
    """The bytes that had been made ahead of a sync, whose weights are those that the engine has now."""
    receiving, wanted = Receiving(), expected(own)
    found = dict(receiving.take(list(own.as_sent(own.engine.get_per_tensor_param()[0]))))
    assert receiving.prove() == len(wanted) and found.keys() == wanted.keys()
    assert all(torch.equal(found[name], one) for name, one in wanted.items())
    return own.figures.as_metrics()["refit/bytes_ahead"]


def check_floats(folder) -> None:
    own = worker_of(folder)
    assert synced(own) == 0  # of the weights that training begins with
    update(own, 0.5)
    matrices = [parameter for parameter in own.engine.module.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in own.engine.module.parameters() if parameter.dim() != 2]
    bf16, fp32 = (sum(one.to_local().numel() for one in group) for group in (matrices, others))
    assert bf16 * 2 + fp32 * 4 <= synced(own) <= bf16 * 2 + fp32 * 4 + 16 * len(others)
    assert synced(own) == 0  # once; a sync again begins with the weights on the host
    update(own, 0.25)
    update(own, 0.0, "eval")
    assert synced(own) == 0
    update(own, 0.25)
    with torch.no_grad():
        matrices[0].add_(1)  # as a checkpoint that is loaded
    assert synced(own) == 0
    update(own, 0.25)
    own.scheme, own.coded = INT8, frozenset({CODED})  # the engines have named them meanwhile
    assert synced(own) == 0


def check_codes(folder) -> None:
    for ahead in (True, False):
        own = worker_of(folder, ahead)
        own.send_codes(INT8, frozenset({CODED, CODED.replace("up_proj", "down_proj")}))
        for _ in range(2):
            update(own, 0.125)
            assert (synced(own) > 0) == ahead


def check_rank(rank: int, folder) -> None:
    join(rank, RANKS, folder)
    import verl  # noqa: F401  the plugin brings the cpu platform

    check_floats(folder)
    check_codes(folder)
    leave()


def test_what_was_made_ahead_is_what_leaves(tmp_path, monkeypatch):
    from packed_engine import plain_model

    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    plain_model().save_pretrained(tmp_path / "model")
    mp.spawn(check_rank, (tmp_path,), nprocs=RANKS)
